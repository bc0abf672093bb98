"""A widened model computes the small model's function at the sizes of the large one."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from specdec_lib import generate, load_model
from specdec_lib.chapters.ch06_gpu_benchmarks import memory, shapes, widen
from specdec_lib.chapters.ch06_gpu_benchmarks.shapes import (
    PRESETS,
    Shape,
    draft_shape,
    parameter_count,
    parameters_read,
)
from tests.families import build, prompt

WIDE = {
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "intermediate_size": 80,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
}
BIASED = {"attention_bias": True, "mlp_bias": True}
#: Heads of the small model, heads of the wide one, and where its queries then stand: by hand.
HEADS = {
    "all to all": (4, 4, 12, 12, [0, 1, 2, 3]),
    "all to grouped": (4, 4, 12, 6, [0, 2, 4, 6]),
    "grouped to wider groups": (4, 2, 12, 3, [0, 1, 4, 5]),
    "grouped to all": (4, 2, 12, 12, [0, 1, 2, 3]),
    "one group to smaller groups": (4, 1, 12, 4, [0, 1, 2, 3]),
    "groups that do not divide": (6, 2, 12, 6, [0, 1, 2, 4, 5, 6]),
}


def small(queries: int = 4, key_values: int = 2, **changes) -> LlamaForCausalLM:
    """A random Llama model whose biases and norms are random too: transformers starts them at 0 and 1."""
    sizes = {"num_attention_heads": queries, "num_key_value_heads": key_values, "head_dim": 8}
    model = build("llama", hidden_size=48, **(sizes | changes))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim == 1:
                weights.copy_(torch.rand(weights.shape, generator=generator) + (0.5 if "norm" in name else -0.5))
    return model


def logits(model: LlamaForCausalLM, tokens: list[int] | None = None, **options) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens or prompt(3, 40)], device=model.device), **options).logits[0].float()


def difference(wide: torch.Tensor, narrow: torch.Tensor) -> float:
    """Largest difference relative to the largest logit; a NaN stays one."""
    return float((wide - narrow).abs().max() / narrow.abs().max())


@pytest.mark.parametrize("fill", widen.FILLS)
@pytest.mark.parametrize("case", HEADS)
@pytest.mark.parametrize("changes", [{}, BIASED, {"tie_word_embeddings": True}], ids=["plain", "biased", "tied"])
def test_logits_are_the_small_models(case, changes, fill):
    queries, key_values, wide_queries, wide_key_values, _ = HEADS[case]
    model = small(queries, key_values, **changes)
    sizes = WIDE | {"num_attention_heads": wide_queries, "num_key_value_heads": wide_key_values}
    wide = widen.widen(model, **sizes, fill=fill)
    assert {name: getattr(wide.config, name) for name in sizes} == sizes
    assert difference(logits(wide), logits(model)) < 1e-5
    assert not wide.config.tie_word_embeddings
    assert wide.lm_head.weight.data_ptr() != wide.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("case", HEADS)
def test_query_heads_attend_as_they_did(case):
    queries, key_values, wide_queries, wide_key_values, expected = HEADS[case]
    model = small(queries, key_values)
    sizes = WIDE | {"num_attention_heads": wide_queries, "num_key_value_heads": wide_key_values}
    wide = widen.widen(model, **sizes)
    assert widen.place_heads(model.config, wide.config)[0] == expected
    tokens = torch.tensor([prompt(1, 20)])
    for each in (model, wide):
        each.set_attn_implementation("eager")
    with torch.inference_mode():
        ours, theirs = wide(tokens, output_attentions=True), model(tokens, output_attentions=True)
    for wide_rows, rows in zip(ours.attentions, theirs.attentions, strict=False):
        assert torch.allclose(wide_rows[:, expected], rows, atol=1e-5)


@pytest.mark.parametrize("fill", widen.FILLS)
def test_hidden_states_are_the_small_models_and_then_zeros(fill):
    model = small(**BIASED)
    wide = widen.widen(model, **WIDE, fill=fill)
    tokens = torch.tensor([prompt(1, 20)])
    with torch.inference_mode():
        ours = wide(tokens, output_hidden_states=True).hidden_states
        theirs = model(tokens, output_hidden_states=True).hidden_states
    assert (len(ours), len(theirs)) == (5, 3)
    for layer in (0, 1):
        assert torch.allclose(ours[layer][..., :48], theirs[layer], atol=1e-4)
    assert all((state[..., 48:] == 0).all() for state in ours[:-1])
    assert torch.allclose(ours[-1][..., :48], theirs[-1], atol=1e-4)
    assert torch.equal(ours[3], ours[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_extra_weights_hold_changes_no_bit(dtype):
    model = small(**BIASED)
    first, second, other = (
        widen.widen(model, **WIDE, dtype=dtype, fill=fill, seed=seed)
        for fill, seed in (("zeros", 0), ("random", 0), ("random", 1))
    )
    assert torch.equal(logits(first), logits(second)) and torch.equal(logits(first), logits(other))
    again = widen.widen(model, **WIDE, dtype=dtype)
    assert all(torch.equal(a, b) for a, b in zip(second.parameters(), again.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(second.parameters(), other.parameters(), strict=True))


def test_most_extra_weights_are_random_or_all_are_zeros():
    model = small(4, 4)
    sizes = WIDE | {"hidden_size": 192, "intermediate_size": 512}
    for fill, low, high in (("random", 0.6, 0.75), ("zeros", 0.0, 0.1)):
        weights = torch.cat([p.flatten() for p in widen.widen(model, **sizes, fill=fill).model.layers.parameters()])
        assert low < float((weights != 0).float().mean()) < high


def test_nothing_but_the_shape_and_the_norms_changes():
    model = small(rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0})
    model.generation_config.eos_token_id = 7
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    wide = widen.widen(model, **WIDE)
    assert difference(logits(wide), logits(model)) < 1e-5
    changed = {"hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
               "num_key_value_heads", "rms_norm_eps"}  # fmt: skip
    old, new = model.config.to_dict(), wide.config.to_dict()
    assert {name for name in old if old[name] != new[name]} == changed
    assert wide.config.rms_norm_eps == pytest.approx(model.config.rms_norm_eps / 2)
    assert wide.generation_config.eos_token_id == 7 and not wide.training
    assert wide.config._attn_implementation == "sdpa"
    assert all(torch.equal(before[name], weights) for name, weights in model.state_dict().items())


def test_a_widened_model_can_be_widened_saved_and_loaded(tmp_path):
    model = small()
    once = widen.widen(model, **WIDE)
    twice = widen.widen(once, **(WIDE | {"hidden_size": 192, "num_hidden_layers": 5}))
    assert difference(logits(twice), logits(model)) < 1e-5
    once.save_pretrained(tmp_path)
    assert torch.equal(logits(LlamaForCausalLM.from_pretrained(tmp_path)), logits(once))


def test_without_sizes_it_is_a_copy():
    model = small(**BIASED)
    same = widen.widen(model)
    assert torch.equal(logits(same), logits(model))
    assert same.model.norm.weight.data_ptr() != model.model.norm.weight.data_ptr()


@pytest.mark.parametrize("name", ["pocket", "pocket-draft"])
def test_the_pocket_pair_keeps_its_logits_and_its_greedy_text(name):
    model, tokenizer = load_model(name, device="cpu")
    wide = widen.widen_to(model, Shape(640, 9, 1000, 1280, 640))
    texts = (
        "def area(width, height):\n",
        "class Stack:\n    def push(self, item):\n",
        "import os\nimport re\n",
    )
    for text in texts:
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert difference(logits(wide, tokens), logits(model, tokens)) < 1e-4
        ours, theirs = (generate(each, tokens, max_new_tokens=24, eos_token_id=[]) for each in (wide, model))
        assert ours.tokens == theirs.tokens


def test_bfloat16_keeps_every_first_choice_that_is_above_rounding():
    """Both bfloat16 models are compared with the float32 logits, which tell how large rounding is."""
    model, tokenizer = load_model("pocket", device="cpu")
    tokens = tokenizer("class Stack:\n    def push(self, item):\n        self.items.append(item)\n" * 4)["input_ids"]
    exact = logits(model, tokens)
    half = logits(model.to(torch.bfloat16), tokens)
    wide = widen.widen_to(model, Shape(640, 9, 1000, 640, 640))
    found = logits(wide, tokens)
    assert wide.dtype == torch.bfloat16 and wide.model.rotary_emb.inv_freq.dtype == torch.float32
    assert (found - exact).pow(2).mean().sqrt() < 2 * (half - exact).pow(2).mean().sqrt()
    first, second = half.topk(2).values.T
    clear = first - second > 2 * (half - exact).abs().amax(-1)
    assert clear.float().mean() > 0.5
    assert torch.equal(found.argmax(-1)[clear], half.argmax(-1)[clear])


@pytest.mark.parametrize("name", ["68m", "160m", "0.35b", "1b", "1.1b", "7b", "13b", "33b", "34b", "70b"])
def test_presets_have_the_published_parameter_counts(name):
    published = {"68m": 68_030_208, "160m": 162_417_408, "0.35b": 361_821_120, "1b": 1_235_814_400,
                 "1.1b": 1_100_048_384, "7b": 6_738_415_616, "13b": 13_015_864_320, "33b": 32_528_943_616,
                 "34b": 33_743_970_304, "70b": 68_976_648_192}  # fmt: skip
    assert PRESETS[name].published_parameters == published[name]


@pytest.mark.parametrize("name", ["160m", "0.35b", "0.5b", "1b", "7b", "34b", "70b"])
def test_counts_and_bytes_are_those_of_the_built_model(name):
    model, _ = load_model("pocket", device="cpu")
    config = widen.shape_config(model.config, name)
    wide = widen.widen_to(model, name, device="meta", dtype="bfloat16")
    count = sum(weights.numel() for weights in wide.parameters())
    assert wide.device.type == "meta" and parameter_count(config) == count
    assert parameters_read(config) == count - wide.model.embed_tokens.weight.numel()
    assert shapes.parameter_bytes(config, torch.bfloat16) == 2 * count
    shape = PRESETS[name]
    vocabularies = (1 if shape.tied else 2) * shape.vocabulary - 2 * config.vocab_size
    assert count == shape.published_parameters - vocabularies * shape.hidden_size


@pytest.mark.parametrize("changes", [{}, BIASED, {"tie_word_embeddings": True}], ids=["plain", "biased", "tied"])
def test_the_closed_form_counts_any_llama(changes):
    model = small(**changes)
    assert parameter_count(model.config) == sum(weights.numel() for weights in model.parameters())


@pytest.mark.parametrize("ratio", [0.007, 0.0234 / 0.112, 0.1, 1.0])
def test_a_draft_shape_reads_the_wanted_share_and_holds_the_draft(ratio):
    target, draft = (load_model(name, device="cpu")[0].config for name in ("pocket", "pocket-draft"))
    wide_target = widen.shape_config(target, "7b")
    config = widen.shape_config(draft, draft_shape(draft, wide_target, ratio))
    assert parameters_read(config) / parameters_read(wide_target) == pytest.approx(ratio, rel=0.05)


def resident() -> int:
    """Resident memory, bytes, after all that is free was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="freed memory is given back by a call of glibc")
@pytest.mark.parametrize("fill", widen.FILLS)
def test_every_page_of_the_wide_model_is_in_memory(fill):
    model, before = small(), resident()
    wide = widen.widen(model, **(WIDE | {"num_hidden_layers": 2, "intermediate_size": 1 << 16}), fill=fill)
    expected = shapes.parameter_bytes(wide.config, torch.float32)
    assert expected > 1e8 and resident() - before > 0.95 * expected


@pytest.mark.gpu
def test_a_wide_model_is_built_on_the_gpu_alone():
    model, _ = load_model("pocket", device="cpu")
    before = torch.cuda.memory_allocated()
    wide = widen.widen_to(model, "0.35b", device="cuda", dtype="bfloat16")
    needed = shapes.parameter_bytes(wide.config, torch.bfloat16)
    assert needed <= torch.cuda.memory_allocated() - before < 1.02 * needed
    wide = widen.widen_to(model, "0.35b", device="cuda", dtype="float32")
    assert difference(logits(wide).cpu(), logits(model)) < 1e-3


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hidden_size": 40}, "hidden_size is 40; expected at least 48"),
        ({"num_hidden_layers": 1}, "num_hidden_layers is 1; expected at least 2"),
        ({"intermediate_size": 8}, "intermediate_size is 8; expected at least 48"),
        ({"num_attention_heads": 2}, "num_attention_heads is 2; expected at least 4"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1; expected at least 2"),
        (
            {"num_attention_heads": 5},
            "hidden_size is 48; expected a multiple of num_attention_heads, which is 5",
        ),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 4},
            "num_attention_heads is 6; expected a multiple of",
        ),
        ({"fill": "ones"}, "fill is 'ones'; expected one of random, zeros"),
        ({"dtype": "int3"}, "dtype is 'int3'; expected 'auto' or one of float32"),
        ({"device": "tpu-of-mine"}, "device is 'tpu-of-mine'"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        widen.widen(small(), **sizes)


def test_heads_that_cannot_be_placed_are_refused():
    message = (
        "num_key_value_heads is 3; expected at least 4: the model has 2 key-value heads of 3 query heads, "
        "and 2 query heads share one in the wanted shape"
    )
    with pytest.raises(ValueError, match=message):
        widen.widen(small(6, 2), num_attention_heads=6, num_key_value_heads=3)


def test_other_models_names_and_sizes_are_refused():
    with pytest.raises(TypeError, match="model is a Qwen2ForCausalLM; expected a LlamaForCausalLM"):
        widen.widen(build("qwen2"), hidden_size=96)
    with pytest.raises(TypeError, match="model is a Qwen2ForCausalLM; expected a LlamaForCausalLM"):
        widen.widen_to(build("qwen2"), "7b")
    with pytest.raises(ValueError, match="shape is '8b'; expected one of 68m, .*7b, 13b"):
        widen.widen_to(small(), "8b")
    with pytest.raises(TypeError, match="unknown size head_dim; expected some of hidden_size"):
        widen.wide_config(small().config, head_dim=16)
    with pytest.raises(ValueError, match="head_dim is 48, which does not divide the 4096 rows"):
        PRESETS["7b"].sizes(48)
    config = load_model("pocket-draft", device="cpu")[0].config
    with pytest.raises(ValueError, match="ratio is 0; expected a number above 0"):
        draft_shape(config, config, 0)
    with pytest.raises(ValueError, match="ratio is 1e-06; no shape that holds the draft model reads"):
        draft_shape(config, widen.shape_config(config, "7b"), 1e-6)


def test_a_model_that_does_not_fit_is_refused_before_anything_is_built(monkeypatch):
    model = small()
    needed = parameter_count(widen.wide_config(model.config, **WIDE)) * 4
    monkeypatch.setattr(memory, "available_bytes", lambda device: needed - 1)
    monkeypatch.setattr(widen.AutoModelForCausalLM, "from_config", None)
    with pytest.raises(MemoryError, match=f"the model takes {needed:,} bytes .* and cpu has {needed - 1:,}"):
        widen.widen(model, **WIDE)


def test_available_memory_is_what_the_machine_has_left():
    found = memory.available_bytes(torch.device("cpu"))
    assert found is None or 2**20 < found <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory.available_bytes(torch.device("meta")) is None
