"""What a pass is made of: which attention torch chooses, what its products could take, and the kernels that run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend
from torch.nn.functional import linear
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

from specdec_lib.chapters.ch06_gpu_benchmarks.hardware import timed
from specdec_lib.decoding import attention
from specdec_lib.decoding.runtime import WIDTHS, Runtime
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.experiments.pass_costs import chain_of

#: Weights that products go through in turn, bytes: on a GPU far beyond its cache. On a CPU, where the part is there to
#: be tried, a cache may hold them.
CUDA_WEIGHTS, CPU_WEIGHTS = 1 << 30, 1 << 24


def attention_choices(model: PreTrainedModel, width: int = 16, slots: int = 512) -> dict[str, str]:
    """The kernel that torch's attention chooses for a model's heads, ``"masked"`` and ``"unmasked"``.

    Asked as passes run (:func:`specdec_lib.decoding.attention.backends`): without cuDNN's, unless a context around this
    call allows it.
    """
    config, device = decoder_config(model), model.get_input_embeddings().weight.device
    heads = config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    # As our attention has them: query heads of a group are rows of one head.
    rows, shape = width * (heads // shared), {"dtype": model.dtype, "device": device}
    query, key = torch.empty(1, shared, rows, size, **shape), torch.empty(1, shared, slots, size, **shape)
    mask = torch.zeros(1, 1, rows, slots, **shape)
    with attention.backends(device):
        chosen = {"masked": torch._fused_sdp_choice(query, key, key, mask),
                  "unmasked": torch._fused_sdp_choice(query[:, :, :1], key, key)}  # fmt: skip
    return {name: SDPBackend(number).name for name, number in chosen.items()}


@torch.inference_mode()
def product_times(
    model: PreTrainedModel, widths: Sequence[int] = WIDTHS, repeats: int = 5, weight_bytes: int | None = None
) -> list[dict[str, Any]]:
    """What the products of a pass take by themselves, for each shape of the model's matrices and each width.

    The shapes' products alone, back to back, are the ceiling that a pass of the width can come near to.

    Returns
    -------
    list of dict
        ``rows`` and ``columns`` of the matrix, ``matrices`` of that shape in the model, ``width``, ``us`` of one
        product (best of ``repeats``) and ``bytes_per_second`` of its weights.
    """
    device = model.get_input_embeddings().weight.device
    shapes: dict[tuple[int, int], int] = {}
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            shape = tuple(module.weight.shape)
            shapes[shape] = shapes.get(shape, 0) + 1
    room = weight_bytes or (CUDA_WEIGHTS if device.type == "cuda" else CPU_WEIGHTS)
    found = []
    for (rows, columns), matrices in shapes.items():
        size = rows * columns * model.dtype.itemsize
        weights = [
            torch.empty(rows, columns, dtype=model.dtype, device=device).uniform_(-0.02, 0.02)
            for _ in range(max(2, room // size))
        ]
        for width in widths:
            states = torch.empty(width, columns, dtype=model.dtype, device=device).uniform_(-1, 1)

            def run(weights=weights, states=states) -> None:
                for each in weights:
                    linear(states, each)

            seconds = min(timed(run, device, repeats)) / len(weights)
            found.append({"rows": rows, "columns": columns, "matrices": matrices, "width": width, "us": 1e6 * seconds,
                          "bytes_per_second": size / seconds})  # fmt: skip
    return found


def ceiling_ms(products: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Milliseconds of all products of one pass by width, from :func:`product_times`."""
    total: dict[int, float] = {}
    for row in products:
        total[row["width"]] = total.get(row["width"], 0.0) + 1e-3 * row["us"] * row["matrices"]
    return total


@torch.inference_mode()
def kernels_of_pass(
    model: PreTrainedModel, context: int, runtime: str, widths: Sequence[int] = (1, 32), passes: int = 3, most: int = 24
) -> list[dict[str, Any]]:
    """The kernels of a pass by :mod:`torch.profiler`; on a CPU its operations.

    Returns
    -------
    list of dict
        By width: ``launches`` of a pass, and ``top``: name, launches and microseconds of those that take longest.
    """
    device = model.get_input_embeddings().weight.device
    card = device.type == "cuda"
    held = None if runtime == "eager" else Runtime(model, context, runtime, widths)
    found = []
    for width in widths:
        with Target(model, context, capacity=context + max(widths), runtime=held) as target:
            target.extend(chain_of(model, context))
            tree = DraftTree.chain(chain_of(model, width - 1))
            for _ in range(3):
                target.verify(5, tree)
            with profile(activities=[ProfilerActivity.CUDA if card else ProfilerActivity.CPU]) as seen:
                for _ in range(passes):
                    target.verify(5, tree)
                if card:
                    torch.cuda.synchronize(device)
        spent = [
            (event.key[:90], event.count / passes,
             (event.self_device_time_total if card else event.self_cpu_time_total) / passes)
            for event in seen.key_averages()
        ]  # fmt: skip
        found.append({
            "runtime": runtime, "width": width, "launches": sum(count for _, count, _ in spent),
            "top": [list(row) for row in sorted(spent, key=lambda row: -row[2])[:most]],
        })  # fmt: skip
    return found
