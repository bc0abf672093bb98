"""Drafts as arithmetic: the same rounds as the drafter itself, and the sums made of them."""

import numpy as np
import pytest
import torch

from specdec_lib import Sampling, generate, record, replay
from specdec_lib.chapters.ch05_specdec_pp.draft_pass import Judged, draft_along, drafted_given, play, rounds
from specdec_lib.chapters.ch05_specdec_pp.timing import oracle_calls
from specdec_lib.drafters import AdaptiveDraftModel, SpecDecPP, stopping
from specdec_lib.models.draft_vocabulary import DraftVocabulary
from tests.chaos import RULES, greedy_agreement, head_of
from tests.families import bounded, cut, perturbed, prompt


@pytest.fixture(scope="module")
def pair(llama):
    return llama, perturbed(llama)


@pytest.fixture(scope="module")
def traces(pair):
    """Outputs that end at the length asked for, at an end token inside drafts, and at the context's end."""
    whole = record(pair[0], prompt(1, 25), max_new_tokens=50)
    return [
        whole,
        record(pair[0], prompt(2, 1), max_new_tokens=40),
        record(pair[0], prompt(1, 25), max_new_tokens=50, eos_token_id=whole.tokens[17]),
        record(pair[0], prompt(3, 100), max_new_tokens=60),
    ]


def steps(trace, drafter):
    return [(s.drafted, s.accepted, len(s.tokens)) for s in replay(trace, drafter).steps]


def counted(passed, rule, **bounds):
    return [(part.count, kept, emitted) for part, kept, emitted in rounds(passed, rule, **bounds)]


@pytest.mark.parametrize("name", [*RULES, "fixed"])
def test_rounds_are_those_of_the_drafter(pair, traces, name):
    make = RULES.get(name, lambda: stopping.FixedLength(5))
    for bounds in ({}, {"min_tokens": 3, "max_tokens": 7}):
        real, mine, played = make(), make(), make()
        lengths = set()
        for trace in traces:
            expected = steps(trace, AdaptiveDraftModel(pair[1], real, **bounds))
            passed = draft_along(trace, pair[1])
            assert counted(passed, mine, **bounds) == expected
            tally, sums = play(passed, played, **bounds), np.sum(expected, axis=0).tolist()
            assert [tally.drafted, tally.accepted, tally.tokens] == sums and tally.calls == len(expected)
            assert tally.passes == tally.drafted
            lengths |= {drafted for drafted, _, _ in expected}
        assert len(lengths) > 2 or name == "fixed"


def test_a_draft_of_fewer_tokens_is_followed_in_its_own_vocabulary(pair, traces):
    target, ids = pair[0], range(0, traces[0].token_ids or traces[0].vocabulary, 2)
    small = cut(pair[1], ids)
    small.draft_vocabulary = DraftVocabulary(list(ids))
    lengths = set()
    for trace in traces:
        expected = steps(trace, AdaptiveDraftModel(small, stopping.Confidence(0.02)))
        assert counted(draft_along(trace, small), stopping.Confidence(0.02)) == expected
        lengths |= {drafted for drafted, _, _ in expected}
    assert len(lengths) > 2
    sampled = record(target, prompt(1, 12), Sampling(0.7), 16)
    found = draft_along(sampled, small, 9, target)
    odd = np.array(sampled.tokens) % 2 == 1
    assert odd.any() and not found.agreement[odd].any()


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("sees", [False, True])
def test_rounds_and_passes_of_specdec_pp_are_those_of_the_drafter(pair, traces, newest, sees):
    head, behind = head_of(pair[1], sees), 0
    for trace in traces:
        judged = Judged.of(draft_along(trace, pair[1]), head)
        for h in (0.4, 0.9):
            drafter, rule = SpecDecPP(pair[1], head, h, 1, 9, newest), stopping.PredictedRejection(h, newest)
            made, choose = [], drafter._choose
            # Each pass of the draft model ends with a choice.
            drafter._choose = lambda *given, made=made, inner=choose: made.append(1) or inner(*given)
            assert counted(judged, rule, max_tokens=9) == steps(trace, drafter)
            found = play(judged, rule, 1, 9)
            assert found.passes == len(made)
            behind += found.passes - found.drafted
    assert (behind > 0) == newest


def test_the_oracle_discards_nothing_and_calls_as_the_lemma_says(pair, traces):
    for trace in traces:
        passed = draft_along(trace, pair[1])
        agreement = greedy_agreement(pair[1], trace.prompt, trace.tokens)
        assert passed.agreement.tolist() == agreement.tolist()
        rule = stopping.Oracle(agreement, len(trace.prompt))
        found = play(passed, rule, 0, 20)
        assert found.drafted == found.accepted and found.calls >= oracle_calls(agreement[1:])
        assert counted(passed, rule, min_tokens=0) == steps(trace, AdaptiveDraftModel(pair[1], rule, 0))
        assert all(found.calls <= play(passed, stopping.FixedLength(k)).calls for k in (1, 4, 20))


def test_a_draft_past_the_length_it_is_served_to_is_silent(library):
    draft = bounded(64)
    trace = record(library["mistral"], prompt(2, 56), max_new_tokens=20)
    found = counted(draft_along(trace, draft), stopping.FixedLength(4))
    assert found == steps(trace, AdaptiveDraftModel(draft, stopping.FixedLength(4), max_tokens=4))
    assert found[-1][0] == 0


def test_examples_are_first_choices_behind_the_recorded_text(pair, traces):
    trace = traces[0]
    found = draft_along(trace, pair[1]).examples()
    with torch.inference_mode():
        rows = pair[1](torch.tensor([trace.prompt + trace.tokens])).logits[0, len(trace.prompt) - 1 : -1]
        for i in (0, 7, 30):
            text = torch.tensor([[*trace.prompt, *trace.tokens[:i], int(rows[i].argmax())]])
            state = pair[1](text, output_hidden_states=True).hidden_states[-1][0, -1]
            torch.testing.assert_close(found.states[i], state, rtol=1e-3, atol=1e-4)
    assert found.acceptance.tolist() == (rows.argmax(-1) == torch.tensor(trace.tokens)).float().tolist()
    torch.testing.assert_close(found.confidence, rows.softmax(-1).max(-1).values, rtol=1e-3, atol=1e-5)


def test_what_cannot_be_known_in_advance_is_refused(pair, traces):
    sampled = record(pair[0], prompt(1, 5), Sampling(0.7), max_new_tokens=4)
    passed = draft_along(traces[0], pair[1], 4)
    for call, words in (
        (lambda: draft_along(sampled, pair[1]), "the trace was sampled"),
        (lambda: draft_along(traces[0], pair[1], 1), "depth is 1"),
        (lambda: play(passed, stopping.FixedLength(5), 1, 5), "max_tokens is 5, but drafts were followed to 4"),
        (lambda: play(passed, stopping.PredictedRejection(), 1, 4), "needs predictions of acceptance"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_drafted_tokens_given_the_targets_follow_the_draft_models_distribution():
    rng = torch.Generator().manual_seed(0)
    p, q = torch.rand(2, 6, dtype=torch.float64, generator=rng).pow(2)
    p, q = p / p.sum(), q / q.sum()
    many = 40_000
    tokens = torch.multinomial(p, many, replacement=True, generator=rng)
    drafted, acceptance = drafted_given(p.expand(many, -1), q.expand(many, -1), tokens, Sampling(1.0), 0)
    error = 4 / many**0.5
    shares = torch.bincount(drafted, minlength=6) / many
    assert (shares - q).abs().max() < error
    # Rejection sampling keeps a drafted token with probability sum min(p, q), and shows the target's otherwise.
    kept = torch.minimum(p, q).sum()
    assert abs((drafted == tokens).double().mean() - kept) < error and abs(acceptance.mean() - kept) < error
    assert torch.equal(acceptance, (p / q).clamp(max=1)[drafted])
    same, _ = drafted_given(p.expand(9, -1), p.expand(9, -1), tokens[:9], Sampling(1.0), 0)
    assert torch.equal(same, tokens[:9])


@pytest.mark.parametrize("rule", [
    stopping.FixedLength(4), pytest.param(stopping.Confidence(0.05), marks=pytest.mark.slow),
    pytest.param(stopping.PredictedRejection(0.6), marks=pytest.mark.slow),
], ids=lambda rule: type(rule).__name__)  # fmt: skip
def test_counts_of_sampled_outputs_are_distributed_as_those_of_the_drafter(pair, rule):
    head = head_of(pair[1])
    drafter = AdaptiveDraftModel(pair[1], rule, 2, 9, head)
    live, counted_ = [], []
    for seed in range(50):
        sampling = Sampling(0.7, seed=seed)
        run = generate(pair[0], prompt(1, 12), drafter, sampling, 16)
        live.append((len(run.steps), sum(s.drafted for s in run.steps), sum(s.accepted for s in run.steps)))
        trace = record(pair[0], prompt(1, 12), sampling, 16)
        passed = draft_along(trace, pair[1], 9, pair[0])
        found = play(Judged.of(passed, head), rule, 2, 9)
        counted_.append((found.calls, found.drafted, found.accepted))
        assert found.tokens == len(trace.tokens) - 1
    live, mine = np.array(live, float), np.array(counted_, float)
    error = np.sqrt((live.var(0) + mine.var(0)) / len(live))
    assert (np.abs(live.mean(0) - mine.mean(0)) < 4 * error).all() and live.std(0).min() > 0
