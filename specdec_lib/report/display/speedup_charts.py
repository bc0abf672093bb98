"""Figures of the chapter on real cost: prices of passes, speed-ups, where the time goes, which method for which task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from specdec_lib.chapters.ch06_gpu_benchmarks.speedups import DEFINITIONS
from specdec_lib.experiments.statistics import Interval
from specdec_lib.methods import PLAIN
from specdec_lib.report.display import figures
from specdec_lib.report.display.charts import PARTS
from specdec_lib.report.display.ratio_charts import ratios

#: Line, marker and colour of each way of running a pass.
_RUNTIMES = {
    "eager": ("-", "o", "#0072b2"),
    "static": ("--", "s", "#009e73"),
    "compiled": ("-.", "^", "#cc79a7"),
    "graph": ("--", "s", "#009e73"),
    "transformers": (":", "D", "#d55e00"),
}


def price_curves(
    rows: Sequence[Mapping[str, Any]], published: Mapping[str, Mapping[int, float]], title: str = ""
) -> Figure:
    """Draw the price of a pass against its width: its time as a multiple of that of a pass over one token.

    Parameters
    ----------
    rows : sequence of mapping
        Of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.pass_times.beside_roofline`. The time that bandwidth and matrix
        rate allow is drawn as a price too.
    published : mapping
        By whose they are, price curves by width.
    title : str
    """
    figure, ax = figures.new(6.4, 4.2)
    for runtime in dict.fromkeys(row["runtime"] for row in rows):
        own = [row for row in rows if row["runtime"] == runtime]
        widths, one = [row["width"] for row in own], own[0]["ms"]
        dash, mark, color = _RUNTIMES[runtime]
        ax.plot(widths, [row["ratio"] for row in own], dash, marker=mark, color=color, label=f"{runtime}, here")
        low, high = ([row[end] / one for row in own] for end in ("ms_low", "ms_high"))
        ax.fill_between(widths, low, high, color=color, alpha=0.15, lw=0)
    bound = {row["width"]: row["bound_ms"] for row in rows}
    least = bound[min(bound)]
    ax.plot(list(bound), [ms / least for ms in bound.values()], color="#444444", lw=1, label="roofline, here")
    for name, curve in published.items():
        ax.plot(list(curve), list(curve.values()), "-.", marker="x", color="#8c6bb1", label=name)
    ax.axhline(1, color="#444444", linestyle="--", linewidth=1)
    for scale, ticks in ((ax.set_xscale, ax.set_xticks), (ax.set_yscale, ax.set_yticks)):
        scale("log", base=2)
        ticks([], minor=True)
    ax.set_xticks(list(bound), [str(width) for width in bound])
    tops = [2**power for power in range(8) if 2**power < 2 * ax.get_ylim()[1]]
    ax.set_yticks(tops, [str(top) for top in tops])
    ax.set(xlabel="tokens of the pass", ylabel="price, in passes over one token", title=title)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def measured(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the measured speed-up of each method over all tasks, with its interval over prompts and their repeats.

    Parameters
    ----------
    rows : sequence of mapping
        Of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.by_sampling`.
    """
    cases: dict[str, dict[str, Interval | None]] = {}
    for row in rows:
        if row["task"] == "all" and row["method"] != PLAIN:
            cases.setdefault(row["method"], {})[row["sampling"]] = row["intervals"][DEFINITIONS[0]]
    return ratios(cases, "measured speed-up over plain decoding", logarithmic=True)


def part_bars(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw where the time of a token goes, one bar a method.

    Parameters
    ----------
    rows : sequence of mapping
        Of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.table`, one a method.
    """
    figure, ax = figures.new(6.4, 1.3 + 0.42 * len(rows))
    for place, row in enumerate(rows):
        left = 0.0
        for part, shade in PARTS.items():
            ax.barh(place, row[f"{part}_ms"], left=left, color=shade, height=0.6, label=None if place else part)
            left += row[f"{part}_ms"]
        ax.text(left, place, f" {left:.1f}", va="center")
    ax.set_yticks(range(len(rows)), [row["method"] for row in rows])
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("milliseconds per token")
    ax.legend(ncols=len(PARTS), loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
    return figure


def which_method(
    rows: Sequence[Mapping[str, Any]], methods: Sequence[str], tasks: Sequence[str], upright: bool = False
) -> Figure:
    """Draw the speed-up of every method on every task as a map: blue is faster than plain decoding, red slower.

    The best of each task is starred where it is above 1. An interval stands below its number; then the best is starred
    only if its interval lies above 1.

    Parameters
    ----------
    rows : sequence of mapping
        With ``method``, ``task`` and ``speedup``.
    methods, tasks : sequence of str
        Columns and rows.
    upright : bool
        The other way round, with methods as rows: for many methods, whose intervals then have room.
    """
    import numpy as np

    value = {(row["task"], row["method"]): row["speedup"] for row in rows}
    cells = [[value[task, method] for method in methods] for task in tasks]
    best = [max(figures.points(row)) for row in cells]
    if upright:
        cells = [list(column) for column in zip(*cells, strict=True)]
    across, down = (tasks, methods) if upright else (methods, tasks)
    grid = np.array([figures.points(row) for row in cells])
    # White at 1 and as dark at a half as at two: the same in dark mode, where lightness is turned round.
    steps = np.log2(grid)
    reach = max(1.0, np.abs(steps).max())
    figure, ax = figures.new(figures.WIDEST, 1.2 + 0.45 * len(down))
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


def published_ranges(rows: Sequence[Mapping[str, Any]], prices: Sequence[str]) -> Figure:
    """Draw published speed-ups as bars from the lowest to the highest, and ours at each price with its interval.

    Parameters
    ----------
    rows : sequence of mapping
        Of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.published_speedups.summary`.
    prices : sequence of str
        Keys of their ``ours``.
    """
    figure, ax = figures.new(8.0, 1.4 + 0.5 * len(rows))
    for place, row in enumerate(rows):
        low, high = row["published_low"], row["published_high"]
        label = None if place else "published"
        ax.barh(place, max(high - low, 0.06), left=low, height=0.7, color="#9e9e9e", label=label)
        for i, price in enumerate(prices):
            ours = row["ours"].get(price)
            if ours is None:
                continue
            at = place + 0.6 * ((i + 1) / (len(prices) + 1) - 0.5)
            color = figures.PALETTE[i % len(figures.PALETTE)]
            ax.plot(ours.value, at, "osD^vP"[i % 6], color=color, markersize=4, label=None if place else price)
            if ours.known:
                ax.hlines(at, ours.low, ours.high, color=color, linewidth=1.2)
    ax.axvline(1, color="#444444", linestyle="--", linewidth=1)
    ax.set_yticks(range(len(rows)), [f"{row['paper']}, {row['task']} ({row['sampling']})" for row in rows])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("speed-up over plain decoding")
    ax.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=2)
    return figure
