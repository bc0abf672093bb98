"""Values that a notebook records, for prose to glue in and for tests to read back.

A recorded value is an output of the format that myst-nb's ``glue`` reads, written without importing it, so
that a notebook needs no Sphinx to run. On the page ``{glue:text}`name:.2f``` shows it.
"""

from __future__ import annotations

import ast
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import run_context

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PREFIX = "application/papermill.record/"
MARKS = "specdec"
"""Key of an output's metadata below which it says what of it comes from a clock (:func:`timed_names`)."""


class RecordError(ValueError):
    """A value cannot be recorded, or what was recorded contradicts itself."""


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


def record(name: str, value: Any, display: bool = False, timed: bool = False) -> None:
    """Record one value under a name that is unique in the notebook, and with ``display`` show it.

    ``timed`` says that it comes from a clock, or follows from values that do, so that a second run of the same code may
    give another one. RecordError if the name is not an identifier or the value cannot be recorded (:func:`plain`).
    """
    from IPython.display import display as show

    if not name.isidentifier():
        raise RecordError(f"{name!r} is no name for a record: use letters, digits and underscores")
    value = plain(value, name)
    if display:
        print(f"{name} = {value}")
    show(
        {_PREFIX + "text/plain": repr(value)},
        raw=True,
        metadata={"scrapbook": {"name": name, "mime_prefix": _PREFIX}, MARKS: {"timed": timed}},
    )


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


def recorded(notebook: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Read back every value that an executed notebook recorded.

    Parameters
    ----------
    notebook : path or mapping
        An executed copy, or its content.

    Raises
    ------
    RecordError
        One name was recorded with two different values.
    """
    values: dict[str, Any] = {}
    for output in _outputs(notebook):
        name = _name(output)
        if name is None or _PREFIX + "text/plain" not in output["data"]:
            continue  # no record, or a figure
        value = ast.literal_eval(output["data"][_PREFIX + "text/plain"])
        if name in values and values[name] != value:
            raise RecordError(f"{name!r} is recorded as {values[name]!r} and as {value!r}")
        values[name] = value
    return values


def timed_names(notebook: str | Path | Mapping[str, Any]) -> set[str]:
    """Return the names that an executed notebook recorded with ``timed=True``."""
    return {_name(output) for output in _outputs(notebook) if _name(output) and _marks(output).get("timed")}


def _outputs(notebook: str | Path | Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if not isinstance(notebook, Mapping):
        import nbformat

        notebook = nbformat.read(str(notebook), as_version=4)
    for cell in notebook["cells"]:
        yield from cell.get("outputs", [])


def _name(output: Mapping[str, Any]) -> str | None:
    return output.get("metadata", {}).get("scrapbook", {}).get("name")


def _marks(output: Mapping[str, Any]) -> Mapping[str, Any]:
    return output.get("metadata", {}).get(MARKS, {})
