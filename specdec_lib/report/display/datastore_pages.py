"""Tables and figures of chapter 2, datastores: what its cells computed, as a reader sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from specdec_lib.chapters.ch02_datastore_construction.page_values import WITHOUT, dense_bytes
from specdec_lib.experiments import retrieval
from specdec_lib.experiments.statistics import Counts, pooled_rate
from specdec_lib.report.display import figures
from specdec_lib.report.display.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specdec_lib.datastores.dense import DenseIndex
    from specdec_lib.datastores.suffix_array import SuffixIndex
    from specdec_lib.experiments.statistics import Interval


def sorted_ends(words: Sequence[str], order: Sequence[int], found: Sequence[int], width: int = 5) -> Figure:
    """Draw the places of a text sorted by what stands before them, read backwards.

    Parameters
    ----------
    words : sequence of str
    order : sequence of int
        The sorted places: each is the number of words before it.
    found : sequence of int
        Those that a search found.
    width : int
        Words that are shown before each place.
    """
    figure, ax = figures.new(6.4, 0.4 + 0.23 * len(order))
    ax.set(xlim=(0, 1), ylim=(len(order), -1))
    ax.axis("off")
    ax.text(0.62, -0.8, "read backwards from here", ha="right", va="center", fontsize=8, color="#666666")
    ax.text(0.66, -0.8, "what follows", ha="left", va="center", fontsize=8, color="#666666")
    for row, end in enumerate(order):
        hit = end in found
        if hit:
            ax.axhspan(row - 0.45, row + 0.45, color=figures.color("REST"), alpha=0.2, linewidth=0)
        before = " ".join(words[max(0, end - width) : end])
        weight = "bold" if hit else "normal"
        ax.text(0.02, row, f"{end:>3d}", ha="left", va="center", family="monospace", fontsize=9, color="#666666")
        ax.text(0.62, row, before, ha="right", va="center", family="monospace", fontsize=9, weight=weight)
        follows = words[end] if end < len(words) else "(end)"
        ax.text(0.66, row, follows, ha="left", va="center", family="monospace", fontsize=9, weight=weight)
    return figure


def size_table(sparse: SuffixIndex, dense: DenseIndex, store: SuffixIndex, dims: int) -> Table:
    """Bytes a token of both indexes."""
    rows = [
        {"index": "sparse", "tokens": sparse.store.count, "bytes": sparse.bytes_per_token},
        {"index": f"dense, {dims} dimensions, exact", "tokens": store.store.count, "bytes": dense_bytes(dense, store)},
    ]
    for row in rows:
        row["billion"] = row["bytes"]
    return Table(
        pd.DataFrame(rows),
        "tab-store-size",
        "Size of the two indexes over one text, their tokens included.",
        {"index": "Index", "tokens": "Tokens", "bytes": "Bytes a token", "billion": "GB for $10^9$ tokens"},
        {"tokens": ",d", "bytes": ".1f", "billion": ".1f"},
    )


def variance(index: DenseIndex) -> Figure:
    """Draw the share of the variance that the first components explain."""
    explained = np.cumsum(index.explained_variance)
    figure, ax = figures.new()
    ax.plot(range(1, len(explained) + 1), explained, color=figures.color("DReSD"))
    ax.axvline(64, color="#444444", linestyle="--", linewidth=1)
    ax.set(xlabel="principal components kept", ylabel="explained variance, cumulative", ylim=(0, 1.03))
    return figure


def dimensions_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Ranks and acceptance by the number of components, with their intervals."""
    return Table(
        pd.DataFrame(rows),
        "tab-store-mrr",
        "By the number of dimensions: mean reciprocal rank (MRR) of stored states looked up by themselves, and on held-out "
        "outputs the MRR of the next token, the acceptance rate, and the passes. Intervals are over the states looked up, and over "
        "prompts.",
        {
            "dims": "Dimensions",
            "variance": "Variance",
            "both": "MRR",
            "next": "MRR, next token",
            "rate": "Acceptance rate",
            "calls": "Passes a prompt",
        },
        {"variance": ".0%", "both": ".3f", "next": ".3f", "rate": ".1%", "calls": ".1f"},
    )


def normalisation_table(rows: Sequence[Mapping[str, Any]], ablated: Mapping[tuple[int, str], Interval]) -> Table:
    """What leaving out a normalisation costs."""
    both = {int(row["dims"]): row["both"] for row in rows}
    columns = {"dims": "Dimensions", "both": "both", "no_zscore": "no z-scores", "no_unit": "no unit length"}
    columns |= {"neither": "neither"}
    shown = [
        {"dims": dims, "both": both[dims], **{name: ablated[dims, name] for name in WITHOUT}}
        for dims in sorted({dims for dims, _ in ablated})
    ]
    return Table(
        pd.DataFrame(shown),
        "tab-store-normalised",
        "Mean reciprocal rank of stored states looked up by themselves, with both normalisations and without; intervals are over "
        "the states.",
        columns,
        dict.fromkeys(list(columns)[1:], ".3f"),
    )


def approximate_table(rows: Sequence[Mapping[str, Any]], states: int) -> Table:
    """Exact and approximate searches; recall, rank and time are means with intervals over queries."""
    return Table(
        pd.DataFrame(rows),
        "tab-store-approximate",
        f"Search for 10 neighbours among {states:,} states, one query at a time on one thread; intervals are over queries.",
        {
            "factory": "FAISS index",
            "bytes": "Bytes a state",
            "recall": "Recall@10",
            "mrr": "MRR",
            "microseconds": "Time, geometric mean, µs",
        },
        {"bytes": ".0f", "recall": ".3f", "mrr": ".3f", "microseconds": ".0f"},
    )


def match_lengths(each: Sequence[Counter[int]], unlooped: Sequence[Counter[int]]) -> Figure:
    """Draw how often the longest match has each length, for all outputs and for those without loops.

    Parameters
    ----------
    each, unlooped : sequence of Counter
        Of each output its steps by the length of their match.
    """
    lengths = range(17)
    shares = {
        name: [pooled_rate(Counts([one[n] for one in outputs], [one.total() for one in outputs])) for n in lengths]
        for name, outputs in {"all outputs": each, "without loops": unlooped}.items()
    }
    return figures.bars([str(n) for n in lengths], shares, "share of steps")


def times(sparse: Sequence[Mapping[str, Any]], linear: Mapping[int, float]) -> Figure:
    """Draw the time of one query against the size of the store; fits are carried on beyond what was measured."""
    tokens, search, draft = ([row[key] for row in sparse] for key in ("tokens", "search", "draft"))
    a, b = retrieval.fitted_growth(tokens, search)
    slope = np.polyfit(list(linear), list(linear.values()), 1)[0]
    x = np.geomspace(min(tokens), 1e12, 60)
    figure, ax = figures.new()
    ax.plot(x, a + b * np.log2(x), color=figures.color("REST"), linestyle="--", linewidth=1)
    ax.plot(tokens, search, "o", color=figures.color("REST"), label="sparse, search")
    ax.plot(tokens, draft, "s", color=figures.color("REST"), fillstyle="none", label="sparse, whole draft")
    ax.plot(x[x < 1e9], slope * x[x < 1e9], color=figures.color("DReSD"), linestyle="--", linewidth=1)
    ax.plot(list(linear), list(linear.values()), "^", color=figures.color("DReSD"), label="dense, exact")
    ax.set(xscale="log", yscale="log", xlabel="tokens stored", ylabel="median time of one query, µs")
    ax.legend()
    return figure
