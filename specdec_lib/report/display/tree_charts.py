"""Figures of the chapter on one tree: speed-ups with their share of what hindsight could reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from specdec_lib.chapters.ch08_one_tree.study import Ladder
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.report.display import figures
from specdec_lib.report.display.charts import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def ladders(content: Mapping[str, Ladder], rungs: Sequence[str], prices: Sequence[PassPrices]) -> Figure:
    """Draw the speed-up of every rung, a panel a ladder and a group of bars a price curve.

    In each bar stands the share of the hindsight bound that it reached, in percent.

    Parameters
    ----------
    content : mapping
        By title.
    rungs : sequence of str
    prices : sequence of PassPrices
    """
    if not content:
        figure, ax = figures.new(6.4, 1.2)
        ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center", va="center", color="#666666")
        ax.set_axis_off()
        return figure
    figure, axes = figures.new(7.6, 2.3 * len(content) + 0.7, 1, len(content), sharey=True, squeeze=False)
    for ax, (title, ladder) in zip(axes[:, 0], content.items(), strict=True):
        heights = {rung: [ladder.rate(rung, each) for each in prices] for rung in rungs}
        figures.bars([each.name for each in prices], heights, "speed-up", reference=1, ax=ax)
        ax.get_legend().remove()
        ax.set_title(title)
        bars = [bar for drawn in ax.containers for bar in drawn]
        for bar, (rung, each) in zip(bars, product(rungs, prices), strict=True):
            ax.text(
                bar.get_x() + bar.get_width() / 2,
                0.03,
                f"{ladder.share(rung, each).value:.0%}",
                transform=ax.get_xaxis_transform(),
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=9.5,
                bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
            )
    figures.legend_below(figure, *axes[0, 0].get_legend_handles_labels(), 3)
    return figure


def reliability(lines: Mapping[str, Mapping[str, Curve]]) -> Figure:
    """Draw the share of nodes that were emitted against the predicted probability: a panel a set, a line a source, and a thin
    line where the two are equal."""
    columns = min(2, len(lines))
    figure, axes = figures.new(
        6.4, 2.6 * -(-len(lines) // columns) + 0.5, columns, -(-len(lines) // columns), squeeze=False
    )
    named: dict[str, Line2D] = {}
    for ax, (title, curves) in zip(axes.flat, lines.items(), strict=False):
        ax.plot([0, 1], [0, 1], color="#666666", linewidth=0.8)
        for source, (predicted, emitted) in curves.items():
            color, marker = figures.color(source), figures.marker(source)
            (line,) = ax.plot(predicted, emitted, label=source, color=color, marker=marker)
            named.setdefault(source, line)
        if not curves:
            ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center", va="center", color="#666666")
        ax.set(title=title, xlabel="predicted probability", ylabel="share emitted", ylim=(-0.03, 1.03))
    for ax in axes.flat[len(lines) :]:
        ax.set_visible(False)
    if named:
        figures.legend_below(figure, list(named.values()), list(named))
    return figure
