"""The target's most likely tokens after each node of a pass, for drafters that ask for them (``Capture(topk=k)``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from specdec_lib.lazy import former_attribute


@dataclass(frozen=True, eq=False)
class Outputs:
    """The target's most likely tokens after each token of a verification, most likely first.

    Row 0 belongs to the root and row ``i + 1`` to node ``i`` of the tree, accepted or not. Log-probabilities, in nats, are those
    of the raw logits in float32, before temperature, filters and logits processors.

    Examples
    --------
    A drafter that proposes what the target found second most likely after its last token:

    >>> from specdec_lib import Capture, Drafter, DraftTree, generate
    >>> class Second(Drafter):
    ...     capture, replays, guess = Capture(topk=2), "never", ()
    ...     def propose(self, context, limit):
    ...         return DraftTree.chain(self.guess)
    ...     def verified(self, tree, path, outputs):
    ...         last = path[-1] + 1 if path else 0
    ...         self.guess = outputs.tokens[last, 1:2]
    >>> run = generate(model, prompt, Second(), max_new_tokens=8)
    >>> run.tokens == generate(model, prompt, max_new_tokens=8).tokens
    True
    """

    #: int64, shape (n + 1, k).
    tokens: np.ndarray
    #: float32, shape (n + 1, k).
    logprobs: np.ndarray
    #: The same after each of p auxiliary tokens, shape (p, k).
    auxiliary_tokens: np.ndarray
    auxiliary_logprobs: np.ndarray
    #: The token that row 0 follows, which is not part of the tree.
    root: int
    passenger_tokens = former_attribute("auxiliary_tokens")
    passenger_logprobs = former_attribute("auxiliary_logprobs")

    def top(self, k: int) -> Outputs:
        """The ``k`` most likely of each row; views."""
        rows = (self.tokens, self.logprobs, self.auxiliary_tokens, self.auxiliary_logprobs)
        return Outputs(*(each[:, :k] for each in rows), self.root)


class QueuedTopK:
    """The ``k`` most likely tokens of each row of logits, computed and on their way to the host.

    On a GPU the copies are queued into pinned memory. They arrive with whatever the host waits for next in the same stream.

    Parameters
    ----------
    logits : float tensor of shape (n, vocabulary)
    k : int

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.outputs import QueuedTopK
    >>> tokens, logprobs = QueuedTopK(torch.tensor([[1.0, 3.0, 2.0]]), k=2).arrays()
    >>> tokens, logprobs.round(2)
    (array([[1, 2]]), array([[-0.41, -1.41]], dtype=float32))
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
