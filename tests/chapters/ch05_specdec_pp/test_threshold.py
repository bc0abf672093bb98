"""Theorem 3.1 on random instances, and that its constant is the least its argument allows."""

import numpy as np
import pytest

from specdec_lib.chapters.ch05_specdec_pp.theory import best_rules, mdp, threshold
from specdec_lib.chapters.ch05_specdec_pp.theory.chains import ChainPair, random_pair
from specdec_lib.chapters.ch05_specdec_pp.theory.rounds import Costs, Ending, Policy, Rounds, compare
from tests.chapters.ch05_specdec_pp.finite import finite_costs, limited

#: Random pairs in the property test; each is tried under several policies.
INSTANCES = 1500


def random_costs(rng: np.random.Generator) -> Costs:
    return Costs.of_times(rng.uniform(0.01, 0.9), 1.0)


def random_policy(rounds: Rounds, rng: np.random.Generator) -> Policy:
    share = rng.random()
    return [*(rng.random(len(c)) < share for c in rounds.contexts[:-1]), rounds.fixed(1)[-1]]


def bound_of(rounds: Rounds, costs: Costs, ending: Ending, stops: Policy) -> float:
    """The threshold of the theorem."""
    return threshold.stopping_threshold(
        costs, threshold.delta(rounds, costs, threshold.cases(rounds, costs, ending, stops))
    )


def endless_of(rounds: Rounds, costs: Costs, stops: Policy) -> Ending:
    found = mdp.outcome(rounds, stops)
    return mdp.endless(rounds, found.relative(costs), found.cost(costs))


def test_the_theorem_never_fails():
    rng = np.random.default_rng(0)
    applied = 0
    for _ in range(INSTANCES):
        order = int(rng.integers(0, 3))
        pair = random_pair(rng, 2 if order == 2 else int(rng.integers(2, 4)), order, rng.choice([0.2, 0.5, 1.0]))
        rounds, costs = Rounds.of(pair, int(rng.integers(2, 7))), random_costs(rng)
        for stops in (random_policy(rounds, rng), rounds.threshold(rng.random())):
            ending = endless_of(rounds, costs, stops)
            bound = bound_of(rounds, costs, ending, stops)
            assert threshold.counterexamples(rounds, compare(rounds, costs, ending, stops), bound) == 0
            applied += sum(int((1 - alive >= bound).sum()) for alive in rounds.alive[:-1])
    assert applied > INSTANCES


def test_the_theorem_never_fails_in_a_response_of_given_length():
    rng = np.random.default_rng(2)
    for _ in range(100):
        rounds, costs = Rounds.of(random_pair(rng, 2), 4), random_costs(rng)
        stops, tokens = random_policy(rounds, rng), 8
        after = finite_costs(rounds, costs, tokens, stops)
        for left in range(2, tokens + 1):
            own, ending = limited(rounds, list(after[:left]))
            bound = bound_of(own, costs, ending, stops)
            assert threshold.counterexamples(own, compare(own, costs, ending, stops), bound) == 0


def test_the_two_cases_make_up_the_difference_of_the_actions_and_a_refused_candidate_costs_c1_at_least():
    rng = np.random.default_rng(3)
    for _ in range(40):
        rounds, costs = Rounds.of(random_pair(rng, 3), 5), random_costs(rng)
        stops = random_policy(rounds, rng)
        ending = endless_of(rounds, costs, stops)
        decision = compare(rounds, costs, ending, stops)
        found = threshold.cases(rounds, costs, ending, stops)
        for alive, yes, no, stop, proceed in zip(rounds.alive, found.accepted, found.refused, *decision, strict=False):
            np.testing.assert_allclose(alive * yes + (1 - alive) * no, stop - proceed, atol=1e-9)
        assert max(level.max() for level in found.refused) <= -costs.discard + 1e-12
        # At the last level but one there is exactly one more candidate to draw.
        np.testing.assert_allclose(found.refused[-1], -costs.discard)


def test_for_each_context_and_level_the_best_policy_stops_from_some_probability_on():
    rng = np.random.default_rng(5)
    for _ in range(100):
        rounds, costs = Rounds.of(random_pair(rng, 3), 6), random_costs(rng)
        decision = mdp.solve(rounds, costs).decision
        levels = zip(rounds.contexts[:-1], rounds.alive, decision.stop, decision.proceed, strict=False)
        for contexts, alive, stop, proceed in levels:
            margin = 1e-9 * (1 + abs(stop))
            for context in range(rounds.pair.contexts):
                here = contexts == context
                going = (1 - alive)[here & (proceed < stop - margin)]
                ending = (1 - alive)[here & (stop < proceed - margin)]
                assert going.max(initial=-1.0) < ending.min(initial=2.0)


def test_a_best_policy_need_not_be_one_threshold():
    # A context where the next candidate is surely kept beside one where it is nearly surely refused.
    pair = ChainPair([[0.5, 0.5], [0.99, 0.01]], [[0.45, 0.55], [0.01, 0.99]])
    rounds, costs = Rounds.of(pair, 8), Costs.of_times(0.2, 1.0)
    decision = mdp.solve(rounds, costs).decision
    edge = threshold.frontier(rounds, decision)
    assert not edge.single and edge.stops_from.min() < edge.needed


def test_the_threshold_of_the_paper_s_times_without_delta():
    costs = Costs.of_times(0.0234, 0.112)
    assert threshold.stopping_threshold(costs, 0.0) == pytest.approx((0.112 - 0.0234) / 0.112)
    assert threshold.stopping_threshold(costs, -costs.verify) == 0.0
    assert threshold.stopping_threshold(costs, -1.0) == 0.0


@pytest.mark.parametrize("r, weight", [(0.05, 6.0), (0.28, 6.0), (0.5, 1.0), (0.3, 12.0)])
def test_the_weighted_loss_is_least_at_the_estimate_that_stands_for_the_true_refusal(r, weight):
    e = np.linspace(0.0005, 0.9995, 1000)
    estimate = e[np.argmin(-(1 - r) * np.log(1 - e) - weight * r * np.log(e))]
    assert threshold.true_refusal(estimate, weight) == pytest.approx(r, abs=2e-3)


def test_counterexamples_are_found_where_a_threshold_is_too_low():
    rng = np.random.default_rng(6)
    rounds, costs = Rounds.of(random_pair(rng, 3), 6), Costs.of_times(0.05, 1.0)
    decision = mdp.solve(rounds, costs).decision
    needed = threshold.frontier(rounds, decision).needed
    assert threshold.counterexamples(rounds, decision, needed) > 0 < needed
    assert threshold.counterexamples(rounds, decision, needed + 1e-9) == 0


def test_the_survey_counts_no_failure_and_nothing_below_the_best_policy():
    rows = list(best_rules.survey(100, 5, np.linspace(0, 0.9, 10), seed=7))
    assert len(rows) == 100
    for row in rows:
        assert row["failures"] == 0 and row["oracle"] <= 1e-12
        assert all(row[name] >= -1e-12 for name in ("best_fixed", "best_threshold", "theorem_rule", "no_delta_rule"))
        assert row["needed"] <= row["threshold"] + 1e-9
        assert np.isnan(row["certified"]) or 0 <= row["certified"] <= 1 + 1e-12


def test_every_stop_is_certified_from_threshold_0_on_and_none_above_1():
    rounds = Rounds.of(random_pair(np.random.default_rng(8), 3), 6)
    stops = rounds.threshold(0.2)
    starts = mdp.outcome(rounds, stops).starts
    for bound, share in ((0.0, 1.0), (0.2, 1.0), (1.1, 0.0)):  # the rule itself stops above 0.2 only
        assert best_rules.certified(rounds, stops, starts, bound) == pytest.approx(share)
