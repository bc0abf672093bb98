"""What is captured equals what transformers itself gives, and the model is left as it was."""

import pytest
import torch
from transformers import MllamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.mllama.configuration_mllama import MllamaTextConfig

from specdec_lib import LAST, Capture, UnsupportedModel, generate, record
from specdec_lib.decoding.target import check_model
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.drafters import DraftModel
from specdec_lib.models.fingerprint import fingerprint
from tests.chaos import Chaos, everything, walk
from tests.families import _COMMON, _EXPERTS, _GROUPED, _MIXED, SERVED, build, hooked, prompt

FAMILIES = ["llama", "llama-gqa", "mistral-window", "qwen3", "gpt-neox", "gemma", "gemma2", "gemma3", "olmo3", "gpt2"]
LAYERS = (0, 1, 2)
HEADS = tuple((block, head) for block in range(2) for head in range(4))


def eager(family):
    model = build(family)
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_states_of_every_layer_and_attention_rows_equal_those_of_transformers(library, family):
    model, peer = library[family], eager(family)
    heads = () if family == "gemma2" else HEADS  # whose rows cannot be captured
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), peer.parameters(), strict=True))

    for layers in ((*LAYERS, LAST), (LAST, *LAYERS)):
        for text, _, states, rows in walk(model, Capture(layers, heads), passes=12):
            out = peer(torch.tensor([text]), output_hidden_states=True, output_attentions=True, use_cache=False)
            assert len(out.hidden_states) == len(LAYERS) and torch.equal(states[LAST], states[2])
            for layer in LAYERS:
                got, expected = states[layer], out.hidden_states[layer][0]
                assert got.shape == expected.shape and float((got - expected).norm() / expected.norm()) < 1e-4
            if heads:
                expected = torch.stack([out.attentions[block][0, head, -1] for block, head in heads])
                torch.testing.assert_close(rows, expected, rtol=0, atol=1e-5)


def test_states_of_a_decoder_within_the_base_model_are_those_of_transformers():
    model, ids = build("opt", pad_token_id=0, ffn_dim=48, word_embed_proj_dim=32), prompt(2, 9)
    trace = record(model, ids, max_new_tokens=2, eos_token_id=[], capture=Capture([*LAYERS, LAST]))
    expected = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    for layer in LAYERS:
        torch.testing.assert_close(trace.hidden[layer][: len(ids)], expected[layer][0], rtol=1e-4, atol=1e-5)
    assert torch.equal(trace.hidden[LAST], trace.hidden[LAYERS[-1]])


def traces_left(model) -> list:
    """Settings, hooks and attributes by which a run could be told to have happened."""
    modules = list(model.modules())
    return [
        model.config._attn_implementation,
        sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules),
        [name for m in modules for name in vars(m) if "specdec" in name],
    ]


@pytest.mark.parametrize("family", SERVED)
def test_the_model_is_left_as_it_was(library, family):
    model, before = library[family], traces_left(library[family])
    record(model, prompt(2, 9), max_new_tokens=3, capture=everything(library, family))
    assert traces_left(model) == before


@pytest.mark.parametrize("call", ["start", "propose"])
def test_the_model_is_left_as_it_was_when_a_drafter_raises(llama, monkeypatch, call):
    before = traces_left(llama)
    monkeypatch.setattr(Chaos, call, lambda self, *given: [][0])
    with pytest.raises(IndexError):
        generate(llama, prompt(2, 9), Chaos([], capture=Capture(LAYERS, HEADS)), max_new_tokens=5)
    assert traces_left(llama) == before
    assert generate(llama, prompt(2, 9), max_new_tokens=3).tokens


@pytest.mark.parametrize("model, capture, says", [
    ("llama", Capture(layers=(3,)), "layer is 3; expected 0 .* to 2"),
    ("llama", Capture(layers=(1, -2)), "layer is -2"),
    ("llama", Capture(heads=((2, 0),)), r"head \(2, 0\): expected a block from 0 to 1"),
    ("llama", Capture(heads=((0, 0), (1, 4))), r"head \(1, 4\): expected a head from 0 to 3"),
    ("llama", Capture(layers=(1,), heads=((0, -1),)), r"head \(0, -1\)"),
    ("gemma2", Capture(heads=((0, 0),)), "cannot cap .* as Gemma2ForCausalLM does; .* use PLD. .h., Prompt"),
    ("gpt-oss", Capture(heads=((0, 0),)), "GptOssForCausalLM does not have; .* use PLD. .h., PromptLookupHidden"),
    ("eager", Capture(heads=((0, 0),)), "load it with attn_implementation='sdpa'"),
], ids=str)  # fmt: skip
def test_what_cannot_be_captured_is_refused_before_any_work(library, model, capture, says):
    model = library[model] if model in SERVED else eager("llama")
    before = traces_left(model)
    with hooked(model, lambda *args: pytest.fail("the model ran"), model, before=True):
        with pytest.raises(ValueError, match=says):
            record(model, prompt(2, 9), max_new_tokens=3, capture=capture)
    assert traces_left(model) == before


_GEMMA3N = {
    "pad_token_id": 0, "intermediate_size": [48, 48], "head_dim": 8, "vocab_size_per_layer_input": 96,
    "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0, 0.0],
}  # fmt: skip
_MLLAMA = {"pad_token_id": 0, "cross_attention_layers": [], "rope_parameters": _EXPERTS["rope_parameters"]}


@pytest.mark.parametrize("make, says", [
    (lambda: build("gemma3n_text", **_GROUPED, **_MIXED, **_GEMMA3N), "has several states"),
    (lambda: MllamaForCausalLM(MllamaTextConfig(**_COMMON | _GROUPED | _MLLAMA)), "no decoder that get_decoder"),
], ids=["Gemma 3n", "Mllama"])  # fmt: skip
def test_states_that_cannot_be_captured_are_refused_by_name_and_the_model_is_served(make, says):
    model = make().eval()
    model.set_attn_implementation("sdpa")
    theirs = model.generate(torch.tensor([prompt(2, 20)]), do_sample=False, max_new_tokens=8, eos_token_id=None)
    assert generate(model, prompt(2, 20), None, max_new_tokens=8, eos_token_id=[]).tokens == theirs[0, 20:].tolist()
    with pytest.raises(UnsupportedModel, match=f"{type(model).__name__}.* {says}"):
        record(model, prompt(2, 9), max_new_tokens=3, capture=Capture(layers=(1,)))


def compiled(part):
    return torch.compile(part, backend="eager", dynamic=True)


COMPILED = {
    "wrapped": lambda model: compiled(model),
    "in place": lambda model: model.compile(backend="eager", dynamic=True) or model,
    "its forward": lambda model: setattr(model, "forward", compiled(model.forward)) or model,
    "a block": lambda model: model.model.layers[1].compile(backend="eager", dynamic=True) or model,
    "a block wrapped": lambda model: setattr(model.model.layers, "1", compiled(model.model.layers[1])) or model,
}


@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.slow] * (how != "a block")) for how in COMPILED])
def test_what_a_compiled_model_shows_is_what_the_model_shows(how):
    ids, capture = prompt(2, 9), Capture(LAYERS, HEADS)
    expected = record(build("llama-gqa"), ids, max_new_tokens=8, capture=capture)
    model = COMPILED[how](build("llama-gqa"))
    assert generate(model, ids, max_new_tokens=8).tokens == expected.tokens  # compiled without our hooks
    trace = record(model, ids, max_new_tokens=8, capture=capture)
    assert trace.tokens == expected.tokens and fingerprint(model) == fingerprint(build("llama-gqa"))
    for layer in LAYERS:
        torch.testing.assert_close(trace.hidden[layer], expected.hidden[layer], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(trace.attention, expected.attention, rtol=1e-4, atol=1e-5)
    drafted = generate(model, ids, DraftModel(model, 3), max_new_tokens=8)
    assert drafted.tokens == expected.tokens and drafted.stats["acceptance_rate"] == 1


@pytest.mark.parametrize("part, says", [(1, r"no states of layers \[1\]"), ("rows", "has its own attention")])
def test_what_a_model_does_not_show_is_refused_before_the_first_token(monkeypatch, part, says):
    model, emitted = build("llama"), []
    check_model(model)
    if part == "rows":
        monkeypatch.setattr(ALL_ATTENTION_FUNCTIONS, "get_interface", lambda *args: sdpa_attention_forward)
    else:
        block = model.model.layers[1]
        monkeypatch.setattr(model.model.layers, "forward", None, raising=False)
        monkeypatch.setattr(type(block), "__call__", type(block).forward)
    drafter = Chaos([], capture=Capture(layers=(1,)) if part == 1 else Capture(heads=((0, 0),)))
    with pytest.raises(UnsupportedModel, match=f"LlamaForCausalLM .*{says}"):
        generate(model, prompt(2, 9), drafter, max_new_tokens=5, on_tokens=emitted.append)
    assert not emitted


def test_a_probe_can_be_trained_on_what_was_recorded(llama):
    capture = Capture((1,), ((0, 1),))
    plain = record(llama, prompt(2, 9), max_new_tokens=5, capture=capture)
    known = record_known(llama, plain.prompt, plain.tokens, "length", max_new_tokens=5, capture=capture).trace
    for trace in (plain, known):
        for values in (trace.hidden[1], *trace.attention):
            probe = torch.nn.Linear(values.shape[1], 2)
            probe(values).sum().backward()
            values += 1
            assert not values.is_inference() and probe.weight.grad is not None
