"""GGUF files: the file that was named, all of it, with its rotary scaling and end tokens, converted once.

Each file is written from a model of transformers, which is the oracle.
"""

import json
import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from specdec_lib import UnsupportedModel, generate, load_model
from specdec_lib.models import gguf as gguf_files
from specdec_lib.models.loading import load_config, load_tokenizer

TYPES = gguf.RopeScalingType
WIDTH, HEADS, LAYERS, CONTEXT = 64, 4, 2, 512
LETTERS = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
TOKENS = [
    "<|pad|>",
    "<|bos|>",
    "<|eos|>",
    "<|eot|>",
    *LETTERS,
    *(chr(256 + n) for n in range(256 - len(LETTERS))),
    "th",
    "Ġt",
]
MERGES = ["t h", "Ġ t"]
IDS = torch.arange(5, 205)[None]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))


def build(seed=0, tied=False, **settings) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 128, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    settings = {"max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "tie_word_embeddings": tied} | settings
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(TOKENS), **sizes, num_key_value_heads=2, **settings)).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(4 if weights.ndim == 2 else 1)
    return model


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows as llama.cpp has them, a rotary pair side by side."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def tensors_of(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    found = {"token_embd.weight": model.model.embed_tokens.weight, "output_norm.weight": model.model.norm.weight}
    if model.lm_head.weight is not model.model.embed_tokens.weight:
        found["output.weight"] = model.lm_head.weight
    for i, layer in enumerate(model.model.layers):
        own, mlp = layer.self_attn, layer.mlp
        parts = {
            "attn_norm": layer.input_layernorm.weight,
            "ffn_norm": layer.post_attention_layernorm.weight,
            "attn_q": interleaved(own.q_proj.weight, HEADS),
            "attn_k": interleaved(own.k_proj.weight, 2),
            "attn_v": own.v_proj.weight,
            "attn_output": own.o_proj.weight,
            "ffn_gate": mlp.gate_proj.weight,
            "ffn_up": mlp.up_proj.weight,
            "ffn_down": mlp.down_proj.weight,
        }
        found |= {f"blk.{i}.{name}.weight": weight for name, weight in parts.items()}
    return found


def write(path: Path, tensors: dict, say=lambda file: None, described=True) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    file = gguf.GGUFWriter(str(path), "llama")
    if described:
        file.add_context_length(CONTEXT), file.add_embedding_length(WIDTH), file.add_block_count(LAYERS)
        file.add_feed_forward_length(128), file.add_head_count(HEADS), file.add_head_count_kv(2)
        file.add_rope_freq_base(10000.0), file.add_layer_norm_rms_eps(1e-5)
        file.add_rope_dimension_count(WIDTH // HEADS), file.add_vocab_size(len(TOKENS)), file.add_file_type(0)
        file.add_tokenizer_model("gpt2"), file.add_tokenizer_pre("gpt-2"), file.add_token_list(TOKENS)
        file.add_token_types([3] * 4 + [1] * (len(TOKENS) - 4)), file.add_token_merges(MERGES)
        file.add_bos_token_id(1), file.add_eos_token_id(2), file.add_pad_token_id(0)
    say(file)
    for name, values in tensors.items():
        file.add_tensor(name, np.ascontiguousarray(torch.as_tensor(values).detach().float().numpy()))
    file.write_header_to_file(), file.write_kv_data_to_file(), file.write_tensors_to_file(), file.close()
    return path


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def assert_reads(path, expected: LlamaForCausalLM) -> None:
    model, _ = load_model(path, "cpu")
    torch.testing.assert_close(logits(model), logits(expected), rtol=1e-4, atol=1e-4)


def scaled(kind, *values):
    def say(file):
        file.add_rope_scaling_type(kind)
        for name, value in values:
            getattr(file, name)(value)

    return say


LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FACTORS = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
LONG = {
    "rope_type": "longrope",
    "long_factor": FACTORS,
    "short_factor": [1.0] * 8,
    "factor": 8.0,
    "attention_factor": 1.1,
    "original_max_position_embeddings": 64,
}


def llama3_divisors() -> list[float]:
    """What the frequencies of Llama 3.1 are divided by, as Meta's released code does, pair by pair."""
    found = []
    for pair in range(WIDTH // HEADS // 2):
        wavelength = 2 * np.pi * 10000.0 ** (2 * pair / (WIDTH // HEADS))
        if wavelength < 8192 / 4:
            found.append(1.0)
        elif wavelength > 8192 / 1:
            found.append(8.0)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            found.append(1 / ((1 - smooth) / 8 + smooth))
    return found


@pytest.mark.parametrize(
    "rope, say, more",
    [
        ({}, lambda file: None, {}),
        ({}, scaled(TYPES.NONE), {}),
        (LINEAR, scaled(TYPES.LINEAR, ("add_rope_scaling_factor", 8.0)), {}),
        (LINEAR, lambda file: file.add_float32("llama.rope.scale_linear", 8.0), {}),
        (YARN, scaled(TYPES.YARN, ("add_rope_scaling_factor", 8.0), ("add_rope_scaling_orig_ctx_len", 64)), {}),
        (
            LLAMA3 | {"original_max_position_embeddings": 8192},
            lambda file: None,
            {"rope_freqs.weight": llama3_divisors()},
        ),
        (
            LONG,
            scaled(TYPES.LONGROPE, ("add_rope_scaling_attn_factors", 1.1), ("add_rope_scaling_orig_ctx_len", 64)),
            {"rope_factors_long.weight": FACTORS, "rope_factors_short.weight": [1.0] * 8},
        ),
        (
            LONG | {"short_factor": FACTORS, "attention_factor": 1.0},
            lambda file: None,
            {"rope_freqs.weight": FACTORS},
        ),
    ],
    ids=["none", "said none", "linear", "linear, as before", "yarn", "llama 3", "longrope", "other divisors"],
)
def test_the_rotary_scaling_of_the_file_is_that_of_the_model(rope, say, more, tmp_path):
    expected = build(rope_parameters={"rope_theta": 10000.0, "rope_type": "default"} | rope)
    path = write(tmp_path / "m.gguf", tensors_of(expected) | {k: torch.tensor(v) for k, v in more.items()}, say)
    assert_reads(path, expected)
    if rope:
        assert (logits(build()) - logits(expected)).abs().max() > 0.03
    if "rope_freqs.weight" in more and rope["rope_type"] == "llama3":
        assert load_config(path).rope_parameters["rope_type"] == "llama3"  # which CUDA graphs can record


@pytest.mark.parametrize("tied", [False, True])
def test_tied_embeddings_and_saving_again(tied, tmp_path):
    expected = build(tied=tied)
    path = write(tmp_path / "m.gguf", tensors_of(expected))
    assert_reads(path, expected)
    model, tokenizer = load_model(path, "cpu")
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    assert_reads(tmp_path / "saved", expected)
    assert model.half().dtype == torch.float16 and model.name_or_path == str(path)


def test_the_file_that_was_named_is_read(tmp_path, monkeypatch):
    """Whatever lies beside it or in the working directory, and however its name is written."""
    expected, other = build(0), build(1)
    path = write(tmp_path / "a" / "model.gguf", tensors_of(expected))
    write(tmp_path / "b" / "model.gguf", tensors_of(other))
    other.save_pretrained(tmp_path / "a")
    (tmp_path / "a" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Unknown"}))
    monkeypatch.chdir(tmp_path / "b")
    assert_reads(path, expected)
    assert_reads("../a/model.gguf", expected)
    assert_reads(path.rename(tmp_path / "Upper.GGUF"), expected)
    expected.save_pretrained(tmp_path / "folder.gguf")
    load_tokenizer(tmp_path / "Upper.GGUF").save_pretrained(tmp_path / "folder.gguf")
    assert_reads(tmp_path / "folder.gguf", expected)


def test_a_model_in_several_files(tmp_path):
    expected = build()
    tensors = tensors_of(expected)
    first, second = ({k: v for k, v in tensors.items() if k.startswith("blk.1.") == late} for late in (False, True))

    def part(number, tensors, total=len(tensors)):
        def say(file):
            file.add_uint16("split.no", number), file.add_uint16("split.count", 2)
            file.add_int32("split.tensors.count", total)

        return write(tmp_path / f"m-0000{number + 1}-of-00002.gguf", tensors, say, described=not number)

    one = part(0, first)
    with pytest.raises(
        UnsupportedModel, match="m-00001-of-00002.gguf is one of 2 parts .* m-00002-of-00002.gguf is not"
    ):
        load_model(one, "cpu")
    two = part(1, second)
    for named in (one, two):
        assert_reads(named, expected)
    with pytest.raises(UnsupportedModel, match="is one of 2 parts of a model: their names must end in -00001-of-00002"):
        load_model(one.rename(tmp_path / "renamed.gguf"), "cpu")
    part(0, first, 99)
    with pytest.raises(UnsupportedModel, match="hold 21 tensors, not 99"):
        load_model(one, "cpu")


def test_end_tokens_and_the_tokenizer(tmp_path):
    path = write(tmp_path / "m.gguf", tensors_of(build()), lambda file: file.add_eot_token_id(3))
    model, tokenizer = load_model(path, "cpu")
    assert model.generation_config.eos_token_id == [2, 3] and model.generation_config.bos_token_id == 1
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 0)
    with torch.no_grad():  # it says the end of a turn, whatever was said
        model.lm_head.weight.zero_()
        model.lm_head.weight[3] = 1e3
        model.model.norm.weight.fill_(1)
        model.model.embed_tokens.weight.fill_(1)
    run = generate(model, tokenizer("the thing")["input_ids"], max_new_tokens=9)
    assert run.tokens == [3] and run.finish_reason == "eos"
    assert load_tokenizer(path)("that the")["input_ids"] == tokenizer("that the")["input_ids"]


@pytest.mark.parametrize("more", [[], ["#version", "#versions"]], ids=["plain", "like a comment"])
def test_a_kept_tokenizer_is_the_one_that_transformers_makes_of_the_file(more, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.MERGES", MERGES + ["#version s"] * bool(more))
    monkeypatch.setattr(f"{__name__}.TOKENS", TOKENS + more)
    path = write(tmp_path / "m.gguf", tensors_of(build()))
    expected = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    for _ in range(2):
        kept = load_tokenizer(path)
        assert kept.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
        for text in ("the thing", "a\n<|bos|>that  the<|eot|>", "#versions"):
            assert dict(kept(text)) == dict(expected(text)) and kept.decode(kept(text)["input_ids"]) == text
        for name in ("special_tokens_map", "added_tokens_decoder", "padding_side", "chat_template"):
            assert getattr(kept, name) == getattr(expected, name)
    folder = next((tmp_path / "cache" / "models").glob("*described*"))
    assert ('"t h"' in (folder / "tokenizer.json").read_text(encoding="utf-8")) == (not more)


def _without(name):
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    "change, say, reason",
    [
        (_without("blk.1.ffn_down.weight"), None, "blk.1.ffn_down.weight is missing"),
        (_without("token_embd.weight"), None, "token_embd.weight is missing"),
        (_without("output_norm.weight"), None, "holds .* weights and LlamaForCausalLM of this configuration has"),
        (lambda tensors: tensors.update({"blk.0.attn_q.bias": torch.ones(WIDTH)}), None, "cannot be read whole"),
        (
            lambda tensors: tensors.update({"blk.0.ffn_up.weight": torch.ones(WIDTH, 128)}),
            None,
            "transformers cannot read m.gguf: .*size|shape",
        ),
        (None, lambda file: file.add_string("llama.rope.scaling.type", "stretched"), "by 'stretched'; expected linear"),
        (None, scaled(TYPES.YARN, ("add_rope_scaling_factor", 8.0)), "YaRN with .* an original context of None"),
        (None, lambda file: file.add_logit_scale(0.5), "states logit_scale = 0.5, which transformers does not read"),
        (None, lambda file: file.add_string("split.count", "2"), "states split.count = '2'; expected a number: get"),
        (
            None,
            lambda file: file.add_string("llama.rope.scaling.factor", "4"),
            "rope.scaling.factor = '4'; expected a number",
        ),
        (
            None,
            lambda file: file.add_float32("llama.rope.scaling.factor", float("nan")),
            "factor = nan; expected a number",
        ),
        (None, lambda file: file.add_uint32("llama.rope.scaling.type", 2), "scaling.type = 2; expected a text"),
        (
            None,
            lambda file: file.add_array("llama.context_length", [512]),
            r"context_length = \[512\]; expected a number",
        ),
        (None, lambda file: file.add_clamp_kqv(3.0), "states attention.clamp_kqv = 3"),
        (
            None,
            lambda file: file.add_sliding_window(64),
            "states attention.sliding_window = 64, which LlamaConfig has no",
        ),
    ],
)
def test_what_would_be_read_otherwise_is_refused(change, say, reason, tmp_path):
    tensors = tensors_of(build())
    if change:
        change(tensors)
    path = write(tmp_path / "m.gguf", tensors, say or (lambda file: None))
    with pytest.raises(UnsupportedModel, match=reason):
        load_model(path, "cpu")
    assert not list((tmp_path / "cache" / "models").glob("*float32*"))


def test_a_file_that_is_cut_short_or_of_an_unknown_type(tmp_path):
    path = write(tmp_path / "m.gguf", tensors_of(build()))
    whole = path.read_bytes()
    for content in (
        whole[: len(whole) // 2],
        whole[:100],
        whole.replace(
            b"output_norm.weight" + b"\1\0\0\0" + (64).to_bytes(8, "little") + bytes(4),
            b"output_norm.weight" + b"\1\0\0\0" + (64).to_bytes(8, "little") + b"\x63\0\0\0",
        ),
    ):
        assert content != whole
        path.write_bytes(content)
        with pytest.raises(UnsupportedModel, match="m.gguf is damaged, cut short, or of a kind that"):
            load_model(path, "cpu")


def test_a_file_is_converted_once(tmp_path, monkeypatch):
    expected = build()
    path = write(tmp_path / "m.gguf", tensors_of(expected))
    assert_reads(path, expected)
    with monkeypatch.context() as only_kept:
        only_kept.setattr(gguf_files, "_File", lambda path: pytest.fail("the file was read again"))
        assert_reads(path, expected)
        assert load_model(path, "cpu", "bfloat16")[0].dtype == torch.bfloat16
        assert_reads(path.rename(tmp_path / "renamed.gguf"), expected)  # it is known by its content
    write(path, tensors_of(build(1)))
    assert_reads(path, build(1))
    kept = next((tmp_path / "cache" / "models").glob("*float32*/model.safetensors"))
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    kept.write_bytes(content)
    with pytest.raises(ValueError, match="model.safetensors was altered .* and the model is converted again"):
        for each in (path, tmp_path / "renamed.gguf"):
            load_model(each, "cpu")


@pytest.mark.skipif(os.name == "nt", reason="modes of files are those of POSIX")
def test_what_only_its_owner_may_read_is_kept_for_the_owner_alone(tmp_path):
    path = write(tmp_path / "model.gguf", tensors_of(build()))
    for mode, others in ((0o600, 0), (0o644, 0o005)):
        path.chmod(mode)
        folder = gguf_files.converted_folder(path, gguf_files.config_and_tokenizer(path)[0])
        assert folder.stat().st_mode & 0o005 == others
        shutil.rmtree(folder)


def test_a_model_too_large_to_be_kept_is_read_from_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_files, "KEPT", 1000)
    expected = build()
    path = write(tmp_path / "m.gguf", tensors_of(expected), lambda file: file.add_eot_token_id(3))
    assert_reads(path, expected)
    assert load_model(path, "cpu")[0].generation_config.eos_token_id == [2, 3]
    assert not list((tmp_path / "cache" / "models").glob("*float32*"))
