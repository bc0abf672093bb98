"""Theorem 3.1 of SpecDec++ (Huang et al. 2024), with its constant worked out.

The theorem: let P be the probability that one of Y_1, ..., Y_k is refused. If P is at least
(c2 + Delta) / (c1 + c2 + Delta), *stop* costs no more than *continue* followed by the policy pi. The argument
has two cases.

- One of the k is refused: whatever is drawn from here on is lost. *Continue* draws at least one candidate
  more than *stop* and verifies once too, so *stop* saves at least c1.
- None is: *continue* saves at most c2 + Delta. Delta is defined here as the least constant of which this is
  true in every state, so that the threshold is the lowest that the argument gives; a larger one serves too.

Weighing the two cases by P and 1 - P gives the threshold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.theory.rounds import Costs, Decision, Ending, Policy, Rounds


class Cases(NamedTuple):
    """Cost of *stop* less that of *continue* by level that may continue and state, if all candidates so far are accepted and
    if one is refused."""

    accepted: list[np.ndarray]
    refused: list[np.ndarray]


def cases(rounds: Rounds, costs: Costs, ending: Ending, stops: Policy) -> Cases:
    """Compare the actions given that Y_1, ..., Y_k are all accepted, and given that one is refused; after *continue* the
    policy ``stops`` is followed."""
    pair = rounds.pair
    last = rounds.longest - 1
    accepted, refused = [], []
    # Cost from here to the end of the round, in either case.
    lost = np.full(len(rounds.contexts[last]), costs.discard + costs.verify)
    kept = _stop_if_accepted(rounds, last, costs, ending)
    for k in range(last - 1, -1, -1):
        contexts, child = rounds.contexts[k], rounds.children[k]
        drawn, keeps = pair.draft[contexts], pair.acceptance[contexts]
        if_refused = costs.discard + lost[child] + ending.rejected[k, contexts]
        on_lost = costs.discard + (drawn * lost[child]).sum(1)
        on_kept = (drawn * (keeps * kept[child] + (1 - keeps) * if_refused)).sum(1)
        stop_lost = np.full(len(contexts), costs.discard + costs.verify)
        stop_kept = _stop_if_accepted(rounds, k, costs, ending)
        accepted.insert(0, stop_kept - on_kept)
        refused.insert(0, stop_lost - on_lost)
        lost, kept = np.where(stops[k], stop_lost, on_lost), np.where(stops[k], stop_kept, on_kept)
    return Cases(accepted, refused)


def _stop_if_accepted(rounds: Rounds, k: int, costs: Costs, ending: Ending) -> np.ndarray:
    """Cost of stopping at level k when its k candidates are all accepted."""
    pair, contexts = rounds.pair, rounds.contexts[k]
    kept = pair.after(pair.draft * pair.acceptance, ending.accepted[k])[contexts, 0]
    refused = pair.rejection_rate[contexts] * (costs.discard + ending.rejected[k, contexts, 0])
    return costs.verify + kept + refused


def delta(rounds: Rounds, costs: Costs, found: Cases) -> float:
    """The constant of Theorem 3.1: the least of which c2 + Delta bounds the saving of *continue*; minus infinity where no
    state may continue.

    States whose candidates cannot all be accepted are left out: there P is 1 and the theorem needs no constant.
    """
    savings = [
        saving[alive > 0].max(initial=-np.inf) for saving, alive in zip(found.accepted, rounds.alive, strict=False)
    ]
    return float(max(savings, default=-np.inf) - costs.verify)


def stopping_threshold(costs: Costs, delta: float) -> float:
    """(c2 + Delta) / (c1 + c2 + Delta); 0 where c2 + Delta is not above 0, so that *stop* is always right."""
    saving = costs.verify + delta
    return saving / (costs.discard + saving) if saving > 0 else 0.0


def true_refusal(estimate: float | np.ndarray, weight: float) -> float | np.ndarray:
    """The true probability of a refusal behind the estimate of a head whose loss weighs refusals more.

    Section 3.3: the weighted cross-entropy -(1 - r) log(1 - e) - w r log(e) is least at e = w r / (1 - r + w r), for a
    true probability r. Solved for r: e / (w - (w - 1) e).
    """
    return estimate / (weight - (weight - 1) * estimate)


#: Relative difference of two costs that counts.
TOLERANCE = 1e-9


def counterexamples(rounds: Rounds, decision: Decision, threshold: float) -> int:
    """States with P at or above a threshold in which *continue* is cheaper by more than :data:`TOLERANCE`."""
    return sum(
        int(np.sum((1.0 - alive >= threshold) & _continues(stop, proceed)))
        for alive, stop, proceed in zip(rounds.alive, decision.stop, decision.proceed, strict=False)
    )


class Frontier(NamedTuple):
    """By context, over states that may continue, the largest P at which *continue* is cheaper (-1 where it never is) and the
    smallest at which *stop* is (infinity where it never is)."""

    continues_to: np.ndarray
    stops_from: np.ndarray

    @property
    def needed(self) -> float:
        """The least threshold above which *stop* is right in every state."""
        return float(max(self.continues_to.max(), 0.0))

    @property
    def single(self) -> bool:
        """Whether one threshold on P separates the actions."""
        return bool(self.continues_to.max() < self.stops_from.min())


def frontier(rounds: Rounds, decision: Decision, levels: int | None = None) -> Frontier:
    """Find the frontier in each context, in the first ``levels`` only if given: close to the limit on the candidates there is
    less to continue for, and the frontier moves."""
    going, ending = np.full(rounds.pair.contexts, -1.0), np.full(rounds.pair.contexts, np.inf)
    shown = rounds.contexts[: rounds.longest - 1 if levels is None else levels]
    for contexts, alive, stop, proceed in zip(shown, rounds.alive, decision.stop, decision.proceed, strict=False):
        cheaper, dearer = (_continues(a, b) for a, b in ((stop, proceed), (proceed, stop)))
        np.maximum.at(going, contexts[cheaper], 1.0 - alive[cheaper])
        np.minimum.at(ending, contexts[dearer], 1.0 - alive[dearer])
    return Frontier(going, ending)


def _continues(stop: np.ndarray, proceed: np.ndarray) -> np.ndarray:
    return proceed < stop - TOLERANCE * (1 + abs(stop))
