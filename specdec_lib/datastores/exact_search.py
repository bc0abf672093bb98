"""Exact inner-product search by torch, for a machine without FAISS."""

from __future__ import annotations

import numpy as np
import torch

from specdec_lib.datastores.reduction import Moments, check_states, fit
from specdec_lib.datastores.states import ArrayStates
from specdec_lib.datastores.tokens import TokenStore
from specdec_lib.decoding.checks import whole_number


class ExactIndex:
    """A dense index in memory; a search scores every key (DReSD, section 5.2).

    Keys have ``dims`` values; ``width`` is that of a state.
    """

    def __init__(self, states: ArrayStates, store: TokenStore, dims: int = 64, device: torch.device | str = "cpu"):
        moments, parts, places = Moments(), [], []
        for positions, part in states:
            part = check_states(part, states.width)
            moments.add(part)
            parts.append(part)
            places.append(positions)
        self._reduction = fit(moments, dims)
        self._keys = torch.from_numpy(np.concatenate([self._reduction.apply(part) for part in parts])).to(device)
        self.store, self.path, self.width = store, store.path, states.width
        self.positions = np.concatenate(places)

    def __len__(self) -> int:
        """Number of keys."""
        return len(self.positions)

    def search(self, states: np.ndarray | torch.Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`specdec_lib.datastores.dense.DenseIndex.search`."""
        k = whole_number("k", k, 1)
        if isinstance(states, torch.Tensor):
            states = states.detach().float().cpu().numpy()
        queries = torch.from_numpy(self._reduction.apply(states)).to(self._keys.device)
        best = (queries @ self._keys.T).topk(min(k, len(self)))
        missing = ((0, 0), (0, max(0, k - len(self))))
        scores = np.pad(best.values.cpu().numpy(), missing, constant_values=-np.inf)
        return scores, np.pad(self.positions[best.indices.cpu().numpy()], missing, constant_values=-1)
