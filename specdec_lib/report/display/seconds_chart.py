"""The figure of the page on seconds: tokens per second of every way to decode SmolLM2, by kind of prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.figure import Figure

from specdec_lib.experiments.statistics import Interval
from specdec_lib.methods import METHODS
from specdec_lib.report import plots
from specdec_lib.report.numbers import Number

KINDS = {"summary": "a summary", "rename": "a rename", "completion": "a completion", "chat": "a chat answer"}
#: By the word in the keys of ``data/results/cpu/seconds.csv``: what the legend says.
WAYS = {
    "transformers": "transformers",
    "transformers_lookup": "transformers, prompt lookup",
    "transformers_assisted": "transformers, assisted",
    "plain": "plain",
    **{METHODS[name].slug: name for name in ("PLD", "PLD+ (h)", "SpecDec", "EAGLE", "One tree")},
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
