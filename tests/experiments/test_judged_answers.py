"""What a model answers by itself, and how that is judged."""

from __future__ import annotations

from dataclasses import replace

from specdec_lib import generate
from specdec_lib.experiments import all_cores, judged_answers, metrics, recorded_runs, recordings
from tests.experiments.test_recorded_runs import PROMPTS
from tests.experiments.test_recorded_runs import draft as draft
from tests.experiments.test_recorded_runs import model as model
from tests.experiments.test_recorded_runs import tokenizer as tokenizer


def test_a_greedy_answer_is_judged_against_the_reference(model, draft, tokenizer):
    said = generate(model, recorded_runs.render(PROMPTS[1], tokenizer), max_new_tokens=60)
    text = tokenizer.decode(said.tokens, skip_special_tokens=True)
    assert said.finish_reason == "eos"
    got = judged_answers.answer_greedily(model, draft, tokenizer, replace(PROMPTS[1], reference=text), 60)
    assert (got.text, got.right) == (text, True)
    assert not judged_answers.answer_greedily(
        model, draft, tokenizer, replace(PROMPTS[1], reference=text + "x"), 60
    ).right
    assert len(got.agreement) == len(said.tokens)
    assert got.looped == metrics.ends_in_loop(said.tokens[:60])


def test_prompts_answered_on_all_cores_get_the_answers_of_one_by_one(model, draft, tokenizer, monkeypatch):
    monkeypatch.setattr(all_cores, "ALONE_SECONDS", 0.0)
    for got in judged_answers.answer_all(model, draft, tokenizer, PROMPTS, 24):
        own = judged_answers.answer_greedily(model, draft, tokenizer, got.prompt, 24)
        assert (got.text, got.agreement.tolist()) == (own.text, own.agreement.tolist())


def test_what_is_known_already_is_not_decoded_again(model, draft, tokenizer, monkeypatch):
    first = judged_answers.answer_greedily(model, draft, tokenizer, PROMPTS[2], 24)

    def refuse(*args, **kwargs):
        raise AssertionError("the prompt is decoded again")

    monkeypatch.setattr(recordings, "SAMPLE", 2**32 + 1)  # no output is drawn to be decoded once more
    monkeypatch.setattr(recordings, "record", refuse)
    again = judged_answers.answer_greedily(model, draft, tokenizer, PROMPTS[2], 24)
    assert (again.asked, again.tokens) == (first.asked, first.tokens)
