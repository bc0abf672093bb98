"""The check of a model before it is first decoded: what it lets pass, and the causes it names."""

import copy
import warnings

import pytest
import torch
from transformers import XLNetConfig, XLNetLMHeadModel

from specdec_lib import UnsupportedModel, generate
from specdec_lib.decoding.target import check_model
from specdec_lib.drafters import TokenRecycling
from tests.chaos import Chaos
from tests.families import REFUSED, SERVED, build, prompt

HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("family", SERVED)
def test_served_models_pass_in_half_precision_and_are_left_as_they_were(family, dtype):
    model = build(family).to(dtype)
    before = model.config.to_dict()
    check_model(model)
    assert model.config.to_dict() == before


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


def ignoring(argument: str, dtype: torch.dtype):
    model = build("llama").to(dtype)
    forward = model.forward
    model.forward = lambda *args, **kwargs: forward(*args, **{**kwargs, argument: None})
    return model


def overflowing():
    """In float16 alone."""
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(500)
        model.model.layers[1].mlp.gate_proj.weight.mul_(500)
    check_model(model)
    return copy.deepcopy(model).half()


def failing():
    def fails(states):
        raise AssertionError

    model = build("llama")
    model.model.layers[0].mlp.forward = fails
    return model


def quantised():
    quantization = pytest.importorskip("torch.ao.quantization")
    if not set(torch.backends.quantized.supported_engines) - {"none"}:
        pytest.skip("this build of torch has no quantised layers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantization.quantize_dynamic(build("llama"), {torch.nn.Linear}, dtype=torch.qint8)


def damaged():
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    return model


def half_trained():
    model = build("gpt2", embd_pdrop=0.5)
    model.transformer.drop.train()
    return model


def using(family: str, implementation: str):
    model = build(family)
    model.config._attn_implementation = implementation
    return model


TYPES = {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4}
XLNET = XLNetConfig(vocab_size=96, d_model=32, n_layer=1, n_head=2, d_inner=32)


IGNORED = [(argument, dtype) for argument in ("attention_mask", "position_ids") for dtype in (torch.float32, *HALF)]
NOT_CAUSAL = "RoCBert.*when other tokens follow.*it is not causal"


@pytest.mark.parametrize("make, says", [
    *((lambda family=family: build(family), "ForCausalLM") for family in REFUSED),
    *((lambda own=own: ignoring(*own), "do not follow the tree mask|cannot run a draft tree") for own in IGNORED),
    *((lambda d=d: build("roc_bert", pad_token_id=0).to(d), NOT_CAUSAL) for d in (torch.float32, *HALF)),
    (lambda: build("gpt_neo", **TYPES), "local layers"),
    (lambda: build("doge", pad_token_id=0, keep_window_size=40), "the tokens that it scores highest"),
    (lambda: XLNetLMHeadModel(XLNET).eval(), "XLNetLMHeadModel has no key-value cache"),
    (lambda: build("llama").train(), "training mode"),
    (half_trained, "its part transformer.drop is in training mode"),
    (lambda: using("llama", "flash_attention_2"), "flash_attention_2"),
    # Some releases of transformers run such a model under SDPA without the cap.
    (lambda: using("gemma2", "sdpa"), "caps its attention scores"),
    (damaged, "its weight model.layers.1.mlp.up_proj.weight holds NaN"),
    (overflowing, "its weights are: .*float16 overflows: load it in bfloat16 or float32"),
    # What fails without a draft is not blamed on the tree.
    (failing, r"its own forward .* without a draft, fails with AssertionError in fails \(test_self_check.py, line"),
    (quantised, "dynamic.* scales what it rounds by all tokens of a pass"),
    (lambda: build("llama").to("meta"), "LlamaForCausalLM has no weights.* 'meta'"),
])  # fmt: skip
def test_a_model_that_cannot_be_served_is_refused_with_its_reason(make, says):
    with pytest.raises(UnsupportedModel, match=says):
        generate(make(), prompt(1, 20), max_new_tokens=4)


@pytest.mark.parametrize("unread", [{}, {"layer_types": ["sliding_attention", "full_attention"]}])
def test_a_window_that_the_architecture_does_not_read_limits_nothing(unread):
    model, ids = build("llama", sliding_window=16, **unread), prompt(1, 40)
    other = [(ids[0] + 1) % 90, *ids[1:]]
    with torch.no_grad():  # the first token is seen from position 39
        assert not torch.equal(*model(torch.tensor([ids, other])).logits[:, -1])
    # Without a cache, which transformers cuts to the window by the configuration alone.
    theirs = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=20, use_cache=False)[0, 40:].tolist()
    for drafter in (None, Chaos(ids + theirs, 1)):
        assert generate(model, ids, drafter, max_new_tokens=20).tokens == theirs


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", ["llama-gqa", "gemma3", "gpt-oss"])
def test_a_model_is_served_within_autocast(family, dtype):
    model, ids = build(family), prompt(1, 12)
    with torch.autocast("cpu", dtype=dtype):
        assert len(generate(model, ids, TokenRecycling(), max_new_tokens=30).tokens) == 30
    check_model(model)
