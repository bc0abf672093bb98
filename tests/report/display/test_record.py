"""A figure is kept for the top of its page."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_code_cell, new_output

from specdec_lib.report import plots
from specdec_lib.report.display import session


@pytest.fixture
def outputs(monkeypatch):
    """What is shown, as the outputs of a cell."""
    shown = []

    def display(data, **options):
        kept = isinstance(data, dict)
        shown.append(new_output("display_data", data=data, metadata=options["metadata"]) if kept else data)

    monkeypatch.setattr("IPython.display.display", display)
    return shown


def test_a_figure_is_what_glue_puts_on_the_page_and_no_value(outputs, monkeypatch):
    figure, _ = plots.new()
    session.record_figure("answer", figure)
    kept, shown = outputs
    assert shown is figure, "outside of a run the figure is shown as well"
    glue = pytest.importorskip("myst_nb.ext.glue")
    ((name, output),) = glue.extract_glue_data_cell(new_code_cell("", outputs=[kept]))
    assert name == "answer" and "<svg" in output["data"]["image/svg+xml"]


def test_a_name_that_glue_cannot_address_is_refused():
    with pytest.raises(ValueError, match="tokens per forward"):
        session.record_figure("tokens per forward", None)
