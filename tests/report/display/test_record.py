"""Recorded values are what was measured, as plain Python."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import record


def notebook(*records):
    outputs = [
        {
            "output_type": "display_data",
            "data": {"application/papermill.record/text/plain": repr(value)},
            "metadata": {"scrapbook": {"name": name, "mime_prefix": "application/papermill.record/"}},
        }
        for name, value in records
    ]
    return {"cells": [{"cell_type": "code", "outputs": outputs}]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.5), 0.5),
        (np.int32(3), 3),
        (np.bool_(True), True),
        (np.array(2.0), 2.0),
        (torch.tensor(4), 4),
        ([np.float32(0.25), 1], [0.25, 1]),
        ({"a": np.int64(1)}, {"a": 1}),
        (Interval(1.5, np.float64(1.25), 2.0), {"value": 1.5, "low": 1.25, "high": 2.0}),
        (Interval(1.5, float("nan"), float("nan")), "not available"),
        ("text", "text"),
    ],
)
def test_numbers_of_libraries_become_plain_ones(value, expected):
    plain = record.plain(value)
    assert plain == expected and type(plain) is type(expected)
    assert "np." not in repr(plain)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), np.float64("nan"), [1.0, float("nan")], None, object(), np.ones(2)]
)
def test_what_is_no_value_is_refused(value):
    with pytest.raises(record.RecordError, match="'rate'"):
        record.plain(value, "rate")


def test_a_figure_is_kept_for_the_top_of_its_page_and_is_no_value(monkeypatch):
    from specdec_lib.report.display import figures

    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append((data, options)))
    monkeypatch.setenv("SPECDEC_RUN", '{"notebook": "01_a", "profile": "smoke", "files": "x", "sha256": ""}')
    record.record_figure("answer", figures.new()[0])
    ((data, options),) = shown
    assert data["application/papermill.record/image/svg+xml"].lstrip().startswith("<?xml")
    output = {"output_type": "display_data", "data": data, "metadata": options["metadata"]}
    assert record.recorded({"cells": [{"cell_type": "code", "outputs": [output]}]}) == {}
    monkeypatch.delenv("SPECDEC_RUN")
    record.record_figure("answer", figures.new()[0])
    assert len(shown) == 3, "outside of a run the figure is shown as well"
    with pytest.raises(record.RecordError, match="no name"):
        record.record_figure("an answer", figures.new()[0])


def test_several_values_are_recorded_under_their_names(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append((data, options)))
    record.record_all({"one": 1, "two": 0.5}, timed=True)
    cells = [{"outputs": [{"data": data, "metadata": options["metadata"]} for data, options in shown]}]
    assert record.recorded({"cells": cells}) == {"one": 1, "two": 0.5}
    assert record.timed_names({"cells": cells}) == {"one", "two"}


def test_a_recorded_value_is_the_output_that_glue_reads(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append((data, options)))
    with redirect_stdout(io.StringIO()) as printed:
        record.record("rate", np.float64(0.25), display=True)
    record.record("ms", 3, timed=True)
    outputs = [
        {"output_type": "display_data", "data": data, "metadata": options["metadata"]} for data, options in shown
    ]
    assert all(options["raw"] is True for _, options in shown)
    assert record.recorded({"cells": [{"outputs": outputs}]}) == {"rate": 0.25, "ms": 3}
    assert record.timed_names({"cells": [{"outputs": outputs}]}) == {"ms"}
    assert printed.getvalue() == "rate = 0.25\n"


def test_a_name_that_glue_cannot_address_is_refused():
    with pytest.raises(record.RecordError, match="tokens per forward"):
        record.record("tokens per forward", 1.0)


def test_values_are_read_back_by_name():
    assert record.recorded(notebook(("a", 1), ("b", [1, 2.5]), ("a", 1))) == {"a": 1, "b": [1, 2.5]}


def test_one_name_with_two_values_is_refused():
    with pytest.raises(record.RecordError, match="'a'"):
        record.recorded(notebook(("a", 1), ("a", 2)))
