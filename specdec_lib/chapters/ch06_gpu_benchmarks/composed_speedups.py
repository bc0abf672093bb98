"""Wall clock composed from parts: the steps of replayed runs at the measured cost of a pass of each width.

A widened model writes what the small one writes, so the small one's recordings tell every step of every method; the
wide model's passes, measured once for each width, tell what each step costs. Many prompts are then as cheap as a few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from specdec_lib.decoding.contract import Capture
from specdec_lib.experiments.metrics import pooled
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import Recording, Runs, record_prompts, runs_of, select
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import PLAIN, compared_in, method_of, states


def step_seconds(times: Mapping[int, float], width: int, padded: bool = False) -> float:
    """Time of a pass of any width from the measured ones, by straight lines between them; the last one's slope goes on.

    Parameters
    ----------
    times : mapping
        Seconds by width, two widths at least, 1 among them.
    width : int
    padded : bool
        A pass costs what the next measured width costs, as under a runtime with buffers in place.
    """
    known = sorted(times)
    if padded and width <= known[-1]:
        return times[next(each for each in known if each >= width)]
    if width >= known[-1]:
        low, high = known[-2:]
        return times[high] + (width - high) * max(times[high] - times[low], 0.0) / (high - low)
    return float(np.interp(width, known, [times[w] for w in known]))


def composed(
    runs: Runs,
    times: Mapping[int, float],
    draft_step: float = 0.0,
    draft_token: float = 0.0,
    padded: bool = False,
) -> float:
    """Seconds that the steps of replayed runs would take at measured costs, prefill left out.

    Parameters
    ----------
    runs : sequence of Generation
        Steps of any target with the same outputs, such as the small model's.
    times : mapping
        Seconds of a pass by width (:func:`step_seconds`).
    draft_step, draft_token : float
        Seconds to propose: for each step, and for each drafted token.
    padded : bool
        As for :func:`step_seconds`.
    """
    return sum(
        step_seconds(times, step.width, padded) + draft_step + draft_token * step.drafted
        for run in runs
        for step in run.steps
    )


def replayed(
    pair: ModelPair, prompts: Sequence[Prompt], max_new_tokens: int, methods: Sequence[str] | None = None
) -> tuple[list[Recording], dict[str, list]]:
    """Greedy recordings of the small target, and every method on them: replayed, or run for real where it cannot be.

    Parameters
    ----------
    pair : ModelPair
        Whose heads are chosen.
    prompts : sequence of Prompt
    max_new_tokens : int
    methods : sequence of str, optional
        By default all that the chapter compares, and plain decoding.

    Returns
    -------
    recordings : list of Recording
    runs : dict
        By method, one run a recording, in the state of the method's row.
    """
    methods = (PLAIN, *compared_in("06")) if methods is None else methods
    model = pair.small.target
    threads = torch.get_num_threads()
    if model.device.type == "cpu":
        torch.set_num_threads(1)  # steps of so small a model are too short to share
    try:
        drafters, capture = pair.small.drafters(methods), Capture()
        for drafter in drafters.values():
            capture = capture if drafter is None else capture | drafter.capture
        recordings = record_prompts(model, pair.tokenizer, prompts, None, max_new_tokens, capture)
        state = states(drafters)
        return recordings, {
            name: runs_of(model, recordings, drafter, state=state[name]) for name, drafter in drafters.items()
        }
    finally:
        torch.set_num_threads(threads)


def draft_costs(timed: Mapping[str, Sequence[Runs]]) -> dict[str, dict[str, float]]:
    """What a proposal cost in timed runs.

    Parameters
    ----------
    timed : mapping
        By method: for each repeat its runs (:func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.measure`).

    Returns
    -------
    dict
        By method the arguments of :func:`composed`, as the method's row says that its drafting is priced: by the steps, or by
        the drafted tokens.
    """
    found = {}
    for method, repeats in timed.items():
        runs = [run for repeat in repeats for run in repeat]
        spent = sum(step.draft_seconds for run in runs for step in run.steps)
        drafted = sum(step.drafted for run in runs for step in run.steps)
        steps = sum(len(run.steps) for run in runs)
        row = method_of(method)
        by_token = row is not None and row.price == "token" and drafted
        found[method] = {"draft_token": spent / drafted} if by_token else {"draft_step": spent / steps}
    return found


def composed_table(
    recordings: Sequence[Recording],
    runs: Mapping[str, Runs],
    times: Mapping[int, float],
    costs: Mapping[str, Mapping[str, float]],
    tasks: Sequence[str],
    padded: bool = False,
) -> list[dict[str, Any]]:
    """Speed-up of every method over plain decoding at measured costs, by task and over all.

    Returns
    -------
    list of dict
        ``method``, ``task``, ``speedup`` (ratio of pooled rates, prefill left out), ``tokens_per_forward`` and
        ``width``, the mean tokens of a pass. A task without a step after the prefill has no row.
    """
    rows = []
    for task in ["all", *tasks]:

        def keep(recording: Recording, task: str = task) -> bool:
            return task == "all" or recording.task == task

        plain = composed(select(runs["plain"], recordings, keep), times, padded=padded)
        for method, done in runs.items():
            kept = select(done, recordings, keep)
            stats = pooled(kept)
            if not stats["calls"]:
                continue  # every output ends with its first token, which the prefill gives
            drafted = sum(step.drafted for run in kept for step in run.steps)
            rows.append(
                {
                    "method": method,
                    "task": task,
                    "speedup": plain / composed(kept, times, padded=padded, **costs.get(method, {})),
                    "tokens_per_forward": stats["tokens_per_forward"],
                    "width": 1 + drafted / stats["calls"],
                }
            )
    return rows
