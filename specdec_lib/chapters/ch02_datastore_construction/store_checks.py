"""What the papers say of their datastores beside sizes and ranks: how a search grows, and what states have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.datastores.faiss_index import load_faiss, one_thread
from specdec_lib.datastores.ranks import next_token_reciprocal_rank
from specdec_lib.experiments import retrieval, statistics
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


def time_power(sizes: Sequence[float], times: Sequence[Sequence[float]]) -> Interval:
    """Power of the size with which the mean time of a search grows: the slope in both logarithms; the interval is over
    queries. Parameters as in :func:`time_growth`."""
    x = np.log(sizes) - np.log(sizes).mean()
    return statistics.interval_of_sums(lambda *sums: _weighted(x / (x @ x), [np.log(s) for s in sums]), times)


def _weighted(weights: np.ndarray, columns: Sequence) -> np.ndarray:
    return sum(weight * column for weight, column in zip(weights, columns, strict=True))


def partitioned_microseconds(
    keys: np.ndarray, queries: np.ndarray, nprobe: int = 8, k: int = 10, repeats: int = 3
) -> np.ndarray:
    """Least time of one search in ``nprobe`` partitions, for each query, with four times the square root of the number of keys
    as partitions, as the released code of DReSD has them; on one thread.

    Parameters
    ----------
    keys : float32 array, shape (n, dims)
    queries : float32 array, shape (m, dims)
    """
    faiss = load_faiss()
    partitions = max(4, min(int(4 * len(keys) ** 0.5), len(keys) // 50))
    index = faiss.index_factory(keys.shape[1], f"IVF{partitions},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(np.ascontiguousarray(keys))
    index.add(np.ascontiguousarray(keys))
    index.nprobe = nprobe
    with one_thread():
        repeated = [retrieval.timed_each(lambda key: index.search(key[None], k), queries) for _ in range(repeats)]
    # What else the machine does only ever adds to a time.
    return np.min(repeated, axis=0)


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


def next_token_ratio(
    ours: DenseIndex, theirs: DenseIndex, outputs: Sequence[tuple[np.ndarray, Sequence[int]]]
) -> Interval:
    """Mean reciprocal rank of the next token in one index over that in another; the interval is over outputs.

    Parameters
    ----------
    outputs : sequence of (states, tokens)
        Of each held-out output its states and the token after each.
    """
    counted = [len(tokens) for _, tokens in outputs]
    sums = [
        [next_token_reciprocal_rank(index, states, tokens) * len(tokens) for states, tokens in outputs]
        for index in (ours, theirs)
    ]
    return statistics.ratio_of_rates(*(Counts(ranks, counted) for ranks in sums))
