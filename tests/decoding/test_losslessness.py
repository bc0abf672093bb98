"""Whatever the drafter, the output is that of plain decoding, token for token; ``test_replay`` has all ways in which it ends."""

from functools import cache

import pytest
import torch

from specdec_lib import Sampling, generate
from specdec_lib.decoding import target
from specdec_lib.experiments.checks.rounding import margin
from specdec_lib.methods import METHODS
from tests.chaos import FACTORIES, SAMPLING
from tests.families import SERVED, build, prompt, uncached

NEW = 28
GREEDY = Sampling()
SEEDED = [Sampling(temperature=0.7, top_p=0.9, seed=3), Sampling(temperature=1.3, top_k=20, seed=4)]


@pytest.fixture(scope="module")
def plain(library):
    """``plain(family, sampling, length)``: a prompt, and its plain output that no rounding decides."""

    @cache
    def run(family: str, sampling: Sampling, length: int) -> tuple[list[int], list[int]]:
        model = library[family]
        for seed in range(20):
            start = prompt(seed, length)
            tokens = generate(model, start, None, sampling, NEW).tokens
            rows = uncached(model, start + tokens)[0][length - 1 : -1]
            bound = sampling.for_prompt(start)
            if min(margin(row, bound, length + i) for i, row in enumerate(rows)) > 1e-4:
                return start, tokens
        raise AssertionError("20 prompts in a row had a choice within 1e-4; expected such a choice to be rare")

    return run


def test_every_method_that_claims_to_be_lossless_is_in_the_suite():
    assert {name for name, method in METHODS.items() if method.exact != "lossy"} <= set(FACTORIES)
    assert {name for name, method in METHODS.items() if method.exact == "in distribution"} <= SAMPLING < set(FACTORIES)


@pytest.mark.parametrize("family", SERVED)
def test_plain_greedy_equals_transformers_generate(library, plain, family):
    start, ours = plain(family, GREEDY, 20)
    theirs = library[family].generate(torch.tensor([start]), do_sample=False, max_new_tokens=NEW)
    assert ours == theirs[0, len(start) :].tolist()


#: Every method and every shape of tree meets every family; other settings of a method, whose passes are of the same
#: kinds, meet those that differ most: grouped keys, windows, learned positions, an attention of the model's own.
DIFFERENT = ("llama-gqa", "gemma3", "gpt2", "gpt-oss")
MEETING = [
    (family, drafter)
    for family in SERVED
    for drafter in FACTORIES
    if drafter in METHODS or drafter.startswith("chaos") or family in DIFFERENT
]


@pytest.mark.core_cases(5)
@pytest.mark.parametrize("family, drafter", MEETING)
def test_output_equals_plain_decoding(library, plain, family, drafter):
    for sampling in (GREEDY, *SEEDED):
        if drafter in SAMPLING and not sampling.greedy:
            continue
        start, expected = plain(family, sampling, 20)
        made = FACTORIES[drafter](library, family, start + expected, sampling.seed)
        if made.capture.heads and library[family].config._attn_implementation == "eager":
            with pytest.raises(ValueError, match="cannot be captured on this model: use PLD"):
                generate(library[family], start, made, sampling, NEW)
            continue
        blocks: list[list[int]] = []
        run = generate(library[family], start, made, sampling, NEW, on_tokens=lambda new: blocks.append(list(new)))
        assert run.tokens == expected
        # Tokens are handed over as they are emitted.
        assert blocks == [expected[:1], *(list(step.tokens) for step in run.steps)]
        if drafter == "perfect":
            assert len(run.steps) == -(-(NEW - 1) // 8)
        if drafter == "chaos":
            assert any(s.accepted > 1 and list(s.path) != list(range(s.accepted)) for s in run.steps)


def test_a_window_as_long_as_prompt_and_output_changes_nothing(library, plain):
    # The windowed model has the weights of the one without.
    start, expected = plain("mistral", GREEDY, 20)
    assert generate(build("mistral-window", sliding_window=48), start, None, GREEDY, NEW).tokens == expected
    assert generate(build("mistral-window", sliding_window=24), start, None, GREEDY, NEW).tokens != expected


@pytest.mark.parametrize("family", ["llama-gqa", "mistral-window", "gemma3", "gpt-oss"])
def test_a_prompt_longer_than_window_and_prefill_pass(library, monkeypatch, family):
    model, start = library[family], prompt(9, 50)
    theirs = model.generate(torch.tensor([start]), do_sample=False, max_new_tokens=12)[0, 50:].tolist()
    monkeypatch.setattr(target, "PREFILL_CHUNK", 16)
    made = FACTORIES["chaos watching"](library, family, start + theirs, 0)
    assert generate(model, start, made, GREEDY, 12).tokens == theirs
