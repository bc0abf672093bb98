"""The target's most likely tokens at each position of a pass, for drafters that ask for them (``Capture(topk=k)``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, eq=False)
class Outputs:
    """The target's most likely tokens after each position of a pass, most likely first.

    After a verification, row 0 belongs to the root and row ``i + 1`` to node ``i`` of the tree, accepted or not. Of a
    prompt or a recorded run, row ``i`` belongs to position ``i``. Log-probabilities, in nats, are those of the raw logits in
    float32, before temperature, filters and logits processors. Rows that a replay has no record of hold -1 and NaN.
    """

    #: int64, shape (n + 1, k).
    tokens: np.ndarray
    #: float32, shape (n + 1, k).
    logprobs: np.ndarray
    #: The same after each of p passengers, shape (p, k).
    passenger_tokens: np.ndarray | None = None
    passenger_logprobs: np.ndarray | None = None
    #: The token that row 0 follows, which is not part of the tree; None for a prompt.
    root: int | None = None

    def __post_init__(self) -> None:
        for name, dtype in (("passenger_tokens", np.int64), ("passenger_logprobs", np.float32)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.zeros((0, self.k), dtype))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and log-probabilities, passengers' left out."""
        return self.tokens, self.logprobs

    @property
    def k(self) -> int:
        """Tokens of a row."""
        return self.tokens.shape[1]

    def top(self, k: int) -> Outputs:
        """The ``k`` most likely of each row; views."""
        return Outputs(
            self.tokens[:, :k],
            self.logprobs[:, :k],
            self.passenger_tokens[:, :k],
            self.passenger_logprobs[:, :k],
            self.root,
        )


class QueuedTopK:
    """The ``k`` most likely tokens of each row of logits, shape (n, vocabulary), computed and on their way to the host.

    On a GPU the copies are queued into pinned memory. Whatever the host waits for next in the same stream brings them along.
    """

    def __init__(self, logits: torch.Tensor, k: int):
        scores = logits.float()
        best = scores.topk(k, dim=-1)
        logprobs = best.values - scores.logsumexp(-1, keepdim=True)
        self._tokens = best.indices.to("cpu", non_blocking=True)
        self._logprobs = logprobs.to("cpu", non_blocking=True)
        self._copied: torch.cuda.Event | None = None
        if logits.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(logits.device))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Token ids, int64, and log-probabilities, float32, each of shape (n, k)."""
        if self._copied is not None:
            self._copied.synchronize()
        return np.asarray(self._tokens), np.asarray(self._logprobs)


def joined(parts: Sequence[QueuedTopK | Outputs]) -> Outputs | None:
    """Rows of successive parts of a text as one; None of no parts."""
    if not parts:
        return None
    tokens, logprobs = zip(*(part.arrays() for part in parts), strict=True)
    return Outputs(np.concatenate(tokens), np.concatenate(logprobs))
