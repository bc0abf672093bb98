"""Models and tokenizers from local directories: what is loaded, and what is refused in words."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from accelerate import cpu_offload, disk_offload
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaForCausalLM, T5Config

from specdec_lib import Capture, Runtime, Sampling, UnsupportedModel, generate, load_model, paths, record
from specdec_lib.drafters import DraftModel
from specdec_lib.models.embedding import last_states
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.models.loading import POCKET_PARTS, resolve_device, resolve_dtype
from tests.chaos import Chaos
from tests.families import SERVED, VOCABULARY, build, prompt, save, tokenizer


@pytest.mark.parametrize("family", SERVED)
def test_a_model_comes_back_as_it_was_saved_ready_to_decode(tmp_path, family):
    saved = build(family, seed=1)
    model, words = load_model(save(saved, tmp_path / "model"), device="cpu")
    assert type(model) is type(saved) and not model.training
    assert model.dtype == torch.float32 and model.device.type == "cpu"
    assert model.config._attn_implementation == ("eager" if family in ("gemma2", "gpt-oss") else "sdpa")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), saved.parameters(), strict=True))
    assert words.decode([34, 35]) == tokenizer().decode([34, 35])
    assert (
        generate(model, prompt(0, 9), max_new_tokens=4).tokens == generate(saved, prompt(0, 9), max_new_tokens=4).tokens
    )


def test_auto_type_is_float32_on_the_cpu_whatever_the_checkpoint_has(tmp_path):
    folder = save(build("llama").to(torch.bfloat16), tmp_path / "model")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_model(folder, device="cpu")[0].dtype == torch.float32
    assert load_model(folder, device="cpu", dtype="bfloat16")[0].dtype == torch.bfloat16
    assert load_model(str(folder), device="cpu", dtype=torch.float16)[0].dtype == torch.float16


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_models_are_served(tmp_path, dtype):
    model, _ = load_model(save(build("llama-gqa"), tmp_path / "model"), device="cpu", dtype=dtype)
    assert len(generate(model, prompt(0, 9), max_new_tokens=6, eos_token_id=[]).tokens) == 6


def test_auto_takes_the_gpu_where_there_is_one():
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve_dtype("auto", torch.device("cuda")) == "auto"


@pytest.mark.parametrize("device", ["tpu-of-mine", "cuda:99"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_read(tmp_path, device):
    with pytest.raises(ValueError, match=f"device is '{device}'.*try 'cpu' or 'auto'"):
        load_model(tmp_path / "nothing here", device=device)


def test_an_unknown_type_is_refused(tmp_path):
    with pytest.raises(ValueError, match="dtype is 'int3'; expected 'auto' or one of float32"):
        load_model(tmp_path / "nothing here", device="cpu", dtype="int3")


@pytest.mark.parametrize("form", [str, lambda path: path])
def test_a_directory_that_is_not_there_is_named(tmp_path, form):
    with pytest.raises(FileNotFoundError, match="no model in .*nothing.*config.json"):
        load_model(form(tmp_path / "nothing"), device="cpu")


@pytest.mark.parametrize("name", POCKET_PARTS)
def test_a_missing_pocket_model_says_how_to_get_it(tmp_path, monkeypatch, name):
    monkeypatch.setattr(paths, "POCKET", tmp_path)
    monkeypatch.setattr(paths, "POCKET_QWEN", tmp_path / "qwen")
    with pytest.raises(FileNotFoundError, match=f"'{name}' is not in .*install the package again"):
        load_model(name, device="cpu")


def test_a_tokenizer_with_more_tokens_than_the_model_embeds_is_refused(tmp_path):
    folder = save(build("llama"), tmp_path / "model", size=VOCABULARY + 5)
    with pytest.raises(ValueError, match=f"the tokenizer has {VOCABULARY + 5} tokens, the model embeds {VOCABULARY}"):
        load_model(folder, device="cpu")


def test_an_encoder_decoder_model_is_refused(tmp_path):
    model = AutoModelForSeq2SeqLM.from_config(
        T5Config(vocab_size=96, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )
    with pytest.raises(ValueError, match="T5"):
        load_model(save(model, tmp_path / "model"), device="cpu")


def test_a_model_spread_over_the_devices_there_are_decodes_as_on_one(tmp_path):
    folder = save(build("llama-gqa", seed=1), tmp_path / "model")
    spread, one = (load_model(folder, device=device)[0] for device in ("map", "cpu"))
    ids = prompt(0, 9)
    assert generate(spread, ids, max_new_tokens=12).tokens == generate(one, ids, max_new_tokens=12).tokens


def test_layers_that_accelerate_moves_about_are_verified_captured_and_committed_alike(tmp_path):
    # One layer's weights lie on the disk: each pass goes through the hooks that move inputs between devices.
    one = build("llama-gqa", seed=1)
    folder = save(one, tmp_path / "model")
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    moved = AutoModelForCausalLM.from_pretrained(
        folder,
        device_map=places | {"model.layers.0": "cpu", "model.layers.1": "disk"},
        offload_folder=tmp_path / "offload",
        dtype=torch.float32,
    ).eval()
    assert {str(parameter.device) for parameter in moved.parameters()} == {"cpu", "meta"}
    ids = prompt(0, 12)
    plain = generate(one, ids, max_new_tokens=20)
    capture = Capture(layers=(1,), heads=((1, 0),))
    assert generate(moved, ids, Chaos(ids + plain.tokens, 3, capture=capture), max_new_tokens=20).tokens == plain.tokens
    assert fingerprint(moved) == fingerprint(one)
    with pytest.raises(ValueError, match="lies on"):
        Runtime(moved, 40)


@pytest.mark.parametrize("offload", [cpu_offload, disk_offload], ids=["cpu", "disk"])
def test_a_model_whose_embeddings_lie_elsewhere_is_served_like_any(tmp_path, offload):
    one, moved, ids = build("llama-gqa"), build("llama-gqa"), prompt(0, 12)
    where = {"offload_dir": tmp_path} if offload is disk_offload else {}
    offload(moved, execution_device=torch.device("cpu"), **where)
    assert {str(parameter.device) for parameter in moved.parameters()} == {"meta"}
    capture = Capture(layers=(1,), heads=((1, 0),))
    expected, trace = (record(model, ids, max_new_tokens=12, capture=capture) for model in (one, moved))
    assert trace.tokens == expected.tokens and fingerprint(moved) == fingerprint(one)
    torch.testing.assert_close(trace.hidden[1], expected.hidden[1])
    assert generate(one, ids, DraftModel(moved, 3), max_new_tokens=12).tokens == expected.tokens
    text = [np.array(ids)]
    assert np.array_equal(last_states(moved, text)[0], last_states(one, text)[0])
    with pytest.raises(ValueError, match="lies on"):
        Runtime(moved, 40)


def test_weights_that_were_never_loaded_are_named():
    with torch.device("meta"):
        model = LlamaForCausalLM(build("llama").config).eval()
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM has no weights.* 'meta'"):
        generate(model, [3, 4])


def test_a_draft_padded_to_other_rows_is_paired_by_the_tokenizer(tmp_path):
    target, draft = (
        load_model(save(build("llama", vocab_size=rows), tmp_path / str(rows)), device="cpu")[0] for rows in (96, 200)
    )
    ids = prompt(0, 12)
    plain = generate(target, ids, max_new_tokens=12).tokens
    assert generate(target, ids, DraftModel(draft, 3), max_new_tokens=12).tokens == plain
    assert len(generate(target, ids, DraftModel(draft, 3), Sampling(2.0), 12, []).tokens) == 12
    with pytest.raises(ValueError, match="has 200 token ids, the target 96: .* load both with specdec_lib.load_model"):
        generate(build("llama"), ids, DraftModel(build("llama", vocab_size=200)), max_new_tokens=12)


def test_spreading_a_model_without_accelerate_is_refused_in_words(tmp_path, monkeypatch):
    folder = save(build("llama"), tmp_path / "model")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install accelerate"):
        load_model(folder, device="map")
