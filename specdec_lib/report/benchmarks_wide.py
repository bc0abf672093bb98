"""Engine rows of ``make bench``: passes of a wide model by runtime, and speed-ups by method and task."""

from __future__ import annotations

import os
import re

import torch

from specdec_lib.decoding.runtime import Runtime
from specdec_lib.chapters.ch06_gpu_benchmarks import speedups
from specdec_lib.chapters.ch06_gpu_benchmarks.hardware import measure_machine
from specdec_lib.chapters.ch06_gpu_benchmarks.widened_pair import build_pair
from specdec_lib.chapters.ch06_gpu_benchmarks.widened_study import (
    TASKS,
    Plan,
    comparison_prompts,
    fitted,
    steps,
)
from specdec_lib.report.display import provenance

#: Shape of the rows on a CPU and on a GPU.
SHAPES = {"cpu": "0.35b", "cuda": "7b"}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower().replace("++", "_pp").replace("+", "_plus")).strip("_")


def _row(name: str, unit: str, value: float, p99: float | None, **more: object) -> dict:
    return {"name": name, "unit": unit, "value": value, "p99": p99, "peer": None, "peer_value": None, "ratio": None,
            "device": provenance.device_class(), **more}  # fmt: skip


def step_rows(found: list[dict], shape: str) -> list[dict]:
    """Rows of widths 1 and 32 for each runtime but transformers', whose own pass is their peer."""
    by = {(row["runtime"], row["width"]): row for row in found}
    rows = []
    for runtime in dict.fromkeys(row["runtime"] for row in found if row["runtime"] != "transformers"):
        for width in (1, 32):
            ours, theirs = by[runtime, width], by["transformers", width]
            ratio = theirs["ms"] / ours["ms"]
            rows.append(_row(f"step_ms_w{width}_{runtime}", "ms", ours["ms"], ours["ms_p99"], shape=shape) | {
                "peer": "transformers forward, dynamic cache", "peer_value": theirs["ms"], "ratio": ratio,
                "ratio_spread": [theirs["ms_low"] / ours["ms_high"], theirs["ms_high"] / ours["ms_low"]]})  # fmt: skip
        share = by[runtime, 1]["bandwidth_fraction"]
        rows.append(_row(f"bandwidth_fraction_w1_{runtime}", "share", share, None, shape=shape))
        ratio = by[runtime, 32]["ratio"]
        rows.append(_row(f"step_ratio_w32_w1_{runtime}", "ratio", ratio, None, shape=shape))
    return rows


def rows(quick: bool) -> list[dict]:
    """Measure a widened pocket pair on all cores; ``quick`` takes the pair as it is and few tokens."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = torch.get_num_threads()
    torch.set_num_threads(cores())
    try:
        shape = "" if quick else SHAPES[device]
        pair = build_pair(shape=shape, device=device, dtype="float32" if quick else "auto")
        machine = measure_machine(device, pair.target.dtype, 2 if quick else 7)
        mode = "graph" if device == "cuda" else "eager"
        plan = Plan(
            per_task=1,
            max_new_tokens=6 if quick else 32,
            repeats=1 if quick else 3,
            context=64 if quick else 256,
            step_repeats=2 if quick else 15,
            runtimes=("eager", "graph" if device == "cuda" else "static"),
            runtime=mode,
        )
        prompts = comparison_prompts(plan.per_task)
        plan = fitted(plan, pair, prompts)
        found = step_rows(steps(pair, plan, machine), pair.shape)
        pair.choose_heads(prompts)
        held = {}
        if mode != "eager":
            held = {"runtime": Runtime(pair.target, plan.capacity, mode),
                    "draft_runtime": Runtime(pair.draft, plan.capacity, mode, (1, 2, 4))}  # fmt: skip
        recordings, timed = speedups.measure(
            pair, prompts, None, plan.max_new_tokens, plan.repeats, plan.methods, **held
        )
        table = speedups.table(recordings, timed, TASKS)
        plain = {row["task"]: row["tokens_per_second"] for row in table if row["method"] == "plain"}
        for row in table:
            if row["method"] == "plain":
                continue
            name = f"speedup_{_slug(row['method'])}_{_slug(row['task'])}"
            found.append(_row(
                name, "× plain", row[speedups.DEFINITIONS[0]], None, shape=pair.shape, runtime=mode,
                low=row["speedup_low"], high=row["speedup_high"], tokens_per_s=row["tokens_per_second"],
                baseline_tokens_per_s=plain[row["task"]], new_tokens=plan.max_new_tokens))  # fmt: skip
        return found
    finally:
        torch.set_num_threads(threads)
