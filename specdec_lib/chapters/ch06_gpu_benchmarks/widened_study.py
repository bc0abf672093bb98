"""One pair of wide models measured from end to end: step costs, rates by task, agreement, compared with transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from specdec_lib.chapters.ch06_gpu_benchmarks import kernels, pass_times, speedups
from specdec_lib.chapters.ch06_gpu_benchmarks.hardware import Machine
from specdec_lib.chapters.ch06_gpu_benchmarks.widened_pair import model_bytes
from specdec_lib.decoding import attention
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.runtime import WIDTHS, Runtime
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments import input_guided, pass_costs
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import record_prompts, run_again
from specdec_lib.experiments.tasks import load_task
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import PLAIN, compared_in

#: Parts of the study, in the order in which they are measured.
PARTS = ("steps", "kernels", "speedups", "peers", "width")
#: Passes timed at each width by a runtime that records none; their 99th percentile is about the largest.
EAGER_REPEATS = 20
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
    few = min(plan.step_repeats, EAGER_REPEATS)
    rows = [
        row
        for runtime in plan.runtimes
        for row in pass_costs.step_times(
            pair.target, plan.context, runtime, WIDTHS, plan.step_repeats if runtime.endswith("graph") else few
        )
    ]
    rows += pass_times.transformers_step_times(pair.target, plan.context, WIDTHS, few)
    return pass_times.beside_roofline(rows, pair.target, machine)


def with_cudnn(pair: ModelPair, plan: Plan) -> list[dict[str, Any]]:
    """Step times of two widths where cuDNN's attention may be chosen, for each runtime; nothing is measured on a
    CPU."""
    if pair.target.device.type != "cuda":
        return []
    with attention.backends(pair.target.device, cudnn=True):
        rows = [
            row
            for runtime in plan.runtimes
            for row in pass_costs.step_times(pair.target, plan.context, runtime, (1, 32), EAGER_REPEATS)
        ]
        chosen = kernels.attention_choices(pair.target)
    return [{**row, "attention": chosen} for row in rows]


def draft_ms(pair: ModelPair, plan: Plan) -> float:
    """Milliseconds of the draft model's pass over one token, under the plan's runtime."""
    return pass_costs.step_times(pair.draft, plan.context, plan.runtime, (1,), plan.step_repeats)[0]["ms"]


def fitted(plan: Plan, pair: ModelPair, prompts: Sequence[Prompt]) -> Plan:
    """The plan with the capacity that its prompts and context need: a pass in place attends over all of it."""
    longest = max(
        sum(len(pair.tokenizer(turn)["input_ids"]) + 32 + plan.max_new_tokens for turn in prompt.turns)
        for prompt in prompts
    )
    return replace(plan, capacity=-(-max(longest, plan.context) // 64) * 64)


def runtimes(pair: ModelPair, plan: Plan) -> dict[str, Runtime]:
    """How the passes of target and draft model are run, as arguments of
    :func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.measure`; empty for eager passes."""
    if plan.runtime == "eager":
        return {}
    return {
        "runtime": Runtime(pair.target, plan.capacity, plan.runtime),
        "draft_runtime": Runtime(pair.draft, plan.capacity, plan.runtime, (1, 2, 4)),
    }


def through_one_width(pair: ModelPair, prompts: Sequence[Prompt], plan: Plan) -> list[dict[str, Any]]:
    """Greedy outputs of plain decoding and of chains of drafts, every pass of one width, compared with those of width 1.

    Returns
    -------
    list of dict
        As :func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.divergences`, with ``reference``: ``"width 1"`` for what is
        compared
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


class _Over(Exception):
    """No part may begin any more."""


def study(
    pair: ModelPair,
    plan: Plan,
    machine: Machine,
    say: Callable[[str], None] = lambda text: None,
    only: Sequence[str] = PARTS,
    into: dict[str, Any] | None = None,
    keep: Callable[[], None] = lambda: None,
    begin: Callable[[], bool] = lambda: True,
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
    only : sequence of str
        Of :data:`PARTS`.
    into : dict, optional
        Filled with the result as it grows, so that an interruption leaves what was measured.
    keep : callable
        Called after each part.
    begin : callable
        Whether another part may begin; those that may not are named in the result.

    Returns
    -------
    dict
        JSON: ``shape``, ``dtype``, ``parameters``, ``bytes`` and ``draft_parameters``; ``machine``; ``plan``;
        ``attention`` (:func:`specdec_lib.chapters.ch06_gpu_benchmarks.kernels.attention_choices`); ``steps``
        (:func:`steps`), ``draft_ms`` and ``cudnn_steps``; ``products``, ``ceiling_ms`` by width and ``kernels``;
        ``speedups``, rows of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.table` with ``sampling``;
        ``divergences`` and ``one_width``; ``peers``; ``passes`` of the target by width; ``notes``; on a GPU
        ``peak_bytes``; ``parts`` that were measured. What was not is empty.

    Raises
    ------
    ValueError
        If ``only`` holds no part or an unknown one.
    """
    unknown = [name for name in only if name not in PARTS]
    if unknown or not only:
        raise ValueError(f"only holds {unknown[0] if unknown else None!r}; expected some of {', '.join(PARTS)}")
    target = pair.target
    prompts = comparison_prompts(plan.per_task, plan.seed)
    plan = fitted(plan, pair, prompts)
    card = target.device.type == "cuda"
    if card:
        torch.cuda.reset_peak_memory_stats()
    found: dict[str, Any] = {} if into is None else into
    found |= {
        "shape": pair.shape,
        "dtype": str(target.dtype).removeprefix("torch."),
        "parameters": target.num_parameters(),
        "bytes": model_bytes(target),
        "draft_parameters": pair.draft.num_parameters(),
        "machine": machine.as_dict(),
        "plan": {k: list(v) if isinstance(v, tuple) else v for k, v in vars(plan).items()},
        "attention": kernels.attention_choices(target),
        "steps": [], "draft_ms": None, "cudnn_steps": [], "products": [], "ceiling_ms": {}, "kernels": [],
        "speedups": [], "divergences": [], "peers": [], "one_width": [], "passes": {}, "notes": {}, "parts": [],
    }  # fmt: skip

    def done(part: str) -> None:
        found["notes"] = dict(pair.notes)
        found["parts"].append(part)
        if card:
            found["peak_bytes"] = torch.cuda.max_memory_allocated()
        keep()

    def wanted(part: str) -> bool:
        if part not in only:
            return False
        if not begin():
            raise _Over
        return True

    try:
        _measure(pair, plan, machine, prompts, found, say, wanted, done)
    except _Over:
        say(f"out of time; left out: {', '.join(part for part in only if part not in found['parts'])}")
    return found


def _measure(
    pair: ModelPair,
    plan: Plan,
    machine: Machine,
    prompts: Sequence[Prompt],
    found: dict[str, Any],
    say: Callable[[str], None],
    wanted: Callable[[str], bool],
    done: Callable[[str], None],
) -> None:
    target = pair.target
    if wanted("steps"):
        say("step costs")
        found["steps"] = steps(pair, plan, machine)
        found["draft_ms"] = draft_ms(pair, plan)
        found["cudnn_steps"] = with_cudnn(pair, plan)
        done("steps")
    if wanted("kernels"):
        say("products and kernels")
        found["products"] = kernels.product_times(target)
        found["ceiling_ms"] = {str(width): ms for width, ms in kernels.ceiling_ms(found["products"]).items()}
        found["kernels"] = kernels.kernels_of_pass(target, plan.context, plan.runtime)
        done("kernels")
    held = runtimes(pair, plan)
    runtime, draft_runtime = held.get("runtime"), held.get("draft_runtime")
    greedy = None
    if wanted("speedups"):
        say("heads and stores")
        pair.choose_heads(prompts)
        samplings = {"greedy": Sampling()}
        if plan.temperature:
            samplings["sampled"] = Sampling(plan.temperature, seed=plan.seed)
        for name, sampling in samplings.items():
            say(f"{name} outputs")
            recordings, timed = speedups.measure(
                pair, prompts, sampling, plan.max_new_tokens, plan.repeats, plan.methods, runtime, draft_runtime
            )
            found["speedups"] += [{"sampling": name, **row} for row in speedups.table(recordings, timed, TASKS)]
            if sampling.greedy:
                greedy = recordings
                # How close a choice was, by the pass that it was made in.
                found["divergences"] = speedups.divergences(
                    target, recordings, {method: runs[0] for method, runs in timed.items()}, runtime
                )
            done(f"speedups, {name}")
        found["parts"].append("speedups")
    if wanted("peers"):
        say("transformers' own methods")
        if greedy is None:
            greedy = record_prompts(target, pair.tokenizer, prompts, Sampling(), plan.max_new_tokens, runtime=runtime)
        found["peers"] = speedups.peers(pair, greedy, plan.repeats, runtime=runtime, draft_runtime=draft_runtime)
        done("peers")
    if runtime is not None:
        found["passes"] = {str(width): count for width, count in sorted(runtime.passes.items(), key=str)}
    if plan.one_width and wanted("width"):
        say("outputs through one width")
        found["one_width"] = through_one_width(pair, prompts[:: plan.per_task], plan)
        done("width")
