"""A figure that is kept for the top of its page."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_code_cell, new_output

from specdec_lib.report.display import figures, record


def test_a_recorded_figure_is_what_glue_puts_on_the_page_and_no_recorded_value(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append((data, options)))
    figure, _ = figures.new()
    record.record_figure("answer", figure)
    (data, options), *direct = shown
    # Outside of a run the figure is also shown where it is drawn.
    assert options["raw"] is True and [one for one, _ in direct] == [figure]
    cell = new_code_cell("", outputs=[new_output("display_data", data=data, metadata=options["metadata"])])
    assert record.recorded({"cells": [cell]}) == {} and record.timed_names({"cells": [cell]}) == set()
    glue = pytest.importorskip("myst_nb.ext.glue")
    ((name, output),) = glue.extract_glue_data_cell(cell)
    assert name == "answer" and "<svg" in output["data"]["image/svg+xml"]


def test_a_figure_whose_name_glue_cannot_address_is_refused():
    figure, _ = figures.new()
    with pytest.raises(record.RecordError, match="first figure"):
        record.record_figure("first figure", figure)
