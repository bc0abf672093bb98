"""A draft model that agrees with its target about as often as the pair of SpecDec++'s paper: the target with coarser weights.

Rates of discarded tokens and of passes need a draft model that agrees, and not one that is fast: seconds follow from the rates and
the paper's times of a pass.
"""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.served_models import decoder_config

#: Bits of a rounded weight, and how many neighbouring weights of an output share a scale.
BITS, GROUP = 3, 32
#: The share of the layers that are rounded, the middle ones: 2 of SmolLM2's 30. It was chosen on twelve conversations of the
#: choosing prompts. There a fixed K of 4 discards 0.35 tokens per token and takes 0.28 passes; with three layers rounded it is 0.49
#: and 0.31. The paper's figure 4 has 0.39 and 0.285 on Alpaca.
SHARE = 2 / 30


def rounded(weights: torch.Tensor, bits: int = BITS, group: int = GROUP) -> torch.Tensor:
    """Round each group of ``group`` neighbours of a row to the nearest of ``2 ** bits`` values, which are evenly spaced from the
    group's smallest to its largest; weights of shape (outputs, inputs)."""
    if weights.shape[-1] % group:
        raise ValueError(
            f"rows of {weights.shape[-1]} weights cannot be parted into groups of {group}; give a group that divides them"
        )
    groups = weights.detach().unflatten(-1, (-1, group))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    step = torch.where(step > 0, step, 1)  # of equal weights the smallest is exact
    return (low + step * ((groups - low) / step).round()).flatten(-2)


def rounded_layers(model: PreTrainedModel, share: float = SHARE) -> int:
    """How many layers of a model :func:`coarser` rounds."""
    count = decoder_config(model).num_hidden_layers
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; expected a share of the model's {count} layers, above 0 and at most 1")
    return max(1, round(share * count))


def coarser(model: PreTrainedModel, share: float = SHARE) -> PreTrainedModel:
    """A model whose middle layers have :func:`rounded` linear weights, ``share`` of all; it has all other weights in common with
    ``model``."""
    count, few = decoder_config(model).num_hidden_layers, rounded_layers(model, share)
    middle = slice((count - few) // 2, (count - few) // 2 + few)
    own = {id(weights) for weights in model.model.layers[middle].parameters()}
    draft = copy.deepcopy(model, {id(weights): weights for weights in model.parameters() if id(weights) not in own})
    for part in draft.model.layers[middle].modules():
        if isinstance(part, torch.nn.Linear):
            part.weight.data = rounded(part.weight)
    return draft
