"""One look for all figures: colours that stay apart for colour-blind readers, one colour a method, SVG."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_lib import methods
from specdec_lib.experiments.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Okabe and Ito's colours without yellow and black, which vanish on a light or a dark page."""

HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oooo", "||||")
"""Told apart on paper without colours: the first series is filled, the next ones are hatched."""

WIDEST = 8.4
"""Inches; a wider figure would be shrunk to the page until its letters cannot be read."""

STYLE: dict[str, Any] = {
    "figure.figsize": (6.4, 3.6),
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.bbox": None,
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#666666",
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "svg.fonttype": "path",
    "svg.hashsalt": "specdec",
}
"""Settings of matplotlib; text is drawn as paths, so a page looks the same wherever it is read."""


def use_style() -> None:
    """Set the style for the rest of the process and, inside Jupyter, SVG as the format of figures."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(STYLE)
    mpl.rcParams["axes.prop_cycle"] = cycler(color=list(PALETTE))
    try:
        from IPython import get_ipython
    except ModuleNotFoundError:
        return
    if get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        # Without a date, the same data give the same bytes.
        set_matplotlib_formats("svg", metadata={"Date": None}, bbox_inches=None)


def color(method: str) -> str:
    """Return the colour of a method; an unknown name always gets the same one of the palette."""
    if method in methods.METHODS:
        return methods.METHODS[method].color
    if method == methods.PLAIN:
        return methods.PLAIN_COLOR
    return PALETTE[int(hashlib.sha256(method.encode()).hexdigest(), 16) % len(PALETTE)]


def marker(method: str) -> str:
    """Return the marker of a method, so that lines can be told apart without colour.

    Another name has that of the first method of its colour.
    """
    if method in methods.METHODS:
        return methods.METHODS[method].marker
    return next((row.marker for row in methods.METHODS.values() if row.color == color(method)), methods.PLAIN_MARKER)


def new(width: float = 6.4, height: float = 3.6, columns: int = 1, rows: int = 1, **kwargs: Any) -> tuple[Figure, Any]:
    """Return a figure and its axes; ``kwargs`` go to ``matplotlib.pyplot.subplots``.

    Sizes are in inches; a width above :data:`WIDEST` is cut to it.

    The figure is closed for pyplot, so that Jupyter shows it once: as the value of the cell that returns it.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=(min(width, WIDEST), height), **kwargs)
    plt.close(figure)
    return figure, axes


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str], most: int = 4) -> None:
    """Put one legend below all axes, in at most ``most`` columns and no more than the figure is wide enough for."""
    for columns in range(min(most, len(labels)), 0, -1):
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def points(values: Sequence[float | Interval]) -> list[float]:
    """The numbers of a series that may hold intervals."""
    return [value.value if isinstance(value, Interval) else value for value in values]


def whiskers(ax: Axes, x: Sequence[float], values: Sequence[float | Interval], color: str = "#444444") -> None:
    """Draw the intervals of a series as vertical lines; a value without one, or whose ends are not known, has none."""
    drawn = [
        (place, value) for place, value in zip(x, values, strict=True) if isinstance(value, Interval) and value.known
    ]
    if drawn:
        ax.vlines(
            [place for place, _ in drawn],
            [interval.low for _, interval in drawn],
            [interval.high for _, interval in drawn],
            color=color,
            linewidth=1.2,
        )


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | Interval]],
    ylabel: str,
    reference: float | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw one bar a group and method.

    Parameters
    ----------
    groups : sequence of str
        Labels on the x axis.
    series : mapping
        By method: one height a group. NaN leaves a gap; an interval has a whisker.
    ylabel : str
        With its unit.
    reference : float, optional
        Height of a dashed line, such as 1 for plain decoding.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure without it.
    """
    ax = new()[1] if ax is None else ax
    width = 0.8 / max(len(series), 1)
    for place, (method, heights) in enumerate(series.items()):
        x = [group - 0.4 + width * (place + 0.5) for group in range(len(groups))]
        ax.bar(
            x,
            points(heights),
            width=width * 0.92,
            label=method,
            color=color(method),
            edgecolor="white",
            linewidth=0,
            hatch=HATCHES[place % len(HATCHES)],
        )
        whiskers(ax, x, heights)
    ax.set_xticks(range(len(groups)), groups)
    ax.grid(axis="x", visible=False)
    if reference is not None:
        ax.axhline(reference, color="#444444", linestyle="--", linewidth=1)
    return _finish(ax, "", ylabel, len(series) > 1)


def _finish(ax: Axes, xlabel: str, ylabel: str, legend: bool) -> Figure:
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if legend:
        ax.legend()
    return ax.figure
