"""Chapter 7: what passes and drafts of every system cost, and PLD+'s tables with the methods here."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from specdec_lib.experiments.costs.measured_passes import units
from specdec_lib.experiments.data.published_numbers import published
from specdec_lib.experiments.runs import results
from specdec_lib.experiments.runs.recorded_runs import Runs
from specdec_lib.experiments.statistics.intervals import Interval, bootstrap_interval
from specdec_lib.methods import method_of

#: Columns of a results table that count the units of what drafting costs (``Method.cost_per``).
UNITS = {"step": "passes", "token": "drafted", "level": "levels"}
#: Ends of the identifiers of PLD+'s published numbers, and the tasks here.
TASKS = {
    "summ": "summarisation",
    "code": "code editing",
    "short": "short text editing",
    "long": "long text editing",
    "turn": "conversation",
    "mt": "conversation",
}
#: What some methods are called in the papers' tables.
NAMES = {
    "REST-IG": "REST",
    "DReSD-IBG": "DReSD",
    "SpS": "SpecDec",
    "SpecDec, best K": "SpecDec",
    "SpecDec++, best setting": "SpecDec++",
}
#: Parts of Spec-Bench by their names on its leaderboard, and the tasks here.
PARTS = {
    "multi-turn conversation": "conversation",
    "translation": "translation",
    "summarization": "summarisation",
    "question answering": "question answering",
    "mathematics": "mathematics",
    "retrieval-augmented generation": "answers from texts",
}
_ROW = re.compile(r"pld-plus-t(1|2|4|11)-(?:7|13|33)b-[\w-]+-(summ|code|short|long|turn|mt)")


def drafting_costs(runs: Mapping[str, Runs], pass_seconds: float) -> dict[str, float]:
    """By name of a system: the measured cost of drafting for each unit, a pass over one token taking ``pass_seconds``.

    It is the median over the steps, which the first one, where loops are compiled, does not move.
    """
    found = {}
    for name, own in runs.items():
        if (method := method_of(name)) is not None:
            spent = [step.draft_seconds / count for run in own for step in run.steps if (count := units(method, step))]
            found[name] = median(spent) / pass_seconds if spent else 0.0
    return found


def with_cost(rows: pd.DataFrame, passes: Mapping[int, float], drafting: Mapping[str, float]) -> pd.DataFrame:
    """Rows with ``verified``, the tokens of all passes, and ``cost``, that of the passes and of their drafts; prefill left out.

    ``passes`` has the cost of a pass by width, 1 among them; beyond the widest one the slope of the last two goes on.
    ``drafting`` has by system the cost of a unit; where none is named it is free.
    """
    verified = rows.widths.map(lambda counts: int(np.arange(len(counts)) @ counts))
    return results.with_cost(
        rows.assign(verified=verified),
        passes,
        lambda name: {UNITS[method_of(name).cost_per]: drafting[name]} if name in drafting else {},
    )


def network_costs(names: Collection[str], cost: float) -> dict[str, float]:
    """The cost of drafting for each unit where a pass of a network that drafts costs ``cost`` and all else is free."""
    return {name: cost for name in names if (method := method_of(name)) and method.network}


def answers_read(story: Mapping[str, Any]) -> int | None:
    """How many answers heads read in the stage of their training that read most of them; None if their story does not say."""
    read, stage = [], story
    while stage:
        if "answers" in stage and "epoch_kept" in stage:
            read.append(round(min(1, stage["epoch_kept"]) * stage.get("answers_of_an_epoch", stage["answers"])))
        stage = stage.get("before", {})
    return max(read, default=None)


def latency_curve(spent: Mapping[int, Sequence[float]]) -> dict[int, Interval]:
    """Cost of a pass by width: its median time over that of a pass over one token, with its interval over the rounds.

    ``spent`` has by width, 1 among them, the time in each round (:func:`specdec_lib.experiments.costs.measured_passes.pass_times`).
    """
    times = {width: np.asarray(own) for width, own in spent.items()}

    def over_one(width: int) -> Interval:
        return bootstrap_interval(
            lambda rounds: np.median(times[width][rounds]) / np.median(times[1][rounds]), len(times[1])
        )

    return {width: over_one(width) for width in times}


def method_of_row(system: str, names: Collection[str]) -> str | None:
    """The method here that a published row is of: of the same name, or the first that begins with it and a number or a
    variant; None for one that is not here."""
    system = NAMES.get(system, system)
    if system in names:
        return system
    return next((name for name in names if re.match(rf"{re.escape(system)}[ -]", name)), None)


def speedups_of_paper() -> pd.DataFrame:
    """Published speed-ups of all systems in PLD+'s Tables 1, 2, 4 and 11, on the tasks that are also here: ``table``, ``task``,
    ``system`` (the paper's name), and ``low`` and ``high`` over the sizes of the paper's model."""
    rows = [
        {"table": int(match[1]), "task": TASKS[match[2]], "system": row["method"], "speedup": float(row["value"])}
        for key, row in published("pld_plus").items()
        if (match := _ROW.fullmatch(key)) and row["quantity"] == "speed-up" and row["value"] != "not available"
    ]
    groups = pd.DataFrame(rows).groupby(["table", "task", "system"], sort=False).speedup
    return groups.agg(low="min", high="max").reset_index()


def published_order(paper: pd.DataFrame, table: int, tasks: Collection[str]) -> pd.Series:
    """Systems of a table of the paper, the fastest first, with the mean of their published speed-ups on some tasks."""
    rows = paper[(paper.table == table) & paper.task.isin(tasks)]
    mean = ((rows.low + rows.high) / 2).groupby(rows.system, sort=False).mean()
    return mean.sort_values(ascending=False, kind="stable")


def with_ours(paper: pd.DataFrame, tables: Collection[int], here: Mapping[str, Mapping[str, Interval]]) -> pd.DataFrame:
    """One row per system of some tables: on each task its published range, as text, and our number, None without one.

    ``here`` has by method and task our number. The columns are ``System`` and for each task ``task`` and ``task, here``.
    """
    rows = []
    for system, own in paper[paper.table.isin(tables)].groupby("system", sort=False):
        row = {"System": system}
        for task, part in own.groupby("task", sort=False):
            low, high = f"{part.low.min():.2f}", f"{part.high.max():.2f}"
            row[task] = low if low == high else f"{low} to {high}"
            row[f"{task}, here"] = here.get(method_of_row(system, here), {}).get(task)
        rows.append(row)
    return pd.DataFrame(rows)
