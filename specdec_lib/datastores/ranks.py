"""How well an index finds what it should: mean reciprocal ranks."""

from __future__ import annotations

import numpy as np

from specdec_lib.datastores.dense import DenseIndex

#: Queries searched at once.
_BATCH = 1024


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
