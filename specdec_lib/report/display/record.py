"""The figure that a notebook keeps for the top of its page.

The figure is an output of the format that myst-nb's ``glue`` reads, written without importing it, so that a notebook needs
no Sphinx to run.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from specdec_lib.report.display import run_context

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PREFIX = "application/papermill.record/"


def record_figure(name: str, figure: Figure) -> None:
    """Keep a figure for the top of its page, where ``{glue:figure} name`` puts it; outside of a run, show it here."""
    from IPython.display import display as show

    if not name.isidentifier():
        raise ValueError(f"{name!r} is no name for a record: use letters, digits and underscores")
    drawn = io.StringIO()
    # Without a date, the same data give the same bytes.
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    kept = {_PREFIX + "image/svg+xml": drawn.getvalue()}
    show(kept, raw=True, metadata={"scrapbook": {"name": name, "mime_prefix": _PREFIX}})
    if run_context.current() is None:
        show(figure)
