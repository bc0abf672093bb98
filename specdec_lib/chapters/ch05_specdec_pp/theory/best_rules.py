"""What stopping rules cost compared with the best policy, on one pair of Markov chains or on many random ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.theory.chains import random_pair
from specdec_lib.chapters.ch05_specdec_pp.theory.mdp import Solution, endless, oracle_cost, outcome, solve, visits
from specdec_lib.chapters.ch05_specdec_pp.theory.rounds import Costs, Policy, Rounds
from specdec_lib.chapters.ch05_specdec_pp.theory.threshold import (
    cases,
    counterexamples,
    delta,
    frontier,
    stopping_threshold,
)


def thresholds(rounds: Rounds, costs: Costs, values: Sequence[float]) -> dict[float, float]:
    """Cost a token of Algorithm 2 with the true acceptance probabilities, by threshold h."""
    return {h: outcome(rounds, rounds.threshold(h)).cost(costs) for h in values}


class Bound(NamedTuple):
    """Theorem 3.1 for one policy, compared with what the true costs of both actions say.

    The theorem says *stop* from P = ``threshold`` on; above ``needed`` it is in fact right in every state. ``single``: one
    threshold separates the states that stop from those that go on, in the first half of the levels, where the limit on the
    candidates is far. ``failures``: states in which the theorem says *stop* and *continue* is cheaper. ``certified``: share of
    the rounds that the policy ends below the limit in which the theorem says *stop*; NaN where it ends none.
    """

    delta: float
    threshold: float
    needed: float
    single: bool
    failures: int
    certified: float


def bound(rounds: Rounds, costs: Costs, solution: Solution) -> Bound:
    """Apply Theorem 3.1 to the best policy (:func:`specdec_lib.chapters.ch05_specdec_pp.theory.mdp.solve`)."""
    played = solution.outcome
    ending = endless(rounds, played.relative(costs), played.cost(costs))
    constant = delta(rounds, costs, cases(rounds, costs, ending, solution.stops))
    limit = stopping_threshold(costs, constant)
    return Bound(
        constant,
        limit,
        frontier(rounds, solution.decision).needed,
        frontier(rounds, solution.decision, max(rounds.longest // 2, 1)).single,
        counterexamples(rounds, solution.decision, limit),
        certified(rounds, solution.stops, played.starts, limit),
    )


def certified(rounds: Rounds, stops: Policy, starts: np.ndarray, threshold: float) -> float:
    """Share of voluntary stops made in states with P at or above a threshold; NaN where there are none."""
    seen = visits(rounds, stops, starts)[:-1]
    ended = [times * stop for times, stop in zip(seen, stops, strict=False)]
    total = sum(times.sum() for times in ended)
    above = sum(times[1 - alive >= threshold].sum() for times, alive in zip(ended, rounds.alive, strict=False))
    return float(above / total) if total > 0 else float("nan")


def survey(instances: int, longest: int, values: Sequence[float], seed: int = 0) -> Iterator[dict[str, float]]:
    """Compare the rules on random pairs with random costs; rounds have at most ``longest`` candidates, and h is one of
    ``values``.

    Yields ``cost_ratio`` (t_draft / t_target, log-uniform in [0.02, 0.5]); costs a token over those of the best policy, less 1:
    ``best_fixed``, ``best_threshold``, ``theorem_rule`` (h of Theorem 3.1), ``no_delta_rule`` (h = c2 / (c1 + c2)), ``oracle``
    (below 0); the fields of :class:`Bound`, ``delta`` over c2.
    """
    rng = np.random.default_rng(seed)
    for _ in range(instances):
        rounds = Rounds.of(random_pair(rng, 3, looseness=0.5), longest)
        ratio = float(np.exp(rng.uniform(np.log(0.02), np.log(0.5))))
        costs = Costs.of_times(ratio, 1.0)
        solution = solve(rounds, costs)
        limits = bound(rounds, costs, solution)
        least = solution.outcome.cost(costs)
        rules = {"theorem_rule": limits.threshold, "no_delta_rule": stopping_threshold(costs, 0.0)}
        lengths = [outcome(rounds, rounds.fixed(k)).cost(costs) for k in range(1, longest + 1)]
        yield {
            "cost_ratio": ratio,
            "best_fixed": min(lengths) / least - 1,
            "best_threshold": min(thresholds(rounds, costs, values).values()) / least - 1,
            **{name: outcome(rounds, rounds.threshold(h)).cost(costs) / least - 1 for name, h in rules.items()},
            "oracle": oracle_cost(rounds.pair, costs) / least - 1,
            **limits._asdict(),
            "delta": limits.delta / costs.verify,
        }
