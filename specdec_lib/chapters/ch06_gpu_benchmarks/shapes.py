"""The price of a pass of a large model: a model of its shape with random weights takes as long as the trained one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.runtime import WIDTHS
from specdec_lib.experiments.pass_costs import step_samples
from specdec_lib.experiments.statistics import median

#: Layers of a model that stands for a deeper one of the same shape.
FEW = 2


class Shape(NamedTuple):
    """Sizes of a Llama model, as :class:`transformers.LlamaConfig` names them; ``tied`` models have one embedding matrix."""

    layers: int
    hidden: int
    inner: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tied: bool = False


#: Shapes by name, and the models that have them.
SHAPES = {
    "68m": Shape(2, 768, 3072, 12, 12, 32000),  # Llama-68M, the draft model of REST and PLD+
    "0.35b": Shape(32, 960, 2560, 15, 5, 49152, tied=True),  # SmolLM2-360M
    "1b": Shape(16, 2048, 8192, 32, 8, 128256, tied=True),  # Llama-3.2-1B
    "7b": Shape(32, 4096, 11008, 32, 32, 32000),  # Llama-2-7B, Vicuna-7B, CodeLlama-7B
    "13b": Shape(40, 5120, 13824, 40, 40, 32000),  # Llama-2-13B, Vicuna-13B
    "34b": Shape(48, 8192, 22016, 64, 8, 32000),  # CodeLlama-34B
    "70b": Shape(80, 8192, 28672, 64, 8, 32000),  # Llama-2-70B, the target of SpecDec++
}


def shape_of(name: str) -> Shape:
    """A shape of :data:`SHAPES`; ValueError if there is none of that name."""
    if name not in SHAPES:
        raise ValueError(f"shape is {name!r}; expected one of {', '.join(SHAPES)}")
    return SHAPES[name]


def random_model(shape: Shape, layers: int, dtype: torch.dtype, device: torch.device) -> LlamaForCausalLM:
    """A model of a shape with so many layers and random weights, made on its device in its type."""
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=4096,
        attn_implementation="sdpa",
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def pass_ms(
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    context: int,
    repeats: int,
    widths: Sequence[int] = WIDTHS,
    runtime: str = "eager",
    few: int = FEW,
) -> dict[int, float]:
    r"""Milliseconds of a pass of one of :data:`SHAPES` by width, from a model with ``few`` of its layers, or all it has.

    All layers do the same work, so with :math:`t_f` measured for :math:`f` layers and :math:`t_o` for the output layer alone a
    model of :math:`L` layers takes :math:`(t_f - t_o) L / f + t_o`.
    """
    shape = shape_of(name)
    model = random_model(shape, min(few, shape.layers), dtype, device)
    spent = step_samples(model, context, runtime, widths, repeats)
    times = {width: median(own).value for width, own in spent.items()}
    if shape.layers <= few:
        return times
    output = _output_ms(model, widths, repeats)
    return {w: max(times[w] - output[w], 0.0) * shape.layers / few + output[w] for w in times}


@torch.inference_mode()
def _output_ms(model: LlamaForCausalLM, widths: Sequence[int], repeats: int) -> dict[int, float]:
    """Milliseconds of the output layer by width, in turns."""
    weight = model.get_output_embeddings().weight
    states = torch.randn(max(widths), weight.shape[1], dtype=weight.dtype, device=weight.device)
    clock, marks = clock_of({weight.device}), {width: [] for width in widths}
    for _ in range(repeats + 3):
        for width, own in marks.items():
            began = clock.mark()
            linear(states[:width], weight)
            own.append((began, clock.mark()))
    clock.settle()
    return {width: median([1e3 * clock.seconds(*pair) for pair in own[3:]]).value for width, own in marks.items()}
