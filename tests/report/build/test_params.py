"""Declared parameters are read from the source, and everything else is refused by name."""

import pytest

from specdec_lib.report.build import params

DECLARED = params.parse_declarations("""
max_new_tokens: int = 128   # tokens per prompt
# chance of acceptance
alpha: float = 0.5
model: str = "pocket"       # a name or a folder
ks: list[int] = [
    1,
    2,                      # and so on
]
limits: dict[str, int] = {"code": 3}  # by task
fast: bool = False          # or not
""")


def test_declarations_give_name_type_default_and_comment():
    assert list(DECLARED) == ["max_new_tokens", "alpha", "model", "ks", "limits", "fast"]
    assert DECLARED["ks"].annotation == "list[int]" and DECLARED["ks"].default == [1, 2]
    assert (DECLARED["max_new_tokens"].help, DECLARED["alpha"].help) == ("tokens per prompt", "chance of acceptance")


@pytest.mark.parametrize(("name", "value"), [
    ("max_new_tokens", 1.5), ("max_new_tokens", True), ("max_new_tokens", "8"), ("alpha", "abc"),
    ("alpha", float("nan")), ("alpha", False), ("model", 3), ("ks", [1, "2"]), ("ks", 4), ("limits", {"code": 0.5}),
    ("limits", {1: 1}), ("fast", 1),
])  # fmt: skip
def test_a_value_of_another_type_is_refused_by_name_and_type(name, value):
    with pytest.raises(params.UsageError) as error:
        params.validate({name: value}, DECLARED, "01_small")
    assert all(words in str(error.value) for words in (repr(name), DECLARED[name].annotation, repr(value)))


def test_all_faults_are_told_at_once_and_an_unknown_name_with_its_close_match():
    with pytest.raises(params.UsageError) as error:
        params.validate({"alhpa": 0.1, "fast": 3, "zzz": 1}, DECLARED, "01_small")
    assert "unknown parameter 'alhpa' of 01_small: did you mean 'alpha'?" in str(error.value)
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize(("name", "text", "value"), [
    ("model", "123", "123"), ("model", "true", "true"), ("max_new_tokens", "8", 8),
    ("max_new_tokens", "010", 10), ("max_new_tokens", "1:30", "1:30"),  # in YAML 1.1 8 and 90; the second is refused
    ("alpha", "1", 1.0), ("alpha", "1e-3", 0.001), ("alpha", "-.5", -0.5), ("ks", "[010, 1:30]", [10, "1:30"]),
    ("ks", "[3, 4]", [3, 4]), ("limits", "{code: 2}", {"code": 2}), ("fast", "true", True),
])  # fmt: skip
def test_words_of_the_command_line_are_read_as_the_declared_type(name, text, value):
    read = params.parse_value(text, DECLARED[name])
    if name == "alpha":  # an integer becomes a float where one is declared
        read = params.validate({"alpha": read}, DECLARED)["alpha"]
    assert read == value and type(read) is type(value)
    with pytest.raises(params.UsageError, match="ks"):  # no YAML
        params.parse_value("[1, 2", DECLARED["ks"])


@pytest.mark.parametrize("source", [
    "alpha = 0.5", "alpha: float", "alpha: float = 1 / 2", "alpha: float = 'x'", "alpha: float | None = None",
    "print(1)",
])  # fmt: skip
def test_a_badly_written_declaration_is_refused(source):
    with pytest.raises(params.UsageError):
        params.parse_declarations(source)


@pytest.mark.parametrize("count", [0, 2])
def test_a_notebook_needs_exactly_one_parameters_cell(count):
    cell = {"cell_type": "code", "source": "a: int = 1", "metadata": {"tags": ["parameters"]}}
    with pytest.raises(params.UsageError, match="exactly one"):
        params.declared_parameters({"cells": [cell] * count})
