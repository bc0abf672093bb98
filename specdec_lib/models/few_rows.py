"""Linear layers for passes over a few tokens on a processor: their products cost about what reading the weights costs.

MKL, which ``torch.nn.Linear`` calls, brings the weights into another order in every call, so that a pass over two tokens takes
much longer than one over a single token. Here a row of weights is read once for four rows of states. From :data:`ROWS` rows on
weights that are packed once for oneDNN are multiplied faster.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from specdec_lib.decoding.compiled import compiled

#: From so many rows on oneDNN's product is as fast, sooner with AVX-512; it orders the weights for :data:`PACKED_FOR`.
ROWS, PACKED_FOR = 4 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 17, 16
#: Bytes of models that are served: products of a smaller one take less time than their calls, a larger one is not kept twice.
SMALLEST, LARGEST = 2**23, 2**32
#: Weights below which a thread is not worth its start.
SHARE = 2**18
#: Rows of weights that meet each four rows of states in turn.
BLOCK = 4
#: Values of a weight that are compared at each use with those that were packed: an edit of ``weight.data`` leaves no other trace.
WATCHED = 64


@partial(compiled, fastmath={"reassoc", "contract", "nsz"})
def _multiply(states, weight, out, first, last):
    """Columns ``first`` to ``last`` of ``out``, (m, n), from ``states``, (m, k), and ``weight``, (n, k), all of float32."""
    rows, width = states.shape
    for top in range(first, last, BLOCK):
        columns = range(top, min(top + BLOCK, last))
        for row in range(0, rows - 3, 4):
            one, two, three, four = states[row], states[row + 1], states[row + 2], states[row + 3]
            for column in columns:
                weights = weight[column]
                a = b = c = d = np.float32(0)
                for place in range(width):
                    a += weights[place] * one[place]
                    b += weights[place] * two[place]
                    c += weights[place] * three[place]
                    d += weights[place] * four[place]
                out[row, column], out[row + 1, column], out[row + 2, column], out[row + 3, column] = a, b, c, d
        for row in range(rows - rows % 4, rows):
            for column in columns:
                a = np.float32(0)
                for place in range(width):
                    a += weight[column, place] * states[row, place]
                out[row, column] = a


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Threads of a process: a copy of it begins without them."""
    return ThreadPoolExecutor(os.cpu_count())


def product(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``states`` times ``weight`` transposed, (m, k) by (n, k), both contiguous, in float32 and on the processor."""
    out = torch.empty(len(states), len(weight))
    arrays = states.numpy(), weight.numpy(), out.numpy()
    parts = min(torch.get_num_threads(), max(1, weight.numel() // SHARE))
    cuts = [len(weight) * part // parts for part in range(parts + 1)]
    others = [_pool(os.getpid()).submit(_multiply, *arrays, *cuts[part : part + 2]) for part in range(1, parts)]
    _multiply(*arrays, *cuts[:2])
    for other in others:
        other.result()
    return out


class FewRows(nn.Linear):
    """A linear layer that multiplies by :func:`product` or a packed weight: in float32, on the processor, without gradients."""

    def __getstate__(self) -> dict[str, Any]:
        """Without the packed weight, which can neither be copied nor pickled; a copy packs its own."""
        return self.__dict__ | {"_packed": None}

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if (
            {states.dtype, weight.dtype} != {torch.float32}
            or states.device.type != "cpu"
            or torch.compiler.is_compiling()
            or (torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad))
        ):
            return super().forward(states)
        if states.numel() < ROWS * self.in_features and weight.is_contiguous():
            rows = states.detach().reshape(-1, self.in_features).contiguous()
            out = product(rows, weight.detach()).view(*states.shape[:-1], len(weight))
            return out if self.bias is None else out.add_(self.bias.detach())
        seen = weight.data_ptr(), 0 if weight.is_inference() else weight._version
        if self._packed is None or self._packed[0] != seen or not torch.equal(*self._packed[1:3]):
            watched = weight.detach().flatten()[:: max(1, weight.numel() // WATCHED)]
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_FOR)
            self._packed = seen, watched, watched.clone(), packed
        return torch.ops.mkldnn._linear_pointwise(states, self._packed[3], self.bias, "none", [], "")


def serves(model: PreTrainedModel) -> bool:
    """Whether :class:`FewRows` serves a model: float32 on the processor, neither tiny nor too large to be kept twice."""
    weights = model.get_input_embeddings().weight
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    served = torch.backends.mkldnn.is_available() and SMALLEST <= size <= LARGEST
    return served and weights.device.type == "cpu" and weights.dtype == torch.float32


def serve(model: nn.Module) -> nn.Module:
    """Make the plain linear layers of a model :class:`FewRows`; parameters keep names and values."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FewRows
            module._packed = None
    return model
