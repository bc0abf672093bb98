"""What stopping rules cost compared with the best policy, on one pair of Markov chains or on many random ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.theory.chains import random_pair
from specdec_lib.chapters.ch05_specdec_pp.theory.mdp import (
    Solution,
    endless,
    oracle_cost,
    outcome,
    solve,
    visits,
)
from specdec_lib.chapters.ch05_specdec_pp.theory.rounds import Costs, Policy, Rounds
from specdec_lib.chapters.ch05_specdec_pp.theory.threshold import (
    cases,
    counterexamples,
    delta,
    frontier,
    stopping_threshold,
)

if TYPE_CHECKING:
    import pandas as pd


class Choice(NamedTuple):
    """A setting of a rule and what it costs.

    Attributes
    ----------
    setting : float
    cost : float
        Per token.
    """

    setting: float
    cost: float


def fixed_lengths(rounds: Rounds, costs: Costs) -> list[Choice]:
    """Cost a token of every fixed number of candidates, from 1 to the most that ``rounds`` has."""
    return [Choice(k, outcome(rounds, rounds.fixed(k)).cost(costs)) for k in range(1, rounds.longest + 1)]


def thresholds(rounds: Rounds, costs: Costs, values: Sequence[float]) -> list[Choice]:
    """Cost a token of Algorithm 2 with the true acceptance probabilities, for each threshold h."""
    return [Choice(h, outcome(rounds, rounds.threshold(h)).cost(costs)) for h in values]


def cheapest(choices: Sequence[Choice]) -> Choice:
    """The choice of least cost; the first of several."""
    return min(choices, key=lambda choice: choice.cost)


class Bound(NamedTuple):
    """Theorem 3.1 for one policy, compared with what the true costs of both actions say.

    Attributes
    ----------
    delta : float
        :func:`specdec_lib.chapters.ch05_specdec_pp.theory.threshold.delta`.
    threshold : float
        From which P on the theorem says *stop*.
    needed : float
        Above which P *stop* is in fact right in every state.
    single : bool
        Whether one threshold on P separates the states that stop from those that go on, in the first half of
        the levels, where the limit on the candidates is far.
    failures : int
        States in which the theorem says *stop* and *continue* is cheaper.
    certified : float
        Share of the rounds that the policy ends of its own accord, below the limit, in which the theorem says
        *stop*; NaN where it never does.
    """

    delta: float
    threshold: float
    needed: float
    single: bool
    failures: int
    certified: float


def bound(rounds: Rounds, costs: Costs, solution: Solution) -> Bound:
    """Apply Theorem 3.1 to the best policy.

    Parameters
    ----------
    rounds : Rounds
    costs : Costs
    solution : Solution
        :func:`specdec_lib.chapters.ch05_specdec_pp.theory.mdp.solve` of the same.
    """
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


def survey(
    instances: int,
    longest: int,
    values: Sequence[float],
    seed: int = 0,
    vocabulary: int = 3,
    looseness: float = 0.5,
) -> Iterator[dict[str, float]]:
    """Compare the rules on random pairs with random costs.

    Parameters
    ----------
    instances : int
    longest : int
        Most candidates of a round.
    values : sequence of float
        Thresholds h to choose the best from.
    seed : int
    vocabulary : int
        Tokens, and contexts, of each pair.
    looseness : float
        As for :func:`specdec_lib.chapters.ch05_specdec_pp.theory.chains.random_pair`.

    Yields
    ------
    dict
        ``cost_ratio`` (t_draft / t_target, log-uniform in [0.02, 0.5]); costs a token over those of the best
        policy, less 1: ``best_fixed`` (over K), ``best_threshold`` (over h), ``theorem_rule`` (h of Theorem
        3.1), ``no_delta_rule`` (h = c2 / (c1 + c2)); ``oracle``: the same of the oracle, below 0; the fields
        of :class:`Bound`, ``delta`` over c2.
    """
    rng = np.random.default_rng(seed)
    for _ in range(instances):
        rounds = Rounds.of(random_pair(rng, vocabulary, looseness=looseness), longest)
        ratio = float(np.exp(rng.uniform(np.log(0.02), np.log(0.5))))
        costs = Costs.of_times(ratio, 1.0)
        solution = solve(rounds, costs)
        limits = bound(rounds, costs, solution)
        least = solution.outcome.cost(costs)
        own = thresholds(rounds, costs, [limits.threshold, stopping_threshold(costs, 0.0)])
        yield {
            "cost_ratio": ratio,
            "best_fixed": cheapest(fixed_lengths(rounds, costs)).cost / least - 1,
            "best_threshold": cheapest(thresholds(rounds, costs, values)).cost / least - 1,
            "theorem_rule": own[0].cost / least - 1,
            "no_delta_rule": own[1].cost / least - 1,
            "oracle": oracle_cost(rounds.pair, costs) / least - 1,
            **limits._asdict(),
            "delta": limits.delta / costs.verify,
        }


def survey_values(found: pd.DataFrame) -> dict[str, float]:
    """What the chapter records of a survey, by name.

    Parameters
    ----------
    found : DataFrame
        Rows of :func:`survey`.
    """
    made = {
        "mdp_instances": len(found),
        "mdp_failures": found.failures.sum(),
        "mdp_single_share": found.single.mean(),
        "mdp_certified_mean": found.certified.mean(),
        "mdp_gap_mean": (found.threshold - found.needed).mean(),
        "mdp_delta_median": found.delta.median(),
        "mdp_theorem_over_threshold": ((1 + found.theorem_rule) / (1 + found.best_threshold) - 1).mean(),
        "mdp_threshold_wins": (found.best_threshold <= found.best_fixed + 1e-12).mean(),
    }
    for name in ("best_fixed", "best_threshold", "theorem_rule", "no_delta_rule"):
        made |= {f"mdp_{name}_mean": found[name].mean(), f"mdp_{name}_worst": found[name].max()}
    return made
