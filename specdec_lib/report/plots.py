"""The figures of the book: one look for all, colours that stay apart for colour-blind readers, one colour a method, SVG."""

from __future__ import annotations

import hashlib
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

from specdec_lib.experiments.runs.metrics import pooled_metrics
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.methods import PLAIN
from specdec_lib.report.appearance import APPEARANCES, PLAIN_COLOR, PLAIN_MARKER

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from specdec_lib import Generation
    from specdec_lib.chapters.ch08_one_tree import Comparison
    from specdec_lib.drafters.pass_costs import PassCosts

Curve = tuple[Sequence[float], Sequence[float | Interval]]
"""Values of x and of y; intervals among the latter have whiskers."""

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Okabe and Ito's colours without yellow and black, which vanish on a light or a dark page."""

HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oooo", "||||")
"""Told apart on paper without colours: the first series is filled, the next ones are hatched."""

PARTS = {"draft": "#44546a", "verify": "#8795a8", "commit": "#b59a7a", "host": "#a5a5a5"}
"""Parts of a step's time and their colours, which are no method's; of middle lightness, since a dark page turns them round."""

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

_MARKS = "os^Dv*PX"
_DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (8, 2)), (0, (5, 1, 1, 1, 1, 1)), (0, (1, 4)))
#: Ticks of a logarithmic axis, from coarse to fine.
_TICKS = (
    tuple(2.0**power for power in range(-6, 8)),
    (0.125, 0.2, 0.33, 0.5, 0.7, 1, 1.4, 2, 3, 4, 6, 8, 12, 16),
    (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3),
)
_REFERENCE: dict[str, Any] = {"color": "#444444", "linestyle": "--", "linewidth": 1}


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
    if method in APPEARANCES:
        return APPEARANCES[method].color
    if method == PLAIN:
        return PLAIN_COLOR
    return PALETTE[int(hashlib.sha256(method.encode()).hexdigest(), 16) % len(PALETTE)]


def shades(names: Collection[str]) -> dict[str, str]:
    """A colour by name: a method has its own, the others take in turn those of the palette that none of these methods has."""
    known = {name: color(name) for name in names if name in APPEARANCES or name == PLAIN}
    free = [shade for shade in PALETTE if shade not in known.values()] or list(PALETTE)
    others = [name for name in names if name not in known]
    return known | {name: free[place % len(free)] for place, name in enumerate(others)}


def marker(method: str) -> str:
    """Return the marker of a method; another name has that of the first method of its colour."""
    if method in APPEARANCES:
        return APPEARANCES[method].marker
    return next((row.marker for row in APPEARANCES.values() if row.color == color(method)), PLAIN_MARKER)


def new(width: float = 6.4, height: float = 3.6, columns: int = 1, rows: int = 1, **kwargs: Any) -> tuple[Figure, Any]:
    """Return a figure of a size in inches, at most :data:`WIDEST` wide, and its axes; ``kwargs`` go to ``plt.subplots``.

    The figure is closed for pyplot, so that Jupyter shows it once: as the value of the cell that returns it.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=(min(width, WIDEST), height), **kwargs)
    plt.close(figure)
    return figure, axes


def _legend(figure: Figure) -> None:
    """One legend below for the labels of all axes, if there are two or more, in no more columns than the figure is wide enough
    for."""
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if len(entries) < 2:
        return
    for columns in range(2 if len(entries) == 4 else min(3, len(entries)), 0, -1):
        legend = figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _no_data(ax: Axes, words: str = "no data") -> None:
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", color="#666666")


def empty_figure(words: str) -> Figure:
    """A figure that says why nothing is drawn in it."""
    figure, ax = new(5, 0.5)
    ax.set_axis_off()
    _no_data(ax, words)
    return figure


def points(values: Sequence[float | Interval]) -> list[float]:
    """The numbers of a series that may hold intervals."""
    return [value.value if isinstance(value, Interval) else value for value in values]


def whiskers(ax: Axes, x: Sequence[float], values: Sequence[float | Interval], color: str = "#444444") -> list[Artist]:
    """Draw the intervals of a series as vertical lines; a value without one, or whose ends are not known, has none."""
    return [
        ax.vlines(place, value.low, value.high, color=color, linewidth=1.2)
        for place, value in zip(x, values, strict=True)
        if isinstance(value, Interval) and value.known
    ]


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | Interval]],
    ylabel: str,
    reference: float | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw one bar per group and method, on a new figure unless ``ax`` is given, and a dashed line at ``reference``.

    ``series`` has a height a group by method: NaN leaves a gap, and an interval has a whisker. Names of groups are broken to
    fit.
    """
    alone = ax is None
    ax = new()[1] if ax is None else ax
    width = 0.8 / max(len(series), 1)
    own = shades(series)
    for place, (method, heights) in enumerate(series.items()):
        x = [group - 0.4 + width * (place + 0.5) for group in range(len(groups))]
        look = {
            "color": own[method],
            "edgecolor": "white",
            "linewidth": 0,
            "hatch": HATCHES[place % len(HATCHES)],
        }
        ax.bar(x, points(heights), width=width * 0.92, label=method, **look)
        whiskers(ax, x, heights)
    labels = [textwrap.fill(group.replace("-", " "), 10, break_long_words=False) for group in groups]
    ax.set_xticks(range(len(groups)), labels)
    ax.grid(axis="x", visible=False)
    if reference is not None:
        ax.axhline(reference, **_REFERENCE)
    ax.set_ylabel(ylabel)
    if alone:
        _legend(ax.figure)
    return ax.figure


def panels(
    content: Mapping[str, Mapping[str, Curve]],
    xlabel: str,
    ylabel: str | Sequence[str],
    *,
    markers: bool = True,
    integers: bool = False,
    ylim: tuple[float, float] | None = None,
    height: float = 3.6,
    columns: int | None = None,
) -> Figure:
    """Draw panels side by side, by title one line per label: a :data:`Curve`.

    A label is a method, which gives the colour, or ``"method, variant"``; the variant gives the dashes, and the colour too if all
    lines are of one method, which then stand a little apart. ``ylabel`` is one for all panels, which then share their scale, or
    one for each. ``markers`` marks every point, not only about five of each line; ``integers`` makes whole numbers on the x axis;
    ``columns`` are the panels in a row, all by default.
    """
    from matplotlib.ticker import MaxNLocator
    from matplotlib.transforms import ScaledTranslation

    shared = isinstance(ylabel, str)
    columns = columns or len(content)
    figure, axes = new(5.9, height, columns, -(-len(content) // columns), sharey=shared, squeeze=False)
    for ax in axes.flat[len(content) :]:
        ax.set_visible(False)
    labels = [label for curves in content.values() for label in curves]
    variants = list(dict.fromkeys(label.partition(", ")[2] for label in labels))
    # Marks tell lines of one method apart. If all are of one, colours do too: the first has its colour.
    lines = Counter(label.partition(", ")[0] for label in set(labels))
    alone = len(lines) == 1
    own = shades(list(dict.fromkeys(label.partition(", ")[0] for label in labels)))
    marks = {
        name: marker(name) if color(name) == shade else _MARKS[i % len(_MARKS)]
        for i, (name, shade) in enumerate(own.items())
    }
    by_variant = list(dict.fromkeys((*own.values(), *PALETTE)))
    for place, (ax, (title, curves)) in enumerate(zip(axes.flat, content.items(), strict=False)):
        for label, (x, y) in curves.items():
            method, _, variant = label.partition(", ")
            number = variants.index(variant)
            look = {
                "color": by_variant[number % len(by_variant)] if alone else own[method],
                "linestyle": _DASHES[number % len(_DASHES)],
                "marker": _MARKS[number % len(_MARKS)] if lines[method] > 1 else marks[method],
                "markevery": None if markers else max(1, len(x) // 5),
            }
            drawn = [*ax.plot(x, points(y), label=label, **look), *whiskers(ax, x, y, look["color"])]
            if alone:  # a little to the side, so that what coincides is seen
                aside = 0.125 * ((number + 0.5) / len(variants) - 0.5)  # inches
                for artist in drawn:
                    artist.set_transform(ax.transData + ScaledTranslation(aside, 0, figure.dpi_scale_trans))
        ax.set(title=title, xlabel=xlabel)
        if not shared or place % columns == 0:
            ax.set_ylabel(ylabel if shared else ylabel[place])
        if integers:
            ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        if ylim:
            ax.set_ylim(ylim)
        if not any(len(x) for x, _ in curves.values()):
            _no_data(ax)
            ax.set_xticks([])
    _legend(figure)
    return figure


def ratios(
    cases: Mapping[str, Mapping[str, Interval | None]], xlabel: str, reference: float = 1.0, logarithmic: bool = False
) -> Figure:
    """Draw ratios as points with their intervals as whiskers, and an upright line at ``reference``: no difference.

    ``cases`` has, by case from the top down, the ratio by series; None and a value that is no number are left out.
    """
    series = list(dict.fromkeys(name for row in cases.values() for name in row))
    figure, ax = new(7.2, 1.3 + max(0.42, 0.1 + 0.09 * len(series)) * len(cases))
    ax.axvline(reference, **_REFERENCE)
    for row in range(1, len(cases)):
        ax.axhline(row - 0.5, color="#d9d9d9", linewidth=0.6)
    own = shades(series)
    for place, name in enumerate(series):
        shift = (place - (len(series) - 1) / 2) * 0.72 / max(len(series), 1)
        look = {"color": own[name], "marker": _MARKS[place % len(_MARKS)]}
        drawn = [(i + shift, row[name]) for i, row in enumerate(cases.values()) if row.get(name) is not None]
        drawn = [(y, value) for y, value in drawn if value.value == value.value]
        ax.plot([value.value for _, value in drawn], [y for y, _ in drawn], linestyle="", label=name, **look)
        for y, value in drawn:
            if value.known:
                ax.hlines(y, value.low, value.high, color=look["color"], linewidth=1.4)
    ax.set_yticks(range(len(cases)), list(cases))
    ax.set_ylim(len(cases) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    if logarithmic:
        logarithmic_axis(ax)
    ax.set_xlabel(xlabel)
    _legend(figure)
    return figure


def logarithmic_axis(ax: Axes) -> None:
    """Make the x axis logarithmic, with ticks at plain numbers: as coarse ones as leave three within the limits."""
    ax.set_xscale("log", base=2)
    low, high = ax.get_xlim()
    within = [[tick for tick in ticks if low <= tick <= high] for ticks in _TICKS]
    chosen = next((ticks for ticks in within if len(ticks) > 2), max(within, key=len))
    ax.set_xticks(chosen, [f"{tick:g}" for tick in chosen])
    ax.set_xticks([], minor=True)


def time_parts(timings: Mapping[str, Sequence[Sequence[Generation]]]) -> Figure:
    """Draw where the time of a token goes, each part the median of a method's repeats (``recorded_runs.time_methods``)."""
    figure, ax = new(6.4, 1.3 + 0.5 * len(timings))
    for row, repeats in enumerate(timings.values()):
        stats = [pooled_metrics(runs) for runs in repeats]
        left = 0.0
        for part, shade in PARTS.items():
            # Tokens after the prefill, as for ms_per_token.
            width = 1e3 * median(m[f"{part}_seconds"] / (m["tokens_per_forward"] * m["calls"]) for m in stats)
            look = {"color": shade, "edgecolor": "#44546a", "linewidth": 0.6}
            ax.barh(row, width, 0.6, left=left, label=None if row else part, **look)
            left += width
        ax.text(left, row, f" {left:.2f}", va="center")
    ax.set_yticks(range(len(timings)), list(timings))
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("milliseconds per token")
    _legend(figure)
    return figure


def head_maps(
    maps: Mapping[str, np.ndarray], limits: Mapping[str, tuple[float, float]], framed: Sequence[tuple[int, int]] = ()
) -> Figure:
    """Draw values of attention heads, shape (blocks, heads), one panel per map, blocks from the bottom up.

    ``limits`` are the ends of the scale by title; ``framed`` are (block, head) pairs with a frame around them.
    """
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

    blocks = max(values.shape[0] for values in maps.values())
    figure, axes = new(3.2 * len(maps), 1.4 + 0.28 * blocks, len(maps), squeeze=False)
    for ax, (title, values) in zip(axes[0], maps.items(), strict=True):
        low, high = limits[title]
        colors = "PuOr" if low < 0 else "cividis"  # a scale that knows its zero where there are values below it
        image = ax.imshow(values, origin="lower", cmap=colors, vmin=low, vmax=high, aspect="auto")
        for (block, head), (ink, wide) in product(framed, (("white", 3.5), ("black", 1.5))):
            ax.add_patch(Rectangle((head - 0.5, block - 0.5), 1, 1, fill=False, edgecolor=ink, linewidth=wide))
        ax.set(title=title, xlabel="head", ylabel="block")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(8, integer=True))
        ax.grid(visible=False)
        figure.colorbar(image, ax=ax, shrink=0.8)
    return figure


def which_method(
    rows: Sequence[Mapping[str, Any]], methods: Sequence[str], tasks: Sequence[str], upright: bool = False
) -> Figure:
    """Draw the speed-up of every method on every task as a map: blue is faster than plain decoding, red slower.

    ``rows`` have ``method``, ``task`` and ``speedup``; methods are columns, or rows if ``upright``. The best of each task is
    starred where it is above 1. An interval stands below its number; then the best is starred only if its interval lies above
    1.
    """
    import numpy as np

    value = {(row["task"], row["method"]): row["speedup"] for row in rows}
    cells = [[value[task, method] for method in methods] for task in tasks]
    best = [max(points(row)) for row in cells]
    if upright:
        cells = [list(column) for column in zip(*cells, strict=True)]
    across, down = (tasks, methods) if upright else (methods, tasks)
    grid = np.array([points(row) for row in cells])
    # White at 1 and as dark at a half as at two: the same in dark mode, where lightness is turned round.
    steps = np.log2(grid)
    reach = max(1.0, np.abs(steps).max())
    figure, ax = new(WIDEST, 1.2 + 0.45 * len(down))
    ax.imshow(steps, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
    ax.grid(visible=False)
    for i in range(len(down)):
        for j in range(len(across)):
            cell = cells[i][j]
            interval = isinstance(cell, Interval) and cell.known
            starred = grid[i, j] == best[j if upright else i] and (cell.low if interval else grid[i, j]) > 1
            text = f"{grid[i, j]:.2f}" + (" ★" if starred else "")
            text += f"\n{cell.low:.2f}–{cell.high:.2f}" if interval else ""
            ax.text(
                j, i, text, ha="center", va="center", color="white" if abs(steps[i, j]) > 0.6 * reach else "black",
                fontweight="bold" if starred else "normal", fontsize=8,
            )  # fmt: skip
    ax.set_xticks(range(len(across)), across, rotation=20, ha="right")
    ax.set_yticks(range(len(down)), down)
    return figure


def variant_speedups(content: Mapping[str, Comparison], variants: Sequence[str], costs: Sequence[PassCosts]) -> Figure:
    """Draw the speed-up of every variant, one panel per comparison and one group of bars per cost curve.

    In each bar stands the share of the hindsight bound that it reached.
    """
    figure, axes = new(7.6, 2.3 * len(content) + 0.7, 1, len(content), sharey=True, squeeze=False)
    for ax, (title, comparison) in zip(axes[:, 0], content.items(), strict=False):
        heights = {variant: [comparison.rate(variant, each) for each in costs] for variant in variants}
        bars([each.name for each in costs], heights, "speed-up", reference=1, ax=ax)
        ax.set_title(title)
        drawn = [bar for container in ax.containers for bar in container]
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
        look = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 9.5, "bbox": box}
        for bar, (variant, each) in zip(drawn, product(variants, costs), strict=True):
            x, share = bar.get_x() + bar.get_width() / 2, f"{comparison.share(variant, each).value:.0%}"
            ax.text(x, 0.03, share, transform=ax.get_xaxis_transform(), **look)
    _legend(figure)
    return figure
