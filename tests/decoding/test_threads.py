"""Generations in several threads on one model: each gives what it gives alone, or is refused by name."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest
import torch

from specdec_lib import generate, record, replay
from specdec_lib.drafters import DraftModel, PromptLookup, PromptLookupAttention, PromptLookupHidden
from tests.families import build, prompt

NEW = 12
DRAFTERS = {
    "plain": lambda draft: None,
    "PLD": lambda draft: PromptLookup(),
    "PLD+ (h)": lambda draft: PromptLookupHidden(1, 4),
    "PLD+ (a)": lambda draft: PromptLookupAttention(((0, 1), (1, 3)), 4),
    "SpecDec": lambda draft: DraftModel(draft, 3),
}


@pytest.fixture(scope="module")
def models():
    """A draft model, prompts, and targets with their plain outputs."""
    draft, prompts, made = build("llama-gqa", seed=1), [prompt(seed, 24) for seed in range(4)], {}
    for family in ("llama", "llama-gqa", "gemma3"):
        model = build(family)
        made[family] = model, [generate(model, ids, max_new_tokens=NEW).tokens for ids in prompts]
    return draft, prompts, made


@pytest.fixture(autouse=True)
def threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_the_same_time(*calls):
    """Results of calls that start together, each in its own thread."""
    ready = Barrier(len(calls))

    def run(call):
        ready.wait(60)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(timeout=120) for future in [pool.submit(run, call) for call in calls]]


@pytest.mark.core_cases(4)
@pytest.mark.parametrize("family", ["llama", "llama-gqa", "gemma3"])
@pytest.mark.parametrize("other", ["transformers", "plain", "PLD+ (h)", "PLD+ (a)", "SpecDec"])
@pytest.mark.parametrize("name", ["PLD+ (h)", "PLD+ (a)"])
def test_captures_of_one_generation_leave_those_of_other_threads_alone(models, family, other, name):
    draft, prompts, made = models
    model, expected = made[family]

    def ours(kind):
        return [generate(model, ids, DRAFTERS[kind](draft), max_new_tokens=NEW).tokens for ids in prompts]

    def theirs():
        return [
            model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NEW)[0, len(ids) :].tolist()
            for ids in prompts
        ]

    second = theirs if other == "transformers" else lambda: ours(other)
    assert at_the_same_time(lambda: ours(name), second) == [expected, expected]
    assert model.config._attn_implementation == "sdpa"
    assert not any(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name != "plain"])
def test_one_drafter_in_two_generations_is_refused_before_any_work(models, name):
    draft, prompts, made = models
    model, expected = made["llama-gqa"]
    drafter = DRAFTERS[name](draft)
    running, over = Event(), Event()

    def first():
        def wait(tokens):
            running.set()
            assert over.wait(60)

        return generate(model, prompts[0], drafter, max_new_tokens=NEW, on_tokens=wait).tokens

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(first)
        assert running.wait(60)
        passes = []
        counted = model.register_forward_pre_hook(lambda *args: passes.append(1))
        try:
            with pytest.raises(RuntimeError, match="is in use by another generation.* make a drafter for each"):
                generate(model, prompts[1], drafter, max_new_tokens=NEW)
            assert not passes
        finally:
            counted.remove()
            over.set()
        assert future.result(timeout=60) == expected[0]
    assert generate(model, prompts[1], drafter, max_new_tokens=NEW).tokens == expected[1]


def test_a_drafter_is_free_again_after_a_generation_that_failed(models):
    draft, prompts, made = models
    model, expected = made["llama-gqa"]
    drafter = PromptLookupHidden(1, 4)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            generate(model, prompts[0], drafter, max_new_tokens=NEW, on_tokens=interrupt)
    trace = record(model, prompts[0], max_new_tokens=NEW, capture=drafter.capture)
    assert replay(trace, drafter).tokens == expected[0]


def interrupt(tokens):
    raise KeyboardInterrupt
