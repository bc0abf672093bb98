"""The figures of pages that are no chapter's: "What reproduces" (also in the README), and tokens per second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report import plots
from specdec_lib.report.claims import rules
from specdec_lib.report.numbers import Number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colour and marker of each price; a marker alone tells them apart.
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


def reproduces(shown: pd.DataFrame) -> Figure:
    """Draw what :func:`~specdec_lib.report.claims.rules.headlines` gives, where it has a number: published ranges grey, ours
    with 95 % intervals, right the verdicts on the direction."""
    shown = shown[[rules.bounds(number) is not None for number in shown.ours]]
    lines = len(shown) + shown.paper.nunique()
    height = 1.4 + 0.2 * lines
    figure, ax = plots.new(8.4, height, layout="none")
    figure.subplots_adjust(0.42, 1.3 / height, 0.71, 1 - 0.05 / height)
    ax.set(xscale="log", xlim=(0.35, 8), ylim=(lines - 0.4, -0.8), yticks=[])
    ax.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    ax.minorticks_off()
    ax.set_xlabel("← worse    ratio    better →", color=_INK, fontsize=9)
    ax.axvline(1, color=_INK, linestyle="--", linewidth=1)
    words = {"transform": ax.get_yaxis_transform(), "va": "center", "color": _INK, "fontsize": 8.5}
    y, paper, label = -1, None, None
    for row in shown.itertuples():
        y += 1
        if row.paper != paper:
            ax.text(-0.02, y, row.paper, ha="right", fontweight="bold", **words)
            paper, y = row.paper, y + 1
        if (row.claim, row.headline) != label:
            ax.text(-0.02, y, row.headline, ha="right", **words)
            ax.text(1.46, y, row.direction, **words)
            label = (row.claim, row.headline)
        if row.published:
            low, high = row.published
            ax.fill_betweenx([y - 0.5, y + 0.5], low / 1.01, high * 1.01, color="#9a9a9a", alpha=0.5, linewidth=0)
        color, marker = _LOOKS[row.price]
        low, high = rules.bounds(row.ours)
        spread = [[row.ours.value - low], [high - row.ours.value]]
        ax.errorbar(
            row.ours.value,
            y,
            xerr=spread,
            color=color,
            marker=marker,
            linewidth=0,
            elinewidth=1.8,
            label=rules.PRICES[row.price],
        )
        ax.text(1.02, y, f"{row.ours:.2f}", **words)
    ax.tick_params(colors=_INK)
    ax.grid(axis="y", visible=False)
    by_price = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    below = {"loc": "lower center", "ncols": 2, "fontsize": 9, "labelcolor": _INK}
    figure.legend(list(by_price.values()), list(by_price), **below)
    figure.patch.set_alpha(0)
    ax.patch.set_alpha(0)
    return figure


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
    """A bar a kind of prompt and way, with its interval; what was not measured has none."""

    def height(kind: str, way: str) -> Interval:
        number = table[f"{kind}_{way}_tokens_per_s"]
        return Interval(*(math.nan if each is None else each for each in (number.value, number.low, number.high)))

    heights = {name: [height(kind, way) for kind in KINDS] for way, name in WAYS.items()}
    measured = {name: each for name, each in heights.items() if any(one.known for one in each)}
    return plots.bars(list(KINDS.values()), measured, "tokens per second")


#: By the word in the keys of ``data/results/cpu/serving.csv``: what the legend says, and a marker.
SERVED = {
    "ngram": ("vLLM's ngram", "s"),
    "suffix": ("vLLM's suffix", "^"),
    "ours": ("SuffixDecoding, length by price", "o"),
}
SERVED_SIZES = (1, 2, 4, 8, 16, 32)


def in_a_server(table: Mapping[str, Number]) -> Figure:
    """Up to which batch speculation pays: tokens per second over those of plain decoding, by requests at once."""
    figure, axes = plots.new(6.4, 3.4)
    places = range(len(SERVED_SIZES))
    axes.axhline(1, color="#444444", linestyle="--", linewidth=1)
    for number, (way, (name, marker)) in enumerate(SERVED.items()):
        found = [table.get(f"{way}_over_plain_b{size}") for size in SERVED_SIZES]
        known = [
            (place + 0.06 * (number - 1), one)
            for place, one in zip(places, found, strict=True)
            if one and one.value is not None
        ]
        if known:
            at, numbers = zip(*known, strict=True)
            (line,) = axes.plot(at, [one.value for one in numbers], marker=marker, label=name)
            plots.whiskers(axes, at, [Interval(one.value, one.low, one.high) for one in numbers])
            line.set_zorder(3)
    axes.set_xticks(places, SERVED_SIZES)
    axes.set(xlabel="requests at once", ylabel="tokens per second over plain")
    axes.legend()
    return figure
