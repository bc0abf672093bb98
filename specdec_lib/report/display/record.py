"""Plain values for JSON, and the figure that a notebook keeps for the top of its page.

The figure is an output of the format that myst-nb's ``glue`` reads, written without importing it, so that a notebook needs
no Sphinx to run.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import run_context

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PREFIX = "application/papermill.record/"


class RecordError(ValueError):
    """A value that JSON cannot hold, or a name that no page can address."""


def plain(value: Any, name: str = "value") -> Any:
    """Return ``value`` as Python's own int, float, bool, str, list or dict.

    NumPy scalars, 0-d arrays and 0-d tensors are converted, because their ``repr`` (``np.float64(0.5)``)
    would reach the page. An :class:`~specdec_lib.experiments.statistics.Interval` becomes a dict of ``value``, ``low``
    and ``high``, or the text ``"not available"`` where its ends are not known.

    Raises
    ------
    RecordError
        The value is not finite, or of a kind that does not survive writing and reading.
    """
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, Interval):
        return {key: plain(number, name) for key, number in value._asdict().items()} if value.known else "not available"
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"{name!r} is {value}: record a text such as 'not available' where there is no number")
    if type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item, name) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item, name) for key, item in value.items()}
    raise RecordError(f"{name!r} is a {type(value).__name__}: record a number, a text, or a list or dict of them")


def record_figure(name: str, figure: Figure) -> None:
    """Keep a figure for the top of its page, where ``{glue:figure} name`` puts it; outside of a run, show it here.

    RecordError if the name is not an identifier.
    """
    from IPython.display import display as show

    if not name.isidentifier():
        raise RecordError(f"{name!r} is no name for a record: use letters, digits and underscores")
    drawn = io.StringIO()
    # Without a date, the same data give the same bytes.
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    kept = {_PREFIX + "image/svg+xml": drawn.getvalue()}
    show(kept, raw=True, metadata={"scrapbook": {"name": name, "mime_prefix": _PREFIX}})
    if run_context.current() is None:
        show(figure)
