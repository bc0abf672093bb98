"""Small dense indexes of drawn states."""

import random
from pathlib import Path

import faiss
import numpy as np

from specdec_lib import datastores
from specdec_lib.datastores import ArrayStates, DenseIndex, TokenStore, dense

# A forked process cannot use the threads of its parent.
faiss.omp_set_num_threads(1)
WIDTH = 12


def random_states(count: int, seed: int = 0, width: int = WIDTH) -> np.ndarray:
    """Correlated columns of different means and scales."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(count, width)) @ rng.normal(size=(width, width))
    return (mixed * rng.uniform(0.1, 4, width) + rng.normal(size=width) * 3).astype(np.float32)


def random_store(folder: Path, count: int = 20, seed: int = 0) -> TokenStore:
    rng = random.Random(seed)
    documents = [[rng.randrange(40) for _ in range(rng.randrange(2, 60))] for _ in range(count)]
    return datastores.build_tokens(folder / "store", documents, 40, progress=False)


def stored_positions(store: TokenStore) -> np.ndarray:
    """Each token that has one before it in its document."""
    inside = [np.arange(store.starts[i] + 1, store.starts[i + 1] - 1) for i in range(len(store))]
    return np.concatenate(inside)


def source(store: TokenStore, seed: int = 0, model: str | None = "a model") -> ArrayStates:
    positions = stored_positions(store)
    return ArrayStates(positions, random_states(len(positions), seed), model)


def build(store: TokenStore, states: ArrayStates | None = None, path: Path | None = None, **options) -> DenseIndex:
    options = {"dims": 5, "progress": False, **options}
    states = source(store) if states is None else states
    return dense.build_dense_index(path or store.path / "dense", states, store, **options)
