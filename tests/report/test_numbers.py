"""A chapter's table of numbers: what is saved is read back, and what cannot be saved is refused."""

import math

import numpy as np
import pytest

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report import numbers
from specdec_lib.report.display import run_context
from specdec_lib.report.numbers import Number, NumberError


@pytest.fixture
def run(tmp_path, monkeypatch):
    context = run_context.RunContext("04_x", "smoke", str(tmp_path / "files" / "04_x"), "")
    monkeypatch.setenv(run_context.VARIABLE, context.dumps())
    return tmp_path


def test_what_is_saved_is_read_back(run):
    counted = {
        "ratio": Interval(1.23456789, 1.0, 1.5), "unknown": Interval(1.5, math.nan, math.nan), "count": 12,
        "share": 1.0, "scalar": np.float64(0.25), "yes": np.bool_(True), "name": "160m, a shape", "nan": math.nan,
        "none": None,
    }  # fmt: skip
    path = numbers.save("04", counted, timed={"seconds": 2.5})
    found = numbers.read(path)
    assert path == run / "files" / "04_x" / "04.csv" and list(found) == [*counted, "seconds"]
    assert found["ratio"] == Number(1.23457, 1.0, 1.5, profile="smoke")
    assert f"{found['unknown']:.2f}" == "1.50 (–)" and f"{found['ratio']:.2f}" == "1.23 (1.00\u2060–\u20601.50)"
    kinds = {name: type(found[name].value) for name in ("count", "share", "scalar", "yes")}
    assert kinds == {"count": int, "share": float, "scalar": float, "yes": int}
    assert found["name"].words == "160m, a shape" and f"{found['nan']:.2f}" == f"{found['none']}" == numbers.MISSING
    assert found["seconds"].timed and not found["count"].timed
    assert numbers.tables(run)["04"] == found


@pytest.mark.parametrize(
    "counted, timed, message",
    [({"a b": 1}, {}, "'a b' is no key"), ({"a": [1]}, {}, "'a' is a list"), ({"a": 1}, {"a": 2}, "counted and timed")],
)
def test_what_cannot_be_saved_is_refused(run, counted, timed, message):
    with pytest.raises(NumberError, match=message):
        numbers.save("04", counted, timed)


def test_a_key_that_is_not_there_names_those_that_are_near():
    tables = {"04": {"h10_over_pld10": Number(1.0)}}
    assert numbers.look_up("04/h10_over_pld10", tables).value == 1
    with pytest.raises(NumberError, match="'04/h10_over_pld'; did you mean h10_over_pld10"):
        numbers.look_up("04/h10_over_pld", tables)
    with pytest.raises(NumberError, match="no key of that chapter is near"):
        numbers.look_up("05/x", tables)
