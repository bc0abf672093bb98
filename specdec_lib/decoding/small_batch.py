"""Products for passes over a few tokens on a CPU: they cost about what reading the weights costs.

On some processors MKL, which ``torch.nn.Linear`` calls, brings the weights into another order in every call, so that a pass over
two tokens takes much longer than one over a single token. Here a row of weights is read once for four rows of states, as it lies
in memory: nothing is packed, so nothing can differ from the weights that the model shows. Where MKL is the faster of the two, which
:func:`product_is_faster` measures, torch computes everything.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from specdec_lib.decoding.compiled import compiled
from specdec_lib.decoding.served_models import is_compiled

#: Rows of states up to which this product is as fast as MKL's, on processors where it is the faster one.
ROWS = 40
#: Bytes of the weights from which on a model is served: the products of a smaller one take less time than their calls.
SMALLEST = 2**23
#: Weights below which a thread is not worth its start.
SHARE = 2**18
#: Rows of weights that meet each four rows of states in turn.
BLOCK = 4
#: Share of torch's time below which this product is taken; near 1 noise would decide.
CLEARLY = 0.9
_MEASURING = Lock()


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
    """``states`` times ``weight`` transposed, in float32 and on the processor.

    Parameters
    ----------
    states : float32 tensor of shape (m, k)
    weight : float32 tensor of shape (n, k)
        Both contiguous.

    Returns
    -------
    float32 tensor of shape (m, n)

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.small_batch import product
    >>> states, weight = torch.randn(3, 8), torch.randn(5, 8)
    >>> torch.allclose(product(states, weight), states @ weight.T, atol=1e-5)
    True
    """
    out = torch.empty((len(states), len(weight)), dtype=torch.float32, device="cpu")
    arrays = states.numpy(), weight.numpy(), out.numpy()
    parts = min(torch.get_num_threads(), max(1, weight.numel() // SHARE))
    cuts = [len(weight) * part // parts for part in range(parts + 1)]
    others = [_pool(os.getpid()).submit(_multiply, *arrays, *cuts[part : part + 2]) for part in range(1, parts)]
    _multiply(*arrays, *cuts[:2])
    for other in others:
        other.result()
    return out


@cache
def product_is_faster(threads: int) -> bool:
    """Whether :func:`product` is clearly faster than torch's ``linear`` here; measured once for each number of threads.

    Parameters
    ----------
    threads : int
        The number of threads that torch computes with now.

    Returns
    -------
    bool

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.small_batch import product_is_faster
    >>> product_is_faster(torch.get_num_threads()) in (True, False)  # another answer on another processor
    True
    """
    ratios = []
    # One thread measures at a time, and without what its context makes of ``linear``.
    with _MEASURING, torch._C.DisableTorchFunction(), torch.autocast("cpu", enabled=False), torch.inference_mode():
        # A pass reads each weight once, so these are more than a core's own cache holds.
        weights = torch.ones(16, 1536, 576, dtype=torch.float32)
        for rows in (1, 4, 16):
            states = torch.ones(rows, 576, dtype=torch.float32)
            best = {product: float("inf"), linear: float("inf")}
            for _ in range(4):
                for compute in best:
                    began = time.perf_counter()
                    for weight in weights:
                        compute(states, weight)
                    best[compute] = min(best[compute], time.perf_counter() - began)
            ratios.append(best[product] / best[linear])
    return sum(ratios) / len(ratios) < CLEARLY


def _plain(tensor: Any) -> bool:
    """Whether a tensor is an array of float32 on the CPU, and not of a type that computes in its own way."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
    )


def _product(input: Any, weight: Any, bias: Any = None) -> torch.Tensor | None:
    """What ``linear`` gives, by :func:`product`; None where it is torch's to compute."""
    if not (_plain(input) and _plain(weight) and (bias is None or _plain(bias))):
        return None
    width = weight.shape[-1]
    if (
        weight.ndim != 2
        or not input.ndim
        or input.shape[-1] != width
        or not 0 < input.numel() <= ROWS * width
        or not weight.is_contiguous()
        or (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (input, weight, bias)))
        or torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()
    ):
        return None
    rows = input.detach().reshape(-1, width).contiguous()
    out = product(rows, weight.detach()).view(*input.shape[:-1], len(weight))
    return out if bias is None else out.add_(bias.detach())


class SmallBatchLinear(TorchFunctionMode):
    """Within this context, and this thread, ``torch.nn.functional.linear`` of a few rows of states goes by :func:`product`.

    This holds in float32, on the CPU and without gradients; torch computes everything else. The model itself is not changed, so its
    hooks, adapters and quantised weights work as usual.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.small_batch import SmallBatchLinear
    >>> layer, states = torch.nn.Linear(8, 5), torch.randn(3, 8)
    >>> with torch.inference_mode(), SmallBatchLinear():
    ...     out = layer(states)
    >>> torch.allclose(out, layer(states), atol=1e-5)
    True
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is linear:
            out = _product(*args, **(kwargs or {}))
            if out is not None:
                return out
        return func(*args, **(kwargs or {}))


def fits_small_batch(model: PreTrainedModel) -> bool:
    """Whether a model's passes can go by :class:`SmallBatchLinear`: float32 on the CPU, not tiny, and not compiled.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    bool

    Examples
    --------
    >>> from specdec_lib.decoding.small_batch import fits_small_batch
    >>> fits_small_batch(model), fits_small_batch(draft)
    (True, False)
    """
    weights = model.get_input_embeddings().weight
    if weights.device.type != "cpu" or weights.dtype != torch.float32 or is_compiled(model):
        return False
    return sum(parameter.nbytes for parameter in model.parameters()) >= SMALLEST
