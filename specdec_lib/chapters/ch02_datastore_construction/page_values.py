"""The numbers that chapter 2 records, section by section, by the names that other pages and the ledger of claims use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdec_lib.chapters.ch02_datastore_construction import store_checks
from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.datastores.ranks import mean_reciprocal_rank
from specdec_lib.datastores.suffix_array import SuffixIndex
from specdec_lib.experiments import retrieval
from specdec_lib.experiments.published_numbers import published
from specdec_lib.experiments.statistics import Interval

Values = dict[str, Any]
#: REST's largest store: 27 GB, at the six bytes a token of its files.
PAPER_TOKENS = 27e9 / 6
#: Normalisations that are left out, by the name of what is recorded.
WITHOUT: dict[str, dict[str, bool]] = {
    "no_zscore": {"zscore": False},
    "no_unit": {"normalise": False},
    "neither": {"zscore": False, "normalise": False},
}


def dense_bytes(index: DenseIndex, store: SuffixIndex) -> float:
    """Bytes that the dense index takes for each token, the tokens themselves included."""
    return index.bytes_per_state + store.store.tokens.nbytes / store.store.count


def sizes(sparse: SuffixIndex, dense: DenseIndex, store: SuffixIndex) -> Values:
    """Bytes a token of both indexes, and how far their ratio is from the published one."""
    dresd = {key: row["value"] for key, row in published("dresd").items()}
    low, high = float(dresd["dresd-storage-low"]), float(dresd["dresd-storage-high"])
    ratio = dense_bytes(dense, store) / sparse.bytes_per_token
    return {
        "sparse_bytes": sparse.bytes_per_token,
        "billion_gb": sparse.bytes_per_token,
        "dense_bytes": dense_bytes(dense, store),
        "storage_ratio": ratio,
        "storage_off": max(low / ratio, ratio / high),  # 1 or less inside the published range
        "token_bytes": sparse.store.tokens.itemsize,
        "state_width": dense.width,
        "largest_tokens": sparse.store.count,
    }


def building(built: retrieval.BuildCost) -> Values:
    """Time to build a sparse store; its number of tokens comes from no clock."""
    return {
        "build_seconds": built.seconds,
        "sort_seconds": built.sort_seconds,
        "sort_rate": built.tokens / built.sort_seconds / 1e6,
    }


def variance(index: DenseIndex) -> Values:
    """How much 64 components explain."""
    explained = np.cumsum(index.explained_variance)
    return {"variance_64": explained[min(64, len(explained)) - 1]}


def dimensions(rows: Sequence[Mapping[str, Any]], ablated: Mapping[tuple[int, str], Interval], kept: int) -> Values:
    """The fewest, the paper's and the most components: ranks, acceptance, and what each normalisation is for.

    Parameters
    ----------
    rows : sequence of mapping
        For each number of components ``dims``, ``variance`` and the intervals ``both`` (the MRR), ``next``, ``rate`` and
        ``calls``.
    ablated : mapping
        MRR by number of components and what is left out, of :data:`WITHOUT`.
    kept : int
        The paper's number of components, or the nearest to it.
    """
    by_dims = {int(row["dims"]): {key: _value(value) for key, value in row.items()} for row in rows}
    narrow, widest = by_dims[min(by_dims)], by_dims[max(by_dims)]
    values: Values = {"mrr_both": by_dims[kept]["both"]}
    values |= {f"kept_{name}": by_dims[kept][name] for name in ("next", "rate", "calls")}
    values |= {f"widest_{name}": widest[name] for name in ("next", "rate")} | {"widest_mrr": widest["both"]}
    values |= {"widest_dims": int(widest["dims"]), "narrow_dims": int(narrow["dims"])}
    values |= {"narrow_variance": narrow["variance"], "narrow_mrr_both": narrow["both"]}
    for name in WITHOUT:
        values |= {f"mrr_{name}": ablated[kept, name].value, f"narrow_mrr_{name}": ablated[min(by_dims), name].value}
    return values


def _value(number: float | Interval) -> float:
    return number.value if isinstance(number, Interval) else number


def states(
    vectors: np.ndarray, positions: np.ndarray, asked: np.ndarray, index: DenseIndex, store: SuffixIndex
) -> Values:
    """Correlation of the states' dimensions before and after z-scores, and ranks of states whose context is repeated.

    Parameters
    ----------
    vectors : float32 array, shape (n, width)
    positions : int array, shape (n,)
    asked : int array
        Which of them are looked up.
    index : DenseIndex
    store : SuffixIndex
    """
    values: Values = {
        "correlation_plain": store_checks.mean_correlation(vectors[asked]),
        "correlation_zscored": store_checks.mean_correlation(store_checks.standardised(vectors[asked])),
    }
    twice = store_checks.repeated_contexts(store.store.tokens, positions[asked])
    for name, chosen in (("distinct", asked[~twice]), ("repeated", asked[twice])):
        there = len(chosen) > 0
        values[f"mrr_{name}"] = (
            mean_reciprocal_rank(index, vectors[chosen], positions[chosen]) if there else "not available"
        )
    return values


def matches(each: Sequence[Counter[int]]) -> Values:
    """Shares of the steps that have a match, and of the matches that are short and long; ``each`` counts the steps of one
    output by the length of their match."""
    counts = sum(each, Counter())
    total = sum(counts.values())
    drafted = sum(n for length, n in counts.items() if length >= 2)
    return {
        "share_matched": drafted / total,
        "share_short": sum(counts[n] for n in range(2, 10)) / max(drafted, 1),
        "share_long": sum(counts[n] for n in range(10, 17)) / max(drafted, 1),
    }


def times(sparse: Sequence[Mapping[str, Any]], linear: Mapping[int, float]) -> Values:
    """Sparse searches and drafts against the size of the store, carried on to larger ones, and dense searches.

    Parameters
    ----------
    sparse : sequence of mapping
        For each size ``tokens``, ``search``, ``draft`` and ``each``, the times of the same queries.
    linear : mapping
        Median time of an exact dense search by number of states.
    """
    tokens, first, last = [row["tokens"] for row in sparse], sparse[0], sparse[-1]
    a, b = retrieval.fitted_growth(tokens, [row["search"] for row in sparse])
    slope = np.polyfit(list(linear), list(linear.values()), 1)[0]
    each = [row["each"] for row in sparse]
    return {
        "search_small": first["search"],
        "search_large": last["search"],
        "draft_large": last["draft"],
        "doubling_us": b,
        "billion_us": a + b * np.log2(1e9),
        "trillion_us": a + b * np.log2(1e12),
        "dense_million_us": slope * 1e6,
        "dense_billion_ms": slope * 1e9 / 1e3,
        "retrieval_growth_30": store_checks.time_growth(tokens, each, PAPER_TOKENS / 30, PAPER_TOKENS),
    }
