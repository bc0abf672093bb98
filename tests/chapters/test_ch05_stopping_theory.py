"""The solved decision process against enumeration of policies and paths and value iteration, and Theorem 3.1 on random
instances."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from specdec_lib.chapters.ch05_specdec_pp import stopping_theory
from specdec_lib.chapters.ch05_specdec_pp.stopping_theory import (
    ChainPair,
    Costs,
    Ending,
    Policy,
    Rounds,
    compare,
    random_pair,
    stationary,
)

COSTS = Costs.of_times(0.2, 1.0)


def pairs(count: int, vocabulary: int = 2, order: int = 1, seed: int = 0) -> list[ChainPair]:
    rng = np.random.default_rng(seed)
    return [random_pair(rng, vocabulary, order) for _ in range(count)]


def policies(rounds: Rounds) -> list[Policy]:
    """Every policy, each choice of each state that may continue."""
    free = sum(map(len, rounds.contexts[:-1]))
    found = []
    for bits in product((False, True), repeat=free):
        levels = np.split(np.array(bits, dtype=bool), np.cumsum([len(c) for c in rounds.contexts[:-1]])[:-1])
        found.append([*levels, np.ones(len(rounds.contexts[-1]), dtype=bool)])
    return found


def limited(rounds: Rounds, after: Sequence[np.ndarray]) -> tuple[Rounds, Ending]:
    """Rounds that begin ``len(after)`` tokens before the end and draft no more candidates than these, and what follows them;
    tokens beyond the end are dropped. ``after`` has the costs of responses of 0, 1, ... tokens."""
    pair, left = rounds.pair, len(after)
    most = min(rounds.longest, left)
    short = [after[max(left - 1 - k, 0)][:, None] for k in range(most)]
    long = [after[max(left - 2 - k, 0)][:, None] for k in range(most)]
    ending = Ending(
        np.stack([pair.after(pair.residual, v) for v in short]), np.stack([pair.after(pair.target, v) for v in long])
    )
    return Rounds(pair, rounds.contexts[:most], rounds.alive[:most], rounds.children[: most - 1]), ending


def finite_costs(rounds: Rounds, costs: Costs, tokens: int, stops: Policy | None = None) -> np.ndarray:
    """Expected cost of responses of 0 to ``tokens`` tokens by first context; without ``stops`` of the cheapest actions.

    If all candidates of the last round are accepted, the target's own token is one too many and is dropped: that round breaks
    N_draft + N_target = N + N_discarded by one.
    """
    after = [np.zeros(rounds.pair.contexts)]
    for _ in range(tokens):
        own, ending = limited(rounds, after)
        decision = compare(own, costs, ending, stops)
        if stops is None or len(decision.stop) == 1:
            value = np.minimum(decision.stop[0], decision.proceed[0])
        else:
            value = np.where(stops[0], decision.stop[0], decision.proceed[0])
        after.append(value)
    return np.stack(after)


def by_paths(rounds: Rounds, stops: Policy) -> tuple[float, float]:
    """Discard and verification rate of a policy, from every path of candidates and every first rejection."""
    pair = rounds.pair
    moves = np.zeros((pair.contexts, pair.contexts))
    discarded, tokens = np.zeros(pair.contexts), np.zeros(pair.contexts)

    def end(start: int, weight: float, path: list[tuple[int, int]], context: int) -> None:
        kept = weight
        for i, (at, token) in enumerate(path):
            p, q = pair.target[at], pair.draft[at]
            rejected = kept * (1 - min(1, p[token] / q[token]))
            rest = np.maximum(p - q, 0)
            discarded[start] += rejected * (len(path) - i)
            tokens[start] += rejected * (i + 1)
            if rejected > 0:
                for z, share in enumerate(rest / rest.sum()):
                    moves[start, pair.following[at, z]] += rejected * share
            kept -= rejected
        tokens[start] += kept * (len(path) + 1)
        for z, share in enumerate(pair.target[context]):
            moves[start, pair.following[context, z]] += kept * share

    def walk(start: int, k: int, state: int, weight: float, path: list[tuple[int, int]], context: int) -> None:
        for token in range(pair.vocabulary):
            drawn = weight * pair.draft[context, token]
            if drawn == 0:
                continue
            longer, after = [*path, (context, token)], pair.following[context, token]
            if stops[k][state]:
                end(start, drawn, longer, after)
            else:
                walk(start, k + 1, rounds.children[k][state, token], drawn, longer, after)

    for context in range(pair.contexts):
        walk(context, 0, context, 1.0, [], context)
    share = stationary(moves)
    return share @ discarded / (share @ tokens), 1 / (share @ tokens)


@pytest.mark.parametrize("vocabulary, order, longest", [(2, 1, 5), (3, 1, 4), (2, 2, 4)])
def test_rates_and_visits_of_a_policy_are_those_of_all_its_paths(vocabulary, order, longest):
    rng, some = np.random.default_rng(1), pairs(3, vocabulary, order)
    some.append(ChainPair(some[0].target, some[0].target))
    some.append(ChainPair([[0.5, 0.5], [0.2, 0.8]], [[1.0, 0.0], [0.5, 0.5]]))  # the second token is never drafted
    for pair in some:
        rounds = Rounds.of(pair, longest)
        for policy in (
            rounds.fixed(1),
            rounds.fixed(longest),
            rounds.threshold(0.3),
            [*(rng.random(len(c)) < 0.5 for c in rounds.contexts[:-1]), rounds.fixed(1)[-1]],
        ):
            found = stopping_theory.outcome(rounds, policy)
            assert (found.discard_rate, found.verification_rate) == pytest.approx(by_paths(rounds, policy))
            drafted = sum(v.sum() for v in stopping_theory.visits(rounds, policy, found.starts))
            # N_draft + N_target = N + N_discarded, for one round.
            assert drafted + 1 == pytest.approx((1 + found.discard_rate) / found.verification_rate)


def test_the_solution_costs_as_little_as_the_cheapest_of_all_policies():
    for pair in pairs(2):
        rounds = Rounds.of(pair, 4)
        everything = policies(rounds)
        assert len(everything) >= 2**8
        least = min(stopping_theory.outcome(rounds, policy).cost(COSTS) for policy in everything)
        assert stopping_theory.solve(rounds, COSTS).outcome.cost(COSTS) == pytest.approx(least, rel=1e-12)


def test_the_solution_is_that_of_value_iteration_and_long_responses_cost_the_rate_of_their_policy():
    for pair in pairs(4, 3):
        rounds = Rounds.of(pair, 5)
        known = [(None, stopping_theory.solve(rounds, COSTS).outcome)]
        known += [(stops, stopping_theory.outcome(rounds, stops)) for stops in (rounds.fixed(3), rounds.threshold(0.2))]
        for stops, found in known:
            # Costs of ever longer responses: the increase per token goes to the cost a token.
            costs = finite_costs(rounds, COSTS, 400, stops)
            assert (costs[400] - costs[200]) / 200 == pytest.approx(found.cost(COSTS), rel=1e-3)


def test_a_fixed_length_emits_the_tokens_of_the_formula_of_leviathan():
    pair = ChainPair([[0.5, 0.5, 0.0]], [[0.4, 0.4, 0.2]])  # without contexts
    rounds = Rounds.of(pair, 10)
    alpha = 1 - float(pair.rejection_rate[0])
    for k in range(1, 11):
        found = stopping_theory.outcome(rounds, rounds.fixed(k))
        assert 1 / found.verification_rate == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))


@pytest.mark.parametrize(("call", "words"), [
    (lambda: ChainPair([[0.5, 0.5]], [[0.5, 0.6]]), "row of draft is no distribution"),
    (lambda: ChainPair([[0.5, 0.5]], [[0.2, 0.2, 0.6]]), r"shape \(1, 3\)"),
    (lambda: ChainPair(np.full((3, 2), 0.5), np.full((3, 2), 0.5)), "3 contexts over 2 tokens"),
    (lambda: Costs.of_times(1.0, 1.0), "expected times above 0"),
    (lambda: Rounds.of(pairs(1)[0], 0), "at least one candidate"),
    (lambda: ChainPair(np.eye(2), np.eye(2)).stationary.sum(), "never leaves"),
])  # fmt: skip
def test_bad_pairs_costs_and_lengths_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


#: Random pairs in the property test; each is tried under several policies.
INSTANCES = 600


def random_costs(rng: np.random.Generator) -> Costs:
    return Costs.of_times(rng.uniform(0.01, 0.9), 1.0)


def random_policy(rounds: Rounds, rng: np.random.Generator) -> Policy:
    share = rng.random()
    return [*(rng.random(len(c)) < share for c in rounds.contexts[:-1]), rounds.fixed(1)[-1]]


def endless_of(rounds: Rounds, costs: Costs, stops: Policy) -> Ending:
    found = stopping_theory.outcome(rounds, stops)
    return stopping_theory.endless(rounds, found.relative(costs), found.cost(costs))


def test_the_theorem_never_fails():
    rng = np.random.default_rng(0)
    applied = 0
    for _ in range(INSTANCES):
        order = int(rng.integers(0, 3))
        pair = random_pair(rng, 2 if order == 2 else int(rng.integers(2, 4)), order)
        rounds, costs = Rounds.of(pair, int(rng.integers(2, 7))), random_costs(rng)
        for stops in (random_policy(rounds, rng), rounds.threshold(rng.random())):
            ending = endless_of(rounds, costs, stops)
            cases = stopping_theory.cases(rounds, costs, ending, stops)
            bound = stopping_theory.stopping_threshold(costs, stopping_theory.delta(rounds, costs, cases))
            assert stopping_theory.counterexamples(rounds, compare(rounds, costs, ending, stops), bound) == 0
            applied += sum(int((1 - alive >= bound).sum()) for alive in rounds.alive[:-1])
    assert applied > INSTANCES


def test_the_two_cases_make_up_the_difference_of_the_actions_and_a_rejected_candidate_costs_c1_at_least():
    rng = np.random.default_rng(3)
    for _ in range(40):
        rounds, costs = Rounds.of(random_pair(rng, 3), 5), random_costs(rng)
        stops = random_policy(rounds, rng)
        ending = endless_of(rounds, costs, stops)
        decision = compare(rounds, costs, ending, stops)
        found = stopping_theory.cases(rounds, costs, ending, stops)
        for alive, yes, no, stop, proceed in zip(rounds.alive, found.accepted, found.rejected, *decision, strict=False):
            np.testing.assert_allclose(alive * yes + (1 - alive) * no, stop - proceed, atol=1e-9)
        assert max(level.max() for level in found.rejected) <= -costs.discard + 1e-12
        # At the last level but one there is exactly one more candidate to draw.
        np.testing.assert_allclose(found.rejected[-1], -costs.discard)


def test_for_each_context_and_level_the_best_policy_stops_from_some_probability_on():
    rng = np.random.default_rng(5)
    for _ in range(100):
        rounds, costs = Rounds.of(random_pair(rng, 3), 6), random_costs(rng)
        decision = stopping_theory.solve(rounds, costs).decision
        levels = zip(rounds.contexts[:-1], rounds.alive, decision.stop, decision.proceed, strict=False)
        for contexts, alive, stop, proceed in levels:
            margin = 1e-9 * (1 + abs(stop))
            for context in range(rounds.pair.contexts):
                here = contexts == context
                going = (1 - alive)[here & (proceed < stop - margin)]
                ending = (1 - alive)[here & (stop < proceed - margin)]
                assert going.max(initial=-1.0) < ending.min(initial=2.0)


def test_a_best_policy_need_not_be_one_threshold_and_one_too_low_has_counterexamples():
    # Two contexts: in one the next candidate is surely kept, in the other nearly surely rejected.
    pair = ChainPair([[0.5, 0.5], [0.99, 0.01]], [[0.45, 0.55], [0.01, 0.99]])
    rounds, costs = Rounds.of(pair, 8), Costs.of_times(0.2, 1.0)
    decision = stopping_theory.solve(rounds, costs).decision
    edge = stopping_theory.frontier(rounds, decision)
    assert not edge.single and edge.stops_from.min() < edge.needed
    assert stopping_theory.counterexamples(rounds, decision, edge.needed) > 0 < edge.needed
    assert stopping_theory.counterexamples(rounds, decision, edge.needed + 1e-9) == 0


def test_the_threshold_without_delta_and_the_estimate_of_the_least_weighted_loss_are_the_formulas():
    costs, e = Costs.of_times(0.0234, 0.112), np.linspace(0.0005, 0.9995, 1000)
    assert stopping_theory.stopping_threshold(costs, 0.0) == pytest.approx((0.112 - 0.0234) / 0.112)
    assert (
        stopping_theory.stopping_threshold(costs, -costs.verify)
        == stopping_theory.stopping_threshold(costs, -1.0)
        == 0.0
    )
    for r, weight in ((0.05, 6.0), (0.28, 6.0), (0.5, 1.0), (0.3, 12.0)):
        estimate = e[np.argmin(-(1 - r) * np.log(1 - e) - weight * r * np.log(e))]
        assert stopping_theory.true_rejection(estimate, weight) == pytest.approx(r, abs=2e-3)


def test_the_survey_counts_no_failure_and_nothing_below_the_best_policy():
    rows = list(stopping_theory.survey(100, 5, np.linspace(0, 0.9, 10)))
    assert len(rows) == 100
    for row in rows:
        assert row["failures"] == 0 and row["oracle"] <= 1e-12
        assert all(row[name] >= -1e-12 for name in ("best_fixed", "best_threshold", "theorem_rule", "no_delta_rule"))
        assert row["needed"] <= row["threshold"] + 1e-9
        assert np.isnan(row["certified"]) or 0 <= row["certified"] <= 1 + 1e-12


def test_every_stop_is_certified_from_threshold_0_on_and_none_above_1():
    rounds = Rounds.of(random_pair(np.random.default_rng(8), 3), 6)
    stops = rounds.threshold(0.2)
    starts = stopping_theory.outcome(rounds, stops).starts
    for bound, share in ((0.0, 1.0), (0.2, 1.0), (1.1, 0.0)):  # the rule itself stops above 0.2 only
        assert stopping_theory.certified(rounds, stops, starts, bound) == pytest.approx(share)
