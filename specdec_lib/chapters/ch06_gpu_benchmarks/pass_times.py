"""What a verify step costs by its width: time of the target's pass over a draft, for each way of running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache

from specdec_lib.chapters.ch06_gpu_benchmarks.hardware import Machine, Work, roofline, step_work
from specdec_lib.decoding import attention
from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.runtime import WIDTHS, Runtime
from specdec_lib.decoding.served_models import cache_argument
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.experiments.pass_costs import chain_of, slots_of, summary, warm
from specdec_lib.experiments.statistics import Interval, ratio_of_means


@torch.inference_mode()
def width_ratios(
    model: PreTrainedModel, context: int, pairs: Sequence[tuple[int, int]], runtime: str = "eager", repeats: int = 20
) -> dict[tuple[int, int], Interval]:
    """Time of a pass over that of a narrower one, for each pair of widths, with intervals over the repeats.

    The widths are timed in turns, so that what else the machine does falls on all of them. ``context`` and ``runtime``
    are as for :func:`specdec_lib.experiments.pass_costs.step_times`.
    """
    widths = sorted({width for both in pairs for width in both})
    held = None if runtime == "eager" else Runtime(model, context, runtime, widths)
    marks: dict[int, list[tuple]] = {width: [] for width in widths}
    with Target(model, context, Capture(), context + max(widths), held) as target:
        clock = clock_of(target.devices)
        target.extend(chain_of(model, context))
        warm(target.device, lambda: target.verify(5, EMPTY))
        trees = {width: DraftTree.chain(chain_of(model, width - 1)) for width in widths}
        for _ in range(repeats + 2):
            for width, tree in trees.items():
                began = clock.mark()
                target.verify(5, tree)
                marks[width].append((began, clock.mark()))
        clock.settle()
        spent = {width: [clock.seconds(*pair) for pair in own[2:]] for width, own in marks.items()}
    return {(wide, narrow): ratio_of_means(spent[wide], spent[narrow]) for wide, narrow in pairs}


@torch.inference_mode()
def transformers_step_times(
    model: PreTrainedModel, context: int, widths: Sequence[int] = WIDTHS, repeats: int = 20
) -> list[dict[str, Any]]:
    """The same passes by the model's own forward with transformers' growing cache, cut back after each.

    The attention kernels are chosen as for our passes (:func:`specdec_lib.decoding.attention.backends`).

    Returns
    -------
    list of dict
        As :func:`specdec_lib.experiments.pass_costs.step_times`, the runtime being ``"transformers"``.
    """
    with attention.backends(model.get_input_embeddings().weight.device):
        return _transformers_step_times(model, context, widths, repeats)


def _transformers_step_times(
    model: PreTrainedModel, context: int, widths: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    device = model.get_input_embeddings().weight.device
    clock, rows = clock_of({device}), []
    cache, slots = DynamicCache(config=model.config), slots_of(context, widths)
    committed = slots - widths[0]
    over_cache = {cache_argument(model): cache, "use_cache": True}
    model(torch.tensor([chain_of(model, committed)], device=device), **over_cache)
    for width in widths:
        if committed > slots - width:
            cache.crop(slots - width - committed)
            committed = slots - width
        ids, marks = torch.tensor([chain_of(model, width)], device=device), []
        for _ in range(repeats + 3):
            began = clock.mark()
            model(ids, **over_cache)
            marks.append((began, clock.mark()))
            cache.crop(-width)
        clock.settle()
        spent = [1e3 * clock.seconds(*pair) for pair in marks[3:]]
        rows.append({"runtime": "transformers", "width": width, "slots": slots, **summary(spent)})
    return rows


def _work(model: PreTrainedModel, width: int, context: int) -> Work:
    if isinstance(model.config, LlamaConfig):
        return step_work(model.config, width, context, model.dtype)
    embedding = model.get_input_embeddings().weight
    tied = embedding is getattr(model.get_output_embeddings(), "weight", None)
    read = sum(p.numel() for p in model.parameters()) - (0 if tied else embedding.numel())
    return Work(read * model.dtype.itemsize, 2 * width * read)


def beside_roofline(rows: Sequence[dict[str, Any]], model: PreTrainedModel, machine: Machine) -> list[dict[str, Any]]:
    """Rows of :func:`specdec_lib.experiments.pass_costs.step_times` with ``bound_ms``, the least time that the machine's
    bandwidth and matrix rate allow, ``bandwidth_fraction`` (bytes of the step over its time, as a share of the bandwidth)
    and ``ratio`` to the same runtime's narrowest width.

    The machine is measured in the same run, in the model's type. Outside of the Llama family the keys and values and
    the products of attention are left out of the bound.
    """
    first: dict[str, float] = {}
    beside = []
    for row in rows:
        work = _work(model, row["width"], row["slots"] - row["width"])
        bound = roofline(work.bytes, work.flops, machine.bandwidth.best, machine.matrix_rate.best)
        first.setdefault(row["runtime"], row["ms"])
        beside.append(
            {
                **row,
                "bound_ms": 1e3 * bound,
                "bandwidth_fraction": work.bytes / (1e-3 * row["ms"]) / machine.bandwidth.best,
                "ratio": row["ms"] / first[row["runtime"]],
            }
        )
    return beside
