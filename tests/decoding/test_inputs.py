"""Bad input gets an error that names the value and what to do, before the model runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from specdec_lib import Capture, DraftTree, Passengers, Sampling, Trace, UnsupportedModel, generate, record, replay
from specdec_lib.decoding.loop import Limits
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.drafters import Lookahead, PromptLookup
from tests.chaos import Perfect, Silent
from tests.families import CONTEXT, VOCABULARY, bounded, build, prompt, tokenizer


@pytest.fixture
def idle(llama):
    """The model, which must not run."""
    generate(llama, [1], max_new_tokens=1)
    hook = llama.register_forward_pre_hook(lambda *args: pytest.fail("the model ran"))
    yield llama
    hook.remove()


TINY = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}


@pytest.mark.parametrize(
    "arguments, kind, says",
    [
        ({"input_ids": []}, ValueError, "input_ids is empty"),
        ({"input_ids": [1, VOCABULARY]}, ValueError, f"token id {VOCABULARY} is outside the model's vocabulary of"),
        ({"input_ids": [1, -1]}, ValueError, "token id -1 is outside"),
        ({"input_ids": torch.tensor([[1, 2], [3, 4]])}, ValueError, "input_ids holds 2 prompts"),
        ({"input_ids": torch.ones((1, 1, 3), dtype=torch.long)}, ValueError, r"shape \(1, 1, 3\)"),
        ({"input_ids": "import os"}, TypeError, "input_ids is text"),
        ({"input_ids": {"input_ids": [1, 2]}}, TypeError, "input_ids is a dict; expected token ids"),
        ({"input_ids": [[1, 2], [3]]}, ValueError, "input_ids holds several prompts; expected one"),
        ({"input_ids": ["import", "os"]}, TypeError, "expected whole numbers"),
        ({"input_ids": [1.0, 2.0]}, TypeError, "float64; expected whole numbers"),
        ({"input_ids": torch.tensor([True, False])}, TypeError, "bool; expected whole numbers"),
        ({"input_ids": [5] * 176}, ValueError, f"the prompt has 176 tokens and the model's context is {CONTEXT}"),
        ({"input_ids": [5] * CONTEXT}, ValueError, f"the prompt has {CONTEXT} tokens .* no room"),
        *(
            ({"eos_token_id": given}, TypeError, "eos_token_id is .* expected")
            for given in ("</s>", [2.7], 2.7, ["</s>"])
        ),
        *(
            (
                {"eos_token_id": given},
                ValueError,
                f"outside the vocabulary of {VOCABULARY}; expected ids, or \\[\\] for no end",
            )
            for given in (-1, [VOCABULARY, 10**6])
        ),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens is 0"),
        ({"max_new_tokens": 2.0}, ValueError, "max_new_tokens is 2.0"),
        ({"sampling": 0.7}, TypeError, "sampling is 0.7; expected a specdec_lib.Sampling"),
        ({"stop_strings": ["x"]}, ValueError, "stop_strings needs the tokenizer"),
        ({"stop_strings": ["x", ""], "tokenizer": tokenizer()}, ValueError, "stop_strings is .*not empty"),
        ({"stop_strings": ["x"], "tokenizer": tokenizer(97)}, ValueError, "has 97 tokens, the model embeds 96"),
        ({"model": BertModel(BertConfig(**TINY))}, TypeError, "model is a BertModel; expected a causal language model"),
        ({"model": torch.nn.Linear(2, 2)}, TypeError, "model is a Linear; expected a causal language model"),
        ({"model": "pocket"}, TypeError, "model is a str; expected a causal language model"),
    ],
)
def test_what_cannot_be_decoded_is_refused_before_the_model_runs(idle, arguments, kind, says):
    for run in (generate, record):
        with pytest.raises(kind, match=says):
            run(**{"model": idle, "input_ids": [1, 2]} | arguments)


class Duck:
    capture = Capture()

    def start(self, context):
        pass

    def propose(self, context, limit):
        return DraftTree.chain([])


def declaring(**declared) -> Silent:
    drafter = Silent()
    vars(drafter).update(declared)
    return drafter


EXPECTED = "expected an object of a subclass of specdec_lib.Drafter"


@pytest.mark.parametrize(
    "drafter, kind, says",
    [
        (Duck(), TypeError, EXPECTED),
        ("pld", TypeError, EXPECTED),
        (PromptLookup, TypeError, EXPECTED + r": make one, PromptLookup\(...\)"),
        (declaring(capture=(1,)), TypeError, r"has capture \(1,\); expected"),
        (declaring(replays="sometimes"), ValueError, "is 'sometimes'; expected one of any, greedy, never"),
    ],
    ids=["duck", "text", "class", "capture", "replays"],
)
def test_what_is_no_drafter_is_told_what_to_be(llama, idle, drafter, kind, says):
    trace = Trace([3], [4, 5], Sampling(), VOCABULARY, Limits(2), "length")
    for run in (lambda: generate(idle, [3, 4], drafter), lambda: replay(trace, drafter)):
        with pytest.raises(kind, match=says):
            run()


class Proposes(Silent):
    def __init__(self, proposal):
        super().__init__()
        self.proposal = proposal

    def propose(self, context, limit):
        return self.proposal


class Writes(Silent):
    def propose(self, context, limit):
        context.tokens.append(3)
        return super().propose(context, limit)


def test_a_drafter_that_adds_to_the_text_is_refused(llama):
    with pytest.raises(RuntimeError, match=r"Writes\(\) changed the number of context.tokens; it may only read"):
        generate(llama, [3, 4], Writes(), max_new_tokens=5)


FAR = DraftTree.chain([]).annotated(passengers=Passengers([96], [1], np.ones((1, 2), bool)))


@pytest.mark.parametrize(
    "proposal, kind, says",
    [
        (None, TypeError, r"propose\(\) of Proposes.* returned None; expected a specdec_lib.DraftTree"),
        ([3, 4], TypeError, r"returned \[3, 4\]; expected a specdec_lib.DraftTree"),
        ((DraftTree.chain([3]), 1), TypeError, r"returned \(.*; expected a specdec_lib.DraftTree"),
        (DraftTree.chain([99]), ValueError, "drafted token id 99, outside the target's vocabulary of 96"),
        (FAR, ValueError, "drafted token id 96, outside the target's vocabulary of 96"),
    ],
    ids=str,
)
def test_what_cannot_be_verified_is_named(llama, proposal, kind, says):
    trace = record(llama, [3, 4], max_new_tokens=5, eos_token_id=[])
    for run in (
        lambda: generate(llama, [3, 4], Proposes(proposal), eos_token_id=[]),
        lambda: generate(llama, [3, 4], Proposes(proposal), Sampling(0.7), eos_token_id=[]),
        lambda: replay(trace, Proposes(proposal)),
    ):
        with pytest.raises(kind, match=says):
            run()


@pytest.mark.parametrize(
    "ids",
    [(3, 4, 5), np.array([3, 4, 5], dtype=np.int32), torch.tensor([3, 4, 5]), np.array([[3, 4, 5]])],
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


def test_long_context_positions_that_change_over_are_refused_past_the_change():
    model = bounded(32)
    assert generate(model, prompt(0, 20), max_new_tokens=12).tokens
    with pytest.raises(UnsupportedModel, match="32 tokens.* may take 33"):
        generate(model, prompt(0, 20), max_new_tokens=13)


def test_passengers_and_padding_stay_below_the_change_over_of_long_context_positions():
    """A single token past it, and the frequencies of the whole pass would be others."""
    model, ids, limits = bounded(32), prompt(0, 12), {"max_new_tokens": 20, "eos_token_id": []}
    plain = generate(model, ids, **limits)
    riding = generate(model, ids, Lookahead(), **limits)
    runtime = Runtime(model, 32, widths=(1, 8))
    padded = generate(model, ids, Perfect([*ids, *plain.tokens], 3), **limits, runtime=runtime)
    assert riding.tokens == padded.tokens == plain.tokens
