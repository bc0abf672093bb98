"""Shapes of well-known Llama models, and what a model of a shape holds and reads.

A shape is the sizes of the matrices. :func:`specdec_lib.chapters.ch06_gpu_benchmarks.widen.widen_to` gives a small model such a
shape. Two things then differ from the model a shape is named after: the vocabulary is the small model's, and
so is ``head_dim``. The widths of the projections are kept and the number of heads follows, so that a
projection of 4096 to 4096 is 64 heads of 64 where the published model has 32 of 128: every matrix and the
key-value cache of a token have the published size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from transformers import LlamaConfig

#: Channels of the residual stream for each layer in Llama-2-7B and 13B; :func:`draft_shape` stays near it.
CHANNELS_PER_LAYER = 128


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama model, ``head_dim`` and own vocabulary left out.

    Attributes
    ----------
    hidden_size, num_hidden_layers, intermediate_size : int
        As in :class:`transformers.LlamaConfig`.
    attention_width : int
        Rows of the query projection: query heads times ``head_dim``.
    key_value_width : int
        Rows of the key and of the value projection: key-value heads times ``head_dim``.
    like : str
        The published model that has this shape.
    vocabulary : int
        Tokens of the published model; a widened one keeps its own vocabulary.
    tied : bool
        Whether the published model's output matrix is its embedding.
    """

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    attention_width: int
    key_value_width: int
    like: str = ""
    vocabulary: int = 0
    tied: bool = False

    def sizes(self, head_dim: int) -> dict[str, int]:
        """The arguments of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.widen.widen` for heads of a width.

        Raises
        ------
        ValueError
            If the projections are no whole number of such heads.
        """
        heads = {
            "num_attention_heads": self.attention_width,
            "num_key_value_heads": self.key_value_width,
        }
        for name, width in heads.items():
            if width % head_dim:
                raise ValueError(
                    f"head_dim is {head_dim}, which does not divide the {width} rows of the projection that "
                    f"{name} counts heads of; expected a divisor: take another shape or another small model"
                )
        return {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "intermediate_size": self.intermediate_size,
            **{name: width // head_dim for name, width in heads.items()},
        }

    @property
    def published_parameters(self) -> int:
        """Parameters of the published model, its vocabulary included (norms of queries and keys left out)."""
        body = self.num_hidden_layers * _layer_parameters(
            self.hidden_size, self.intermediate_size, self.attention_width, self.key_value_width
        )
        return body + (1 if self.tied else 2) * self.vocabulary * self.hidden_size + self.hidden_size


#: Shapes by name.
PRESETS: dict[str, Shape] = {
    # Draft models. JackFram/llama-68m and llama-160m, trained for SpecInfer; REST and PLD+ compare with the
    # former.
    "68m": Shape(768, 2, 3072, 768, 768, "Llama-68M", 32000),
    "160m": Shape(768, 12, 3072, 768, 768, "Llama-160M", 32000),
    # HuggingFaceTB/SmolLM2-360M: 15 heads of 64, 5 key-value heads.
    "0.35b": Shape(960, 32, 2560, 960, 320, "SmolLM2-360M", 49152, tied=True),
    # Qwen/Qwen3-0.6B without the norms of its queries and keys: 16 heads of 128, 8 key-value heads.
    "0.5b": Shape(1024, 28, 3072, 2048, 1024, "Qwen3-0.6B", 151936, tied=True),
    # meta-llama/Llama-3.2-1B: 32 heads of 64, 8 key-value heads.
    "1b": Shape(2048, 16, 8192, 2048, 512, "Llama-3.2-1B", 128256, tied=True),
    # TinyLlama-1.1B: 32 heads of 64, 4 key-value heads; the other draft model of REST.
    "1.1b": Shape(2048, 22, 5632, 2048, 256, "TinyLlama-1.1B", 32000),
    # meta-llama/Llama-2-7b-hf: 32 heads of 128. Vicuna-7B and CodeLlama-7B have the same.
    "7b": Shape(4096, 32, 11008, 4096, 4096, "Llama-2-7B", 32000),
    # meta-llama/Llama-2-13b-hf: 40 heads of 128. Vicuna-13B and CodeLlama-13B have the same.
    "13b": Shape(5120, 40, 13824, 5120, 5120, "Llama-2-13B", 32000),
    # lmsys/vicuna-33b-v1.3, which is LLaMA-33B: 52 heads of 128.
    "33b": Shape(6656, 60, 17920, 6656, 6656, "Vicuna-33B", 32000),
    # codellama/CodeLlama-34b-hf: 64 heads of 128, 8 key-value heads.
    "34b": Shape(8192, 48, 22016, 8192, 1024, "CodeLlama-34B", 32000),
    # meta-llama/Llama-2-70b-hf: 64 heads of 128, 8 key-value heads; the target of SpecDec++.
    "70b": Shape(8192, 80, 28672, 8192, 1024, "Llama-2-70B", 32000),
}


def preset(name: str) -> Shape:
    """A shape of :data:`PRESETS`.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    if name not in PRESETS:
        raise ValueError(f"shape is {name!r}; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]


def _layer_parameters(hidden: int, intermediate: int, attention: int, key_value: int) -> int:
    return 2 * hidden * attention + 2 * hidden * key_value + 3 * hidden * intermediate + 2 * hidden


def _bias_parameters(config: LlamaConfig) -> int:
    found = 0
    if config.attention_bias:
        found += config.head_dim * (config.num_attention_heads + 2 * config.num_key_value_heads)
        found += config.hidden_size
    if config.mlp_bias:
        found += 2 * config.intermediate_size + config.hidden_size
    return found


def parameter_count(config: LlamaConfig) -> int:
    """Parameters of a Llama model: embedding, layers, last norm, and the output matrix if it is not tied."""
    layer = _layer_parameters(
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads * config.head_dim,
        config.num_key_value_heads * config.head_dim,
    )
    matrices = 1 if config.tie_word_embeddings else 2
    return (
        config.num_hidden_layers * (layer + _bias_parameters(config))
        + matrices * config.vocab_size * config.hidden_size
        + config.hidden_size
    )


def parameters_read(config: LlamaConfig) -> int:
    """Parameters that every step reads: all but the embedding, of which a step reads one row a token."""
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    return parameter_count(config) - embedding


def matrix_parameters(config: LlamaConfig) -> int:
    """Parameters that every token of a step is multiplied by: those read, without norms and biases."""
    norms = (2 * config.num_hidden_layers + 1) * config.hidden_size
    return parameters_read(config) - norms - config.num_hidden_layers * _bias_parameters(config)


def parameter_bytes(config: LlamaConfig, dtype: torch.dtype) -> int:
    """Memory of a model's parameters in a type, bytes."""
    return parameter_count(config) * dtype.itemsize


def draft_shape(draft: LlamaConfig, target: LlamaConfig, ratio: float, tolerance: float = 0.05) -> Shape:
    """A shape for a draft model whose step reads a given share of what the target's step reads.

    A narrow step takes about as long as its parameters take to be read, so this is t_draft / t_target where
    both models are of one type and memory bounds them; launches and small matrices make the measured ratio
    larger. The ratios of the papers: 0.0234 / 0.112 measured for 7B and 70B in SpecDec++ (section 4.2); for
    Llama-68M and Vicuna-7B in REST and PLD+ the shares of two presets
    (:func:`parameters_read` of one over that of the other).

    Of the shapes within ``tolerance`` the one nearest to :data:`CHANNELS_PER_LAYER` is taken. It has an MLP
    8/3 as wide as the residual stream and as many key-value heads as query heads, like Llama-2-7B.

    Parameters
    ----------
    draft : LlamaConfig
        Of the small model that will be widened: the shape is at least as large.
    target : LlamaConfig
        Of the model that verifies, widened or not.
    ratio : float
        Wanted share, above 0.
    tolerance : float
        Largest relative difference from ``ratio``.

    Raises
    ------
    ValueError
        If the ratio is not above 0, or no shape that holds the draft model comes close enough.
    """
    if not ratio > 0:
        raise ValueError(f"ratio is {ratio}; expected a number above 0")
    wanted, found, smallest = ratio * parameters_read(target), [], math.inf
    width = math.lcm(draft.head_dim, 32)
    least = max(draft.hidden_size, draft.head_dim * draft.num_attention_heads)
    for hidden in range(width * math.ceil(least / width), 16384 + width, width):
        intermediate = max(draft.intermediate_size, 32 * round(hidden / 12))
        layer = _layer_parameters(hidden, intermediate, hidden, hidden)
        rest = (draft.vocab_size + 1) * hidden
        layers = max(draft.num_hidden_layers, round((wanted - rest) / layer))
        reads = layers * layer + rest
        smallest = min(smallest, reads)
        if abs(reads / wanted - 1) <= tolerance:
            shape = Shape(hidden, layers, intermediate, hidden, hidden)
            found.append((abs(math.log(hidden / layers / CHANNELS_PER_LAYER)), hidden, shape))
    if not found:
        raise ValueError(
            f"ratio is {ratio}; no shape that holds the draft model reads {wanted:,.0f} parameters a step "
            f"within {tolerance:.0%}; the smallest reads {smallest:,.0f}, a ratio of "
            f"{smallest / parameters_read(target):.3g}"
        )
    return min(found, key=lambda row: row[:2])[2]
