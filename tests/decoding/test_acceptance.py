"""Verification keeps the target's distribution; rules that do not are found out by the same test."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from specdec_lib import Drafter, DraftTree, Sampling, generate
from specdec_lib.decoding import acceptance
from specdec_lib.decoding.acceptance import (
    acceptance_probability,
    draw_without_replacement,
    exact_match,
    rejection,
    rejection_at_once,
    residual,
)
from specdec_lib.decoding.results import Step
from specdec_lib.decoding.sampling import DRAFT, choose, choose_each, distribution, invert_cdf
from specdec_lib.decoding.served_models import remember_tokenizer
from specdec_lib.drafters import AdaptiveDraftModel, DraftModel, SpecDecPP, stopping
from specdec_lib.drafters.eagle import Eagle
from specdec_lib.models.draft_vocabulary import DraftVocabulary
from tests.chaos import draft_heads_of, head_of
from tests.families import build, cut, perturbed, tokenizer

#: Standard deviations that a right rule stays below and a wrong one exceeds.
RIGHT, WRONG = 4.0, 8.0


def surprise(counts: Counter, probabilities: dict, least: float = 8.0) -> float:
    """Chi-square against exact probabilities, in standard deviations (Wilson and Hilferty 1931); ``least``: of a cell, else joined."""
    total = sum(counts.values())
    assert set(counts) <= {cell for cell, p in probabilities.items() if p > 0}, "an impossible outcome was emitted"
    cells, rest = [], [0.0, 0.0]
    for cell, p in probabilities.items():
        pair = (counts[cell], total * p)
        if pair[1] < least:
            rest = [rest[0] + pair[0], rest[1] + pair[1]]
        else:
            cells.append(pair)
    if rest[1] >= least:
        cells.append(tuple(rest))
    square = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    spread = 2 / (9 * (len(cells) - 1))
    return ((square / (len(cells) - 1)) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def rows(seed: int, count: int, size: int = 6) -> torch.Tensor:
    return torch.softmax(
        1.2 * torch.randn((count, size), generator=torch.Generator().manual_seed(seed), dtype=torch.float64), -1
    )


# Synthetic distributions: three drafted positions whose p depends on the token before.
P = {(): rows(0, 1)[0], **{(t,): r for t, r in enumerate(rows(1, 6))}}
Q = rows(2, 2)


def chain_outcomes(runs: int) -> Counter:
    """Emitted pairs of tokens: drafts of length two from Q, then whatever verification says."""
    counts: Counter = Counter()
    for seed in range(runs):
        sampling = Sampling(1.0, seed=seed)
        drafted = [invert_cdf(Q[i], sampling.uniform(i, DRAFT, salt=0)) for i in range(2)]
        path, token = rejection(DraftTree.chain(drafted, Q), lambda node, before: P[tuple(before[:1])], sampling, 0, ())
        emitted = [drafted[n] for n in path] + [token]
        if len(emitted) == 1:  # the second token is then drawn plainly, as the next step would without a draft
            emitted.append(invert_cdf(P[emitted[0],], sampling.uniform(1)))
        counts[tuple(emitted[:2])] += 1
    return counts


PAIRS = {(a, b): float(P[()][a] * P[a,][b]) for a, b in itertools.product(range(6), repeat=2)}


def test_rejection_sampling_keeps_the_target_distribution():
    assert surprise(chain_outcomes(6000), PAIRS) < RIGHT


BIASED = {
    "square root": ("acceptance_probability", lambda p, q: min(1.0, p / q) ** 0.5),
    "threshold": ("acceptance_probability", lambda p, q: 1.0 if p >= 0.5 * q else 0.0),
    "p alone": ("acceptance_probability", lambda p, q: p),
    "a draw from the target after a rejection": ("residual", lambda p, q: p),
    "the draft token's number again": ("ACCEPT", DRAFT),
}


@pytest.mark.parametrize("how", BIASED)
def test_a_biased_rule_is_found_out(how, monkeypatch):
    monkeypatch.setattr(acceptance, *BIASED[how])
    assert surprise(chain_outcomes(6000), PAIRS) > WRONG


#: What children are drawn from: so far from P that a wrong rule for the second and third shows.
CHILDREN = torch.cat([rows(5, 1), rows(6, 1)])


def tree_outcomes(runs: int) -> Counter:
    """Emitted pairs of tokens: three children of the root and two of the second of them, drawn without replacement."""
    counts: Counter = Counter()
    for seed in range(runs):
        sampling = Sampling(1.0, seed=seed)
        first = draw_without_replacement(CHILDREN[0], [sampling.uniform(0, DRAFT, salt=rank) for rank in range(3)])
        second = draw_without_replacement(CHILDREN[1], [sampling.uniform(1, DRAFT, salt=rank) for rank in range(2)])
        assert len({*first}) == 3 and len({*second}) == 2
        tree = DraftTree([*first, *second], [-1, -1, -1, 1, 1], CHILDREN[[0, 0, 0, 1, 1]])
        path, token = rejection(tree, lambda node, before: P[tuple(before[:1])], sampling, 0, ())
        emitted = [tree.tokens[n] for n in path] + [token]
        if len(emitted) == 1:
            emitted.append(invert_cdf(P[emitted[0],], sampling.uniform(1)))
        counts[tuple(emitted[:2])] += 1
    return counts


def test_children_that_are_drawn_and_tried_in_turn_keep_the_target_distribution():
    assert surprise(tree_outcomes(3000), PAIRS) < RIGHT


BIASED_TREES = {
    "the draft's distribution with the children rejected before": ("without_token", lambda q, token: q),
    "a draw from the target after a rejection": BIASED["a draw from the target after a rejection"],
    "the draft token's number again": BIASED["the draft token's number again"],
}


@pytest.mark.parametrize("how", BIASED_TREES)
def test_a_biased_rule_for_children_is_found_out(how, monkeypatch):
    monkeypatch.setattr(acceptance, *BIASED_TREES[how])
    assert surprise(tree_outcomes(3000), PAIRS) > WRONG


def test_draws_without_replacement_end_with_the_tokens_there_are():
    q = torch.tensor([0.0, 0.5, 0.0, 0.5]).double()
    assert sorted(draw_without_replacement(q, [0.1, 0.9, 0.5])) == [1, 3] and q.sum() == 1


BRANCHES = DraftTree([1, 2, 3], [-1, -1, -1])


def test_one_draw_a_node_keeps_the_distribution_of_branches_and_one_draw_a_branch_does_not():
    ours, released = Counter(), Counter()
    for seed in range(6000):
        sampling = Sampling(1.0, seed=seed)
        path, token = exact_match(
            BRANCHES, lambda _, before: invert_cdf(P[tuple(before)], sampling.uniform(len(before))), ()
        )
        ours[BRANCHES.tokens[path[0]] if path else token] += 1
        # The rule of REST's released code: each branch draws for itself, one that matches is kept, else a new draw.
        kept = [t for i, t in enumerate(BRANCHES.tokens) if invert_cdf(P[()], sampling.uniform(0, salt=i)) == t]
        released[kept[0] if kept else invert_cdf(P[()], sampling.uniform(0, salt=9))] += 1
    expected = {t: float(p) for t, p in enumerate(P[()])}
    assert surprise(ours, expected) < RIGHT and surprise(released, expected) > WRONG


def test_acceptance_probability_and_residual_by_hand():
    assert acceptance_probability(0.2, 0.4) == 0.5 and acceptance_probability(0.4, 0.2) == 1.0
    p, q = torch.tensor([0.5, 0.5, 0.0]).double(), torch.tensor([0.1, 0.6, 0.3]).double()
    assert residual(p, q).tolist() == [1.0, 0.0, 0.0]
    assert torch.equal(residual(p, p.clone()), p)


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_and_residual_together_give_p(seed):
    p, q = rows(seed, 2)
    accepted = torch.tensor([float(q[t]) * acceptance_probability(float(p[t]), float(q[t])) for t in range(6)]).double()
    torch.testing.assert_close(accepted + (1 - accepted.sum()) * residual(p, q), p)


def test_a_stop_token_ends_the_walk_of_either_rule():
    tree = DraftTree.chain([4, 5], torch.full((2, 6), 1 / 6).double())
    sure = {(): torch.eye(6)[4].double(), (4,): torch.eye(6)[5].double(), (4, 5): torch.eye(6)[0].double()}
    for stop, expected in ((frozenset({5}), ([0, 1], None)), (frozenset({4}), ([0], None)), ((), ([0, 1], 0))):
        assert rejection(tree, lambda node, before: sure[tuple(before)], Sampling(1.0), 0, stop) == expected
        assert exact_match(tree, lambda node, before: int(sure[tuple(before)].argmax()), stop) == expected


# End to end: a target of five tokens and a draft that differs from it, three tokens after the prefill's.

SMALL = {"vocab_size": 5, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 2}
START, NEW = [3, 1, 2], 4
HOT = Sampling(temperature=1.4, top_p=0.95)
#: By enumeration of its law, the biased rule below gives 16 standard deviations with so many, give or take 1.2.
RUNS = 400


@pytest.fixture(scope="module")
def pair():
    target = build("llama", **SMALL)
    return target, perturbed(target, 0.6)


@pytest.fixture(scope="module")
def exact(pair):
    """Probability of each output of NEW tokens, by enumeration."""
    found = {}
    with torch.inference_mode():
        heads = list(itertools.product(range(5), repeat=NEW - 1))
        logits = pair[0](torch.tensor([[*START, *head] for head in heads])).logits[:, len(START) - 1 :]
        table = distribution(logits, HOT)
    for head, steps in zip(heads, table, strict=True):
        for last in range(5):
            found[*head, last] = float(np.prod([steps[i, t] for i, t in enumerate((*head, last))]))
    assert abs(sum(found.values()) - 1) < 1e-9
    return {cell: p for cell, p in found.items() if p > 0}


def emitted(target, drafter, runs: int, beyond: int = 0) -> tuple[Counter, list[list[Step]]]:
    """The first NEW tokens of outputs that are ``beyond`` longer, counted, and the steps of each run."""
    counts, steps = Counter(), []
    for seed in range(runs):
        run = generate(target, START, drafter, Sampling(HOT.temperature, HOT.top_p, seed=seed), NEW + beyond)
        counts[tuple(run.tokens[:NEW])] += 1
        steps.append(run.steps)
        assert all(step.tree.probabilities is None for step in run.steps), "distributions of drafts are not kept"
    return counts, steps


def most_surprising(counts: Counter, exact: dict) -> float:
    """The largest surprise of the outputs' first two, three and NEW tokens: few cells find out with fewer runs."""
    found = []
    for length in range(2, NEW + 1):
        seen, probabilities = Counter(), Counter()
        for cells, sums in ((counts, seen), (exact, probabilities)):
            for cell, amount in cells.items():
                sums[cell[:length]] += amount
        found.append(surprise(seen, probabilities))
    return max(found)


def depths(steps: list[list[Step]]) -> set[int]:
    """How many tokens of a draft were accepted at a time."""
    return {step.accepted for run in steps for step in run if step.drafted}


@pytest.mark.parametrize("rows", [4, 8])
def test_a_draft_padded_to_other_rows_keeps_the_target_distribution(exact, rows):
    """One tokenizer, other numbers of rows: what one model alone has no token for has no probability in a draft."""
    target, draft, words = build("llama", **SMALL), build("llama", **SMALL | {"vocab_size": rows}), tokenizer(4)
    remember_tokenizer(words, target), remember_tokenizer(words, draft)
    counts, steps = emitted(target, DraftModel(draft, 2), RUNS)
    assert depths(steps) == {0, 1, 2} and most_surprising(counts, exact) < RIGHT


def test_a_biased_rule_is_found_out_end_to_end(pair, exact, monkeypatch):
    monkeypatch.setattr(acceptance, "acceptance_probability", lambda p, q: min(1.0, p / q) ** 0.25)
    counts, _ = emitted(pair[0], DraftModel(pair[1], 2), RUNS)
    assert most_surprising(counts, exact) > WRONG


def mapped(pair) -> DraftModel:
    """A draft that knows four of the five tokens."""
    known = [0, 1, 3, 4]
    return DraftModel(cut(pair[1], known), 2, vocabulary=DraftVocabulary(known))


ADAPTIVE = {
    "heuristic": lambda draft: AdaptiveDraftModel(draft, stopping.Heuristic(1)),
    "cumulative confidence": lambda draft: AdaptiveDraftModel(draft, stopping.CumulativeConfidence(0.8)),
    "predicted rejection": lambda draft: SpecDecPP(draft, head_of(draft), 0.3, 1),
    "predicted rejection, newest": lambda draft: SpecDecPP(draft, head_of(draft), 0.3, 1, check_newest=True),
}


@pytest.mark.parametrize("rule", [pytest.param(r, marks=[pytest.mark.slow] * (r != "heuristic")) for r in ADAPTIVE])
def test_stopping_early_keeps_the_target_distribution_end_to_end(pair, exact, rule):
    counts, steps = emitted(pair[0], ADAPTIVE[rule](pair[1]), RUNS, beyond=1)
    assert len({run[0].drafted for run in steps}) > 1, (
        "drafts of different lengths must occur for the test to say something"
    )
    assert most_surprising(counts, exact) < RIGHT


@pytest.mark.slow  # 1,000 generations
def test_withdrawing_an_unlikely_token_is_found_out(pair, exact):
    # Close to the target, so that few of the other tokens are rejected and what is withdrawn shows.
    drafter = AdaptiveDraftModel(perturbed(pair[0], 0.2), stopping.Confidence(0.35))
    propose = drafter.propose

    def withdrawing(context, limit):
        tree = propose(context, limit)
        rows = tree.probabilities
        likely = len(tree) and float(rows[-1][tree.tokens[-1]]) >= 0.35
        return tree if likely else tree.truncated(len(tree) - 1)

    drafter.propose = withdrawing
    # By enumeration of the biased law 1,000 runs give 14.5 standard deviations, give or take 1.2.
    assert surprise(emitted(pair[0], drafter, 1000, beyond=1)[0], exact) > WRONG


class Bush(Drafter):
    """Every pair of tokens, so that something is always accepted."""

    def propose(self, context, limit):
        return DraftTree.from_drafts(itertools.product(range(5), range(0, 5, 2)))


def eagle(pair) -> Eagle:
    heads = draft_heads_of(pair[0], "eagle")
    return Eagle(pair[0], heads, [(-1, 0), (-1, 1), (-1, 2), (0, 0), (0, 1), (1, 0)])


DRAFTS = {
    "children drawn": (eagle, {0, 1, 2}),
    "drawn": (lambda pair: DraftModel(pair[1], 2), {0, 1, 2}),
    "drawn from a vocabulary of its own": (mapped, {0, 1, 2}),
    "a tree": (lambda pair: Bush(), {1, 2}),
}


@pytest.mark.parametrize("draft", [pytest.param(d, marks=[pytest.mark.slow] * (d != "a tree")) for d in DRAFTS])
def test_drafts_keep_the_target_distribution_end_to_end(pair, exact, draft):
    make, expected = DRAFTS[draft]
    counts, steps = emitted(pair[0], make(pair), RUNS)
    assert depths(steps) == expected, "every depth of acceptance must occur for the test to say something"
    assert most_surprising(counts, exact) < RIGHT


@pytest.mark.parametrize("seed", range(40))
def test_outcomes_computed_at_once_are_those_of_the_walk(seed):
    generator = torch.Generator().manual_seed(seed)
    count = seed % 5
    logits = 2 * torch.randn((count + 1, 9), generator=generator)
    sampling = Sampling(0.8, top_p=(1.0, 0.7)[seed % 2], top_k=(0, 5)[seed % 3 == 0], seed=seed)
    q = distribution(logits[:count] + torch.randn((count, 9), generator=generator), sampling)
    drafted = [invert_cdf(q[i], sampling.uniform(i, DRAFT)) for i in range(count)]
    tree = DraftTree.chain(drafted, q)
    p = distribution(logits, sampling)
    stop = drafted[-1:] if seed % 4 == 0 else ()
    walked = rejection(tree, lambda node, before: p[node + 1], sampling, 11, stop)
    assert rejection_at_once(tree, p, sampling, 11, stop) == walked
    one_by_one = [choose(row, sampling, 11 + i) for i, row in enumerate(logits)]
    assert choose_each(logits, sampling, range(11, 12 + count)) == one_by_one


def test_broken_logits_are_found_where_the_walk_meets_them_at_once_too():
    p = torch.full((3, 4), 0.25, dtype=torch.float64)
    tree, sampling = DraftTree.chain([1, 2], p[:2]), Sampling(1.0)
    p[2] = torch.nan
    with pytest.raises(FloatingPointError, match="NaN"):
        rejection_at_once(tree, p, sampling, 0, ())
    assert rejection_at_once(tree, p, sampling, 0, (2,)) == ([0, 1], None), "nothing is drawn after an end"
    with pytest.raises(FloatingPointError, match="NaN"):
        choose_each(torch.tensor([[1.0, 2.0], [torch.nan, 0.0]]), sampling, [0, 1])
