"""The figures of pages that are no chapter's: "What reproduces" (also in the README), and tokens per second."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import pandas as pd

from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.report import plots
from specdec_lib.report.claims import rules
from specdec_lib.report.numbers import Number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colour and marker of each cost of a pass; the marker alone distinguishes them.
_LOOKS = {
    "here": ("#d55e00", "s"),
    "gpu": ("#0072b2", "o"),
    "rest": ("#009e73", "^"),
    "rest-carried": ("#009e73", "v"),
    "specdec-pp": ("#cc79a7", "D"),
    "counts": ("#7f7f7f", "P"),
}
#: Grey that can be read on a light and on a dark page: the figure has no ground of its own.
_INK = "#767676"


#: The panels of "What reproduces": what each compares.
_PANELS = (
    "Speed compared with plain decoding",
    "Speed of one method compared with another",
    "Counts of tokens and passes",
)


def _panel(headline: str, cost: str) -> str:
    return _PANELS[2 if cost == "counts" else 0 if headline.startswith("Speed-up") else 1]


def reproduces(shown: pd.DataFrame, turned: Collection[str]) -> Figure:
    """Draw the headlines (:func:`~specdec_lib.report.claims.rules.headlines`) that have a number: published ranges grey, ours
    with 95 % intervals, and after each name the verdict on the direction, with a star if the claim is one of ``turned``, to which
    a second run gave another verdict. Narrow enough for a phone."""
    shown = shown[[rules.bounds(number) is not None for number in shown.ours]]
    shown = shown.assign(direction=shown.direction + shown.claim.isin(list(turned)).map({True: " *", False: ""}))
    shown = shown.assign(panel=[_panel(*row) for row in zip(shown.headline, shown.cost, strict=True)])
    parts = {title: shown[shown.panel == title] for title in _PANELS if (shown.panel == title).any()}
    lines = {title: _lines(part) for title, part in parts.items()}
    height = 0.62 * len(parts) + 0.175 * sum(lines.values()) + 0.19 * shown.cost.nunique()
    figure, axes = plots.new(4.4, height, rows=len(parts), squeeze=False, height_ratios=list(lines.values()))
    for ax, (title, part) in zip(axes.flat, parts.items(), strict=True):
        # Marks have the left two thirds, their numbers the rest.
        ax.set(xscale="log", xlim=(0.4, 16.4), ylim=(lines[title] - 0.4, -0.6), yticks=[])
        ax.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
        ax.minorticks_off()
        ax.set_title(title, loc="left", color=_INK, fontsize=10, fontweight="bold")
        _draw_headlines(ax, part)
        ax.tick_params(colors=_INK)
        ax.grid(visible=False)
        ax.patch.set_alpha(0)
    axes.flat[-1].set_xlabel("← worse    ratio    better →", color=_INK, fontsize=9, loc="left")
    by_cost = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    below = {"loc": "outside lower center", "ncols": 1, "fontsize": 8.5, "labelcolor": _INK}
    figure.legend(list(by_cost.values()), list(by_cost), **below)
    figure.patch.set_alpha(0)
    return figure


def _lines(part: pd.DataFrame) -> int:
    """Lines of a panel: one per paper, per name and per number."""
    return part.paper.nunique() + len(part.groupby(["claim", "headline"])) + len(part)


def _draw_headlines(ax: Axes, part: pd.DataFrame) -> None:
    words = {"transform": ax.get_yaxis_transform(), "va": "center", "color": _INK, "fontsize": 8.5}
    y, paper, label = -1, None, None
    # The lines of the axis are drawn at rows with numbers alone, so that none crosses a name.
    rows: list[float] = []
    for row in part.itertuples():
        y += 1
        if row.paper != paper:
            ax.text(0, y, row.paper, fontweight="bold", **words)
            paper, y = row.paper, y + 1
        if (row.claim, row.headline) != label:
            ax.text(0, y, row.headline, **words)
            ax.text(1, y, row.direction, ha="right", fontstyle="italic", **words)
            label, y = (row.claim, row.headline), y + 1
        rows += [y - 0.5, y + 0.5, math.nan]
        if row.published:
            low, high = row.published
            ax.fill_betweenx([y - 0.5, y + 0.5], low / 1.01, high * 1.01, color="#9a9a9a", alpha=0.5, linewidth=0)
        color, marker = _LOOKS[row.cost]
        low, high = rules.bounds(row.ours)
        spread = [[row.ours.value - low], [high - row.ours.value]]
        look = {
            "color": color,
            "marker": marker,
            "linewidth": 0,
            "elinewidth": 1.8,
            "label": rules.PASS_COSTS[row.cost],
        }
        ax.errorbar(row.ours.value, y, xerr=spread, **look)
        ax.text(1, y, f"{row.ours:.2f}", ha="right", **words)
    for x in (0.5, 1, 2, 4):
        look = {"linestyle": "--", "linewidth": 1} if x == 1 else {"alpha": 0.25, "linewidth": 0.8}
        ax.plot([x] * len(rows), rows, color=_INK, marker="", zorder=1, **look)


KINDS = {"summary": "a summary", "rename": "a rename", "completion": "a completion", "chat": "a chat answer"}
#: By the word in the keys of ``data/results/cpu/seconds.csv``: what the legend says.
WAYS = {
    "transformers": "transformers",
    "transformers_lookup": "transformers, prompt lookup",
    "transformers_assisted": "transformers, assisted",
    "plain": "plain",
    "pld": "PLD",
    "h": "PLD+ (h)",
    "specdec": "SpecDec",
    "eagle": "EAGLE",
    "one_tree": "One tree",
    "llama": "llama.cpp, 4 bits",
    "llama_lookup": "llama.cpp, prompt lookup",
}


def tokens_per_second(table: Mapping[str, Number]) -> Figure:
    """One bar per kind of prompt and program, with its interval; what was not measured has none."""

    def height(kind: str, way: str) -> Interval:
        number = table[f"{kind}_{way}_tokens_per_s"]
        return Interval(*(math.nan if each is None else each for each in (number.value, number.low, number.high)))

    heights = {name: [height(kind, way) for kind in KINDS] for way, name in WAYS.items()}
    measured = {name: each for name, each in heights.items() if any(one.known for one in each)}
    return plots.bars(list(KINDS.values()), measured, "tokens per second")
