"""Chapter 2: how searches grow with their store, and what the states of a store have in common."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from specdec_lib.datastores import SuffixIndex
from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.datastores.faiss_index import load_faiss, one_thread
from specdec_lib.datastores.reduction import Moments, fit
from specdec_lib.datastores.states import States
from specdec_lib.decoding.contract import LAST
from specdec_lib.drafters import Dresd, Rest
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs import results
from specdec_lib.experiments.runs.recorded_runs import Recording, replay_each
from specdec_lib.experiments.runs.retrieval import cached_neighbours, match_lengths
from specdec_lib.experiments.statistics import intervals
from specdec_lib.experiments.statistics.intervals import Counts, Interval

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
    return intervals.interval_of_sums(lambda logs, count: np.exp(logs / count), [np.log(times), np.ones(len(times))])


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
    growth = intervals.interval_of_sums(lambda *sums: _weighted(above, sums) / _weighted(below, sums), times)
    return growth._replace(prompts=0)


def _weighted(weights: np.ndarray, columns: Sequence) -> np.ndarray:
    return sum(weight * column for weight, column in zip(weights, columns, strict=True))


def released_comparisons(states: int) -> float:
    """With how many vectors a search of DReSD's released code compares the query: the middles of its partitions, and the states
    of those that it searches. It makes five partitions for each square root of the states and searches 250 of them; they are
    taken to be equally large.
    """
    partitions = 5 * math.isqrt(states)
    return partitions + min(250, partitions) * states / partitions


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


def hits_of(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """How many of the exact neighbours of each query were found; int arrays of shape (n, k), in any order."""
    return (found[:, :, None] == exact[:, None, :]).any(1).sum(1)


def next_token_reciprocal_rank(index: DenseIndex, states: np.ndarray, tokens: np.ndarray, k: int = 50) -> float:
    """Mean reciprocal rank of the first neighbour whose continuation starts with the token that follows.

    ``states`` are not in the index; ``tokens``, shape (n,), follow them. 0 counts a state after which DReSD's filter leaves no
    draft of its ``k`` neighbours. (Equation 4 of DReSD ranks each stored state among the neighbours of itself.)
    """
    wanted = np.asarray(tokens)
    if not len(states) or wanted.shape != (len(states),):
        raise ValueError(f"states have shape {np.shape(states)}, tokens {wanted.shape}; expected one token per state")
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


# Rows ------------------------------------------------------------------------------------------------------------


def whole(store: str) -> Prompt:
    """What stands for a whole store, where rows are of its states and not of an output."""
    return Prompt(store, "store", ("",))


def _rows_of(store: str, rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    of = whole(store)
    output = {"task": of.task, "prompt": of.id, "turn": 0, "seed": 0, "temperature": 0.0}
    return pd.DataFrame([output | row for row in rows])


#: Found neighbours among which a state's own rank counts, and those that recall counts.
RANKED, NEAREST = 50, 10


@dataclass(frozen=True)
class IndexedStates:
    """The states of a store's tokens: ``vectors``, float32 of shape (n, width), at ``positions``; ``asked`` are looked up."""

    base: SuffixIndex
    states: States
    positions: np.ndarray
    vectors: np.ndarray
    asked: np.ndarray

    @classmethod
    def of(cls, model: PreTrainedModel, base: SuffixIndex, queries: int) -> IndexedStates:
        """The target reads the whole store."""
        states = stores.dense_states(model, base)
        positions = np.concatenate([own for own, _ in states])
        vectors = np.concatenate([rows for _, rows in states]).astype(np.float32)
        asked = np.random.default_rng(0).choice(len(positions), min(queries, len(positions)), replace=False)
        return cls(base, states, positions, vectors, asked)

    @property
    def dims(self) -> int:
        """DReSD's 64 dimensions, or as many as the states have."""
        return min(64, self.vectors.shape[1])

    def index(self, dims: int | None = None, **options: Any) -> DenseIndex:
        """An index of these states."""
        return stores.dense_index(self.states, self.base, dims=dims or self.dims, **options)

    def keys(self) -> np.ndarray:
        """The keys of the index, shape (n, dims)."""
        return fit(Moments(self.vectors), self.dims).apply(self.vectors)

    def ranks(self, index: DenseIndex, which: np.ndarray | None = None) -> np.ndarray:
        """How many of the states that are asked for, or of ``which``, are found at each rank among the nearest; 0: not found."""
        which = self.asked if which is None else which
        found = index.search(self.vectors[which], RANKED)[1] == self.positions[which][:, None]
        return np.bincount(np.where(found.any(1), 1 + found.argmax(1), 0), minlength=RANKED + 1)


def factories(states: int) -> dict[str, dict[str, Any]]:
    """Kinds of indexes of FAISS, with how much of them is searched."""
    lists = max(4, min(int(4 * states**0.5), states // 50))
    return {
        "Flat": {},
        f"IVF{lists},Flat": {"nprobe": 8},
        f"IVF{lists},PQ32x4fs": {"nprobe": 16},
        "HNSW32": {"ef_search": 64},
    }


#: What is left out of the keys, by name.
WITHOUT = {
    "no z-scores": {"zscore": False},
    "no unit length": {"normalise": False},
    "neither": {"zscore": False, "normalise": False},
}


def dresd_and_fewest_dims(dims: Iterable[int]) -> tuple[int, int]:
    """Of numbers of dimensions, DReSD's 64 or the most there are, and the fewest."""
    return (64 if 64 in dims else max(dims)), min(dims)


def state_counts(
    stored: IndexedStates, store: str, dims: Sequence[int], kinds: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """Rows of stored states that are looked up by themselves: ``ranks`` as :meth:`IndexedStates.ranks` with each number of
    dimensions, without parts of the keys, of ``repeated`` and ``distinct`` contexts, and with each of some ``kinds`` of index
    (:func:`factories`); there ``hits`` is how many states had each number of their nearest found."""
    dims = [d for d in sorted(dims) if d <= stored.vectors.shape[1]]
    kept, narrow = dresd_and_fewest_dims(dims)
    by_dims = {d: stored.index(d) for d in dims}
    rows: list[dict[str, Any]] = [{"method": str(d), "ranks": stored.ranks(index)} for d, index in by_dims.items()]
    for d in dict.fromkeys((narrow, kept)):
        for name, options in WITHOUT.items():
            rows.append({"method": f"{d}, {name}", "ranks": stored.ranks(stored.index(d, **options))})
    twice = repeated_contexts(stored.base.store.tokens, stored.positions[stored.asked])
    for name, which in (("repeated", stored.asked[twice]), ("distinct", stored.asked[~twice])):
        rows.append({"method": name, "ranks": stored.ranks(by_dims[kept], which)})
    some = stored.vectors[stored.asked][:500]
    exact = stored.index().search(some, NEAREST)[1]
    for name, effort in kinds.items():
        index = stored.index(factory=name, **effort)
        hits = np.bincount(hits_of(index.search(some, NEAREST)[1], exact), minlength=NEAREST + 1)
        rows.append({"method": name, "ranks": stored.ranks(index), "hits": hits, "bytes": index.bytes_per_state})
    nothing = {"hits": np.zeros(1, np.int64), "bytes": math.nan}
    return _rows_of(store, [nothing | row for row in rows])


def store_sizes(stored: IndexedStates, store: str, sparse: SuffixIndex) -> pd.DataFrame:
    """Rows of the sizes of a sparse store and of the dense one of its beginning: ``explained`` is the variance of so many
    components, ``correlation`` the mean one of two dimensions, before the z-scores and after."""
    dense = stored.index()
    plain = stored.vectors[stored.asked].astype(np.float64)
    scored = (plain - plain.mean(0)) / plain.std(0)
    base = stored.base.store
    of_tokens = base.tokens.nbytes / base.count
    about = {"explained": np.zeros(1), "width": 0, "correlation": math.nan, "correlation_zscored": math.nan}
    rows = [
        {"method": f"sparse, {store}", "stored": sparse.store.count, "bytes": sparse.bytes_per_token} | about,
        {
            "method": f"dense, {store}",
            "stored": base.count,
            "bytes": dense.bytes_per_state + of_tokens,
            # Eigenvectors depend on the number of threads in their last bits.
            "explained": np.append(0, np.cumsum(dense.explained_variance).round(5)),
            "width": dense.width,
            "correlation": correlation(plain),
            "correlation_zscored": correlation(scored),
        },
    ]
    return _rows_of(store, rows)


def _parts(count: int) -> tuple[int, int, int]:
    return count // 4, count // 2, count


def exact_search_times(stored: IndexedStates) -> dict[int, float]:
    """Median time of an exact search in a quarter, half and all of the keys, in microseconds, by their number; on one thread."""
    keys, found = stored.keys(), {}
    for part in _parts(len(keys)):
        flat = load_faiss().IndexFlatIP(keys.shape[1])
        flat.add(keys[:part])
        with one_thread():
            found[part] = float(
                np.median(each_microseconds(lambda key: flat.search(key[None], NEAREST), keys[stored.asked[:200]]))  # noqa: B023
            )
    return found


def dims_counts(indexes: Mapping[int, DenseIndex], recordings: Sequence[Recording]) -> pd.DataFrame:
    """Rows of DReSD with each number of dimensions on outputs; ``next_rank`` is the sum of the reciprocal ranks at which the
    ``states`` of an output find the token that follows."""
    frames = []
    for d, index in indexes.items():
        looked_up = cached_neighbours(index, recordings)
        found = next_token_counts(looked_up, recordings)
        rows = results.table(recordings, replay_each(recordings, {str(d): Dresd(looked_up)}))
        frames.append(rows.assign(next_rank=list(found.above), states=list(found.below)))
    return pd.concat(frames, ignore_index=True)


def match_counts(recordings: Sequence[Recording], index: SuffixIndex, method: str) -> pd.DataFrame:
    """Rows of REST on outputs; ``lengths`` is how many of its steps had a longest match of each length, up to 16."""
    rows = results.table(recordings, replay_each(recordings, {method: None}))[
        [*results.OUTPUT, "temperature", "method"]
    ]
    found = [match_lengths([recording], Rest(index)) for recording in recordings]
    return rows.assign(lengths=[np.array([own[n] for n in range(17)]) for own in found])


def mean_reciprocal_rank(ranks: np.ndarray) -> Interval:
    """Of states found at each rank, 0 of those not found."""
    return intervals.mean_interval(np.repeat([0.0, *(1 / rank for rank in range(1, len(ranks)))], ranks))


def mean_recall(hits: np.ndarray) -> Interval:
    """Of states that had each number of their :data:`NEAREST` found."""
    return intervals.mean_interval(np.repeat(np.arange(len(hits)) / NEAREST, hits))


def correlation(rows: np.ndarray) -> float:
    """Mean absolute correlation of two dimensions of some states."""
    pairs = np.corrcoef(rows, rowvar=False)
    return float(np.abs(pairs[np.triu_indices(len(pairs), 1)]).mean())
