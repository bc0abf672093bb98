"""The states of a round of drafting in SpecDec++, and both actions in them (Huang et al. 2024, section 3.1).

A state is a prefix and the candidates Y_1, ..., Y_k drafted since. Whatever is decided, Y_{k+1} is drawn
first; *stop* then verifies all k+1 candidates, the newest unchecked, and *continue* goes on to k+1.
Discarding a candidate costs c1, a verification c2. The costs are delayed: which candidates are refused shows
only at the verification. But given the candidates, their acceptance is independent of the decisions, with
known probability. The expected costs of a state therefore depend on the candidates by two things alone: the
context they end in, and ``alive``, the probability that all of them are accepted (1 - alive is the P of
Theorem 3.1). What happens after a refusal is settled when the refused candidate is drawn, so its expected
cost is counted there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.theory.chains import ChainPair

#: By level k: whether each state stops. The last level always does.
Policy = list[np.ndarray]
#: Digits in which two probabilities of one state agree; more would tell rounding errors apart.
DIGITS = 12
#: States of one level beyond which the enumeration is refused.
MOST_STATES = 500_000


class Costs(NamedTuple):
    """Costs in any one unit: c1 = t_draft of a discarded candidate, c2 = t_target - t_draft of a verification."""

    discard: float
    verify: float

    @classmethod
    def of_times(cls, draft: float, target: float) -> Costs:
        """Costs from the times of one pass of the draft model and of the target (equation 2.2)."""
        if not 0 < draft < target:
            raise ValueError(
                f"draft {draft!r}, target {target!r}: expected times above 0, the draft's below the target's"
            )
        return cls(draft, target - draft)


@dataclass(frozen=True, eq=False)
class Rounds:
    """All states that a round of drafting can reach, level by level; build with :meth:`of`.

    By level k and state: ``contexts`` at the end of the k candidates (level 0 holds every context once, in order); ``alive``,
    the probability that they are all accepted; ``children``, the states of level k+1 after each token, 0 after one that the
    draft never draws (one level less).
    """

    pair: ChainPair
    contexts: list[np.ndarray]
    alive: list[np.ndarray]
    children: list[np.ndarray]

    @classmethod
    def of(cls, pair: ChainPair, longest: int) -> Rounds:
        """List the states of rounds of at most ``longest`` candidates."""
        if longest < 1:
            raise ValueError(f"longest is {longest!r}; expected at least one candidate a round")
        contexts, alive, children = [np.arange(pair.contexts)], [np.ones(pair.contexts)], []
        for level in range(1, longest):
            if len(contexts[-1]) > MOST_STATES:
                raise ValueError(
                    f"after {level - 1} candidates there are {len(contexts[-1]):,} states, more than "
                    f"{MOST_STATES:,}; choose longest = {level - 1} or a smaller pair"
                )
            after = pair.following[contexts[-1]]
            kept = alive[-1][:, None] * pair.acceptance[contexts[-1]]
            drawn = pair.draft[contexts[-1]] > 0
            keys = np.stack([after[drawn], np.round(kept[drawn], DIGITS)], axis=1)
            _, first, index = np.unique(keys, axis=0, return_index=True, return_inverse=True)
            child = np.zeros(after.shape, dtype=np.int64)
            child[drawn] = index.reshape(-1)
            children.append(child)
            contexts.append(after[drawn][first])
            alive.append(kept[drawn][first])
        return cls(pair, contexts, alive, children)

    @property
    def longest(self) -> int:
        """Most candidates of a round."""
        return len(self.contexts)

    @cached_property
    def states(self) -> int:
        """Number of states."""
        return sum(map(len, self.contexts))

    def fixed(self, length: int) -> Policy:
        """The policy of ``length`` candidates in every round."""
        return [np.full(len(c), k >= min(length, self.longest) - 1) for k, c in enumerate(self.contexts)]

    def threshold(self, threshold: float) -> Policy:
        """Stop when the probability that a candidate is refused exceeds ``threshold`` (Algorithm 2)."""
        stops = [1.0 - alive > threshold for alive in self.alive]
        return [*stops[:-1], np.ones_like(stops[-1])]


class Ending(NamedTuple):
    """Value of what follows a round, for each of D quantities: shape (levels, contexts, D).

    ``rejected``: the candidate drawn at level k, in a context, is the first refused. ``accepted``: it is the last and all are
    accepted; by the context after it.
    """

    rejected: np.ndarray
    accepted: np.ndarray


def stop_value(rounds: Rounds, k: int, discard: np.ndarray, verify: np.ndarray, ending: Ending) -> np.ndarray:
    """Expected sum of *stop* in each state of level ``k``, for what a discarded candidate and a verification count:
    shape (states, D)."""
    pair, contexts = rounds.pair, rounds.contexts[k]
    kept = pair.after(pair.draft * pair.acceptance, ending.accepted[k])[contexts]
    return draw_value(rounds, k, discard, ending) + verify + rounds.alive[k][:, None] * kept


def draw_value(rounds: Rounds, k: int, discard: np.ndarray, ending: Ending) -> np.ndarray:
    """Expected sum of drawing Y_{k+1} alone: it is lost if one of the k+1 is refused, and if it is the first of them, all
    that follows the round is counted too. Shape (states of level k, D)."""
    contexts, alive = rounds.contexts[k], rounds.alive[k][:, None]
    refused_first = alive * rounds.pair.rejection_rate[contexts][:, None]
    return (1.0 - alive + refused_first) * discard + refused_first * ending.rejected[k, contexts]


def continue_value(rounds: Rounds, k: int, discard: np.ndarray, ending: Ending, following: np.ndarray) -> np.ndarray:
    """Expected sum of *continue* in each state of level ``k``, given that from each state of the next level: shape (states,
    D)."""
    drawn = rounds.pair.draft[rounds.contexts[k]]
    return draw_value(rounds, k, discard, ending) + np.einsum("sv,svd->sd", drawn, following[rounds.children[k]])


def follow(rounds: Rounds, stops: Policy, discard: np.ndarray, verify: np.ndarray, ending: Ending) -> list[np.ndarray]:
    """Expected sums to the end of the round under a policy, by backward induction: for each level, shape (states of
    level k, D)."""
    last = rounds.longest - 1
    values = [stop_value(rounds, last, discard, verify, ending)]
    for k in range(last - 1, -1, -1):
        stop = stop_value(rounds, k, discard, verify, ending)
        goes_on = continue_value(rounds, k, discard, ending, values[0])
        values.insert(0, np.where(stops[k][:, None], stop, goes_on))
    return values


class Decision(NamedTuple):
    """Expected cost of *stop* and of *continue* by level and state; the last level cannot continue and has infinity."""

    stop: list[np.ndarray]
    proceed: list[np.ndarray]

    @property
    def stops(self) -> Policy:
        """The policy that takes the cheaper action; equal costs stop."""
        # A difference of rounding errors must not change a policy for ever.
        return [s <= c + 1e-12 * (1 + abs(s)) for s, c in zip(self.stop, self.proceed, strict=True)]


def compare(rounds: Rounds, costs: Costs, ending: Ending, stops: Policy | None = None) -> Decision:
    """Cost of *stop* and of *continue* in every state, when after *continue* a policy is followed, or the cheapest
    actions without one."""
    discard, verify = np.array([costs.discard]), np.array([costs.verify])
    last = rounds.longest - 1
    stop = [stop_value(rounds, k, discard, verify, ending)[:, 0] for k in range(last + 1)]
    proceed = [np.full(len(stop[last]), np.inf)]
    value = stop[last]
    for k in range(last - 1, -1, -1):
        proceed.insert(0, continue_value(rounds, k, discard, ending, value[:, None])[:, 0])
        ends = stop[k] <= proceed[0] if stops is None else stops[k]
        value = np.where(ends, stop[k], proceed[0])
    return Decision(stop, proceed)
