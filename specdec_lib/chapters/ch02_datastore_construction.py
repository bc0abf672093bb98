"""Chapter 2: how searches grow with their store, and what the states of a store have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.datastores.faiss_index import load_faiss
from specdec_lib.decoding.contract import LAST
from specdec_lib.experiments import statistics
from specdec_lib.experiments.recorded_runs import Recording
from specdec_lib.experiments.statistics import Counts, Interval

#: Queries searched at once.
_BATCH = 1024


def each_microseconds(work: Callable[[Any], Any], items: Sequence[Any]) -> np.ndarray:
    """Time of the work on each item, in microseconds; the first round is not counted."""
    clock = time.perf_counter_ns
    for item in items:
        work(item)
    spent = np.empty(len(items))
    for i, item in enumerate(items):
        began = clock()
        work(item)
        spent[i] = (clock() - began) / 1e3
    return spent


def typical_time(times: Sequence[float]) -> Interval:
    """Geometric mean of the times of some queries, which a few interrupted ones hardly move; the interval is over queries."""
    return statistics.interval_of_sums(lambda logs, count: np.exp(logs / count), [np.log(times), np.ones(len(times))])


def contexts_of(recordings: Sequence[Recording], count: int, length: int = 64) -> list[list[int]]:
    """Contexts that a drafter met: the last ``length`` tokens at ``count`` random places of recorded outputs."""
    rng = np.random.default_rng(0)
    found = []
    for i in rng.integers(0, len(recordings), count).tolist():
        trace = recordings[i].trace
        end = len(trace.prompt) + int(rng.integers(1, len(trace.tokens) + 1))
        found.append((trace.prompt + trace.tokens)[:end][-length:])
    return found


def time_growth(sizes: Sequence[float], times: Sequence[Sequence[float]], small: float, large: float) -> Interval:
    """Mean time of a search in a store of ``large`` tokens over that in one of ``small``, by the least squares of time
    against the logarithm of the size.

    ``times`` has for each of the ``sizes`` the times of the same queries; the interval is over queries.
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


def partitioned_comparisons(keys: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """With how many vectors each query is compared in a search of 8 partitions: the middles of all partitions, and
    the keys of those that are searched.

    There are four times the square root of the number of keys as partitions, as in the released code of DReSD. ``keys`` are
    float32 of shape (n, dims), ``queries`` of shape (m, dims); gives shape (m,).
    """
    faiss = load_faiss()
    partitions = max(4, min(int(4 * len(keys) ** 0.5), len(keys) // 50))
    index = faiss.index_factory(keys.shape[1], f"IVF{partitions},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(np.ascontiguousarray(keys))
    index.add(np.ascontiguousarray(keys))
    _, searched = index.quantizer.search(np.ascontiguousarray(queries), min(8, partitions))
    sizes = np.array([index.invlists.list_size(number) for number in range(partitions)])
    return partitions + sizes[searched].sum(axis=1)


def repeated_contexts(tokens: np.ndarray, positions: np.ndarray, length: int = 8) -> np.ndarray:
    """Whether the ``length`` tokens before each position occur elsewhere in the tokens, too; positions nearer to the beginning
    count as not repeated."""
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), length)
    _, which, counts = np.unique(windows, axis=0, return_inverse=True, return_counts=True)
    begins = np.asarray(positions) - length
    inside = (begins >= 0) & (begins < len(windows))
    return inside & (counts[which.reshape(-1)][np.where(inside, begins, 0)] > 1)


def reciprocal_ranks(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """One over the rank of the first entry of each row of ``found``, shape (n, k), that is the wanted one; 0 where none is."""
    hits = found == wanted[:, None]
    return np.where(hits.any(1), 1.0 / (1 + hits.argmax(1)), 0.0)


def recall(found: np.ndarray, exact: np.ndarray) -> float:
    """Share of the exact neighbours that were found; int arrays of shape (n, k), in any order."""
    return float((found[:, :, None] == exact[:, None, :]).any(1).mean())


def next_token_reciprocal_rank(index: DenseIndex, states: np.ndarray, tokens: np.ndarray, k: int = 50) -> float:
    """Mean reciprocal rank of the first neighbour whose continuation starts with the token that follows.

    ``states`` are not in the index; ``tokens``, shape (n,), follow them. 0 counts a state after which DReSD's filter leaves no
    draft of its ``k`` neighbours. (Equation 4 of DReSD ranks each stored state among the neighbours of itself.)
    """
    wanted = np.asarray(tokens)
    if not len(states) or wanted.shape != (len(states),):
        raise ValueError(f"states have shape {np.shape(states)}, tokens {wanted.shape}; expected one token a state")
    ranks = []
    for begin in range(0, len(states), _BATCH):
        found = index.search(states[begin : begin + _BATCH], k)[1]
        # The store's first entry is a separator, which no token is.
        found = index.store.tokens[np.maximum(found, 0)].astype(np.int64)
        ranks.append(reciprocal_ranks(found, wanted[begin : begin + _BATCH]))
    return float(np.concatenate(ranks).mean())


def next_token_counts(index: DenseIndex, recordings: Sequence[Recording]) -> Counts:
    """Of each output the sum of the reciprocal ranks at which its states find the token that follows, and how many states."""
    lengths = [len(recording.trace.tokens) for recording in recordings]
    states = [r.trace.hidden[LAST][len(r.trace.prompt) - 1 :].float().numpy() for r in recordings]
    ranks = [next_token_reciprocal_rank(index, own, r.trace.tokens) for own, r in zip(states, recordings, strict=True)]
    return Counts([rank * length for rank, length in zip(ranks, lengths, strict=True)], lengths)
