"""The adaptive drafter: what its rule is shown, where it stops, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from specdec_lib import Sampling, generate
from specdec_lib.decoding.contract import Context
from specdec_lib.decoding.sampling import distribution
from specdec_lib.drafters import AdaptiveDraftModel, SpecDecPP, stopping
from tests.chaos import head_of
from tests.families import VOCABULARY, build, perturbed, prompt


@pytest.fixture(scope="module")
def small():
    return build("llama-gqa", seed=3)


@pytest.fixture(scope="module")
def head(small):
    return head_of(small)


class Watching(stopping.StoppingRule):
    """Notes what it is shown; draws ``count`` tokens."""

    needs = stopping.QUANTITIES

    def __init__(self, count: int, newest: bool = False):
        self.count, self.check_newest, self.seen, self.told = count, newest, [], []

    def stop(self, drafted):
        self.seen.append((drafted.count, len(drafted.acceptance)))
        self.last = drafted
        return drafted.count >= self.count

    def verified(self, drafted, accepted):
        self.told.append((drafted.count, accepted))


def started(drafter, tokens: list[int], sampling: Sampling = Sampling()):
    seen = Context(list(tokens), len(tokens), VOCABULARY, sampling)
    drafter.start(seen)
    return drafter, seen


@torch.inference_mode()
def rows_and_states(model, tokens: list[int], count: int):
    """Logits that drafted each of the last ``count`` tokens, and the final states at them, without any cache."""
    out = model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    return out.logits[0, -count - 1 : -1], out.hidden_states[-1][0, -count:]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, 0.9, 30, seed=4)])
@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("sees", [False, True])
def test_a_rule_is_shown_confidence_entropy_and_acceptance_of_each_token(small, sampling, newest, sees):
    head = head_of(small, sees_confidence=sees)
    rule = Watching(4, newest)
    drafter, seen = started(AdaptiveDraftModel(small, rule, head=head), prompt(1, 10), sampling)
    for _ in range(3):
        tree = drafter.propose(seen, 50)
        rows, states = rows_and_states(small, seen.tokens + tree.tokens, 4)
        q = rows.double().softmax(-1) if sampling.greedy else distribution(rows, sampling)
        confidence = q.gather(1, torch.tensor(tree.tokens)[:, None])[:, 0]
        assert rule.last.confidence == pytest.approx(confidence.tolist(), rel=1e-3)
        assert rule.last.entropy == pytest.approx(torch.special.entr(q).sum(-1).tolist(), rel=1e-3, abs=1e-4)
        judged = 4 if newest else 3
        assert rule.last.acceptance == pytest.approx(
            head.probability(states, confidence)[:judged].tolist(), rel=1e-3, abs=1e-5
        )
        seen.tokens += [*tree.tokens[:2], 3]
    behind = 0 if newest else 1
    assert rule.seen == [(n, n - behind) for n in (1, 2, 3, 4)] * 3


def test_drafting_goes_on_until_the_product_says_stop(small, head):
    drafter, seen = started(SpecDecPP(small, head, 0.6, min_tokens=1), prompt(3, 12))
    lengths = []
    for _ in range(6):
        tree = drafter.propose(seen, 50)
        _, states = rows_and_states(small, seen.tokens + tree.tokens, len(tree))
        product = [math.prod(head.probability(states)[:n].tolist()) for n in range(len(tree))]
        # Behind the n-th token the product runs over those before it: Algorithm 2 with a first factor of 1.
        stops = [n + 1 for n, value in enumerate(product) if 1 - value > 0.6]
        assert stops == [len(tree)] or (not stops and len(tree) == 20)
        lengths.append(len(tree))
        seen.tokens += [*tree.tokens, 5]
    assert len(set(lengths)) > 1


def test_checking_the_newest_token_stops_one_earlier(small, head):
    lengths = set()
    for seed in range(8):
        drafts = []
        for newest in (False, True):
            drafter, seen = started(SpecDecPP(small, head, 0.9, 1, check_newest=newest), prompt(seed, 12))
            drafts.append(drafter.propose(seen, 50).tokens)
        assert drafts[1] == drafts[0][:-1]
        lengths.add(len(drafts[0]))
    assert len(lengths) > 2


@pytest.mark.parametrize("newest", [False, True])
def test_bounds_hold_whatever_the_head_says(small, head, newest):
    sure, never = head_of(small), head_of(small)
    with torch.no_grad():
        sure.out.bias += 1e4
        never.out.bias -= 1e4
    for one, length in ((sure, 7), (never, 3)):
        drafter, seen = started(SpecDecPP(small, one, 0.5, 3, 7, newest), prompt(1, 10))
        assert len(drafter.propose(seen, 50)) == length
        seen.tokens.append(4)
        assert len(drafter.propose(seen, 2)) == 2


def test_a_rule_is_told_what_was_accepted(llama):
    rule = Watching(3)
    rule.needs = ()
    run = generate(llama, prompt(2, 20), AdaptiveDraftModel(perturbed(llama), rule), max_new_tokens=40)
    assert rule.told == [(s.drafted, s.accepted) for s in run.steps if s.drafted][: len(rule.told)]
    assert len(rule.told) >= len(run.steps) - 2 and len({a for _, a in rule.told}) > 1


def test_nothing_is_drafted_where_a_rule_stops_at_once(llama):
    run = generate(llama, prompt(2, 20), AdaptiveDraftModel(llama, stopping.Oracle([], 20), 0), max_new_tokens=6)
    assert [s.drafted for s in run.steps] == [0] * 5


def test_states_that_are_no_numbers_are_an_error_and_no_draft(small, head):
    drafter, seen = started(SpecDecPP(small, head, 0.7), prompt(1, 10))
    drafter._score = lambda state, confidence: head.scorer()(state * float("nan"), confidence)
    with pytest.raises(FloatingPointError, match="the draft model's states hold NaN"):
        drafter.propose(seen, 10)


@pytest.mark.gpu
@pytest.mark.parametrize("sees", [False, True])
def test_a_head_on_the_cpu_serves_a_draft_model_on_the_gpu(sees):
    model = build("llama-gqa", seed=3)
    head = head_of(model, sees_confidence=sees)
    rule = Watching(4)
    drafter, seen = started(AdaptiveDraftModel(model.to("cuda"), rule, head=head), prompt(1, 10))
    tree = drafter.propose(seen, 50)
    rows, states = (t.cpu() for t in rows_and_states(model.cpu(), seen.tokens + tree.tokens, 4))
    confidence = rows.double().softmax(-1).gather(1, torch.tensor(tree.tokens)[:, None])[:, 0]
    expected = head.probability(states, confidence)[:3].tolist()
    assert rule.last.acceptance == pytest.approx(expected, rel=1e-2, abs=1e-3)
    assert head.out.weight.device.type == "cpu"
