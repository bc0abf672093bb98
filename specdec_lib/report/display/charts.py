"""Figures, pictures and words of the chapters on speculation and on the pocket pair."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

from specdec_lib.experiments.metrics import pooled
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import figures, tables
from specdec_lib.report.display.token_views import Token, TokenView

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

    from specdec_lib import Generation

Curve = tuple[Sequence[float], Sequence[float | Interval]]

PARTS = {"draft": "#44546a", "verify": "#8795a8", "commit": "#b59a7a", "host": "#a5a5a5"}
"""Parts of a step's time and their colours, which are no method's; of middle lightness, since a dark page turns them round."""

_MARKS = "os^Dv*PX"
_DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (8, 2)), (0, (5, 1, 1, 1, 1, 1)), (0, (1, 4)))


def text(value: float | None, spec: str, missing: str = "not available") -> str:
    """A number in words for prose: formatted, or ``missing`` where it is None, NaN or infinite."""
    return tables.format_cell(value, spec) if value is not None and math.isfinite(value) else missing


def spread(values: Sequence[float], spec: str = ".2f") -> str:
    """Median of repeated measurements, with the smallest and the largest in brackets."""
    # A word joiner on either side of the dash keeps the bracket on one line.
    return f"{median(values):{spec}} ({min(values):{spec}}\u2060–\u2060{max(values):{spec}})"


def wrapped(text: str, width: int = 84) -> str:
    """Break lines of more than ``width`` characters at blanks; indentation stays."""
    return "\n".join(textwrap.fill(line, width) for line in text.split("\n"))


def _curve(ax: Axes, label: str, curve: Curve, variants: list[str], alone: bool, markers: bool) -> None:
    method, _, variant = label.partition(", ")
    if variant not in variants:
        variants.append(variant)
    place = variants.index(variant)
    x, y = curve
    ax.plot(
        x,
        figures.points(y),
        label=label,
        color=figures.color(method),
        linestyle=_DASHES[place % len(_DASHES)],
        # Lines of one method have one colour, so their marks tell them apart too.
        marker=_MARKS[place % len(_MARKS)] if alone else figures.marker(method),
        markevery=None if markers else max(1, len(x) // 5),
    )
    figures.whiskers(ax, x, y, figures.color(method))


def panels(
    content: Mapping[str, Mapping[str, Curve]],
    xlabel: str,
    ylabel: str | Sequence[str],
    *,
    markers: bool = True,
    integers: bool = False,
    ylim: tuple[float, float] | None = None,
    height: float = 3.6,
) -> Figure:
    """Draw panels side by side, one line a label.

    Parameters
    ----------
    content : mapping
        By title of the panel: by label of the line, x and y values. A label is a method, which gives the
        colour, or ``"method, variant"``; the variant gives the dashes. Intervals among the y values have whiskers.
    xlabel : str
        Under every panel.
    ylabel : str or sequence of str
        One for all panels, which then share their scale, or one for each.
    markers : bool
        Mark every point, not only about five of each line.
    integers : bool
        Whole numbers on the x axis.
    ylim : (float, float), optional
        Ends of the y axes.
    height : float
        In inches.
    """
    from matplotlib.ticker import MaxNLocator

    shared = isinstance(ylabel, str)
    figure, axes = figures.new(5.9, height, len(content), sharey=shared, squeeze=False)
    variants: list[str] = []
    alone = len({label.partition(", ")[0] for curves in content.values() for label in curves}) == 1
    for place, (ax, (title, curves)) in enumerate(zip(axes[0], content.items(), strict=True)):
        for label, curve in curves.items():
            _curve(ax, label, curve, variants, alone, markers)
        ax.set(title=title, xlabel=xlabel)
        if not shared or not place:
            ax.set_ylabel(ylabel if shared else ylabel[place])
        if integers:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if ylim:
            ax.set_ylim(ylim)
        if not any(len(x) for x, _ in curves.values()):
            ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center", va="center", color="#666666")
            ax.set_xticks([])
    _legend(figure, axes[0])
    return figure


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels."""
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if len(entries) > 1:
        figures.legend_below(figure, list(entries.values()), list(entries), 2 if len(entries) == 4 else 3)


def task_bars(
    tasks: Sequence[str],
    heights: Mapping[str, Sequence[float | Interval]],
    ylabel: str,
    ticks: Mapping[str, Sequence[float | Interval]] | None = None,
    tick_label: str = "",
    reference: float | None = None,
) -> Figure:
    """Draw bars by task and method, with a second value as a short line across each bar.

    Parameters
    ----------
    tasks : sequence of str
    heights : mapping
        By method: one height a task; an interval has a whisker.
    ylabel : str
    ticks : mapping, optional
        By method: the second value a task; NaN draws none. The whisker of an interval stands at the right end of its line, apart
        from that of the bar.
    tick_label : str
        What the short line is, for the legend.
    reference : float, optional
        Height of a dashed line across all.
    """
    labels = [textwrap.fill(task.replace("-", " "), 10, break_long_words=False) for task in tasks]
    figure = figures.bars(labels, heights, ylabel, reference=reference)
    (ax,) = figure.axes
    width = 0.8 / max(len(heights), 1)
    for place, method in enumerate(heights):
        left = [task - 0.4 + width * (place + 0.04) for task in range(len(tasks))]
        if ticks:
            ax.hlines(
                figures.points(ticks[method]),
                left,
                [x + 0.92 * width for x in left],
                color="black",
                linewidth=2.2,
                label=None if place else tick_label,
            )
            figures.whiskers(ax, [x + 0.78 * width for x in left], ticks[method], "black")
    ax.get_legend() and ax.get_legend().remove()
    _legend(figure, [ax])
    return figure


def time_parts(timings: Mapping[str, Sequence[Sequence[Generation]]]) -> Figure:
    """Draw where the time of a token goes, each part the median of its repeats.

    Parameters
    ----------
    timings : mapping
        By method: for each repeat its runs (:func:`specdec_lib.experiments.recorded_runs.time_methods`).
    """
    figure, ax = figures.new(6.4, 1.3 + 0.5 * len(timings))
    for row, repeats in enumerate(timings.values()):
        stats = [pooled(runs) for runs in repeats]
        left = 0.0
        for part, shade in PARTS.items():
            # Tokens after the prefill, as for ms_per_token.
            width = 1e3 * median(m[f"{part}_seconds"] / (m["tokens_per_forward"] * m["calls"]) for m in stats)
            ax.barh(
                row,
                width,
                left=left,
                color=shade,
                height=0.6,
                label=None if row else part,
                edgecolor="#44546a",
                linewidth=0.6,
            )
            left += width
        ax.text(left, row, f" {left:.2f}", va="center")
    ax.set_yticks(range(len(timings)), list(timings))
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("milliseconds per token")
    _legend(figure, [ax])
    return figure


def head_maps(
    maps: Mapping[str, np.ndarray], limits: Mapping[str, tuple[float, float]], framed: Sequence[tuple[int, int]] = ()
) -> Figure:
    """Draw values of attention heads, one panel a map, blocks from the bottom up.

    Parameters
    ----------
    maps : mapping
        By title: an array of shape (blocks, heads); NaN is left white.
    limits : mapping
        By title: smallest and largest value of the scale.
    framed : sequence of (int, int)
        (block, head) pairs with a frame around them.
    """
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

    blocks = max(values.shape[0] for values in maps.values())
    figure, axes = figures.new(3.2 * len(maps), 1.4 + 0.28 * blocks, len(maps), squeeze=False)
    for ax, (title, values) in zip(axes[0], maps.items(), strict=True):
        low, high = limits[title]
        colors = "PuOr" if low < 0 else "cividis"  # a scale that knows its zero where there are values below it
        image = ax.imshow(values, origin="lower", cmap=colors, vmin=low, vmax=high, aspect="auto")
        for (block, head), (ink, wide) in product(framed, (("white", 3.5), ("black", 1.5))):
            ax.add_patch(Rectangle((head - 0.5, block - 0.5), 1, 1, fill=False, edgecolor=ink, linewidth=wide))
        ax.set(title=title, xlabel="head", ylabel="block")
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(8, integer=True))
        ax.grid(visible=False)
        figure.colorbar(image, ax=ax, shrink=0.8)
    return figure


def token_view(
    run: Generation,
    tokenizer: PreTrainedTokenizerBase,
    proposer: str,
    caption: str = "",
    prompt: str = "",
    rejected: int = 3,
) -> TokenView:
    """Show one run token by token.

    Parameters
    ----------
    run : Generation
    tokenizer : PreTrainedTokenizerBase
    proposer : str
        Name of the method.
    caption, prompt : str
        As for :class:`specdec_lib.report.display.token_views.TokenView`.
    rejected : int
        At most this many rejected tokens are shown a step; none of a draft that branches, which is not read in one line.
    """
    shown = [Token(tokenizer.decode(run.tokens[:1]), "target", 0, note="from the pass over the prompt")]
    for number, step in enumerate(run.steps, start=1):
        kept = [step.tree.tokens[node] for node in step.path]
        lost = step.tree.tokens[step.accepted :] if step.tree.is_chain else []
        note = f"{step.accepted} of {step.drafted} accepted"
        shown += [Token(tokenizer.decode([t]), "accepted", number, proposer, note) for t in kept]
        shown += [Token(tokenizer.decode([t]), "rejected", number, proposer, note) for t in lost[:rejected]]
        shown += [Token(tokenizer.decode([t]), "target", number) for t in step.tokens[step.accepted :]]
    return TokenView(shown, caption, prompt)
