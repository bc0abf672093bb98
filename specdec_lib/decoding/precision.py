"""The computation of a model in half precision, done in float32 with the same weights."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

HALF = (torch.float16, torch.bfloat16)


def in_half(model: torch.nn.Module) -> bool:
    """Whether some of a model's weights are in half precision."""
    return any(weights.dtype in HALF for weights in model.parameters())


def _widened(value):
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALF else value
    return torch.float32 if value in HALF else value


class InFloat32(TorchDispatchMode):
    """What runs within computes in float32 where it would in half precision.

    Each operation gets its arguments in float32, a weight for the time of the operation alone, so that no second copy
    of the model is held. What remains of a difference between two computations is then none of half precision's
    rounding.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*tree_map(_widened, args), **tree_map(_widened, kwargs or {}))
