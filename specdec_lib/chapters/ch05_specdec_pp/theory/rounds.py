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
    """Costs of the decision process, in any one unit.

    Attributes
    ----------
    discard : float
        c1 = t_draft, of a discarded candidate.
    verify : float
        c2 = t_target - t_draft, of a verification.
    """

    discard: float
    verify: float

    @classmethod
    def of_times(cls, draft: float, target: float) -> Costs:
        """Costs from the times of one forward of the draft model and of the target (equation 2.2).

        Raises
        ------
        ValueError
            If not 0 < draft < target.
        """
        if not 0 < draft < target:
            raise ValueError(
                f"draft {draft!r}, target {target!r}: expected times above 0, the draft's below the target's"
            )
        return cls(draft, target - draft)


@dataclass(frozen=True, eq=False)
class Rounds:
    """All states that a round of drafting can reach, level by level; build with :meth:`of`.

    Attributes
    ----------
    pair : ChainPair
    contexts : list of int array, shape (states of level k,)
        Context at the end of the k candidates. Level 0 holds every context once, in order.
    alive : list of float array, shape (states of level k,)
        Probability that the k candidates are all accepted.
    children : list of int array, shape (states of level k, vocabulary)
        State of level k+1 after each token; 0 after one that the draft never draws. One entry less than
        levels.
    """

    pair: ChainPair
    contexts: list[np.ndarray]
    alive: list[np.ndarray]
    children: list[np.ndarray]

    @classmethod
    def of(cls, pair: ChainPair, longest: int) -> Rounds:
        """List the states of rounds of at most ``longest`` candidates.

        Parameters
        ----------
        pair : ChainPair
        longest : int

        Raises
        ------
        ValueError
            If ``longest`` is below 1, or a level has more than :data:`MOST_STATES` states.
        """
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
    """Value of what follows a round, for each component of a vector of D quantities.

    Attributes
    ----------
    rejected : float array, shape (levels, contexts, D)
        Once the candidate drawn at level k, in a context, is the first refused.
    accepted : float array, shape (levels, contexts, D)
        Once the candidate drawn at level k is the last and all are accepted; by the context after it.
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
    """What drawing Y_{k+1} brings by itself.

    It is lost if one of the k+1 is refused; if it is the first of them, all that follows the round is counted
    too.

    Returns
    -------
    float array, shape (states of level k, D)
    """
    contexts, alive = rounds.contexts[k], rounds.alive[k][:, None]
    refused_first = alive * rounds.pair.rejection_rate[contexts][:, None]
    return (1.0 - alive + refused_first) * discard + refused_first * ending.rejected[k, contexts]


def continue_value(rounds: Rounds, k: int, discard: np.ndarray, ending: Ending, following: np.ndarray) -> np.ndarray:
    """Expected sum of *continue* in each state of level ``k``: shape (states, D).

    Parameters
    ----------
    following : float array, shape (states of level k + 1, D)
        Expected sum from there.
    """
    drawn = rounds.pair.draft[rounds.contexts[k]]
    return draw_value(rounds, k, discard, ending) + np.einsum("sv,svd->sd", drawn, following[rounds.children[k]])


def follow(
    rounds: Rounds,
    stops: Policy,
    discard: np.ndarray,
    verify: np.ndarray,
    ending: Ending,
) -> list[np.ndarray]:
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
    """Both actions compared in every state.

    Attributes
    ----------
    stop, proceed : list of float array, shape (states of level k,)
        Expected cost of *stop* and of *continue*; the last level cannot continue and has infinity.
    """

    stop: list[np.ndarray]
    proceed: list[np.ndarray]

    @property
    def stops(self) -> Policy:
        """The policy that takes the cheaper action; equal costs stop."""
        # A difference of rounding errors must not change a policy for ever.
        return [s <= c + 1e-12 * (1 + abs(s)) for s, c in zip(self.stop, self.proceed, strict=True)]


def compare(
    rounds: Rounds, costs: Costs, ending: Ending, stops: Policy | None = None, depth: int | None = None
) -> Decision:
    """Cost of *stop* and of *continue* in every state, when after *continue* a policy is followed, or the cheapest
    actions without one; ``depth`` limits this round's candidates."""
    discard, verify = np.array([costs.discard]), np.array([costs.verify])
    last = (rounds.longest if depth is None else depth) - 1
    stop = [stop_value(rounds, k, discard, verify, ending)[:, 0] for k in range(last + 1)]
    proceed = [np.full(len(stop[last]), np.inf)]
    value = stop[last]
    for k in range(last - 1, -1, -1):
        proceed.insert(0, continue_value(rounds, k, discard, ending, value[:, None])[:, 0])
        ends = stop[k] <= proceed[0] if stops is None else stops[k]
        value = np.where(ends, stop[k], proceed[0])
    return Decision(stop, proceed)
