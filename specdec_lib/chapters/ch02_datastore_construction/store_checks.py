"""What the papers say of their datastores beside sizes and ranks: how a search grows, and what states have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.datastores.faiss_index import load_faiss
from specdec_lib.datastores.ranks import next_token_reciprocal_rank, recall, reciprocal_ranks
from specdec_lib.experiments import statistics
from specdec_lib.experiments.statistics import Counts, Interval


def time_growth(sizes: Sequence[float], times: Sequence[Sequence[float]], small: float, large: float) -> Interval:
    """Mean time of a search in a store of ``large`` tokens over that in one of ``small``, by the least squares of time
    against the logarithm of the size; the interval is over queries.

    Parameters
    ----------
    sizes : sequence of float
    times : sequence of sequences
        For each size the times of the same queries.
    """
    fit = np.linalg.pinv(np.column_stack([np.ones(len(sizes)), np.log2(sizes)]))
    above, below = np.array([[1, np.log2(size)] for size in (large, small)]) @ fit
    return statistics.interval_of_sums(lambda *sums: _weighted(above, sums) / _weighted(below, sums), times)


def power(sizes: Sequence[float], values: Sequence[Sequence[float]]) -> Interval:
    """Power of the size with which the mean of a value of each query grows: the slope in both logarithms; the interval is
    over queries. ``values`` has for each size those of the same queries."""
    x = np.log(sizes) - np.log(sizes).mean()
    return statistics.interval_of_sums(lambda *sums: _weighted(x / (x @ x), [np.log(s) for s in sums]), values)


def _weighted(weights: np.ndarray, columns: Sequence) -> np.ndarray:
    return sum(weight * column for weight, column in zip(weights, columns, strict=True))


def partitioned_comparisons(keys: np.ndarray, queries: np.ndarray, nprobe: int = 8) -> np.ndarray:
    """With how many vectors each query is compared in a search of ``nprobe`` partitions: the middles of all partitions, and
    the keys of those that are searched. There are four times the square root of the number of keys as partitions, as in
    the released code of DReSD.

    Parameters
    ----------
    keys : float32 array, shape (n, dims)
    queries : float32 array, shape (m, dims)

    Returns
    -------
    int array, shape (m,)
    """
    faiss = load_faiss()
    partitions = max(4, min(int(4 * len(keys) ** 0.5), len(keys) // 50))
    index = faiss.index_factory(keys.shape[1], f"IVF{partitions},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(np.ascontiguousarray(keys))
    index.add(np.ascontiguousarray(keys))
    _, searched = index.quantizer.search(np.ascontiguousarray(queries), min(nprobe, partitions))
    sizes = np.array([index.invlists.list_size(number) for number in range(partitions)])
    return partitions + sizes[searched].sum(axis=1)


def mean_correlation(states: np.ndarray) -> float:
    """Mean absolute correlation of two dimensions of the states, shape (n, width)."""
    correlations = np.corrcoef(states.astype(np.float64), rowvar=False)
    return float(np.abs(correlations[np.triu_indices(len(correlations), 1)]).mean())


def standardised(states: np.ndarray) -> np.ndarray:
    """Each dimension less its mean, over its standard deviation."""
    states = states.astype(np.float64)
    return (states - states.mean(0)) / states.std(0)


def repeated_contexts(tokens: np.ndarray, positions: np.ndarray, length: int = 8) -> np.ndarray:
    """Whether the ``length`` tokens before each position occur elsewhere in the tokens, too.

    Parameters
    ----------
    tokens : int array, shape (n,)
    positions : int array
        Those that lie less than ``length`` tokens from the beginning count as not repeated.
    """
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), length)
    _, which, counts = np.unique(windows, axis=0, return_inverse=True, return_counts=True)
    begins = np.asarray(positions) - length
    inside = (begins >= 0) & (begins < len(windows))
    return inside & (counts[which.reshape(-1)][np.where(inside, begins, 0)] > 1)


def found_again(index: DenseIndex, states: np.ndarray, positions: np.ndarray, k: int = 50) -> Interval:
    """Mean reciprocal rank of stored positions looked up by their own states, as
    :func:`~specdec_lib.datastores.ranks.mean_reciprocal_rank`; the interval is over the states looked up."""
    return statistics.mean(reciprocal_ranks(index.search(states, k)[1], np.asarray(positions)))


def mean_recall(found: np.ndarray, exact: np.ndarray) -> Interval:
    """Share of the exact neighbours that were found, with its interval over queries; both have shape (n, k)."""
    return statistics.mean([recall(a[None], b[None]) for a, b in zip(found, exact, strict=True)])


def typical_time(times: Sequence[float]) -> Interval:
    """Geometric mean of the times of some queries, which a few interrupted ones hardly move; the interval is over queries."""
    return statistics.interval_of_sums(lambda logs, count: np.exp(logs / count), [np.log(times), np.ones(len(times))])


def next_token_rank(index: DenseIndex, outputs: Sequence[tuple[np.ndarray, Sequence[int]]]) -> Interval:
    """Mean reciprocal rank of the next token over the states of held-out outputs; arguments and interval as for
    :func:`next_token_ratio`."""
    return statistics.pooled_rate(_next_token_counts(index, outputs))


def next_token_ratio(
    ours: DenseIndex, theirs: DenseIndex, outputs: Sequence[tuple[np.ndarray, Sequence[int]]]
) -> Interval:
    """Mean reciprocal rank of the next token in one index over that in another; the interval is over outputs.

    Parameters
    ----------
    outputs : sequence of (states, tokens)
        Of each held-out output its states and the token after each.
    """
    return statistics.ratio_of_rates(*(_next_token_counts(index, outputs) for index in (ours, theirs)))


def _next_token_counts(index: DenseIndex, outputs: Sequence[tuple[np.ndarray, Sequence[int]]]) -> Counts:
    counted = [len(tokens) for _, tokens in outputs]
    ranks = [next_token_reciprocal_rank(index, states, tokens) * len(tokens) for states, tokens in outputs]
    return Counts(ranks, counted)
