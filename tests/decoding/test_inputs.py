"""Bad input gets an error that names the value and what to do, before the model runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_lib import Capture, DraftTree, Sampling, Trace, UnsupportedModel, generate, record, replay
from specdec_lib.decoding.loop import Limits
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.drafters import Lookahead, PromptLookup
from tests.chaos import Perfect, Silent
from tests.families import CONTEXT, REFUSED, VOCABULARY, build, prompt, tokenizer


@pytest.fixture
def idle(llama):
    """The model, which must not run."""
    generate(llama, [1], max_new_tokens=1)
    hook = llama.register_forward_pre_hook(lambda *args: pytest.fail("the model ran"))
    yield llama
    hook.remove()


@pytest.mark.parametrize(
    "ids, kind, says",
    [
        ([], ValueError, "input_ids is empty"),
        (torch.empty((1, 0), dtype=torch.long), ValueError, "input_ids is empty"),
        ([1, VOCABULARY], ValueError, f"token id {VOCABULARY} is outside the model's vocabulary of {VOCABULARY}"),
        ([1, -1], ValueError, "token id -1 is outside"),
        (torch.tensor([[1, 2], [3, 4]]), ValueError, "input_ids holds 2 prompts"),
        ([[1, 2], [3, 4], [5, 6]], ValueError, "input_ids holds 3 prompts"),
        (torch.ones((1, 1, 3), dtype=torch.long), ValueError, r"shape \(1, 1, 3\)"),
        ("import os", TypeError, "input_ids is text"),
        (["import", "os"], TypeError, "expected whole numbers"),
        ([1.0, 2.0], TypeError, "float64; expected whole numbers"),
        (torch.tensor([True, False]), TypeError, "bool; expected whole numbers"),
        (list(range(2, 90)) * 2, ValueError, f"the prompt has 176 tokens and the model's context is {CONTEXT}"),
        ([5] * CONTEXT, ValueError, f"the prompt has {CONTEXT} tokens .* no room"),
    ],
)
def test_prompts_that_cannot_be_decoded(idle, ids, kind, says):
    for run in (generate, record):
        with pytest.raises(kind, match=says):
            run(idle, ids)


@pytest.mark.parametrize(
    "arguments, kind, says",
    [
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens is 0"),
        ({"max_new_tokens": -3}, ValueError, "max_new_tokens is -3"),
        ({"max_new_tokens": 2.0}, ValueError, "max_new_tokens is 2.0"),
        ({"sampling": 0.7}, TypeError, "sampling is 0.7; expected a specdec_lib.Sampling"),
        ({"stop_strings": ["x"]}, ValueError, "stop_strings needs the tokenizer"),
        ({"stop_strings": ["x", ""], "tokenizer": tokenizer()}, ValueError, "stop_strings is .*not empty"),
        (
            {"stop_strings": ["x"], "tokenizer": tokenizer(VOCABULARY + 1)},
            ValueError,
            f"the tokenizer has {VOCABULARY + 1} tokens, the model embeds {VOCABULARY}",
        ),
    ],
)
def test_arguments_out_of_range(idle, arguments, kind, says):
    for run in (generate, record):
        with pytest.raises(kind, match=says):
            run(idle, [1, 2], **arguments)


class Duck:
    capture = Capture()

    def start(self, context):
        pass

    def propose(self, context, limit):
        return DraftTree.chain([])


@pytest.mark.parametrize(
    "drafter, says",
    [
        (Duck(), "a subclass of specdec_lib.Drafter"),
        ("pld", "a subclass of specdec_lib.Drafter"),
        (PromptLookup, r"make one, PromptLookup\(...\)"),
    ],
    ids=["duck", "text", "class"],
)
def test_what_is_no_drafter_is_told_what_to_be(llama, idle, drafter, says):
    trace = Trace([3], [4, 5], Sampling(), VOCABULARY, Limits(2), "length")
    for run in (lambda: generate(idle, [3, 4], drafter), lambda: replay(trace, drafter)):
        with pytest.raises(TypeError, match=rf"expected an object with capture, start\(\) and propose\(\).*{says}"):
            run()


@pytest.mark.parametrize(
    "ids",
    [
        [3, 4, 5],
        (3, 4, 5),
        np.array([3, 4, 5], dtype=np.int32),
        torch.tensor([3, 4, 5]),
        torch.tensor([[3, 4, 5]]),
        np.array([[3, 4, 5]]),
    ],
    ids=lambda ids: type(ids).__name__,
)
def test_every_form_of_one_prompt_is_taken_and_left_unchanged(llama, ids):
    before = str(ids)
    assert generate(llama, ids, max_new_tokens=5).tokens == generate(llama, [3, 4, 5], max_new_tokens=5).tokens
    assert str(ids) == before


def test_whole_numbers_of_numpy_and_torch_are_whole_numbers(llama):
    plain = generate(llama, [3, 4, 5], max_new_tokens=5).tokens
    for number in (np.int64(5), np.uint8(5), torch.tensor(5)):
        assert generate(llama, [3, 4, 5], max_new_tokens=number).tokens == plain
        assert Runtime(llama, number).capacity == Capture(topk=number).topk == 5


@pytest.mark.parametrize(
    "form", [int, np.int64, torch.tensor, lambda i: [i], lambda i: {i}, lambda i: torch.tensor([i])]
)
def test_every_form_of_an_end_token_is_taken(llama, form):
    plain = generate(llama, [3, 4, 5], max_new_tokens=9).tokens
    cut = plain.index(plain[4]) + 1
    assert generate(llama, [3, 4, 5], max_new_tokens=9, eos_token_id=form(plain[4])).tokens == plain[:cut]


def test_the_models_own_end_token_counts_unless_another_is_given():
    model = build("llama-gqa")
    plain = generate(model, [3, 4, 5], max_new_tokens=9).tokens
    model.generation_config.eos_token_id = plain[3]
    cut = plain.index(plain[3]) + 1
    run = generate(model, [3, 4, 5], max_new_tokens=9)
    assert (run.tokens, run.finish_reason) == (plain[:cut], "eos")
    assert generate(model, [3, 4, 5], max_new_tokens=9, eos_token_id=[]).tokens == plain


@pytest.mark.parametrize("family", REFUSED)
def test_models_that_tree_verification_cannot_serve_are_refused(family):
    model = build(family)
    with pytest.raises(UnsupportedModel, match=type(model).__name__):
        generate(model, prompt(0, 8), max_new_tokens=3)


def changing_over_at_32():
    """A model whose positions are rotated by other frequencies past 32 tokens."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [9.0] * 4,
        "original_max_position_embeddings": 32,
    }
    return build("llama", rope_parameters=rope, original_max_position_embeddings=32)


def test_long_context_positions_that_change_over_are_refused_past_the_change():
    model = changing_over_at_32()
    assert generate(model, prompt(0, 20), max_new_tokens=12).tokens
    with pytest.raises(UnsupportedModel, match="32 tokens.* may take 33"):
        generate(model, prompt(0, 20), max_new_tokens=13)


def test_passengers_and_padding_stay_below_the_change_over_of_long_context_positions():
    """A single token past it, and the frequencies of the whole pass would be others."""
    model = changing_over_at_32()
    ids = prompt(0, 12)
    plain = generate(model, ids, max_new_tokens=20, eos_token_id=[])
    riding = generate(model, ids, Lookahead(), max_new_tokens=20, eos_token_id=[])
    padded = generate(
        model,
        ids,
        Perfect([*ids, *plain.tokens], 3),
        max_new_tokens=20,
        eos_token_id=[],
        runtime=Runtime(model, 32, widths=(1, 8)),
    )
    assert riding.tokens == padded.tokens == plain.tokens


@pytest.mark.parametrize("given", ["</s>", [2.7], 2.7, ["</s>"]], ids=repr)
def test_an_end_token_that_is_no_id_is_refused_by_name(given):
    with pytest.raises(TypeError, match="eos_token_id is .* expected token ids"):
        generate(build("llama"), [1, 2, 3], eos_token_id=given)


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(UnsupportedModel, match="training mode"):
        generate(build("llama").train(), [1, 2, 3])


def test_an_attention_that_takes_no_tree_mask_is_refused():
    model = build("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UnsupportedModel, match="flash_attention_2"):
        generate(model, [1, 2, 3])


def test_capped_attention_scores_under_sdpa_are_refused():
    # Some releases of transformers run such a model under SDPA without the cap.
    model = build("gemma2")
    assert generate(model, [1, 2, 3], max_new_tokens=2).tokens
    model.config._attn_implementation = "sdpa"
    with pytest.raises(UnsupportedModel, match="caps its attention scores"):
        generate(model, [1, 2, 3])


class OutOfVocabulary(Silent):
    def propose(self, context, limit):
        return DraftTree.chain([VOCABULARY + 3])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7)], ids=str)
def test_a_draft_with_an_id_the_model_does_not_know_is_an_error(llama, sampling):
    with pytest.raises(
        ValueError, match=f"drafted token id {VOCABULARY + 3}, which is outside the target's vocabulary of {VOCABULARY}"
    ):
        generate(llama, [1, 2, 3], OutOfVocabulary(), sampling, 5)


def test_on_tokens_that_raises_ends_the_run_and_leaves_the_model_usable(llama):
    def stop(tokens):
        raise StopIteration

    with pytest.raises(StopIteration):
        generate(llama, [1, 2, 3], PromptLookup(), max_new_tokens=5, on_tokens=stop)
    assert len(generate(llama, [1, 2, 3], max_new_tokens=5).tokens) == 5
