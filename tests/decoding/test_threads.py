"""Generations in several threads on one model: each gives what it gives alone, or is refused by name."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from specdec_lib import generate, record, replay
from specdec_lib.drafters import DraftModel, PromptLookup, PromptLookupAttention, PromptLookupHidden
from tests.families import build, hooked, prompt

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
    """A draft model, prompts, and targets, which have no hooks yet, with their plain outputs."""
    draft, prompts, made = build("llama-gqa", seed=1), [prompt(seed, 24) for seed in range(3)], {}
    for family in ("llama-gqa", "gemma3"):
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
@pytest.mark.parametrize("family", ["llama-gqa", "gemma3"])
@pytest.mark.parametrize("other", ["transformers", "plain", "PLD+ (h)", "PLD+ (a)", "SpecDec"])
@pytest.mark.parametrize("name", ["PLD+ (h)", "PLD+ (a)"])
def test_captures_of_one_generation_leave_those_of_other_threads_alone(models, family, other, name):
    draft, prompts, made = models
    model, expected = made[family]

    def ours(kind):
        return [generate(model, ids, DRAFTERS[kind](draft), max_new_tokens=NEW).tokens for ids in prompts]

    def theirs():
        found = [model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NEW) for ids in prompts]
        return [one[0, 24:].tolist() for one in found]

    second = theirs if other == "transformers" else lambda: ours(other)
    assert at_the_same_time(lambda: ours(name), second) == [expected, expected]
    assert model.config._attn_implementation == "sdpa"
    assert not any(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name != "plain"])
def test_one_drafter_in_two_generations_is_refused_before_any_work(models, name):
    draft, prompts, made = models
    model, expected = made["llama-gqa"]
    drafter, passes, refused, waiting = DRAFTERS[name](draft), [], [], []

    def meanwhile(tokens):
        waiting.append(True)
        with ThreadPoolExecutor(1) as pool:
            refused.append(pool.submit(generate, model, prompts[1], drafter, max_new_tokens=NEW).exception(60))
        waiting.clear()

    with hooked(model, lambda *args: passes.extend(waiting), model, before=True):
        assert generate(model, prompts[0], drafter, max_new_tokens=NEW, on_tokens=meanwhile).tokens == expected[0]
    assert refused and not passes and all(isinstance(one, RuntimeError) for one in refused)
    assert all(re.search("is in use by another generation.* make a drafter for each", str(one)) for one in refused)
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
