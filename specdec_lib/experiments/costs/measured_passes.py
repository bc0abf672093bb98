"""Latency of a pass by its width, measured in milliseconds, and the units of drafting whose time comes on top."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.checks import one_of
from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.results import Step
from specdec_lib.decoding.runtime import WIDTHS, Runtime
from specdec_lib.decoding.served_models import vocabulary_size
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.methods import Method

#: Ways of running a pass: those of :class:`specdec_lib.decoding.runtime.Runtime`, and without one.
RUNTIMES = ("eager", "static", "graph")
#: Passes before the first that is timed, seconds, on a GPU, whose clock is low after idle time.
WARM_SECONDS = 0.3


def slots_of(context: int, widths: Sequence[int]) -> int:
    """Slots of the keys in which the widest pass follows ``context`` tokens; a multiple of 8, as kernels want masks."""
    return -(-(context + max(widths)) // 8) * 8


def chain_of(model: PreTrainedModel, count: int) -> list[int]:
    """Tokens that depend on nothing but how many they are."""
    size = vocabulary_size(model)
    return [(7 * i + 3) % size for i in range(count)]


def warm(device: torch.device, run: Callable[[], Any]) -> None:
    """Run a pass again and again until a GPU's clock is up; nothing on a processor."""
    if device.type == "cuda":
        began = time.perf_counter()
        while time.perf_counter() - began < WARM_SECONDS:
            run()
            torch.cuda.synchronize(device)


@torch.inference_mode()
def pass_times(
    model: PreTrainedModel, context: int, runtime: str = "eager", widths: Sequence[int] = WIDTHS, repeats: int = 20
) -> dict[int, list[float]]:
    """Milliseconds of the target's pass over chains of draft tokens, by width, in the order of the rounds.

    Every pass attends over the same number of slots, whatever its width and runtime: those of :func:`slots_of`, of
    which the last are its own. The widths take turns, narrow ones first, so that what else the machine does falls on all
    of them; one round goes before those that are timed. On a GPU it is the device's own time.
    """
    one_of("runtime", runtime, RUNTIMES)
    widths, slots = sorted(widths), slots_of(context, widths)
    held = None if runtime == "eager" else Runtime(model, slots, runtime, widths)
    trees = {width: DraftTree.chain(chain_of(model, width - 1)) for width in widths}
    marks: dict[int, list[tuple]] = {width: [] for width in widths}
    with Target(model, slots, Capture(), slots, held) as target:
        clock = clock_of(target.devices)
        target.extend(chain_of(model, slots - widths[0]))
        warm(target.device, lambda: target.verify(5, EMPTY))
        for number in range(repeats + 1):
            if number and len(widths) > 1:
                target.extend(chain_of(model, widths[-1] - widths[0]))
            for width, tree in trees.items():
                target.truncate(slots - width)
                began = clock.mark()
                target.verify(5, tree)
                marks[width].append((began, clock.mark()))
        clock.settle()
        return {width: [1e3 * clock.seconds(*pair) for pair in own[1:]] for width, own in marks.items()}


def units(method: Method, step: Step) -> int:
    """Units that a step's drafting takes: the step itself, its drafted tokens or its levels (``Method.cost_per``)."""
    return {"step": 1, "token": step.drafted, "level": step.tree.levels}[method.cost_per]
