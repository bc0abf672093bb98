"""The decision process of SpecDec++ (Huang et al. 2024, section 3.1), solved on pairs of Markov chains.

The paper adds up the costs of a whole response. Here a response is endless, and the cost per token is minimised, so no last
round disturbs it. States, actions and costs: :mod:`specdec_lib.chapters.ch05_specdec_pp.theory.rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.theory.chains import ChainPair, stationary
from specdec_lib.chapters.ch05_specdec_pp.theory.rounds import Costs, Decision, Ending, Policy, Rounds, compare, follow


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a policy does in the long run: by the context that a round begins in, its expected discarded candidates and emitted
    tokens, and the probability that the round after begins in each context."""

    discarded: np.ndarray
    tokens: np.ndarray
    next_context: np.ndarray

    @cached_property
    def starts(self) -> np.ndarray:
        """Share of rounds that begin in each context: shape (contexts,)."""
        return stationary(self.next_context)

    @property
    def verification_rate(self) -> float:
        """Verifications a token, N_target / N."""
        return float(1.0 / (self.starts @ self.tokens))

    @property
    def discard_rate(self) -> float:
        """Discarded candidates a token, N_discarded / N."""
        return float(self.starts @ self.discarded / (self.starts @ self.tokens))

    def cost(self, costs: Costs) -> float:
        """Cost a token, c1 N_discarded / N + c2 N_target / N; equation 2.3 without its first term."""
        return costs.discard * self.discard_rate + costs.verify * self.verification_rate

    def relative(self, costs: Costs) -> np.ndarray:
        """What a long response costs by its first context, less that of context 0: shape (contexts,)."""
        paid = costs.discard * self.discarded + costs.verify - self.cost(costs) * self.tokens
        equations = np.eye(len(paid)) - self.next_context
        equations[:, 0] = 0.0
        return np.append(0.0, np.linalg.lstsq(equations, paid, rcond=None)[0][1:])


def outcome(rounds: Rounds, stops: Policy) -> Outcome:
    """Work out what a policy does in the long run, all its quantities in one induction."""
    pair, levels = rounds.pair, np.arange(rounds.longest)
    where = np.eye(pair.contexts)
    counts = 2 + pair.contexts
    rejected, accepted = (np.zeros((rounds.longest, pair.contexts, counts)) for _ in range(2))
    # The candidates before the refused one and its replacement; or all of them and one more of the target's.
    rejected[..., 1], accepted[..., 1] = levels[:, None] + 1, levels[:, None] + 2
    rejected[..., 2:], accepted[..., 2:] = pair.after(pair.residual, where), pair.after(pair.target, where)
    first = np.eye(counts)[0]
    sums = follow(rounds, stops, first, np.zeros(counts), Ending(rejected, accepted))[0]
    return Outcome(sums[:, 0], sums[:, 1], sums[:, 2:])


def endless(rounds: Rounds, relative: np.ndarray, rate: float) -> Ending:
    """What follows a round of an endless response, compared with a cost of ``rate`` for every token."""
    pair, tokens = rounds.pair, np.arange(rounds.longest)[:, None, None] + 1
    values = relative[:, None]
    return Ending(
        pair.after(pair.residual, values) - rate * tokens,
        pair.after(pair.target, values) - rate * (tokens + 1),
    )


class Solution(NamedTuple):
    """A policy of least cost a token, its outcome, and the costs of both actions when every later decision is the
    best."""

    stops: Policy
    outcome: Outcome
    decision: Decision


def solve(rounds: Rounds, costs: Costs) -> Solution:
    """Find the policy of least cost a token by policy iteration, which ends when no action changes or no change is
    cheaper."""
    stops, least = rounds.fixed(1), np.inf
    while True:
        played = outcome(rounds, stops)
        cost = played.cost(costs)
        decision = compare(rounds, costs, endless(rounds, played.relative(costs), cost))
        better = decision.stops
        # Actions that cost the same could change places for ever: no gain ends it too.
        if cost >= least * (1 - 1e-14) or all(map(np.array_equal, stops, better)):
            return Solution(stops, played, decision)
        stops, least = better, cost


def visits(rounds: Rounds, stops: Policy, starts: np.ndarray) -> list[np.ndarray]:
    """How often a round visits each state, on average, given the share of rounds that begin in each context."""
    reached = [starts]
    for k, child in enumerate(rounds.children):
        flow = (reached[-1] * ~stops[k])[:, None] * rounds.pair.draft[rounds.contexts[k]]
        reached.append(np.bincount(child.ravel(), flow.ravel(), minlength=len(rounds.contexts[k + 1])))
    return reached


def oracle_cost(pair: ChainPair, costs: Costs) -> float:
    """Least cost a token of anyone who knows which candidates will be refused (section 2.1, for sampling).

    Nothing is discarded and the target runs once for every refused token: c2 times the mean rejection rate along the
    target's text.
    """
    return float(costs.verify * pair.stationary @ pair.rejection_rate)
