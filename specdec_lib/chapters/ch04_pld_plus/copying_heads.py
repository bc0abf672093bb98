"""Copying score of attention heads: does a head raise the logit of the token it attends to?

Elhage et al. (2021, "A Mathematical Framework for Transformer Circuits", section on the OV circuit): for one
head, the map from the token attended to, to the logits, is M = E W_V W_O U with the embedding E and the
unembedding U. M copies if it sends tokens to themselves; the score is the sum of its eigenvalues over the sum
of their moduli.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.served_models import UnsupportedModel, decoder_config
from specdec_lib.decoding.target import decoder_blocks


def _weights(block: torch.nn.Module, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and output projections of a block, as (out, in) matrices."""
    modules = dict(block.named_modules())
    for path, module in modules.items():
        parent = path.rpartition(".")[0]
        if path.endswith("v_proj") and f"{parent}.o_proj" in modules:
            return module.weight, modules[f"{parent}.o_proj"].weight
    raise UnsupportedModel(f"{name}: its blocks have no v_proj and o_proj, so copying scores cannot be computed")


@torch.inference_mode()
def copying_scores(model: PreTrainedModel) -> np.ndarray:
    """Copying score of every head, from the weights alone: shape (blocks, heads), from -1 (never) to 1 (always).

    The gains of the norms before attention and before the unembedding are part of the maps; their division by the length and
    the blocks between are not. UnsupportedModel for a model without separate value and output projections.
    """
    config, blocks, name = decoder_config(model), decoder_blocks(model), type(model).__name__
    projections = [_weights(block, name) for block in blocks]
    heads = config.num_attention_heads
    groups = heads // getattr(config, "num_key_value_heads", heads)
    embed = model.get_input_embeddings().weight.double()
    unembed = model.get_output_embeddings().weight.double() * _gain(getattr(model, model.base_model_prefix).norm)
    # The eigenvalues of E W_V W_O U, up to zeros, are those of W_V (U E) W_O taken the other way round.
    inner = embed.T @ unembed
    scores = np.zeros((len(blocks), heads))
    for place, (block, weights) in enumerate(zip(blocks, projections, strict=True)):
        value, output = (w.double() for w in weights)
        value = value * _gain(block.input_layernorm)
        width = output.shape[1] // heads
        for head in range(heads):
            group = head // groups
            v, o = value[group * width : (group + 1) * width], output[:, head * width : (head + 1) * width]
            eigenvalues = torch.linalg.eigvals(v @ inner @ o)
            scores[place, head] = float(eigenvalues.real.sum() / eigenvalues.abs().sum())
    return scores


def _gain(norm: torch.nn.Module) -> torch.Tensor:
    gain = norm.weight.double()
    # Gemma keeps the gain's difference from 1.
    return 1 + gain if type(norm).__name__.startswith("Gemma") else gain
