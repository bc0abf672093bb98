"""One pair of wide models measured from end to end: step costs, rates by task, agreement, transformers beside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.runtime import WIDTHS, Runtime
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.chapters.ch06_gpu_benchmarks import speedups, pass_times
from specdec_lib.experiments import input_guided
from specdec_lib.chapters.ch06_gpu_benchmarks.hardware import Machine
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import record_prompts, run_again
from specdec_lib.experiments.tasks import load_task
from specdec_lib.chapters.ch06_gpu_benchmarks.widened_pair import model_bytes
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import PLAIN, compared_in

#: Tasks of the comparison: the five input-guided ones, and continuing a module, where there is little to copy.
TASKS = (*input_guided.TASKS, "completion")


def comparison_prompts(per_task: int, seed: int = 0) -> list[Prompt]:
    """``per_task`` held-out prompts of each of :data:`TASKS`."""
    last = load_task("code-completion", limit=per_task, seed=seed)
    return input_guided.mechanical_prompts(per_task, seed) + [replace(p, task="completion") for p in last]


@dataclass(frozen=True)
class Plan:
    """What is measured of one pair; a temperature of 0 leaves the sampled outputs out, a ``one_width`` of 0 the
    comparison through one width.

    ``context`` is committed before steps are timed; ``runtimes`` are those whose steps are timed, ``runtime`` the one
    that the methods run under, and ``capacity`` its longest prompt and output together.
    """

    per_task: int = 2
    max_new_tokens: int = 96
    repeats: int = 3
    temperature: float = 1.0
    context: int = 512
    step_repeats: int = 20
    runtimes: tuple[str, ...] = ("eager", "static")
    runtime: str = "eager"
    capacity: int = 1920
    one_width: int = 16
    methods: tuple[str, ...] = (PLAIN, *compared_in("06"))
    seed: int = 0


def steps(pair: ModelPair, plan: Plan, machine: Machine) -> list[dict[str, Any]]:
    """Step times of the target for each runtime, and of transformers' own pass."""
    rows = [
        row
        for runtime in plan.runtimes
        for row in pass_times.step_times(
            pair.target, plan.context, runtime, WIDTHS, plan.step_repeats, capacity=plan.capacity
        )
    ]
    rows += pass_times.transformers_step_times(pair.target, plan.context, WIDTHS, plan.step_repeats)
    return pass_times.beside_roofline(rows, pair.target, plan.context, machine)


def draft_ms(pair: ModelPair, plan: Plan) -> float:
    """Milliseconds of the draft model's pass over one token, under the plan's runtime."""
    return pass_times.step_times(
        pair.draft, plan.context, plan.runtime, (1,), plan.step_repeats, capacity=plan.capacity
    )[0]["ms"]


def fitted(plan: Plan, pair: ModelPair, prompts: Sequence[Prompt]) -> Plan:
    """The plan with the capacity that its prompts and context need: a pass in place attends over all of it."""
    longest = max(
        sum(len(pair.tokenizer(turn)["input_ids"]) + 32 + plan.max_new_tokens for turn in prompt.turns)
        for prompt in prompts
    )
    return replace(plan, capacity=-(-max(longest, plan.context) // 64) * 64)


def through_one_width(pair: ModelPair, prompts: Sequence[Prompt], plan: Plan) -> list[dict[str, Any]]:
    """Greedy outputs of plain decoding and of chains of drafts, every pass of one width, beside those of width 1.

    Returns
    -------
    list of dict
        As :func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.divergences`, with ``reference``: ``"width 1"`` for what is compared
        with plain decoding by passes over one token, ``"same width"`` for what is compared with plain decoding through
        the same width.
    """
    mode = "static" if plan.runtime == "eager" else plan.runtime
    wide = Runtime(pair.target, plan.capacity, mode, (plan.one_width,))
    narrow = Runtime(pair.target, plan.capacity, mode, (1,))
    asked = {"runtime": narrow}, {"runtime": wide}
    ones, same = (
        record_prompts(pair.target, pair.tokenizer, prompts, None, plan.max_new_tokens, Capture(), **how)
        for how in asked
    )
    # Prompt lookup drafts chains of any length up to what fits into the width with the root.
    drafter = pair.drafters(["PLD"], {"PLD": plan.one_width - 1})["PLD"]
    fast = run_again(pair.target, same, drafter, wide)
    plain = [recording.trace for recording in same]
    rows = speedups.divergences(pair.target, ones, {"plain": plain, "PLD": fast}, narrow)
    rows = [{**row, "reference": "width 1"} for row in rows]
    return rows + [
        {**row, "reference": "same width"} for row in speedups.divergences(pair.target, same, {"PLD": fast}, wide)
    ]


def study(
    pair: ModelPair, plan: Plan, machine: Machine, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Measure a pair.

    Parameters
    ----------
    pair : ModelPair
    plan : Plan
    machine : Machine
        Rates of the same run.
    say : callable
        Told what is measured next.

    Returns
    -------
    dict
        JSON: ``shape``, ``dtype``, ``parameters``, ``bytes`` and ``draft_parameters``; ``plan``; ``steps`` (:func:`steps`),
        ``draft_ms``; ``speedups``, rows of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.table` with ``sampling``;
        ``divergences`` and ``one_width``; ``peers``; ``passes`` of the target by width; ``notes``; on a GPU
        ``peak_bytes``.
    """
    target = pair.target
    prompts = comparison_prompts(plan.per_task, plan.seed)
    plan = fitted(plan, pair, prompts)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    say("step costs")
    found: dict[str, Any] = {
        "shape": pair.shape,
        "dtype": str(target.dtype).removeprefix("torch."),
        "parameters": target.num_parameters(),
        "bytes": model_bytes(target),
        "draft_parameters": pair.draft.num_parameters(),
        "plan": {k: list(v) if isinstance(v, tuple) else v for k, v in vars(plan).items()},
        "steps": steps(pair, plan, machine),
        "draft_ms": draft_ms(pair, plan),
    }
    say("heads and stores")
    pair.choose_heads(prompts)
    runtime = draft_runtime = None
    if plan.runtime != "eager":
        runtime = Runtime(target, plan.capacity, plan.runtime)
        draft_runtime = Runtime(pair.draft, plan.capacity, plan.runtime, (1, 2, 4))
    samplings = {"greedy": Sampling()}
    if plan.temperature:
        samplings["sampled"] = Sampling(plan.temperature, seed=plan.seed)
    rows: list[dict[str, Any]] = []
    for name, sampling in samplings.items():
        say(f"{name} outputs")
        recordings, timed = speedups.measure(
            pair, prompts, sampling, plan.max_new_tokens, plan.repeats, plan.methods, runtime, draft_runtime
        )
        rows += [{"sampling": name, **row} for row in speedups.table(recordings, timed, TASKS)]
        if sampling.greedy:
            greedy = recordings
            found["divergences"] = speedups.divergences(
                target, recordings, {method: runs[0] for method, runs in timed.items()}
            )
    found["speedups"] = rows
    say("transformers' own methods")
    found["peers"] = speedups.peers(pair, greedy, plan.repeats, runtime=runtime, draft_runtime=draft_runtime)
    if runtime is not None:
        found["passes"] = {str(width): count for width, count in sorted(runtime.passes.items(), key=str)}
    if plan.one_width:
        say("outputs through one width")
        found["one_width"] = through_one_width(pair, prompts[:: plan.per_task], plan)
    found["notes"] = {k: v for k, v in pair.notes.items()}
    if torch.cuda.is_available():
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
    return found
