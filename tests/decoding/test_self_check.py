"""The check of a model before it is first decoded: what it lets pass, and the causes it names."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specdec_lib import Drafter, DraftTree, Runtime, UnsupportedModel, generate
from specdec_lib.decoding import target
from specdec_lib.decoding.precision import InFloat32
from specdec_lib.decoding.target import check_model
from specdec_lib.drafters import DraftModel, PromptLookup
from tests.chaos import Chaos
from tests.families import _COMMON, SERVED, build, prompt

HALF = [torch.bfloat16, torch.float16]


def made(kind: str, seed: int = 0, **own):
    """A random model of a type that is no family of the suites."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**_COMMON, "pad_token_id": 0, **own})
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("family", SERVED)
def test_served_models_in_half_precision_pass_as_strictly_as_in_float32(monkeypatch, family, dtype):
    monkeypatch.setattr(target, "TOLERANCE_HALF", -1.0)
    check_model(build(family).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_a_model_that_is_not_causal_is_refused_in_every_precision(dtype):
    with pytest.raises(UnsupportedModel, match="RoCBertForCausalLM.*when other tokens follow.*it is not causal"):
        check_model(made("roc_bert").to(dtype))


@pytest.mark.parametrize("family", ["llama-gqa", "deepseek-v3", "gemma2", "gpt2"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_in_float32_is_the_model_with_its_weights_in_float32(family, dtype):
    model, text = build(family).to(dtype), torch.tensor([prompt(1, 12)])
    with torch.no_grad(), InFloat32():
        got = model(text, use_cache=False).logits
    with torch.no_grad():
        expected = model.float()(text, use_cache=False).logits
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_kernel_of_half_precision_alone_is_checked_as_far_as_its_rounding_allows(monkeypatch):
    model = build("llama").to(torch.bfloat16)
    part = model.model.layers[0].mlp
    run = part.forward

    def half_only(states):
        if states.dtype != torch.bfloat16:
            raise NotImplementedError("this kernel takes bfloat16")
        return run(states)

    monkeypatch.setattr(part, "forward", half_only)
    check_model(model)


def test_weights_that_are_no_numbers_are_named():
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(UnsupportedModel, match="its weight model.layers.1.mlp.up_proj.weight holds NaN"):
        generate(model, [1, 2, 3])


def test_an_overflow_of_float16_is_named():
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(500)
        model.model.layers[1].mlp.gate_proj.weight.mul_(500)
    check_model(model)
    with pytest.raises(UnsupportedModel, match="its weights are: .*float16 overflows: load it in bfloat16 or float32"):
        generate(build_like(model).half(), [1, 2, 3])


def build_like(model):
    other = build("llama")
    other.load_state_dict(model.state_dict())
    return other


def test_a_model_that_cannot_run_by_itself_is_not_blamed_on_the_tree():
    model = build("llama")
    model.model.layers[0].mlp.half()
    with pytest.raises(UnsupportedModel, match="its own forward .* without a draft, fails with RuntimeError: .*dtype"):
        generate(model, [1, 2, 3])


def test_an_error_without_words_is_told_by_its_place(monkeypatch):
    model = build("llama")

    def fails(states):
        raise AssertionError

    monkeypatch.setattr(model.model.layers[0].mlp, "forward", fails)
    with pytest.raises(UnsupportedModel, match=r"fails with AssertionError in fails \(test_self_check.py, line"):
        generate(model, [1, 2, 3])


def test_layers_that_quantise_by_all_tokens_of_a_pass_are_named():
    quantization = pytest.importorskip("torch.ao.quantization")
    if not set(torch.backends.quantized.supported_engines) - {"none"}:
        pytest.skip("this build of torch has no quantised layers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = quantization.quantize_dynamic(build("llama"), {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(UnsupportedModel, match="dynamic.* scales what it rounds by all tokens of a pass"):
        generate(model, [1, 2, 3])


def test_a_window_that_does_not_follow_the_configuration_is_served_within_it_alone(monkeypatch):
    model = build("mistral-window", sliding_window=40)
    forward = model.forward
    # As a model does whose layers took their window over when they were made: a copy with another is the same model.
    monkeypatch.setattr(model, "forward", lambda *args, **kwargs: forward(*args, **kwargs))
    start = prompt(1, 20)
    plain = generate(model, start, max_new_tokens=20)
    assert generate(model, start, Chaos(start + plain.tokens), max_new_tokens=20).tokens == plain.tokens
    with pytest.raises(UnsupportedModel, match="the last 40 tokens only.* may take 41"):
        generate(model, start, max_new_tokens=21)


def test_the_check_beyond_a_window_leaves_the_model_as_it_was():
    model = build("gemma3")
    before = model.config.to_dict()
    check_model(model)
    assert model.config.to_dict() == before
    assert model.config.sliding_window == model.model.config.sliding_window == 12


class Wide(Drafter):
    """A tree of the true continuation and more tokens than a window of GPT-Neo has room for."""

    def __init__(self, text):
        self.text = text

    def propose(self, context, limit):
        return DraftTree([self.text[len(context.tokens)], *range(80)], [-1, *[0] * 80])


def test_gpt_neo_is_served_where_a_draft_fits_its_local_window_and_refused_past_it():
    model = made("gpt_neo", attention_types=[[["global", "local"], 1]], num_layers=2, num_heads=4, window_size=100)
    start = prompt(1, 20)
    theirs = model.generate(torch.tensor([start]), do_sample=False, max_new_tokens=16, eos_token_id=None)[
        0, 20:
    ].tolist()
    for drafter in (None, PromptLookup(), Chaos(start + theirs, 1), Chaos(start + theirs, 2)):
        assert generate(model, start, drafter, max_new_tokens=16, eos_token_id=[]).tokens == theirs
    with pytest.raises(
        UnsupportedModel, match="GPTNeoForCausalLM has layers that attend to the last 100 places.* 36 tokens; .*37"
    ):
        generate(model, start, max_new_tokens=17)
    with pytest.raises(UnsupportedModel, match="a tree of 81 nodes after 20 tokens passes them; draft fewer"):
        generate(model, start, Wide(start + theirs), max_new_tokens=16, eos_token_id=[])
    with pytest.raises(UnsupportedModel, match="GPTNeoForCausalLM.* leave the runtime out"):
        generate(model, start, max_new_tokens=4, runtime=Runtime(model, 40))
    # As a draft model it is silent past the window.
    drafted = generate(build("gpt2"), start, DraftModel(model), max_new_tokens=40, eos_token_id=[])
    assert drafted.tokens == generate(build("gpt2"), start, max_new_tokens=40, eos_token_id=[]).tokens


def test_doge_is_served_within_the_tokens_it_keeps_and_refused_past_them():
    model = made("doge", keep_window_size=40)
    start = prompt(1, 20)
    theirs = model.generate(torch.tensor([start]), do_sample=False, max_new_tokens=20, eos_token_id=None)[
        0, 20:
    ].tolist()
    for drafter in (None, PromptLookup(), Chaos(start + theirs, 1)):
        assert generate(model, start, drafter, max_new_tokens=20, eos_token_id=[]).tokens == theirs
    with pytest.raises(UnsupportedModel, match="DogeForCausalLM attends to the last 40 tokens only.* may take 41"):
        generate(model, start, max_new_tokens=21)
