"""The runtime over the lean forward: which models it runs, their weights as it reads them, and passes over a cache."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from specdec_lib.decoding import lean
from specdec_lib.decoding.attention import AttentionRows
from specdec_lib.decoding.cache import TreeCache
from specdec_lib.decoding.checks import one_of
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.lean import EIGHT_BITS, FLOAT32, MATRICES
from specdec_lib.decoding.packed import Matrix, PackedWeights, pack_floats, run_on_team, size_of
from specdec_lib.decoding.served_models import (
    FULL,
    UnsupportedModel,
    base_model,
    decoder_config,
    is_altered,
    is_compiled,
    rope_settings,
    state_of,
    unwrapped,
    windows,
)
from specdec_lib.decoding.tiles import GROUP, OUTPUTS

#: transformers' classes whose layers are those of the lean forward.
CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
#: What computes SiLU.
_ACTIVATIONS = (nn.SiLU, SiLUActivation)
#: Rows of one pass; longer prompts take several.
CHUNK = 128
#: Rotary embeddings whose frequencies change with the length of the text.
_CHANGING = {"dynamic", "longrope"}


def refusals(model: PreTrainedModel) -> Iterator[tuple[bool, str]]:
    """Whether each reason not to run a model holds, and what it is."""
    config, name = decoder_config(model), type(model).__name__
    yield name not in CLASSES, f"is none of {', '.join(CLASSES)}"
    yield getattr(config, "hidden_act", None) != "silu", f"has the activation {config.hidden_act!r}, not 'silu'"
    yield windows(model) != {FULL: None}, "has a sliding window"
    rope = {entry.get("rope_type") for entry in rope_settings(model)} & _CHANGING
    yield (
        bool(rope),
        f"has rotary positions of type {', '.join(sorted(rope))}, which change with the length of the text",
    )
    layers = list(base_model(model).layers)
    odd = {type(part).__name__ for layer in layers for part in matrices_of(layer) if not _plain(part)}
    yield bool(odd), f"has layers of type {', '.join(sorted(odd))}"
    biased = [part for layer in layers for part in matrices_of(layer)[3:] if getattr(part, "bias", None) is not None]
    yield bool(biased), "has biases in other layers than those of queries, keys and values"
    yield layers[0].self_attn.head_dim % OUTPUTS != 0, f"has heads of a size that {OUTPUTS} does not divide"
    elsewhere = {str(weights.device) for weights in model.parameters()} - {"cpu"}
    yield bool(elsewhere), f"lies on {', '.join(sorted(elsewhere))}; the lean forward runs on the processor"
    yield is_compiled(model), "is compiled"
    count = config.num_hidden_layers
    yield len(layers) != count, f"has {len(layers)} blocks, and its configuration says {count}"
    scales = {layer.self_attn.scaling for layer in layers} - {layers[0].self_attn.head_dim ** -0.5}
    yield bool(scales), f"scales its attention by {', '.join(map(str, sorted(scales)))}, not by the size of a head"
    norms = [getattr(layer.self_attn, name, None) for layer in layers for name in ("q_norm", "k_norm")]
    norms = [part for part in norms if part is not None] + [base_model(model).norm]
    norms += [part for layer in layers for part in (layer.input_layernorm, layer.post_attention_layernorm)]
    epsilons = {getattr(part, "variance_epsilon", None) for part in norms}
    yield len(epsilons) > 1 or None in epsilons, "has norms of several kinds or epsilons"
    odd = {type(layer.mlp.act_fn).__name__ for layer in layers if type(layer.mlp.act_fn) not in _ACTIVATIONS}
    yield bool(odd), f"has activations of type {', '.join(sorted(odd))}"
    altered = next((name or "the model" for name, part in model.named_modules() if is_altered(part)), None)
    yield altered is not None, f"has a hook, or a forward that was replaced, in {altered}"


def _plain(part: nn.Module) -> bool:
    return type(part) is nn.Linear or isinstance(part, PackedWeights)


def matrices_of(layer: nn.Module) -> list[nn.Module]:
    """The layers with weights of one block, in the order of :data:`~specdec_lib.decoding.lean.MATRICES`."""
    places = (layer.self_attn, layer.mlp)
    return [next(getattr(place, name) for place in places if hasattr(place, name)) for name in MATRICES]


class Lean:
    """Runs the passes of a model of the Llama kind by the lean forward (:mod:`specdec_lib.decoding.lean`), on the processor.

    The logits of a row are the same, bit for bit, in passes of any width. It reads the packed
    weights of a model from ``load_model(file, dtype="file")``. It copies the weights of a model in float32, and copies them again
    if the model was changed. Generations may share it. UnsupportedModel if the model is of another kind.

    Parameters
    ----------
    model : PreTrainedModel
        Llama, Mistral, Qwen 2 or Qwen 3, without a sliding window.
    bits : {32, 8}
        Of a float model's copied weights. 8, with a scale for 32 of them, is for draft models, whose exact weights do not matter.
    """

    def __init__(self, model: PreTrainedModel, bits: int = 32):
        self.model, self.bits = unwrapped(model), one_of("bits", bits, (32, 8))
        self._check("leave the runtime out")
        self._read()

    def _check(self, instead: str) -> None:
        """Reject a model whose own forward computes something else."""
        for holds, reason in refusals(self.model):
            if holds:
                raise UnsupportedModel(f"{type(self.model).__name__} {reason}: {instead}")
        #: How the model was then.
        self._state = state_of(self.model)

    @property
    def is_current(self) -> bool:
        """Whether parts, hooks and settings of the model are those that were checked."""
        return state_of(self.model) == self._state

    def forward(self, model: PreTrainedModel, cache: TreeCache, capture: Capture) -> LeanForward:
        """Passes of this model over a cache; what ``capture`` names is shown."""
        if model is not self.model:
            raise ValueError("the runtime was made for another model; make one for this model")
        changed = self._stamps() != self._seen
        if changed and self.packed:
            raise ValueError(
                f"weights of {type(model).__name__} were changed after load_model(..., dtype='file'), which keeps no others: "
                "load the file again, or load it in 'float32' to change it"
            )
        if not self.is_current:
            self._check("the lean forward does not run that; pass runtime='transformers'")
            changed = True
        if changed:
            self._read()
        return LeanForward(self, cache, capture)

    def _parts(self) -> list[nn.Module]:
        layers = base_model(self.model).layers
        inside = [part for layer in layers for part in matrices_of(layer)]
        return [*inside, self.model.get_input_embeddings(), self.model.get_output_embeddings()]

    def _stamps(self) -> list[tuple]:
        """What tells that a weight was changed: all values, or of packed bytes, which all passes read, the edits that torch saw."""
        found = []
        for name, weights in (*self.model.named_parameters(), *self.model.named_buffers()):
            if weights.dtype == torch.uint8:
                found.append((name, weights.data_ptr(), weights._version))
            else:
                values = weights.detach().reshape(-1).contiguous().view(torch.uint8).numpy()
                found.append((name, weights.dtype, zlib.crc32(values)))
        return found

    def _read(self) -> None:
        """Take the model's weights in."""
        model, config, parts = self.model, decoder_config(self.model), self._parts()
        layers = list(base_model(model).layers)
        self.packed = all(isinstance(part, PackedWeights) for part in parts)
        if self.packed:
            matrices = [part.matrix for part in parts]
        elif any(isinstance(part, PackedWeights) for part in parts):
            raise UnsupportedModel(f"{type(model).__name__} has packed layers and others: load the file again")
        else:
            matrices = self._copied(parts)
        self.weights = matrices[0].arena
        self.matrices = np.stack([matrix.about for matrix in matrices])
        #: Multiplications of a row, the embedding's left out.
        self.products = sum(matrix.shape[0] * matrix.shape[1] for matrix in [*matrices[:-2], matrices[-1]])
        first = layers[0].self_attn
        size, width, inner = first.head_dim, config.hidden_size, matrices[MATRICES.index("gate_proj")].shape[0]
        heads, shared = (matrix.shape[0] // size for matrix in matrices[:2])
        self.sizes = (len(layers), width, heads, shared, size, inner, matrices[-1].shape[0])
        self.eps = np.float32(layers[0].input_layernorm.variance_epsilon)
        self.norms = np.ones((len(layers) + 1, 2, width), np.float32)
        for i, layer in enumerate(layers):
            self.norms[i] = _floats(layer.input_layernorm.weight), _floats(layer.post_attention_layernorm.weight)
        self.norms[-1, 0] = _floats(base_model(model).norm.weight)
        self.biases = np.zeros((0, 0), np.float32)
        if any(part.bias is not None for part in matrices_of(layers[0])[:3]):
            self.biases = np.stack(
                [np.concatenate([_floats(part.bias) for part in matrices_of(layer)[:3]]) for layer in layers]
            )
        self.head_norms = np.zeros((0, 2, 0), np.float32)
        if hasattr(first, "q_norm"):
            norms = [(layer.self_attn.q_norm.weight, layer.self_attn.k_norm.weight) for layer in layers]
            self.head_norms = np.stack([[_floats(weight) for weight in pair] for pair in norms])
        self._rotary = base_model(model).rotary_emb
        self.cos = self.sin = np.zeros((0, size), np.float32)
        self._seen = self._stamps()

    def _copied(self, parts: list[nn.Module]) -> list[Matrix]:
        # In 8 bits the inner width of a layer is filled up with zeros, which SiLU keeps, to a number of whole groups.
        more = -len(parts[MATRICES.index("gate_proj")].weight) % GROUP if self.bits == 8 else 0
        rooms = {"gate_proj": (more, 0), "up_proj": (more, 0), "down_proj": (0, more)}
        room = [rooms.get(name, (0, 0)) for name in MATRICES] * (len(parts) // len(MATRICES)) + [(0, 0)] * 2
        shapes = [
            (len(part.weight) + rows, part.weight.shape[1] + columns)
            for part, (rows, columns) in zip(parts, room, strict=True)
        ]
        kinds = []
        for part, (outputs, inputs) in zip(parts, shapes, strict=True):
            whole = inputs % GROUP == 0 and (outputs % OUTPUTS == 0 or part is parts[-1])
            kinds.append(EIGHT_BITS if self.bits == 8 and whole else FLOAT32)
        tied = parts[-1].weight.data_ptr() == parts[-2].weight.data_ptr()
        if tied:
            kinds[-2] = kinds[-1]
        sizes = [size_of(kind, *shape) for kind, shape in zip(kinds, shapes, strict=True)]
        starts = np.cumsum([0, *sizes[: -1 - tied]]).tolist()
        arena = np.zeros(starts[-1] + sizes[-1], np.uint8)
        starts += [starts[-1]] * tied
        found = []
        for part, kind, at, shape, (rows, columns) in zip(parts, kinds, starts, shapes, room, strict=True):
            found.append(Matrix(arena, at, *shape, kind))
            pack_floats(found[-1].bytes, kind, np.pad(_floats(part.weight), ((0, rows), (0, columns))))
        return found

    def rotary(self, positions: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of at least so many positions, (n, size of a head)."""
        if positions > len(self.cos):
            count = max(2048, 2 * len(self.cos), positions)
            with torch.inference_mode():
                like = torch.zeros(1, 1, 1, dtype=torch.float32)
                cos, sin = self._rotary(like, torch.arange(count)[None])
            self.cos, self.sin = (np.ascontiguousarray(part[0].float().numpy()) for part in (cos, sin))
        return self.cos, self.sin


def _floats(weights: torch.Tensor) -> np.ndarray:
    return weights.detach().float().numpy()


class LeanForward:
    """Runs passes over a cache, as :class:`~specdec_lib.decoding.forward.Forward` does; ``shown`` takes states by layer."""

    additive, running, window, knows_chains = False, False, None, True

    def __init__(self, runtime: Lean, cache: TreeCache, capture: Capture):
        self.runtime, self.cache, self.device = runtime, cache, torch.device("cpu")
        layers, _, _, key_heads, size, _, _ = runtime.sizes
        self.rows: AttentionRows | None = None
        self.shown: dict[int, Callable[[torch.Tensor], None]] = {}
        self._heads = np.array(capture.heads, np.int64).reshape(-1, 2)
        like = torch.zeros(1, key_heads, 0, size)
        for layer in cache.layers:
            if not layer.is_initialized:
                layer.lazy_initialization(like, like)
        self._room = (0, 0)

    def as_mask(self, visible: torch.Tensor, rows: torch.Tensor | None = None, columns: torch.Tensor | None = None):
        """What each token attends to, as it is."""
        return visible

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, last_only: bool = False
    ) -> torch.Tensor:
        """Logits of tokens (1, n) at positions (n,), (n, vocabulary) or of the last alone; without a mask they are a chain."""
        ids, positions = ids[0].numpy(), positions.numpy()
        step = len(ids) if mask is not None else CHUNK
        logits, kept, rows = [], [], None
        for start in range(0, len(ids), step):
            part = slice(start, start + step)
            needed = not last_only or start + step >= len(ids)
            out, states, rows = self._pass(ids[part], positions[part], mask, start, last_only, needed)
            logits.append(out)
            kept.append(states)
        for slot, layer in enumerate(sorted(self.shown)):
            self.shown[layer](torch.cat([states[slot] for states in kept])[None])
        if self.rows is not None:
            self.rows.take(list(rows))
        logits = logits[-1:] if last_only else logits
        return (logits[0] if len(logits) == 1 else torch.cat(logits))[:, : self.runtime.sizes[-1]]

    def _pass(self, ids, positions, mask, before, last_only, needed):
        own, length = self.runtime, self.cache.length + before
        rows, seen = len(ids), length + len(ids)
        width, vocabulary = own.sizes[1], own.sizes[-1]
        visible = np.zeros((0, 0), np.bool_) if mask is None else np.ascontiguousarray(mask.numpy())
        cos, sin = own.rotary(int(positions.max()) + 1)
        self._reserve(rows, seen)
        shown = 1 if last_only else rows
        out = torch.empty((shown, -(-vocabulary // OUTPUTS) * OUTPUTS), dtype=torch.float32)
        kept = torch.empty((len(self.shown), rows, width), dtype=torch.float32)
        heads = self._heads if needed else self._heads[:0]
        kept_rows = torch.empty((len(heads), shown, seen), dtype=torch.float32)
        scratch = self._scratch
        work = (
            own.sizes, own.eps, own.weights, own.matrices, own.norms, own.biases, own.head_norms, cos, sin,
            self.cache.arena.numpy()[:, 0], length, ids, positions, visible, last_only,
            np.array(sorted(self.shown), np.int64), kept.numpy(), heads, kept_rows.numpy(), *scratch, out.numpy(),
        )  # fmt: skip
        run_on_team(lambda *team: lean.run(*team, *work), rows * own.products)
        return out, kept, kept_rows

    def _reserve(self, rows: int, seen: int) -> None:
        """Make room for what a pass keeps between its steps."""
        if rows <= self._room[0] and seen <= self._room[1]:
            return
        rows, seen = max(rows, self._room[0]), max(seen + 256, self._room[1])
        _, width, heads, key_heads, size, inner, _ = self.runtime.sizes
        widest = max(width, inner, heads * size)
        groups = -(-widest // GROUP)
        threads = os.cpu_count() or 1  # the most that a team has
        self._scratch = (
            np.empty((rows, width), np.float32),
            np.empty((rows, (heads + 2 * key_heads) * size), np.float32),
            np.empty((rows, 2 * inner), np.float32),
            np.empty(rows * widest, np.float32),
            np.empty(rows * widest, np.int16),
            np.empty(rows * groups, np.float32),
            np.empty(rows * groups, np.float32),
            np.empty((threads, size), np.float32),
            np.empty((threads, seen + OUTPUTS), np.float32),
            np.empty((rows, seen), np.int32),
            np.empty(rows, np.int64),
        )
        self._room = (rows, seen)
