"""What the loop asks of a drafter, and what a drafter is shown.

A drafter sees tokens, and what it asked to have captured; it knows no target model. The loop knows no drafter by name.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from .sampling import Sampling
from .tree import DraftTree


#: Names the last layer, after the final norm, of a model whose number of layers is not known.
LAST = -1


@dataclass(frozen=True)
class Capture:
    """What the target keeps of its own computation for a drafter.

    Parameters
    ----------
    layers : tuple of int
        Hidden states as transformers counts them: 0 are the embeddings, ``i`` the output of block ``i``, the last one
        the final norm's output, which is also called :data:`LAST`.
    heads : tuple of (int, int)
        (block, head) pairs, both from 0, whose attention rows are kept.
    """

    layers: tuple[int, ...] = ()
    heads: tuple[tuple[int, int], ...] = ()

    def __or__(self, other: Capture) -> Capture:
        return Capture(tuple(dict.fromkeys(self.layers + other.layers)), tuple(dict.fromkeys(self.heads + other.heads)))


@dataclass
class Context:
    """What a drafter is shown.

    Attributes
    ----------
    tokens : list of int
        Prompt and all emitted tokens; grows in place. The last one's states are not computed yet.
    prompt_length : int
    vocabulary : int
        Number of token ids of the target.
    sampling : Sampling
        How the target chooses, bound to the prompt; a draft model draws in the same way.
    hidden : callable
        ``hidden(layer)`` gives the captured states of a layer as :class:`Capture` named it, shape
        (len(tokens) - 1, d).
    attention : callable
        ``attention()`` gives the captured heads' rows of the last cached token, shape (heads, len(tokens) - 1).
    """

    tokens: list[int]
    prompt_length: int
    vocabulary: int
    sampling: Sampling
    hidden: Callable[[int], torch.Tensor] = field(repr=False, default=None)
    attention: Callable[[], torch.Tensor] = field(repr=False, default=None)


@runtime_checkable
class Drafter(Protocol):
    """Proposes continuations.

    One that holds something for the length of a generation may have a method ``finish()``, which is called at its end.

    Attributes
    ----------
    capture : Capture
        What it needs of the target's computation.
    """

    capture: Capture

    def start(self, context: Context) -> None:
        """Forget the last generation and look at a new prompt; ``context.tokens`` ends with the first new token."""

    def propose(self, context: Context, limit: int) -> DraftTree:
        """A draft no deeper than ``limit`` (at least 1); an empty tree where there is nothing to propose."""
