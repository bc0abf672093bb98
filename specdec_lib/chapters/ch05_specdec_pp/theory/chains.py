"""Small target and draft models whose every probability is known: Markov chains over a few tokens.

A context is the last ``order`` tokens, written as a number in base ``vocabulary``, the newest token last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from specdec_lib.decoding.acceptance import residual


@dataclass(frozen=True, eq=False)
class ChainPair:
    """A target p and a draft q, both Markov chains of the same order over the same tokens.

    ``target`` and ``draft`` are float arrays of shape (contexts, vocabulary) whose rows are the distributions of the next
    token; contexts = vocabulary ** order.
    """

    target: np.ndarray
    draft: np.ndarray

    def __post_init__(self) -> None:
        for name in ("target", "draft"):
            rows = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, rows)
            if rows.ndim != 2 or rows.shape != np.shape(self.target):
                raise ValueError(f"{name} has shape {rows.shape}; expected (contexts, vocabulary), the same for both")
            if not (np.isfinite(rows).all() and (rows >= 0).all() and np.allclose(rows.sum(1), 1, atol=1e-9)):
                raise ValueError(f"a row of {name} is no distribution; expected shares that add up to 1")
        if self.vocabulary**self.order != self.contexts:
            raise ValueError(
                f"{self.contexts} contexts over {self.vocabulary} tokens; expected a power of the vocabulary"
            )

    @property
    def contexts(self) -> int:
        """Number of contexts."""
        return self.target.shape[0]

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.target.shape[1]

    @property
    def order(self) -> int:
        """Tokens of a context; 0 where every context is alike."""
        return 0 if self.contexts == 1 else round(np.log(self.contexts) / np.log(max(self.vocabulary, 2)))

    @cached_property
    def following(self) -> np.ndarray:
        """Context after each token: int64, shape (contexts, vocabulary)."""
        pairs = np.arange(self.contexts)[:, None] * self.vocabulary + np.arange(self.vocabulary)
        return pairs % self.contexts

    @cached_property
    def acceptance(self) -> np.ndarray:
        """Probability that a drafted token is kept, min(1, p/q): shape (contexts, vocabulary).

        1 where q is 0: such a token is never drafted.
        """
        drawn = self.draft > 0
        return np.where(drawn, np.minimum(1.0, self.target / np.where(drawn, self.draft, 1.0)), 1.0)

    @cached_property
    def rejection_rate(self) -> np.ndarray:
        """Probability that the next drafted token is refused, 1 - sum of min(p, q): shape (contexts,)."""
        return 1.0 - np.minimum(self.target, self.draft).sum(1)

    @cached_property
    def residual(self) -> np.ndarray:
        """Distribution of the token that replaces a refused one: shape (contexts, vocabulary)."""
        rows = zip(torch.from_numpy(self.target), torch.from_numpy(self.draft), strict=True)
        return np.stack([residual(p, q).numpy() for p, q in rows])

    def after(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Mean of a function of the next context when the next token is drawn from ``rows``: shape (contexts, ...)."""
        return np.einsum("cv,cv...->c...", rows, values[self.following])

    @cached_property
    def stationary(self) -> np.ndarray:
        """Share of positions of a long text of the target that have each context: shape (contexts,)."""
        return stationary(self.after(self.target, np.eye(self.contexts)))


def stationary(transitions: np.ndarray) -> np.ndarray:
    """Stationary distribution of a Markov chain whose rows add up to 1; ValueError if it has parts that it never
    leaves, and so more than one."""
    states = len(transitions)
    equations = np.vstack([(transitions.T - np.eye(states)), np.ones(states)])
    wanted = np.append(np.zeros(states), 1.0)
    share, _, rank, _ = np.linalg.lstsq(equations, wanted, rcond=None)
    if rank < states:
        raise ValueError(
            "the chain has several parts that it never leaves; expected one: give every token some probability"
        )
    return share


def random_pair(
    rng: np.random.Generator,
    vocabulary: int,
    order: int = 1,
    concentration: float = 0.5,
    looseness: float = 1.0,
) -> ChainPair:
    """Draw a target, and a draft that follows it closely in some contexts and loosely in others.

    The target's rows are drawn from a Dirichlet distribution: the smaller ``concentration``, the surer it is. The draft
    mixes in an independent row, with a weight of each context's own, uniform in [0, ``looseness``].
    """
    contexts = vocabulary**order
    own, other = rng.dirichlet(np.full(vocabulary, concentration), (2, contexts))
    # A thousandth of the uniform law keeps every token possible, so that a long text meets every context.
    target = 0.999 * own + 0.001 / vocabulary
    weight = looseness * rng.random((contexts, 1))
    return ChainPair(target, (1 - weight) * target + weight * other)
