"""Rows of ``make bench`` for the dense datastore: search and recall at 1 M states.

The states are drawn: 4096 centres, around each a subspace of 10 of the 64 dimensions, which is nearer to
reduced hidden states than noise in all of them. Queries are drawn in the same way and not stored. One thread,
one query at a time, 10 neighbours.
"""
from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from specdec_lib.datastores import ArrayStates, DenseIndex, build_dense_index, build_tokens
from specdec_lib.datastores.faiss_index import one_thread, whole_keys
from specdec_lib.datastores.ranks import recall
from specdec_lib.report.benchmarks_retrieval import measured_row, microseconds

DIMS, CENTRES, SUBSPACE, NEIGHBOURS = 64, 4096, 10, 10
#: Deviation along the axes of a centre, in lengths of an axis: neighbours lie in several lists, few in many.
SPREAD = 2.5
#: The effort of the headline rows, and those recall is set against.
NPROBE, EFFORTS = 8, (1, 2, 4, 8, 16, 32)
#: States that lists are estimated from: about 49 for each.
SAMPLE = 200_000


def drawn_states(count: int, seed: int) -> np.ndarray:
    """States of unit length, float32 array of shape (count, 64); the same centres with every seed."""
    fixed = np.random.default_rng(0)
    centres = fixed.normal(size=(CENTRES, DIMS)).astype(np.float32)
    axes = fixed.normal(size=(CENTRES, SUBSPACE, DIMS)).astype(np.float32) / np.sqrt(DIMS)
    rng = np.random.default_rng(seed)
    out = np.empty((count, DIMS), np.float32)
    for begin in range(0, count, 1 << 15):
        part = out[begin: begin + (1 << 15)]
        centre = rng.integers(0, CENTRES, len(part))
        local = rng.normal(size=(len(part), 1, SUBSPACE)).astype(np.float32)
        part[:] = centres[centre] + (local @ axes[centre])[:, 0] * SPREAD
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return out


def _times(index: DenseIndex, queries: np.ndarray) -> list[float]:
    return [microseconds(lambda: index.search(query[None], NEIGHBOURS)) for query in queries]


def rows(quick: bool = False) -> list[dict]:
    """Measure search and recall; ``quick`` takes a tenth of the states and few samples.

    The peer of the search is FAISS's own search of the same lists with keys already reduced: the difference
    is the reduction, the checks and the way from rows to positions. The recall row holds for each ``nprobe``
    recall and [p50, p99] of the search in microseconds, and how long the build took.
    """
    label, count, factory, samples = (("100k", 100_000, "IVF256,Flat", 100) if quick else
                                      ("1m", 1_000_000, "IVF4096,Flat", 2000))
    with tempfile.TemporaryDirectory() as folder, one_thread() as faiss:
        store = build_tokens(Path(folder) / "store", [np.zeros(count + 1, np.int64)], 2, progress=False)
        states = ArrayStates(np.arange(2, count + 2), drawn_states(count, 1))
        began = time.perf_counter()
        index = build_dense_index(store.path / "dense", states, store, dims=DIMS, factory=factory,
                                  zscore=False, nprobe=NPROBE, sample=SAMPLE, progress=False)
        build_seconds = time.perf_counter() - began
        queries = drawn_states(samples, 2)
        inner = faiss.downcast_index(index.index.index)
        keys = index.index.chain.at(1).apply(index.index.chain.at(0).apply(queries))
        few = slice(0, min(500, samples))
        exact = faiss.knn(keys[few], whole_keys(index.index), NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)[1]
        _times(index, queries[:100])
        ours, peers = [], []
        # In blocks, not in turns on each query: the second would find in the cache what the first has read.
        for begin in range(0, samples, 200):
            block = slice(begin, begin + 200)
            ours += _times(index, queries[block])
            peers += [microseconds(lambda: inner.search(key[None], NEIGHBOURS)) for key in keys[block]]
        found, by_effort = {}, []
        for nprobe in EFFORTS:
            index.set_effort(nprobe=nprobe)
            found[nprobe] = recall(index.search_rows(queries[few], NEIGHBOURS)[1], exact)
            spent = np.percentile(_times(index, queries[few]), [50, 99]).tolist()
            by_effort.append({"nprobe": nprobe, "recall": found[nprobe], "search_us": spent})
    about = {"factory": factory, "nprobe": NPROBE, "states": count}
    return [
        measured_row(f"dense_search_us_{label}", "µs", ours, peers, "FAISS on reduced keys") | about,
        measured_row("dense_recall_at_10", "share", [found[NPROBE]], higher_is_better=True) | about
        | {"by_nprobe": by_effort, "build_seconds": build_seconds, "bytes_per_state": index.bytes_per_state}
    ]
