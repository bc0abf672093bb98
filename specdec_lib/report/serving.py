"""Requests served by vLLM, plain and with drafts: the figure and the table of what ``benchmarks/serving.py`` measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.report import plots
from specdec_lib.report.numbers import Number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (1, 2, 4, 8, 16, 32)
#: By the word in the keys of ``data/results/cpu/serving.csv``: what the legend says, and a marker.
WAYS = {
    "ngram": ("vLLM's ngram", "s"),
    "suffix": ("vLLM's suffix", "^"),
    "ours": ("SuffixDecoding, sized by cost", "o"),
}
#: Columns of the table, with the metrics named as vLLM prints them, and the keys of their numbers.
COLUMNS = {
    "Output token throughput (tok/s), plain": "plain_b{}_tokens_per_s",
    "ngram over plain": "ngram_over_plain_b{}",
    "suffix over plain": "suffix_over_plain_b{}",
    "ours over plain": "ours_over_plain_b{}",
    "TPOT (ms), plain": "plain_b{}_ms_per_token",
    "TPOT (ms), ours": "ours_b{}_ms_per_token",
    "Mean acceptance length, ours": "ours_b{}_accepted_length",
}


def _known(number: Number | None) -> Interval | None:
    return None if number is None or number.value is None else Interval(number.value, number.low, number.high)


def figure(table: Mapping[str, Number]) -> Figure:
    """Up to which batch speculation pays: tokens per second over those of plain decoding, by requests at once."""
    drawn, axes = plots.new(6.4, 3.4)
    axes.axhline(1, color="#444444", linestyle="--", linewidth=1)
    for number, (way, (name, marker)) in enumerate(WAYS.items()):
        found = {
            place + 0.06 * (number - 1): known
            for place, size in enumerate(SIZES)
            if (known := _known(table.get(f"{way}_over_plain_b{size}")))
        }
        if found:
            (line,) = axes.plot([*found], [one.value for one in found.values()], marker=marker, label=name)
            plots.whiskers(axes, [*found], [*found.values()])
            line.set_zorder(3)
    axes.set_xticks(range(len(SIZES)), SIZES)
    axes.set(xlabel="requests at once", ylabel="tokens per second over plain")
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    return drawn


def by_batch(table: Mapping[str, Number]) -> pd.DataFrame:
    """A row for each number of requests at once that was measured."""
    rows = [
        {"Requests": size} | {name: _known(table.get(key.format(size))) for name, key in COLUMNS.items()}
        for size in SIZES
    ]
    frame = pd.DataFrame(rows, columns=["Requests", *COLUMNS])
    return frame[frame[[*COLUMNS]].notna().any(axis=1)].reset_index(drop=True)


def by_length(table: Mapping[str, Number], replayed: Mapping[str, Number]) -> pd.DataFrame:
    """Ours over drafts of each length with four requests at once, timed and replayed at the same costs without a clock."""
    sides = {"Ours over it, timed": table, "Ours over it, replayed": replayed}
    drafts = {f"fixed{length}": f"at most {length}" for length in range(1, 9)} | {
        "published": "up to the length of the match"
    }
    return pd.DataFrame(
        {"Tokens of a draft": words} | {name: _known(of.get(f"ours_over_{way}_b4")) for name, of in sides.items()}
        for way, words in drafts.items()
    )


def by_rival(table: Mapping[str, Number], replayed: Mapping[str, Number]) -> pd.DataFrame:
    """Ours over plain decoding and over ``ngram`` by requests at once, timed and replayed."""
    sides = {"timed": table, "replayed": replayed}
    return pd.DataFrame(
        {"Requests": size}
        | {
            f"over {rival}, {name}": _known(of.get(f"ours_over_{rival}_b{size}"))
            for rival in ("plain", "ngram")
            for name, of in sides.items()
        }
        for size in SIZES
    )


def by_task(table: Mapping[str, Number]) -> pd.DataFrame:
    """A row for each task: by requests at once, the time of an output token in plain decoding over that with our drafts."""
    first = "ours_over_plain_b1_"
    return pd.DataFrame(
        {"Task": key.removeprefix(first).replace("_", " ")}
        | {f"{size}": _known(table.get(key.replace("b1", f"b{size}", 1))) for size in SIZES}
        for key in table
        if key.startswith(first)
    )
