"""Declared parameters are read, and all else refused by name; the static checks find the faults they name, and none in a sound notebook."""

import json
import re

import pytest

from specdec_lib.report import params
from specdec_lib.report.build import check
from tests.report.notebook_factory import write_notebook


def spoil(path, change):
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(check.canonical(content), encoding="utf-8")


@pytest.mark.parametrize(("change", "told"), [
    (lambda nb: nb["cells"][1].update(execution_count=1), "outputs"),
    (lambda nb: nb["cells"][4].update(source="# Second"), "headings of the first level"),
    (lambda nb: nb["cells"][2]["metadata"].clear(), "tagged 'parameters'"),
    (lambda nb: nb["cells"][2].update(source="alpha: float = 1.0"), "no comment"),
    (lambda nb: nb["cells"][3].update(source="1"), "check_parameters"),
    (lambda nb: nb["cells"][5].update(source="x = 1\n" * 15), "15 lines"),
    (lambda nb: nb["cells"][5].update(source='open("/home/me/x")'), "absolute path"),
    (lambda nb: nb["cells"][5]["metadata"].update(mystnb={"figure": {"caption": "c"}}), "fig-"),
    (lambda nb: nb["cells"][5]["metadata"].update(mystnb={"figure": {"name": "fig-a"}}), "alt text"),
    (lambda nb: nb["cells"][5]["metadata"].update(tags=["hide-cell"]), "say what it holds"),
    (lambda nb: nb["metadata"]["kernelspec"].update(name="julia"), "python3"),
    (lambda nb: nb.update(nbformat_minor=4), "valid|4.5"),
])  # fmt: skip
def test_each_fault_is_found_and_named(tmp_path, change, told):
    path = write_notebook(tmp_path)
    spoil(path, change)
    faults = check.check_notebook(path)
    assert any(any(part in fault for part in told.split("|")) for fault in faults), faults


def test_a_sound_notebook_has_no_fault_and_its_parameters_cell_a_line_for_each_parameter(tmp_path):
    path = write_notebook(tmp_path)
    assert check.check_notebook(path) == []
    many = "".join(f"number_{i}: int = {i}  # one of many\n" for i in range(20))
    spoil(path, lambda nb: nb["cells"][2].update(source=many))
    assert check.check_notebook(path) == []

    path.write_text(json.dumps(json.loads(path.read_text())), encoding="utf-8")
    assert any("canonically" in fault for fault in check.check_notebook(path))


def test_a_sound_book_has_no_fault_and_pages_and_claims_that_cannot_be_read_are_found(tmp_path):
    toc = "format: jb-book\nroot: intro\nparts:\n- chapters:\n  - file: notebooks/01_small\n"
    write_notebook(tmp_path / "notebooks")
    (tmp_path / "book" / "notebooks").mkdir(parents=True)
    path = tmp_path / "data" / "claims.yml"
    path.parent.mkdir()
    for file, text in (
        (tmp_path / "book" / "intro.md", "# Title\n"),
        (tmp_path / "book" / "_toc.yml", toc),
        (path, "[]\n"),
    ):
        file.write_text(text)
    assert check.check_all(tmp_path) == []
    for text, told in (
        ("- id: a\n  paper: rest\n    note: too deep\n", "claims.yml: mapping values are not allowed here"),
        ("id: a\n", "claims.yml: .*expected a list of claims"),
        ("- a\n", "claims.yml: .*expected a list of claims"),
        ("- id: a\n", "claims.yml: "),
    ):
        path.write_text(text)
        (fault,) = check.check_all(tmp_path)
        assert re.match(told, fault)
    path.unlink()
    assert any("claims.yml" in fault for fault in check.check_all(tmp_path))
    (tmp_path / "book" / "intro.md").unlink()
    write_notebook(tmp_path / "notebooks", name="02_other")
    faults = check.check_pages(tmp_path)
    assert any("'intro'" in fault for fault in faults) and any("02_other" in fault for fault in faults)


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
    ("ks", "[2024-01-01, 2024-13-45]", ["2024-01-01", "2024-13-45"]), ("ks", "[3, 4]", [3, 4]), ("limits", "{code: 2}", {"code": 2}), ("fast", "true", True),
])  # fmt: skip
def test_words_of_the_command_line_are_read_as_the_declared_type(name, text, value):
    read = params.parse_value(text, DECLARED[name])
    if name == "alpha":  # an integer becomes a float where one is declared
        read = params.validate({"alpha": read}, DECLARED)["alpha"]
    assert read == value and type(read) is type(value)


COUNTS = params.parse_declarations("""
some: int = 3              # at least one
any: int = 0               # or none
seeds: list[int] = [0]     # of sampling
sizes: list[int] = [1, 2]  # of stores
names: list[str] = []      # or none
groups: dict[str, str] = {"a": "b"}  # by task
share: float = 0.5         # of something
""")


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("some", 1, ""), ("some", 0, "some: .* or equal to 1"), ("some", -1, "some: .* or equal to 1"), ("any", 0, ""), ("any", -1, "any: .* or equal to 0"),
    ("seeds", [0], ""), ("seeds", [-1], r"seeds\[0\]: .* or equal to 0"), ("seeds", [], "at least 1 item"),
    ("sizes", [1, 0], r"sizes\[1\]: .* or equal to 1"), ("names", [], ""), ("groups", {}, "at least 1 item"), ("share", 0, ""), ("share", -0.5, ""),
])  # fmt: skip
def test_a_count_is_as_large_as_its_default_asks_for_and_a_list_is_not_empty(name, value, expected):
    try:
        params.validate({name: value}, COUNTS)
        told = ""
    except params.UsageError as error:
        told = str(error)
    assert bool(told) == bool(expected) and re.search(expected, told)


CELL = {"cell_type": "code", "source": "a: int = 1", "metadata": {"tags": ["parameters"]}}


@pytest.mark.parametrize("call, words", [
    (lambda: params.parse_declarations("alpha = 0.5"), "write 'name: type = value"),
    (lambda: params.parse_declarations("alpha: float"), "write 'name: type = value"),
    (lambda: params.parse_declarations("print(1)"), "write 'name: type = value"),
    (lambda: params.parse_declarations("alpha: float = 1 / 2"), "'alpha': its default must be a literal"),
    (lambda: params.parse_declarations("alpha: float = 'x'"), "'alpha' is declared float but its default is 'x'"),
    (lambda: params.parse_declarations("alpha: float | None = None"), "cannot be used for a parameter"),
    (lambda: params.declared_parameters({"cells": []}), "exactly one"),
    (lambda: params.declared_parameters({"cells": [CELL, CELL]}), "exactly one"),
    (lambda: params.validate({"alpha": params.parse_value("1e400", DECLARED["alpha"])}, DECLARED), "alpha"),
    (lambda: params.validate({"alpha": params.parse_value("9" * 400, DECLARED["alpha"])}, DECLARED), "alpha"),
    (lambda: params.parse_value("[1, 2", DECLARED["ks"]), "'ks': .* cannot be read as"),
])  # fmt: skip
def test_a_badly_written_declaration_or_value_is_refused(call, words):
    with pytest.raises(params.UsageError, match=words):
        call()
