"""A chapter's table of numbers: what is saved is read back, and what cannot be saved or found is said by name."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report import numbers
from specdec_lib.report.numbers import NumberError


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counted = {
        "ratio": Interval(1.25, 1.125, 1.5),
        "alone": Interval(2.0, math.nan, math.nan),
        "outputs": 12,
        "holds": True,
        "share": np.float64(0.1),
        "name": "PLD+ (h)",
        "none": None,
        "unknown": math.inf,
    }
    return numbers.read(numbers.save("04", counted, timed={"ms": 3.5}))


def test_what_is_saved_is_read_back(saved):
    assert saved["ratio"] == numbers.Number(1.25, 1.125, 1.5)
    assert (saved["outputs"].value, saved["holds"].value, saved["share"].value) == (12, 1, 0.1)
    assert saved["ms"].timed and not saved["share"].timed
    assert saved["name"].words == "PLD+ (h)" and saved["none"].words == saved["unknown"].words == numbers.MISSING


@pytest.mark.parametrize(
    ("key", "spec", "text"),
    [
        ("ratio", ".2f", "1.25 (1.12\u2060–\u20601.50)"),
        ("alone", ".1f", "2.0"),
        ("outputs", ",d", "12"),
        ("share", ".0%", "10%"),
        ("name", ".2f", "PLD+ (h)"),
        ("none", ".2f", "not available"),
    ],
)
def test_a_number_prints_itself_with_its_interval(saved, key, spec, text):
    assert format(saved[key], spec) == text


@pytest.mark.parametrize(
    ("counted", "timed", "words"),
    [
        ({"a b": 1}, {}, "'a b' is no key"),
        ({"a": 1}, {"a": 2}, "'a' is counted and timed"),
        ({"a": [1]}, {}, "'a' is a list; expected an Interval"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(tmp_path, monkeypatch, counted, timed, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NumberError, match=words):
        numbers.save("04", counted, timed)
    assert list(tmp_path.iterdir()) == []


def test_executed_numbers_stand_before_committed_ones(tmp_path):
    for folder, value in (("executed/files/04_pld_plus", 2), ("committed", 1)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "04.csv").write_text(f"{','.join(numbers.COLUMNS)}\nkey,{value},,,,default,\n")
    tables = numbers.tables(tmp_path / "executed", tmp_path / "committed")
    assert numbers.look_up("04/key", tables).value == 2
    assert numbers.look_up("04/key", numbers.tables(tmp_path / "none", tmp_path / "committed")).value == 1
    with pytest.raises(NumberError, match="no number '04/kay'; did you mean key"):
        numbers.look_up("04/kay", tables)
