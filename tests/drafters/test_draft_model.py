"""Drafting with a small model: what is drafted, with which probabilities, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from specdec_lib import Sampling, generate
from specdec_lib.decoding.contract import Context
from specdec_lib.decoding.sampling import distribution
from specdec_lib.drafters import DraftModel
from tests.families import VOCABULARY, bounded, build, perturbed, prompt


def started(drafter, tokens: list[int], sampling: Sampling = Sampling()):
    seen = Context(list(tokens), len(tokens), VOCABULARY, sampling)
    drafter.start(seen)
    return drafter, seen


def greedy(model, tokens: list[int], count: int) -> list[int]:
    """Continuation without any cache."""
    tokens = list(tokens)
    for _ in range(count):
        with torch.inference_mode():
            tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[-count:]


@pytest.fixture(scope="module")
def small():
    return build("llama-gqa", seed=3)


def test_drafts_are_greedy_continuations_through_acceptance_and_rejection(small):
    drafter, seen = started(DraftModel(small, 4), prompt(1, 10))
    # Also where the limit shortens a draft, and after tokens that nobody asked it for.
    for kept, limit, *then in (
        (4, 50, 9),
        (0, 50, 7),
        (2, 2, 5),
        (4, 50, 3),
        (1, 50, 5, 6, 7, 8, 9, 10, 11),
        (0, 50, 2),
    ):
        tree = drafter.propose(seen, limit)
        assert tree.tokens == greedy(small, seen.tokens, min(4, limit)) and tree.is_chain and tree.probabilities is None
        seen.tokens += [*tree.tokens[:kept], *then]


def test_sampled_drafts_carry_the_distribution_they_were_drawn_from(small):
    sampling = Sampling(0.8, 0.9, 30, seed=4)
    drafter, seen = started(DraftModel(small, 4), prompt(1, 10), sampling)
    for _ in range(3):
        tree = drafter.propose(seen, 50)
        with torch.inference_mode():
            rows = small(torch.tensor([seen.tokens + tree.tokens[:-1]]), use_cache=False).logits[0, -4:]
        torch.testing.assert_close(tree.probabilities, distribution(rows, sampling), rtol=1e-3, atol=1e-5)
        assert all(row[token] > 0 for row, token in zip(tree.probabilities, tree.tokens, strict=True))
        seen.tokens += [*tree.tokens[:2], 3]


def test_sampled_drafts_depend_on_seed_and_place(small):
    drafts = []
    for seed in (0, 1):
        drafter, seen = started(DraftModel(small, 8), prompt(1, 10), Sampling(1.5, seed=seed))
        drafts.append(drafter.propose(seen, 50).tokens)
        drafter.start(seen)
        assert drafter.propose(seen, 50).tokens == drafts[-1]
    assert drafts[0] != drafts[1]


def test_a_draft_that_is_the_target_is_accepted_whole(llama):
    run = generate(llama, prompt(1, 10), DraftModel(llama, 4), max_new_tokens=21)
    assert [step.accepted for step in run.steps] == [4] * 4
    sampled = generate(llama, prompt(1, 10), DraftModel(llama, 4), Sampling(0.9, seed=2), 21)
    assert [step.accepted for step in sampled.steps] == [4] * 4


def test_the_draft_falls_silent_at_the_end_of_its_own_context(llama):
    short = perturbed(llama)
    short.config.max_position_embeddings = 40
    expected = generate(llama, prompt(2, 30), max_new_tokens=30)
    run = generate(llama, prompt(2, 30), DraftModel(short, 4), max_new_tokens=30)
    assert run.tokens == expected.tokens
    length = 31
    for step in run.steps:
        assert step.drafted <= max(0, 40 - length) and (step.drafted == 0) == (length >= 40 or length == 59)
        length += len(step.tokens)


def test_the_draft_falls_silent_past_the_length_it_is_served_to(library):
    target = library["mistral"]
    run = generate(target, prompt(2, 56), DraftModel(bounded(64), 4), max_new_tokens=20)
    assert run.tokens == generate(target, prompt(2, 56), max_new_tokens=20).tokens
    assert run.steps[0].drafted == 4 and run.steps[-1].drafted == 0


def test_the_draft_goes_on_past_its_own_window(library):
    target, windowed = library["mistral"], build("mistral-window")
    run = generate(target, prompt(2, 20), DraftModel(windowed, 4), max_new_tokens=30)
    assert run.tokens == generate(target, prompt(2, 20), max_new_tokens=30).tokens
    text, length = prompt(2, 20) + run.tokens, 21
    for step in run.steps[:-1]:
        expected = windowed.generate(torch.tensor([text[:length]]), do_sample=False, max_new_tokens=4)
        assert list(step.tree.tokens) == expected[0, length:].tolist()[: len(step.tree.tokens)]
        length += len(step.tokens)


GROWTH = """
import resource
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from specdec_lib import Sampling, generate
from specdec_lib.drafters import DraftModel

def model(seed):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=152_000, max_position_embeddings=8192, eos_token_id=None, **sizes)
    return LlamaForCausalLM(config).eval()

def decoded(count):
    return len(generate(target, [1, 2, 3], drafter, Sampling(1.0, seed=1), count).tokens)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

torch.set_num_threads(1)
target, drafter = model(0), DraftModel(model(1), 4)
decoded(32)
before = peak()
print(decoded(4096), peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in KiB, as Linux does")
def test_a_long_sampled_run_with_a_large_vocabulary_needs_little_memory():
    """In a process of its own, whose peak no other test has moved. Distributions of all steps would be gigabytes."""
    shown = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True).stdout
    tokens, growth = map(int, shown.split())
    assert tokens == 4096
    assert growth < 200 * 1024, f"the process grew by {growth / 1024:.0f} MB"
