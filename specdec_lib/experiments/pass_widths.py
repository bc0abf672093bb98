"""How wide the passes of runs were and how much was drafted: what turns into time once a price is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_lib.decoding.results import Step
from specdec_lib.experiments.recorded_runs import Recording, Runs, select
from specdec_lib.methods import PLAIN, Method, method_of


def units(method: Method, step: Step) -> int:
    """What a step's drafting is priced by: the step itself, its drafted tokens or its levels (``Method.price``)."""
    return {"step": 1, "token": step.drafted, "level": step.tree.depth}[method.price]


def widths_by_task(
    recordings: Sequence[Recording], runs: Mapping[str, Runs], tasks: Sequence[str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """By task and method: ``tokens`` emitted after the prefill, ``units`` of drafting, and ``passes``, pairs of a width and
    the number of passes so wide.

    Plain decoding needs no entry: it takes one pass over one token for each of ``tokens``.
    """
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for task in tasks:
        own = table[task] = {}
        for name, done in runs.items():
            method = method_of(name)
            if name == PLAIN or method is None:
                continue
            steps = [s for run in select(done, recordings, lambda r, task=task: r.task == task) for s in run.steps]
            own[name] = {
                "tokens": sum(len(step.tokens) for step in steps),
                "units": sum(units(method, step) for step in steps),
                "passes": [list(pair) for pair in sorted(Counter(step.width for step in steps).items())],
            }
    return table
