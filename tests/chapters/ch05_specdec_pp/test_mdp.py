"""The solved decision process against enumeration, value iteration and simulation of the algorithm itself."""

from itertools import product

import numpy as np
import pytest

from specdec_lib.chapters.ch05_specdec_pp.theory import mdp
from specdec_lib.chapters.ch05_specdec_pp.theory.chains import ChainPair, random_pair, stationary
from specdec_lib.chapters.ch05_specdec_pp.theory.rounds import Costs, Policy, Rounds
from tests.chapters.ch05_specdec_pp.finite import finite_costs

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


def by_paths(rounds: Rounds, stops: Policy) -> tuple[float, float]:
    """Discard and verification rate of a policy, from every path of candidates and every first refusal."""
    pair = rounds.pair
    moves = np.zeros((pair.contexts, pair.contexts))
    discarded, tokens = np.zeros(pair.contexts), np.zeros(pair.contexts)

    def end(start: int, weight: float, path: list[tuple[int, int]], context: int) -> None:
        kept = weight
        for i, (at, token) in enumerate(path):
            p, q = pair.target[at], pair.draft[at]
            refused = kept * (1 - min(1, p[token] / q[token]))
            rest = np.maximum(p - q, 0)
            discarded[start] += refused * (len(path) - i)
            tokens[start] += refused * (i + 1)
            if refused > 0:
                for z, share in enumerate(rest / rest.sum()):
                    moves[start, pair.following[at, z]] += refused * share
            kept -= refused
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
def test_rates_of_a_policy_are_those_of_all_its_paths(vocabulary, order, longest):
    rng = np.random.default_rng(1)
    for pair in pairs(3, vocabulary, order):
        rounds = Rounds.of(pair, longest)
        for policy in (
            rounds.fixed(1),
            rounds.fixed(longest),
            rounds.threshold(0.3),
            [*(rng.random(len(c)) < 0.5 for c in rounds.contexts[:-1]), rounds.fixed(1)[-1]],
        ):
            found = mdp.outcome(rounds, policy)
            assert (found.discard_rate, found.verification_rate) == pytest.approx(by_paths(rounds, policy))


def test_the_solution_costs_as_little_as_the_cheapest_of_all_policies():
    for pair in pairs(4):
        rounds = Rounds.of(pair, 4)
        everything = policies(rounds)
        assert len(everything) >= 2**8
        least = min(mdp.outcome(rounds, policy).cost(COSTS) for policy in everything)
        assert mdp.solve(rounds, COSTS).outcome.cost(COSTS) == pytest.approx(least, rel=1e-12)


def test_the_solution_is_that_of_value_iteration_and_long_responses_cost_the_rate_of_their_policy():
    for pair in pairs(4, 3):
        rounds = Rounds.of(pair, 5)
        known = [(None, mdp.solve(rounds, COSTS).outcome)]
        known += [(stops, mdp.outcome(rounds, stops)) for stops in (rounds.fixed(3), rounds.threshold(0.2))]
        for stops, found in known:
            # Costs of ever longer responses: the increase per token goes to the cost a token.
            costs = finite_costs(rounds, COSTS, 400, stops)
            assert (costs[400] - costs[200]) / 200 == pytest.approx(found.cost(COSTS), rel=1e-3)


def simulate(rounds: Rounds, stops: Policy, count: int, rng: np.random.Generator) -> np.ndarray:
    """Algorithm 1 with a stopping policy, ``count`` rounds: discarded candidates and tokens of each."""
    pair, context, found = rounds.pair, 0, np.zeros((count, 2))
    cumulative = {name: np.cumsum(getattr(pair, name), 1) for name in ("target", "draft", "residual")}

    def draw(name: str, at: int) -> int:
        return min(int(np.searchsorted(cumulative[name][at], rng.random(), "right")), pair.vocabulary - 1)

    for number in range(count):
        k, state, at, path = 0, context, context, []
        while True:
            path.append((at, draw("draft", at)))
            at = pair.following[path[-1]]
            if stops[k][state]:
                break
            state = rounds.children[k][state, path[-1][1]]
            k += 1
        accepted = 0
        while accepted < len(path) and rng.random() < pair.acceptance[path[accepted]]:
            accepted += 1
        if accepted < len(path):
            refused = path[accepted][0]
            context = pair.following[refused, draw("residual", refused)]
        else:
            context = pair.following[at, draw("target", at)]
        found[number] = len(path) - accepted, accepted + 1
    return found


def test_the_algorithm_itself_costs_what_was_worked_out():
    rng = np.random.default_rng(3)
    for pair in pairs(2, 3, seed=5):
        rounds = Rounds.of(pair, 6)
        solution = mdp.solve(rounds, COSTS)
        for policy, found in (
            (solution.stops, solution.outcome),
            (rounds.fixed(4), mdp.outcome(rounds, rounds.fixed(4))),
        ):
            batches = simulate(rounds, policy, 8000, rng).reshape(40, 200, 2).sum(1)
            paid = COSTS.discard * batches[:, 0] + COSTS.verify * 200
            rates = paid / batches[:, 1]
            # Four standard errors of the mean of 40 batches, which are nearly independent.
            assert abs(rates.mean() - found.cost(COSTS)) < 4 * rates.std(ddof=1) / np.sqrt(len(rates))


def test_equal_models_draft_to_the_limit_and_discard_nothing():
    target = random_pair(np.random.default_rng(0), 3).target
    rounds = Rounds.of(ChainPair(target, target), 5)
    found = mdp.solve(rounds, COSTS).outcome
    assert found.discard_rate == pytest.approx(0.0, abs=1e-12)
    assert found.verification_rate == pytest.approx(1 / 6)


def test_without_contexts_a_fixed_length_emits_the_tokens_of_the_formula_of_leviathan():
    pair = ChainPair([[0.5, 0.5, 0.0]], [[0.4, 0.4, 0.2]])
    rounds = Rounds.of(pair, 10)
    alpha = 1 - float(pair.rejection_rate[0])
    for k in range(1, 11):
        found = mdp.outcome(rounds, rounds.fixed(k))
        assert 1 / found.verification_rate == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))


def test_a_visit_count_adds_up_to_the_drafted_candidates():
    for pair in pairs(4, 3):
        rounds = Rounds.of(pair, 5)
        stops, found, _ = mdp.solve(rounds, COSTS)
        drafted = sum(v.sum() for v in mdp.visits(rounds, stops, found.starts))
        # N_draft + N_target = N + N_discarded, for one round.
        assert drafted + 1 == pytest.approx((1 + found.discard_rate) / found.verification_rate)


def test_a_token_that_is_never_drafted_leads_nowhere():
    rounds = Rounds.of(ChainPair([[0.5, 0.5], [0.2, 0.8]], [[1.0, 0.0], [0.5, 0.5]]), 4)
    assert rounds.children[0].shape == (2, 2)
    assert all(context == 0 for context in rounds.contexts[1][rounds.children[0][0, :1]])
    found = mdp.outcome(rounds, rounds.fixed(3))
    assert (found.discard_rate, found.verification_rate) == pytest.approx(by_paths(rounds, rounds.fixed(3)))


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
