"""Linear layers whose weights lie in memory as they are multiplied fastest: on a processor, passes of 1 to 64 tokens.

A product of a few rows with a large matrix should cost what reading the matrix costs. The general product of MKL, which
``torch.nn.Linear`` calls, brings the matrix into its own order in every call, so that a pass over four tokens takes twice as
long as one over a single token. Packed once for oneDNN, four rows cost about what one does. A single row goes through MKL's
product of matrix and vector. Where a layer has more outputs than inputs, that one reads the matrix column by column in half the
time that it takes row by row, so these weights are stored by columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

#: Number of rows that oneDNN chooses the order for.
ROWS = 16
#: Sizes of models that are packed, in bytes: a smaller one stays in the cache, a larger one is not kept a second time.
SMALLEST, LARGEST = 2**27, 2**32


class PackedLinear(nn.Linear):
    """A linear layer that multiplies by its packed weight where that is exact: float32, on the processor, without gradients."""

    def __getstate__(self) -> dict[str, Any]:
        """Without the packed weight, which can neither be copied nor pickled; a copy packs its own."""
        return self.__dict__ | {"_packed": None, "_packed_from": None}

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States of shape (..., in_features) to shape (..., out_features)."""
        weight = self.weight
        if torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad):
            return super().forward(states)
        if states.dtype != torch.float32 or states.device.type != "cpu" or weight.dtype != torch.float32:
            return super().forward(states)
        if states.numel() == self.in_features:
            return super().forward(states)
        seen = weight.data_ptr(), 0 if weight.is_inference() else weight._version
        if self._packed_from != seen:
            self._packed, self._packed_from = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS), seen
        return torch.ops.mkldnn._linear_pointwise(states, self._packed, self.bias, "none", [], "")


def can_pack(model: PreTrainedModel) -> bool:
    """Whether packing serves this model: float32 on the processor, too large for the cache and small enough to be kept twice."""
    weights = model.get_input_embeddings().weight
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return (
        torch.backends.mkldnn.is_available()
        and weights.device.type == "cpu"
        and weights.dtype == torch.float32
        and SMALLEST <= size <= LARGEST
    )


def pack(model: PreTrainedModel) -> PreTrainedModel:
    """Let the linear layers of a model multiply by packed weights; they are packed at their first pass.

    The parameters keep names, shapes and values; weights that change are packed again. Memory grows by the size of the linear
    layers.
    """
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = PackedLinear
            module._packed, module._packed_from = None, None
            if module.out_features > module.in_features:
                module.weight.data = module.weight.data.t().contiguous().t()
    return model
