"""Models at their file's own bits: the weights of the file, transformers' logits, and damaged files refused in words."""

import copy
import pickle
import struct

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from gguf.constants import GGML_QUANT_SIZES

from specdec_lib import Capture, Sampling, UnsupportedModel, generate, load_model
from specdec_lib.decoding.lean import FLOAT32, KINDS
from specdec_lib.decoding.packed import Matrix, PackedLinear, pack, pack_floats, size_of
from specdec_lib.decoding.runtime import OF_MODEL
from specdec_lib.decoding.target import Target, check_model
from specdec_lib.decoding.tiles import OUTPUTS
from specdec_lib.heads.drafting import MedusaHeads
from specdec_lib.models import packed_models
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.models.gguf_tensors import GGUF, KEPT, decode_rows
from specdec_lib.models.packed_models import open_packed, packed_model
from tests.families import build, prompt, uncached
from tests.models.gguf_files import Q4_0, Q4_1, Q8_0, write

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "eos_token_id": 1}


def random_rows(kind: GGMLQuantizationType, rows: int, inputs: int) -> np.ndarray:
    """Bytes of a type, with scales that are numbers."""
    rng = np.random.default_rng(3)
    weights, size = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows, inputs // weights, size), dtype=np.uint8)
    halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}[kind.name]
    for at in halves:
        scale = rng.uniform(1e-4, 1e-2, raw.shape[:2]).astype(np.float16)
        raw[..., at : at + 2] = scale[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows", [24, 13])
def test_weights_are_those_that_gguf_reads(kind, rows):
    raw = random_rows(kind, rows, 512)
    expected = quants.dequantize(raw, kind)
    how = KEPT[kind][0]
    matrix = Matrix(np.zeros(64 + size_of(how, rows, 512), np.uint8), 64, rows, 512, how)
    pack(matrix.bytes, how, *decode_rows(kind, raw))
    got = matrix.rows(np.arange(rows)).numpy()
    # Of the types whose scales are products, these products are rounded to float16.
    rounded = {"Q4_K": 2**-11, "Q6_K": 2**-11}.get(kind.name, 0)
    assert np.abs(got - expected).max() <= rounded * np.abs(expected).max()
    states = torch.randn(9, 512, generator=torch.Generator().manual_seed(0))
    exact = states.double() @ torch.from_numpy(got).double().T
    torch.testing.assert_close(matrix.product(states).double(), exact, rtol=1e-4, atol=1e-4 * float(exact.std()))
    for row in range(9):
        assert torch.equal(matrix.product(states[row : row + 1])[0], matrix.product(states)[row])
    first_tile = Matrix(matrix.arena, 64, OUTPUTS, 512, how)
    # A tile that is multiplied alone gives what it gives in a pair.
    assert torch.equal(first_tile.product(states), matrix.product(states)[:, :OUTPUTS])


@pytest.mark.parametrize("how", [FLOAT32, *KINDS][:3:2])
def test_floats_that_are_packed(how):
    weights = torch.randn(24, 64, generator=torch.Generator().manual_seed(1))
    matrix = Matrix(np.zeros(size_of(how, 24, 64), np.uint8), 0, 24, 64, how)
    pack_floats(matrix.bytes, how, weights.numpy())
    error = (matrix.rows(np.arange(24)) - weights).abs().max()
    assert error == 0 if how == FLOAT32 else 0 < error < 0.03


def apart(rows: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest distance of two rows over the length of the second."""
    return float(((rows - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


FAMILIES = {
    "llama": {"num_key_value_heads": 2},
    "llama tied": {"tie_word_embeddings": True, "num_key_value_heads": 2},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2},
    "gemma": {"num_key_value_heads": 1, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("gguf"), {}

    def file(family, kind=Q4_1):
        if (family, kind) not in made:
            name = family.replace(" ", "-")
            model = build(family.split()[0], **SIZES | FAMILIES[family])
            made[family, kind] = model, write(model, folder / f"{name}-{kind.name}.gguf", kind)
        return made[family, kind]

    return file


@pytest.mark.parametrize("kind", [Q4_0, Q4_1, Q8_0, GGMLQuantizationType.F16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_de_quantised_model(files, family, kind):
    source, path = files(family, kind)
    if kind == GGMLQuantizationType.F16:
        with pytest.warns(UserWarning, match=f"{path.name} holds matrices of F16, which are kept in float32"):
            model = packed_model(open_packed(path), source.config)
    else:
        model = packed_model(open_packed(path), source.config)
    plain, file = copy.deepcopy(source), open_packed(path)
    names = packed_models._names(file, plain, file.values["general.architecture"])
    for name, parameter in plain.named_parameters():
        part = model.get_submodule(name.rpartition(".")[0])
        if hasattr(part, "matrix") and name.endswith("weight"):
            values = part.matrix.rows(np.arange(part.matrix.shape[0]))
            # The rows are those of the file in some order.
            theirs = torch.from_numpy(file.floats(names[name]))
            assert torch.equal(values.sort(0).values, theirs.sort(0).values)
            parameter.data.copy_(values)
    ids = prompt(0, 30)
    expected = uncached(plain, ids)[0]
    # States have 16 bits: these random models make their rounding a hundred times larger, published ones hardly larger.
    assert apart(uncached(model, ids)[0], expected) < 5e-3
    assert (OF_MODEL.get(model) is None) == (family == "gemma")
    assert fingerprint(model) == fingerprint(plain)
    check_model(model)
    with torch.inference_mode(), Target(model, 40) as target:
        assert apart(target.extend(ids), expected[-1]) < 5e-3
    for sampling in (Sampling(), Sampling(temperature=0.8, seed=2)):
        ours = generate(model, ids, None, sampling, 20).tokens
        assert ours == generate(model, ids, None, sampling, 20, runtime="transformers").tokens


def test_a_file_is_loaded_with_its_tokenizer_and_its_heads_fit(files, tmp_path, monkeypatch):
    source, path = files("llama tied")
    model, words = load_model(path, dtype="file")
    whole, same = load_model(path, device="cpu")
    assert words.get_vocab() == same.get_vocab()
    assert model.generation_config.eos_token_id == whole.generation_config.eos_token_id == 1
    assert fingerprint(model) == fingerprint(whole)
    ids = prompt(0, 20)
    with monkeypatch.context() as alone:  # that the two agree was seen when the file was loaded
        alone.setattr("specdec_lib.decoding.target._check", lambda *_: pytest.fail("transformers' forward was run"))
        own = generate(model, ids, max_new_tokens=20).tokens
    assert own == generate(whole, ids, max_new_tokens=20).tokens
    MedusaHeads.for_target(whole, heads=2).save(tmp_path / "heads.safetensors")
    MedusaHeads.load(tmp_path / "heads.safetensors", model)
    assert sum(weights.numel() for weights in model.parameters() if weights.ndim > 1) < 1.5 * path.stat().st_size


def test_what_was_compared_once_is_kept_and_a_difference_is_warned_of(files, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    source, path = files("qwen3")
    calls = []
    monkeypatch.setattr(packed_models, "difference", lambda *_: calls.append(1) or 0.5)
    monkeypatch.setattr(packed_models.transformers, "__version__", "another")
    for _ in range(2):
        with pytest.warns(
            UserWarning, match="the lean forward of Qwen3ForCausalLM in .*differs .* by 0.5 .*transformers' is used"
        ):
            model = packed_model(open_packed(path), source.config)
        assert OF_MODEL.get(model) is None
    assert len(calls) == 1
    (kept,) = (tmp_path / "lean").glob("*.json")
    for words in ("{", "[]", '{"difference": "0"}', "null"):
        kept.write_text(words)
        with pytest.warns(UserWarning, match="by 0.5"):
            packed_model(open_packed(path), source.config)
    assert len(calls) == 5


def test_the_comparison_sees_one_layer_that_is_wrong(files):
    source, path = files("llama")
    model = packed_model(open_packed(path), source.config)
    lean = OF_MODEL[model]
    assert packed_models.difference(model, lean) < 1e-3
    lean.norms[1, 1] *= 1.1
    assert packed_models.difference(model, lean) > 1e-2


@pytest.mark.parametrize("edit", [
    lambda model: model.model.layers[0].mlp.up_proj.weight.zero_(),
    lambda model: model.model.norm.weight.data.mul_(2),
    lambda model: setattr(model.model.layers[0].mlp, "up_proj", torch.nn.Linear(64, 96, bias=False)),
    lambda model: model.model.rotary_emb.inv_freq.mul_(0.5),
], ids=["packed", "norm", "module", "rotary"])  # fmt: skip
@pytest.mark.parametrize("used_before", [False, True])
def test_an_edit_is_refused(files, edit, used_before):
    model = loaded(files, "llama")
    if used_before:
        generate(model, prompt(0, 5), max_new_tokens=2)
    with torch.no_grad():
        edit(model)
    with pytest.raises(
        ValueError, match="weights of LlamaForCausalLM were changed after load_model.*load the file again"
    ):
        generate(model, prompt(0, 5), max_new_tokens=2)


def loaded(files, family):
    source, path = files(family)
    return packed_model(open_packed(path), copy.deepcopy(source.config))


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_weights_that_no_pass_would_read_are_refused(files, family):
    model = loaded(files, family)
    generate(model, prompt(0, 5), max_new_tokens=2)
    part = model.model.layers[0].mlp.down_proj
    part.weight = torch.nn.Parameter(torch.zeros_like(part.weight), requires_grad=False)
    for call in (lambda: generate(model, prompt(0, 5), max_new_tokens=2), lambda: model(torch.tensor([[5, 6]]))):
        with pytest.raises(ValueError, match="were changed .*after load_model.*load the file again"):
            call()


def test_an_edit_of_the_bytes_is_seen_by_every_pass(files):
    model, ids = loaded(files, "llama"), prompt(0, 9)
    before = walk(model, ids)
    model.model.layers[0].mlp.down_proj.weight.data.zero_()
    after = walk(model, ids)
    assert not torch.allclose(before, after, atol=0.1)
    torch.testing.assert_close(after, walk(model, ids, "transformers"), rtol=1e-2, atol=1e-2)


def walk(model, ids, runtime=None):
    with torch.inference_mode(), Target(model, 40, runtime=runtime) as target:
        return target.extend(ids).clone()


@pytest.mark.parametrize("call, says", [
    (lambda model: model.half(), "cannot be brought to torch.float16 on cpu"),
    (lambda model: model.to(torch.bfloat16), "cannot be brought to torch.bfloat16 on cpu"),
    (lambda model: model.to("meta"), "cannot be brought to torch.float32 on meta"),
    (lambda model: model(inputs_embeds=torch.zeros(1, 3, 64, requires_grad=True)), "pass no gradients on"),
    (lambda model: torch.jit.trace(model, torch.tensor([[5, 6]]), strict=False), "cannot be traced"),
    (lambda model: model.state_dict(), "are not saved: keep the file"),
    (lambda model: pickle.loads(pickle.dumps(model))(torch.tensor([[5]])), "were changed or copied after load_model"),
], ids=["half", "to", "meta", "gradients", "trace", "saved", "pickled"])  # fmt: skip
@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_what_a_model_of_few_bits_cannot_do_is_refused(files, family, call, says):
    model = loaded(files, family)
    before = walk(model, prompt(0, 9))
    with pytest.raises(ValueError, match=says):
        call(model)
    assert torch.equal(walk(model, prompt(0, 9)), before)


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_a_copy_computes_what_the_model_computes(files, family):
    with torch.inference_mode():
        model = loaded(files, family)
    other = copy.deepcopy(model.float())
    assert other.model.layers[0].mlp.up_proj.matrix.arena is model.model.layers[0].mlp.up_proj.matrix.arena
    torch.testing.assert_close(walk(other, prompt(0, 9)), walk(model, prompt(0, 9)), rtol=1e-2, atol=1e-2)


def too_many(path, folder):
    bias = np.ones(64, np.float32)
    model = build("llama", **SIZES | FAMILIES["llama"])
    model.model.layers[1].self_attn.o_proj.bias = torch.nn.Parameter(torch.from_numpy(bias))
    return write(model, folder / "many.gguf")


def cut(path, folder):
    (short := folder / "short.gguf").write_bytes(path.read_bytes()[:-100])
    return short


def cut_early(path, folder):
    (short := folder / "early.gguf").write_bytes(path.read_bytes()[:700])
    return short


def unknown_type(path, folder):
    data, name = bytearray(path.read_bytes()), b"blk.0.ffn_up.weight"
    at = data.index(name) + len(name)
    (dimensions,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at + 4 + 8 * dimensions, 99)
    (odd := folder / "odd.gguf").write_bytes(data)
    return odd


def crafted(name, values=b"", tensors=b"", counts=(0, 0)):
    """A file of a few bytes that asks for as much as it can."""

    def make(path, folder):
        (odd := folder / f"{name}.gguf").write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, *counts) + values + tensors)
        return odd

    return make


def named(name: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name


ENDS = "ends or is damaged within its list of tensors"
#: Lists in lists, a list of an unknown type, a text and a tensor of no size that a file has, an alignment that is none.
CRAFTED = [
    crafted("nested", named(b"a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 10**5, counts=(0, 1)),
    crafted("kind", named(b"a") + struct.pack("<IIQ", 9, 77, 1), counts=(0, 1)),
    crafted("text", named(b"a") + struct.pack("<IQ", 8, 2**62), counts=(0, 1)),
    crafted("many", named(b"a") + struct.pack("<IIQ", 9, 8, 2**62), counts=(0, 1)),
    crafted("flat", tensors=named(b"t") + struct.pack("<IIQ", 0, 0, 0), counts=(1, 0)),
    crafted("wide", tensors=named(b"t") + struct.pack("<I", 2**32 - 1), counts=(1, 0)),
    crafted("grain", named(b"general.alignment") + struct.pack("<II", 4, 0), counts=(0, 1)),
    crafted("word", named(b"general.alignment") + struct.pack("<I", 8) + named(b"no"), counts=(0, 1)),
]


def lacking(path, folder):
    return write(build("llama", **SIZES | FAMILIES["llama"]), folder / "lacking.gguf", blk_1_ffn_up_weight=(None, None))


def other_shape(path, folder):
    return write(
        build("llama", **SIZES | FAMILIES["llama"]),
        folder / "shape.gguf",
        blk_1_ffn_up_weight=(np.zeros((64, 64)), Q4_1),
    )


@pytest.mark.parametrize("make, options, error, says", [
    (cut, {}, UnsupportedModel, "short.gguf is cut short: it has .* bytes, and its tensor .* ends at .*: fetch it again"),
    (cut_early, {}, UnsupportedModel, "early.gguf ends or is damaged within its list of tensors"),
    (unknown_type, {}, UnsupportedModel, "tensor blk.0.ffn_up.weight of odd.gguf is of type 99, which the package gguf does not"),
    *((make, {}, UnsupportedModel, f"gguf {ENDS}") for make in CRAFTED),
    (lacking, {}, UnsupportedModel, "lacking.gguf lacks the tensor blk.1.ffn_up.weight, model.layers.1.mlp.up_proj.weight"),
    (other_shape, {}, UnsupportedModel, r"blk.1.ffn_up.weight of shape.gguf has shape \(64, 64\); its metadata asks for \(96, 64\)"),
    (too_many, {}, UnsupportedModel, "many.gguf holds 1 tensors that LlamaForCausalLM has no place for, blk.1.attn_output.bias among"),
    (lambda path, folder: folder, {}, ValueError, "dtype is 'file', which keeps the bits of a GGUF file, and .* is none"),
    (lambda path, folder: "pocket", {}, ValueError, "dtype is 'file', which keeps the bits of a GGUF file, and pocket is none"),
    (lambda path, folder: folder / "none.gguf", {}, FileNotFoundError, "no model at .*none.gguf"),
    (lambda path, folder: path, {"device": "cuda"}, ValueError, "decodes on the processor, and device is 'cuda'"),
], ids=["cut", "cut early", "type", *(f"crafted {i}" for i in range(len(CRAFTED))), "lacking", "shape", "too many", "folder", "name", "nothing", "device"])  # fmt: skip
def test_what_cannot_be_loaded_is_refused_before_weights_are_read(
    files, tmp_path, monkeypatch, make, options, error, says
):
    place = make(files("llama")[1], tmp_path)
    monkeypatch.setattr(packed_models, "_fill", lambda *_: pytest.fail("weights were read"))
    monkeypatch.setattr(GGUF, "parts", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(error, match=says) as found:
        if "gguf" in str(place) and error is UnsupportedModel:
            packed_model(open_packed(place), files("llama")[0].config)
        else:
            load_model(place, dtype="file", **options)
    assert "\n" not in str(found.value)


def test_states_are_captured_of_families_without_a_lean_forward_too(files):
    source, path = files("gemma")
    model = packed_model(open_packed(path), source.config)
    assert isinstance(model.model.layers[0].mlp.up_proj, PackedLinear)
    with torch.inference_mode(), Target(model, 20, Capture(layers=(1, 2), heads=((0, 0),))) as target:
        target.extend(prompt(0, 10))
        assert target.hidden(2).shape == (10, 64) and target.attention().shape == (1, 10)
