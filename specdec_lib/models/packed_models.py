"""Models that keep the bits of their GGUF file (``load_model(..., dtype="file")``): packed weights, and no others."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specdec_lib import paths
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.lean import FLOAT32, KINDS
from specdec_lib.decoding.lean_runtime import Lean
from specdec_lib.decoding.packed import Matrix, PackedEmbedding, PackedLinear, PackedWeights, pack, pack_floats, size_of
from specdec_lib.decoding.runtime import OF_MODEL
from specdec_lib.decoding.served_models import UnsupportedModel, base_model, decoder_blocks
from specdec_lib.decoding.target import TOLERANCE, Target
from specdec_lib.decoding.tiles import GROUP, OUTPUTS, bytes_of_group
from specdec_lib.files import printable, read_json, write_atomic
from specdec_lib.models.gguf import ROTARY
from specdec_lib.models.gguf_tensors import GGUF, decode_rows, storage_kind

#: Architectures whose files hold the matrices of transformers' layers as they are, but for the order of some rows.
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3")
#: Of these the rows of queries and keys lie in the order of the original Llama, rotary pairs side by side.
_PAIRED = ("llama", "mistral")
#: Of these a norm's weights have 1 added.
_RAISED = ("gemma", "gemma2", "gemma3")
#: Rows of the output layer that are compared at once.
_ROWS = 4096


def open_packed(path: Path) -> GGUF:
    """A file whose bits can be kept; UnsupportedModel if it is damaged or of another architecture or kind."""
    if not path.is_file():
        raise FileNotFoundError(f"no model at {path}: expected a GGUF file")
    file = GGUF(path)
    architecture, parts = file.values.get("general.architecture"), file.values.get("split.count", 1)
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{path.name} is of architecture {architecture!r}; dtype='file' keeps the bits of {', '.join(ARCHITECTURES)}: "
            "leave dtype out"
        )
    if parts not in (0, 1):
        raise UnsupportedModel(
            f"{path.name} is one of {parts} parts of a model; dtype='file' reads a model of one file: join them"
        )
    return file


@torch.inference_mode(False)  # whose tensors do not count their edits
def packed_model(file: GGUF, config: PreTrainedConfig) -> PreTrainedModel:
    """The model of a file, in evaluation mode, whose linear layers hold the file's own bits.

    UnsupportedModel before weights are read if the file lacks a tensor, or has one of another shape than ``config`` asks for.
    """
    path, architecture = file.path, file.values["general.architecture"]
    capped = getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None)
    with torch.device("meta"):
        attention = "eager" if capped else "sdpa"
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    names = _names(file, model, architecture)
    _fill(file, model, names, architecture)
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    try:
        lean = Lean(model)
    except UnsupportedModel:
        return model  # transformers' forward runs its packed layers
    difference = _known_difference(path, model, lean)
    if difference <= TOLERANCE:
        OF_MODEL[model] = lean
    else:
        warnings.warn(
            f"the lean forward of {type(model).__name__} in {printable(path.name)} differs from transformers' by "
            f"{difference:.2g} of the states (allowed: {TOLERANCE}): transformers' is used",
            stacklevel=4,
        )
    return model


def _names(file: GGUF, model: PreTrainedModel, architecture: str) -> dict[str, str]:
    """The tensor of each parameter, all of them there and of the shape that the parameter has."""
    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    known = get_tensor_name_map(arch, model.config.get_text_config(decoder=True).num_hidden_layers)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    found = {}
    for name, parameter in model.named_parameters():
        base, _, last = name.rpartition(".")
        tensor = f"{known.get_name(base)}.{last}"
        if tensor not in file.tensors:
            raise UnsupportedModel(
                f"{file.path.name} lacks the tensor {tensor}, {name} of {type(model).__name__}: fetch it again"
            )
        shape = file.tensors[tensor].shape
        if tuple(parameter.shape) != shape:
            raise UnsupportedModel(
                f"the tensor {tensor} of {file.path.name} has shape {shape}; its metadata asks for {tuple(parameter.shape)}"
            )
        found[name] = tensor
    unread = sorted(file.tensors.keys() - found.values() - {"output.weight", *ROTARY})
    if unread:
        raise UnsupportedModel(
            f"{file.path.name} holds {len(unread)} tensors that {type(model).__name__} has no place for, {unread[0]} among them: "
            "what it computes is another model"
        )
    if tied and "output.weight" in file.tensors:
        raise UnsupportedModel(
            f"{file.path.name} has an output layer of its own, and its metadata says that it has none"
        )
    return found


def _fill(file: GGUF, model: PreTrainedModel, names: dict[str, str], architecture: str) -> None:
    """Put packed layers in the place of the model's matrices, and read everything."""
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    config = model.config.get_text_config(decoder=True)
    layers = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear | nn.Embedding)}
    matrices = {name: file.tensors[names[f"{name}.weight"]] for name in layers if f"{name}.weight" in names}
    kinds = {name: storage_kind(tensor, layers[name] not in ends) for name, tensor in matrices.items()}
    starts = np.cumsum([0, *(size_of(kinds[name], *tensor.shape) for name, tensor in matrices.items())]).tolist()
    arena = np.zeros(starts[-1], np.uint8)
    made: dict[str, Matrix] = {}
    for (name, tensor), at in zip(matrices.items(), starts[:-1], strict=True):
        made[name] = Matrix(arena, at, *tensor.shape, kinds[name])
        last = name.rpartition(".")[2]
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(last)
        _read(file, made[name], tensor.name, heads if architecture in _PAIRED else None)
    unpacked = sorted({tensor.kind.name for name, tensor in matrices.items() if kinds[name] == FLOAT32})
    if unpacked:
        warnings.warn(
            f"{file.path.name} holds matrices of {', '.join(unpacked)}, which are kept in float32", stacklevel=5
        )
    embedding = next(name for name, part in layers.items() if part is ends[0])
    for name, part in layers.items():
        if part is ends[0]:
            new = PackedEmbedding(made[name], float(getattr(part, "scalar_embed_scale", 1.0)))
        else:
            bias = names.get(f"{name}.bias")
            bias = None if bias is None else torch.from_numpy(file.floats(bias))
            new = PackedLinear(made[name if name in made else embedding], bias)
        model.set_submodule(name, new)
    if model.get_output_embeddings().matrix is model.get_input_embeddings().matrix:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    for name, part in [*model.named_modules()]:
        for last, parameter in [*part.named_parameters(recurse=False)]:
            if parameter.device.type == "meta":
                values = file.floats(names[f"{name}.{last}"]) - (architecture in _RAISED)
                setattr(part, last, nn.Parameter(torch.from_numpy(values.astype(np.float32)), requires_grad=False))
        if any(buffer.device.type == "meta" for buffer in part.buffers(recurse=False)):
            model.set_submodule(name, type(part)(part.config))  # rotary positions, which no file holds


def _read(file: GGUF, matrix: Matrix, name: str, heads: int | None) -> None:
    """Read a matrix; ``heads`` are those whose rows lie in pairs, and come apart."""
    out, tensor = matrix.bytes, file.tensors[name]
    if matrix.kind == FLOAT32:
        return pack_floats(out, FLOAT32, _apart(file.floats(name), heads))
    tile = matrix.shape[1] // GROUP * bytes_of_group(*KINDS[matrix.kind])
    for first, raw in file.parts(name, whole=heads is not None):
        parts = (None if part is None else _apart(part, heads) for part in decode_rows(tensor.kind, raw))
        pack(out[first // OUTPUTS * tile :], matrix.kind, *parts)


def _apart(rows: np.ndarray, heads: int | None) -> np.ndarray:
    """Rows of each head: first those at even places, then those at odd ones; as they are without ``heads``."""
    if heads is None:
        return rows
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _known_difference(path: Path, model: PreTrainedModel, lean: Lean) -> float:
    """What :func:`difference` found for this file and these versions, now or before."""
    state = path.stat()
    about = [path.name, state.st_size, state.st_mtime_ns, torch.__version__, transformers.__version__]
    code = b"".join(file.read_bytes() for file in sorted((Path(__file__).parents[1] / "decoding").glob("*.py")))
    key = hashlib.sha256(json.dumps(about).encode() + code).hexdigest()[:16]
    kept = paths.cache() / "lean" / f"{key}.json"
    known = (read_json(kept) or {}).get("difference")
    if not isinstance(known, float):
        known = difference(model, lean)
        write_atomic(kept, json.dumps({"file": path.name, "difference": known}))
    return known


@torch.inference_mode()
def difference(model: PreTrainedModel, lean: Lean) -> float:
    """How far the lean forward is from transformers' own layers with de-quantised weights, as a share of the states.

    Each layer of transformers is made in float32, one at a time, and given what the lean forward gave to its own.
    """
    layers, count = decoder_blocks(model), len(decoder_blocks(model))
    vocabulary = model.get_input_embeddings().num_embeddings
    tokens = torch.tensor([(37 * i + 11) % vocabulary for i in range(24)])
    with Target(model, len(tokens), Capture(layers=tuple(range(count + 1))), runtime=lean) as target:
        logits = target.extend(tokens)
        states = [target.hidden(layer)[None].clone() for layer in range(count + 1)]
    positions = torch.arange(len(tokens))[None]
    rotary = base_model(model).rotary_emb(states[0], positions)
    found = [_apart_by(model.get_input_embeddings()(tokens[None]), states[0])]
    for i, layer in enumerate(layers):
        given = _in_float32(layer)(states[i], position_embeddings=rotary, position_ids=positions, attention_mask=None)
        given = given[0] if isinstance(given, tuple) else given
        found.append(_apart_by(base_model(model).norm(given) if i + 1 == count else given, states[i + 1]))
    matrix = model.get_output_embeddings().matrix
    parts = (np.arange(i, min(i + _ROWS, vocabulary)) for i in range(0, vocabulary, _ROWS))
    found.append(_apart_by(torch.cat([matrix.rows(part) @ states[-1][0, -1] for part in parts]), logits))
    return max(found)


def _apart_by(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest distance of two rows over the length of one; NaN if one is no number."""
    return float(((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-12)).max())


def _in_float32(layer: nn.Module) -> nn.Module:
    """A copy of a layer with de-quantised weights."""
    held = {id(part): part for part in layer.modules() if isinstance(part, PackedWeights)}
    plain = {}
    for part in held.values():
        linear = nn.Linear(part.in_features, part.out_features, bias=part.bias is not None, device="meta")
        linear.weight = nn.Parameter(part.matrix.rows(np.arange(part.out_features)), requires_grad=False)
        linear.bias = part.bias
        plain[id(part)] = linear
    return copy.deepcopy(layer, plain)
