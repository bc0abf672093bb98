"""Compare many prompts with plain decoding, token for token.

A mismatch that rounding does not explain (:mod:`specdec_lib.experiments.checks.rounding`) is an error, and
``python -m specdec_lib losslessness`` ends with exit status 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from tqdm import tqdm

from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.generate import generate
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments.checks.rounding import SLACK, Judge, Mismatch
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.methods import METHODS, Unavailable, Workbench

__all__ = ["SLACK", "Judge", "choose_prompts", "compare_all", "lossless_names"]

#: What is counted of a method's outputs.
COUNTED = ("outputs", "tokens", "calls", "mismatches", "explained")


def choose_prompts(count: int) -> list[Prompt]:
    """``count`` prompts of the reporting half, the tasks in turn, as long as they last."""
    by_task = [prompts.load("report", (task,)) for task in prompts.TASKS]
    return [prompt for turn in zip_longest(*by_task) for prompt in turn if prompt is not None][:count]


def lossless_names() -> list[str]:
    """Names of the methods that claim to be lossless, with their variants."""
    return [name for row in METHODS.values() if row.exact != "lossy" for name in (row.name, *row.variants)]


def _made(bench: Workbench, names: Sequence[str]) -> tuple[dict[str, tuple[Drafter, str]], dict[str, str]]:
    """Drafters by name, each with its row's claim; and by name of those that these models have nothing for, what they
    lack."""
    drafters, missing = {}, {}
    for row in METHODS.values():
        for name, make in {row.name: row.make, **row.variants}.items():
            if name not in names:
                continue
            try:
                drafters[name] = make(bench), row.exact
            except Unavailable as error:
                missing[name] = str(error)
    return drafters, missing


def compare_all(
    bench: Workbench,
    asked: Sequence[tuple[str, Sequence[int]]],
    samplings: Sequence[Sampling],
    max_new_tokens: int,
    progress: bool = True,
    names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Decode every prompt, given by name and token ids, plainly and by some of :func:`lossless_names`, and compare.

    ``counts``: for each method and way of sampling, outputs and tokens compared, mismatches, and those that rounding explains;
    ``mismatches``: each as :class:`~specdec_lib.experiments.checks.rounding.Mismatch`; ``left_out``: by name of a method that these
    models have nothing for, what it lacks.
    """
    names = lossless_names() if names is None else names
    if unknown := [name for name in names if name not in lossless_names()]:
        raise ValueError(f"names has {unknown[0]!r}; expected some of {', '.join(lossless_names())}")
    target = bench.target
    drafters, missing = _made(bench, names)
    counts: dict[tuple[str, str], dict[str, Any]] = {}
    mismatches: list[Mismatch] = []
    judge = Judge(target)
    for name, ids in tqdm(asked, unit="prompt", disable=not progress):
        for sampling in samplings:
            expected = generate(target, ids, None, sampling, max_new_tokens).tokens
            for method, (drafter, exact) in drafters.items():
                if exact != "exact" and not sampling.greedy:
                    continue
                drafter.reset()  # each output is that of a cold drafter
                run = generate(target, ids, drafter, sampling, max_new_tokens)
                mismatch = judge(ids, expected, run.tokens, sampling, name, method)
                how = "greedy" if sampling.greedy else "sampled"
                row = counts.setdefault((method, how), {"method": method, "sampling": how} | dict.fromkeys(COUNTED, 0))
                row["outputs"] += 1
                row["tokens"] += len(expected)
                row["calls"] += len(run.steps)
                if mismatch is not None:
                    row["mismatches"] += 1
                    row["explained"] += int(mismatch.explained)
                    mismatches.append(mismatch)
    return {"counts": list(counts.values()), "mismatches": [asdict(m) for m in mismatches], "left_out": missing}
