"""Values become plain Python, and a figure is kept for the top of its page."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nbformat.v4 import new_code_cell, new_output

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report import plots
from specdec_lib.report.display import record


@pytest.fixture
def outputs(monkeypatch):
    """What is shown, as the outputs of a cell."""
    shown = []

    def display(data, **options):
        kept = isinstance(data, dict)
        shown.append(new_output("display_data", data=data, metadata=options["metadata"]) if kept else data)

    monkeypatch.setattr("IPython.display.display", display)
    return shown


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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("nan")], None, object(), np.ones(2)])
def test_what_is_no_value_is_refused(value):
    with pytest.raises(record.RecordError, match="'rate'"):
        record.plain(value, "rate")


def test_a_figure_is_what_glue_puts_on_the_page_and_no_value(outputs, monkeypatch):
    figure, _ = plots.new()
    record.record_figure("answer", figure)
    kept, shown = outputs
    assert shown is figure, "outside of a run the figure is shown as well"
    glue = pytest.importorskip("myst_nb.ext.glue")
    ((name, output),) = glue.extract_glue_data_cell(new_code_cell("", outputs=[kept]))
    assert name == "answer" and "<svg" in output["data"]["image/svg+xml"]


def test_a_name_that_glue_cannot_address_is_refused():
    with pytest.raises(record.RecordError, match="tokens per forward"):
        record.record_figure("tokens per forward", None)
