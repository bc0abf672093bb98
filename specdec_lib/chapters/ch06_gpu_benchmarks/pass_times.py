"""What a verify step costs by its width: time of the target's pass over a draft, for each way of running it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache

from specdec_lib.chapters.ch06_gpu_benchmarks.hardware import Machine, Work, roofline, step_work
from specdec_lib.decoding import attention
from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.runtime import WIDTHS, Runtime
from specdec_lib.decoding.served_models import vocabulary_size
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import EMPTY, DraftTree

#: Ways of running a pass: those of :class:`specdec_lib.decoding.runtime.Runtime`, and without one.
RUNTIMES = ("eager", "static", "compiled", "graph", "compiled-graph")
#: Passes before the first that is timed, seconds, on a GPU, whose clock is low after idle time.
WARM_SECONDS = 0.3


def chain_of(model: PreTrainedModel, count: int) -> list[int]:
    """Tokens that depend on nothing but how many they are."""
    size = vocabulary_size(model)
    return [(7 * i + 3) % size for i in range(count)]


def _warm(device: torch.device, run: Callable[[], Any]) -> None:
    if device.type == "cuda":
        began = time.perf_counter()
        while time.perf_counter() - began < WARM_SECONDS:
            run()
            torch.cuda.synchronize(device)


def _summary(spent: Sequence[float]) -> dict[str, float]:
    return {
        "samples": len(spent),
        "ms": float(np.median(spent)),
        "ms_low": float(np.percentile(spent, 10)),
        "ms_high": float(np.percentile(spent, 90)),
        "ms_p99": float(np.percentile(spent, 99)),
    }


@torch.inference_mode()
def step_times(
    model: PreTrainedModel,
    context: int,
    runtime: str = "eager",
    widths: Sequence[int] = WIDTHS,
    repeats: int = 20,
    capture: Capture = Capture(),
    capacity: int | None = None,
) -> list[dict[str, Any]]:
    """Time the target's pass over chains of draft tokens after ``context`` committed tokens, under one of
    :data:`RUNTIMES`; ValueError if it cannot be had here.

    Gives for each width ``slots`` that its keys take, those that are masked included, ``samples``, the median ``ms``,
    ``ms_low`` and ``ms_high`` (10th and 90th percentile) and ``ms_p99``, the device's own time on a GPU. Three passes
    go before those that are timed. The ``capacity`` of a runtime with buffers in place is the context by default.
    """
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime is {runtime!r}; expected one of {', '.join(RUNTIMES)}")
    held = None if runtime == "eager" else Runtime(model, capacity or context, runtime, widths)
    rows = []
    with Target(model, context, capture, context + max(widths), held) as target:
        clock = clock_of(target.devices)
        target.extend(chain_of(model, context))
        _warm(target.device, lambda: target.verify(5, EMPTY))
        for width in widths:
            tree, marks = DraftTree.chain(chain_of(model, width - 1)), []
            slots = context + width if held is None else held.extent_for(context + width)
            for _ in range(repeats + 3):
                began = clock.mark()
                target.verify(5, tree)
                marks.append((began, clock.mark()))
            clock.settle()
            spent = [1e3 * clock.seconds(*pair) for pair in marks[3:]]
            rows.append({"runtime": runtime, "width": width, "slots": slots, **_summary(spent)})
    return rows


@torch.inference_mode()
def transformers_step_times(
    model: PreTrainedModel, context: int, widths: Sequence[int] = WIDTHS, repeats: int = 20
) -> list[dict[str, Any]]:
    """The same passes by the model's own forward with transformers' growing cache, cut back after each.

    The attention kernels are chosen as for our passes (:func:`specdec_lib.decoding.attention.backends`).

    Returns
    -------
    list of dict
        As :func:`step_times`, the runtime being ``"transformers"``.
    """
    with attention.backends(model.get_input_embeddings().weight.device):
        return _transformers_step_times(model, context, widths, repeats)


def _transformers_step_times(
    model: PreTrainedModel, context: int, widths: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    device = model.get_input_embeddings().weight.device
    clock, rows = clock_of({device}), []
    cache = DynamicCache(config=model.config)
    model(torch.tensor([chain_of(model, context)], device=device), past_key_values=cache, use_cache=True)
    for width in widths:
        ids, marks = torch.tensor([chain_of(model, width)], device=device), []
        for _ in range(repeats + 3):
            began = clock.mark()
            model(ids, past_key_values=cache, use_cache=True)
            marks.append((began, clock.mark()))
            cache.crop(-width)
        clock.settle()
        spent = [1e3 * clock.seconds(*pair) for pair in marks[3:]]
        rows.append({"runtime": "transformers", "width": width, "slots": context + width, **_summary(spent)})
    return rows


def _work(model: PreTrainedModel, width: int, context: int) -> Work:
    if isinstance(model.config, LlamaConfig):
        return step_work(model.config, width, context, model.dtype)
    embedding = model.get_input_embeddings().weight
    tied = embedding is getattr(model.get_output_embeddings(), "weight", None)
    read = sum(p.numel() for p in model.parameters()) - (0 if tied else embedding.numel())
    return Work(read * model.dtype.itemsize, 2 * width * read)


def beside_roofline(
    rows: Sequence[dict[str, Any]], model: PreTrainedModel, context: int, machine: Machine
) -> list[dict[str, Any]]:
    """Rows of :func:`step_times` with ``bound_ms``, the least time that the machine's bandwidth and matrix rate allow,
    ``bandwidth_fraction`` (bytes of the step over its time, as a share of the bandwidth) and ``ratio`` to the same
    runtime's narrowest width.

    The machine is measured in the same run, in the model's type. Outside of the Llama family the keys and values and
    the products of attention are left out of the bound. The bound counts the keys of the
    context and the step; what a pass in place reads beyond them is its own cost.
    """
    first: dict[str, float] = {}
    found = []
    for row in rows:
        work = _work(model, row["width"], context)
        bound = roofline(work.bytes, work.flops, machine.bandwidth.best, machine.matrix_rate.best)
        first.setdefault(row["runtime"], row["ms"])
        found.append(
            {
                **row,
                "bound_ms": 1e3 * bound,
                "bandwidth_fraction": work.bytes / (1e-3 * row["ms"]) / machine.bandwidth.best,
                "ratio": row["ms"] / first[row["runtime"]],
            }
        )
    return found
