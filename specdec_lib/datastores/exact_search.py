"""Exact inner-product search by torch, for a GPU without a GPU build of FAISS."""

from __future__ import annotations

import numpy as np
import torch

from specdec_lib.datastores.reduction import Moments, Reduction, check_states, fit
from specdec_lib.datastores.states import ArrayStates
from specdec_lib.datastores.tokens import TokenStore
from specdec_lib.decoding.checks import whole

#: Keys whose scores are held at once, for each query.
CHUNK = 1 << 25
#: Scores of which the largest is found first.
BLOCK = 256


def largest(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``k`` largest of many scores, largest first, and where they are.

    They lie in the ``k`` blocks with the largest maxima, so the scores are read once instead of many times.
    """
    whole = len(scores) - len(scores) % BLOCK
    if whole <= k * BLOCK:
        best = scores.topk(k)
        return best.values, best.indices
    blocks = scores[:whole].view(-1, BLOCK)
    chosen = blocks.amax(1).topk(k).indices
    places = (chosen[:, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).reshape(-1)
    places = torch.cat([places, torch.arange(whole, len(scores), device=scores.device)])
    best = scores[places].topk(k)
    return best.values, places[best.indices]


class TorchSearch:
    """All keys, float32 of shape (rows, dims), on one device; a search scores every one.

    ``matrix``, shape (dims, width), ``bias`` and ``normalise`` make the key of a state as in
    :class:`~specdec_lib.datastores.reduction.Reduction`.
    """

    def __init__(
        self, matrix: np.ndarray, bias: np.ndarray, normalise: bool, keys: np.ndarray, device: torch.device | str
    ):
        self.device = torch.device(device)
        self._matrix, self._bias, self._keys = (
            torch.from_numpy(np.ascontiguousarray(array)).to(self.device) for array in (matrix, bias, keys)
        )
        self._normalise = normalise

    @classmethod
    def of(cls, reduction: Reduction, keys: np.ndarray, device: torch.device | str = "cpu") -> TorchSearch:
        """Keys that a reduction made."""
        return cls(reduction.matrix, reduction.bias, reduction.normalise, keys, device)

    @torch.inference_mode()
    def search(self, states: np.ndarray | torch.Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows, shape (n, k), of the keys of largest inner product with each state's own key, largest first; where
        there are fewer keys, minus infinity and -1."""
        queries = torch.as_tensor(states, device=self.device, dtype=torch.float32)
        queries = queries @ self._matrix.T + self._bias
        if self._normalise:
            queries = torch.nn.functional.normalize(queries, dim=1)
        count = min(k, len(self._keys))
        best = [self._best(query, count) for query in queries]
        scores = torch.stack([values for values, _ in best]).cpu().numpy()
        rows = torch.stack([indices for _, indices in best]).cpu().numpy()
        missing = ((0, 0), (0, k - count))
        return np.pad(scores, missing, constant_values=-np.inf), np.pad(rows, missing, constant_values=-1)

    def _best(self, query: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        values, rows = [], []
        for begin in range(0, len(self._keys), CHUNK):
            scores = self._keys[begin : begin + CHUNK] @ query
            best, places = largest(scores, min(k, len(scores)))
            values.append(best)
            rows.append(places + begin)
        if len(values) == 1:
            return values[0], rows[0]
        top = torch.cat(values).topk(k)
        return top.values, torch.cat(rows)[top.indices]


class ExactIndex:
    """A dense index in memory, searched by torch, for a machine without FAISS (DReSD, section 5.2).

    Keys have ``dims`` values; ``width`` is that of a state.
    """

    def __init__(self, states: ArrayStates, store: TokenStore, dims: int = 64, device: torch.device | str = "cpu"):
        moments, parts, places = Moments(), [], []
        for positions, part in states:
            part = check_states(part, states.width)
            moments.add(part)
            parts.append(part)
            places.append(positions)
        reduction = fit(moments, dims)
        keys = np.concatenate([reduction.apply(part) for part in parts])
        self.store, self.path, self.width = store, store.path, states.width
        self.positions = np.concatenate(places)
        self._search = TorchSearch.of(reduction, keys, device)
        self.backend = f"torch-{self._search.device.type}"

    def __len__(self) -> int:
        """Number of keys."""
        return len(self.positions)

    def search(self, states: np.ndarray | torch.Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`specdec_lib.datastores.dense.DenseIndex.search`."""
        k = whole("k", k, 1)
        if isinstance(states, torch.Tensor):
            states = states.detach().float().cpu().numpy()
        states = check_states(states, self.width)
        scores, rows = self._search.search(states, k)
        return scores, np.where(rows < 0, -1, self.positions[rows])
