"""Function-preserving widening: a small Llama model at the cost of a large shape.

The wide model computes what the small one computes. Of its residual stream the first d of D channels are the
small model's and the others are zero; RMSNorm divides by the root mean square over all D, so its weights are
scaled by sqrt(d / D) and its epsilon by d / D; heads, MLP channels and layers beyond the small model's give
exactly zero. A step of the wide model reads the weights and multiplies the matrices of the large shape, so
its time is that shape's, while its text is the small model's: shape of one, behaviour of the other.

What a measurement on such a model should know:

- The extra weights are random numbers by default (``fill="random"``): they read channels that are zero, or
  what they read is multiplied by zero. About a third stay zero: the value rows of unused heads, the ``up``
  rows of unused MLP channels, and what would write into unused channels of the residual stream. With
  ``fill="zeros"`` all are zero. Both give the same numbers.
- The activations of unused channels are zeros either way. The bytes read do not hang on the values; the
  rate at which a processor multiplies can (less power is drawn on zeros, and the clock may rise), so steps
  bound by arithmetic may run faster than on a trained model of the shape.
- The output matrix is the wide model's own: tied embeddings come out untied.
- The vocabulary stays: a further token would need a logit below all others whatever the state, and a Llama
  output matrix has no bias to give it one.
- In float32 logits agree to rounding. In bfloat16 the scaled norm weights and states round otherwise, so
  logits differ as much as bfloat16 logits do, and a close first choice can change.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from specdec_lib.chapters.ch06_gpu_benchmarks.memory import check_memory
from specdec_lib.chapters.ch06_gpu_benchmarks.shapes import Shape, preset
from specdec_lib.models.loading import resolve_device, resolve_dtype

FILLS = ("random", "zeros")
_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
)


def check_llama(model: PreTrainedModel) -> None:
    """Only Llama models are widened: other families have other norms, biases or gates.

    Raises
    ------
    TypeError
        If the model is of another class.
    """
    if not isinstance(model, LlamaForCausalLM):
        raise TypeError(f"model is a {type(model).__name__}; expected a LlamaForCausalLM such as load_model('pocket')")


def wide_config(config: LlamaConfig, **sizes: int | None) -> LlamaConfig:
    """Configuration of the wide model.

    Parameters
    ----------
    config : LlamaConfig
        Of the small model; vocabulary, ``head_dim``, rotary parameters, activation and biases are kept.
    **sizes : int
        ``hidden_size``, ``num_hidden_layers``, ``intermediate_size``, ``num_attention_heads``,
        ``num_key_value_heads``; those left out or None stay as they are.

    Raises
    ------
    TypeError
        If a size has another name.
    ValueError
        If a size is below the small model's, is no multiple where it must be, or the heads cannot be placed.
    """
    if unknown := set(sizes) - set(_SIZES):
        raise TypeError(f"unknown size {', '.join(sorted(unknown))}; expected some of {', '.join(_SIZES)}")
    small = {name: getattr(config, name) for name in _SIZES}
    wide = small | {name: value for name, value in sizes.items() if value is not None}
    for name in _SIZES:
        if wide[name] < small[name]:
            raise ValueError(f"{name} is {wide[name]}; expected at least {small[name]}, that of the model to widen")
    for whole, part in (
        ("hidden_size", "num_attention_heads"),
        ("num_attention_heads", "num_key_value_heads"),
    ):
        if wide[whole] % wide[part]:
            raise ValueError(f"{whole} is {wide[whole]}; expected a multiple of {part}, which is {wide[part]}")
    scaled = wide | {
        "rms_norm_eps": config.rms_norm_eps * config.hidden_size / wide["hidden_size"],
        "tie_word_embeddings": False,
        "head_dim": config.head_dim,
    }
    found = LlamaConfig.from_dict(config.to_dict() | scaled)
    place_heads(config, found)
    return found


def shape_config(config: LlamaConfig, shape: str | Shape) -> LlamaConfig:
    """:func:`wide_config` of a shape, by name or given: sizes and bytes before anything is built."""
    shape = preset(shape) if isinstance(shape, str) else shape
    return wide_config(config, **shape.sizes(config.head_dim))


def place_heads(small: LlamaConfig, wide: LlamaConfig) -> tuple[list[int], list[int]]:
    """Where the heads of the small model stand in the wide one.

    With g query heads to a key-value head in the small model and G in the wide one, a small key-value head
    takes ceil(g / G) wide ones, all alike, and its query heads are spread over them in order.

    Returns
    -------
    queries : list of int
        For each query head of the small model its index in the wide one. Attention heads that were chosen by
        their index, such as induction heads, are found under these.
    key_values : list of int
        For each key-value head in use of the wide model the one of the small model that it holds; those
        after them are unused.

    Raises
    ------
    ValueError
        If the wide model has too few key-value heads.
    """
    group = small.num_attention_heads // small.num_key_value_heads
    wide_group = wide.num_attention_heads // wide.num_key_value_heads
    copies = math.ceil(group / wide_group)
    needed = copies * small.num_key_value_heads
    if needed > wide.num_key_value_heads:
        raise ValueError(
            f"num_key_value_heads is {wide.num_key_value_heads}; expected at least {needed}: the model has "
            f"{small.num_key_value_heads} key-value heads of {group} query heads, and {wide_group} query "
            "heads share one in the wanted shape"
        )
    queries = []
    for head in range(small.num_attention_heads):
        source, member = divmod(head, group)
        copy_of, place = divmod(member, wide_group)
        queries.append((source * copies + copy_of) * wide_group + place)
    return queries, [head // copies for head in range(needed)]


def widen_to(
    model: PreTrainedModel,
    shape: str | Shape,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    fill: str = "random",
    seed: int = 0,
) -> LlamaForCausalLM:
    """:func:`widen` to a shape of :data:`specdec_lib.chapters.ch06_gpu_benchmarks.shapes.PRESETS` or a given one.

    Raises
    ------
    ValueError
        If there is no such shape, its projections are no whole number of the model's heads, or as
        :func:`widen`.
    """
    check_llama(model)
    shape = preset(shape) if isinstance(shape, str) else shape
    return widen(model, **shape.sizes(model.config.head_dim), dtype=dtype, device=device, fill=fill, seed=seed)


def widen(
    model: PreTrainedModel,
    *,
    hidden_size: int | None = None,
    num_hidden_layers: int | None = None,
    intermediate_size: int | None = None,
    num_attention_heads: int | None = None,
    num_key_value_heads: int | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    fill: str = "random",
    seed: int = 0,
) -> LlamaForCausalLM:
    """A larger model that computes the function of a small one.

    Parameters
    ----------
    model : LlamaForCausalLM
        Left as it is; on any device and of any floating type.
    hidden_size, num_hidden_layers, intermediate_size : int, optional
    num_attention_heads, num_key_value_heads : int, optional
        Sizes of the wide model, at least the small one's; that one's by default. ``head_dim`` is kept.
    dtype : str or torch.dtype, optional
        The model's by default; text as in :func:`specdec_lib.models.loading.load_model`.
    device : str or torch.device, optional
        Where the wide model is built, with no copy elsewhere; the model's by default. On ``"meta"`` it
        has sizes and no numbers.
    fill : str
        What extra weights without effect hold: ``"random"`` numbers or ``"zeros"``.
    seed : int
        Of the random numbers.

    Returns
    -------
    LlamaForCausalLM
        In evaluation mode, embeddings untied. Channel c < d of every hidden state is the small model's,
        later ones are zero; layer l is layer l, and heads are where :func:`place_heads` says.

    Raises
    ------
    TypeError
        If the model is no Llama model.
    ValueError
        If a size is too small or does not fit the others, or fill, dtype or device is unknown.
    MemoryError
        If the device has too little memory left.
    """
    check_llama(model)
    if fill not in FILLS:
        raise ValueError(f"fill is {fill!r}; expected one of {', '.join(FILLS)}")
    config = wide_config(
        model.config,
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        intermediate_size=intermediate_size,
        num_attention_heads=num_attention_heads,
        num_key_value_heads=num_key_value_heads,
    )
    place = resolve_device(str(model.device if device is None else device))
    kind = resolve_dtype(model.dtype if dtype is None else dtype, place)
    kind = model.dtype if kind == "auto" else kind
    check_memory(config, kind, place)
    attention = model.config._attn_implementation
    with torch.device("meta"):
        wide = AutoModelForCausalLM.from_config(config, dtype=kind, attn_implementation=attention)
    wide.generation_config = copy.deepcopy(model.generation_config)
    if place.type != "meta":
        wide.to_empty(device=place)
        with place:
            wide.model.rotary_emb = LlamaRotaryEmbedding(wide.config)
        with torch.no_grad():
            _write_all(wide, fill, seed)
            _copy(model, wide)
    return wide.eval()


def _write_all(wide: LlamaForCausalLM, fill: str, seed: int) -> None:
    """Write every weight once.

    Memory that was asked for and never written is one page of zeros to the kernel, and reading it would not
    go to memory at all.
    """
    bound = math.sqrt(3) * wide.config.initializer_range
    generator = torch.Generator(wide.device).manual_seed(seed)
    for weights in wide.parameters():
        if fill == "zeros":
            weights.fill_(0)
        else:
            weights.uniform_(-bound, bound, generator=generator)


def _copy(small: LlamaForCausalLM, wide: LlamaForCausalLM) -> None:
    """Write the small model's weights, and zeros where an extra weight would have an effect."""
    d, scale = small.config.hidden_size, math.sqrt(small.config.hidden_size / wide.config.hidden_size)
    heads = _Heads(small.config, wide.config, wide.device)
    embedding = wide.model.embed_tokens.weight
    embedding[:, d:] = 0
    embedding[:, :d] = small.model.embed_tokens.weight.to(wide.device)
    wide.lm_head.weight[:, :d] = small.lm_head.weight.to(wide.device)
    _norm(small.model.norm, wide.model.norm, scale)
    for index, layer in enumerate(wide.model.layers):
        if index < small.config.num_hidden_layers:
            source = small.model.layers[index]
            _norm(source.input_layernorm, layer.input_layernorm, scale)
            _norm(source.post_attention_layernorm, layer.post_attention_layernorm, scale)
            _attention(source.self_attn, layer.self_attn, heads)
            _mlp(source.mlp, layer.mlp)
        else:
            _silence(layer)


class _Heads:
    """Rows of the wide query projection for those of the small one, rows of the small key and value projections for the
    first wide ones, and how many columns of the wide output projection are in use."""

    def __init__(self, small: LlamaConfig, wide: LlamaConfig, device: torch.device):
        queries, key_values = place_heads(small, wide)
        inside = torch.arange(small.head_dim)
        self.queries = (torch.tensor(queries)[:, None] * small.head_dim + inside).flatten().to(device)
        self.sources = (torch.tensor(key_values)[:, None] * small.head_dim + inside).flatten().to(device)
        group = wide.num_attention_heads // wide.num_key_value_heads
        self.live = len(key_values) * group * small.head_dim


def _norm(small: LlamaRMSNorm, wide: LlamaRMSNorm, scale: float) -> None:
    """Weights of an RMSNorm over D channels of which d are in use: scaled before they are rounded."""
    wide.weight[: len(small.weight)] = small.weight.to(wide.weight.device, torch.float32) * scale


def _rows(small: nn.Linear, wide: nn.Linear, at: torch.Tensor | slice, rows: torch.Tensor | slice) -> None:
    """Write rows of a small projection to places of a wide one, the bias with them."""
    columns = small.in_features
    values = small.weight.to(wide.weight.device, wide.weight.dtype)
    wide.weight[at, :columns] = values[rows]
    if small.bias is not None:
        wide.bias[at] = small.bias.to(wide.bias.device, wide.bias.dtype)[rows]


def _clear(wide: nn.Linear, first: int) -> None:
    """Rows from one on give exactly zero."""
    wide.weight[first:] = 0
    _clear_bias(wide, first)


def _clear_bias(wide: nn.Linear, first: int) -> None:
    if wide.bias is not None:
        wide.bias[first:] = 0


def _attention(small: LlamaAttention, wide: LlamaAttention, heads: _Heads) -> None:
    """Unused key-value heads hold values of zero, so the columns that read their query heads are free.

    An unused query head of a group in use reads values that are not zero: its columns are.
    """
    d, every, used = small.o_proj.out_features, slice(None), len(heads.sources)
    _rows(small.q_proj, wide.q_proj, heads.queries, every)
    _rows(small.k_proj, wide.k_proj, slice(used), heads.sources)
    _clear(wide.v_proj, used)
    _rows(small.v_proj, wide.v_proj, slice(used), heads.sources)
    out = wide.o_proj.weight
    out[:, : heads.live] = 0
    out[:d, heads.queries] = small.o_proj.weight.to(out.device, out.dtype)
    _clear_bias(wide.o_proj, 0)
    if small.o_proj.bias is not None:
        wide.o_proj.bias[:d] = small.o_proj.bias.to(out.device)


def _mlp(small: LlamaMLP, wide: LlamaMLP) -> None:
    """Unused channels have an ``up`` of zero, so the columns of ``down_proj`` that read them are free."""
    d, i = small.down_proj.out_features, small.down_proj.in_features
    _rows(small.gate_proj, wide.gate_proj, slice(i), slice(None))
    _clear(wide.up_proj, i)
    _rows(small.up_proj, wide.up_proj, slice(i), slice(None))
    wide.down_proj.weight[d:, :i] = 0
    _clear_bias(wide.down_proj, d)
    _rows(small.down_proj, wide.down_proj, slice(d), slice(None))


def _silence(layer: LlamaDecoderLayer) -> None:
    """A layer that adds exactly zero: no head has values, no MLP channel an ``up``."""
    _clear(layer.self_attn.v_proj, 0)
    _clear(layer.mlp.up_proj, 0)
    _clear_bias(layer.self_attn.o_proj, 0)
    _clear_bias(layer.mlp.down_proj, 0)
