"""The check that drafting leaves the text as it is, on runs that do and on runs that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec_lib import load_model
from specdec_lib.chapters.ch04_pld_plus import losslessness_check
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments import input_guided as guided
from specdec_lib.experiments.recorded_runs import record_prompts, replay_all


@pytest.fixture(scope="module")
def decoded():
    model, tokenizer = load_model("pocket-draft", "cpu")
    return model, record_prompts(model, tokenizer, guided.mechanical_prompts(1)[:2], None, 12)


def test_what_decodes_alike_is_lossless_and_takes_the_steps_of_its_replay(decoded):
    model, recordings = decoded
    drafter = PromptLookup()
    found = losslessness_check.check(model, recordings, {"p": drafter}, {"p": replay_all(recordings, drafter)})
    assert found["lossless_prompts"] == found["replay_runs"] == len(recordings)
    assert found["lossless_tokens"] == sum(len(r.trace.tokens) for r in recordings)
    assert found["lossless_mismatches"] == found["lossless_unexplained"] == found["replay_mismatches"] == 0


def test_another_text_and_other_steps_are_counted(decoded):
    model, recordings = decoded
    first, second = (r.trace for r in recordings)
    wrong = replace(first, tokens=[first.tokens[0], (first.tokens[1] + 1) % 100, *first.tokens[2:]])
    known = [replace(recordings[0], trace=wrong), recordings[1]]
    steps = replay_all(known, PromptLookup())
    found = losslessness_check.check(model, known, {"p": None}, {"p": steps})
    assert found["lossless_mismatches"] == found["lossless_unexplained"] == 1
    assert found["replay_runs"] == 1  # the other run wrote another text
    plain = replay_all(known, None)
    assert found["replay_mismatches"] == (len(steps[1].steps) != len(plain[1].steps))


def test_counts_of_two_checks_are_added():
    assert losslessness_check.together({"a": 1, "b": 2}, {"a": 10, "b": 0}) == {"a": 11, "b": 2}
