"""Rows of PLD+'s Tables 1, 2, 4 and 11 with the method and the task here that each is set beside."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from specdec_lib.experiments.published_numbers import published

#: Ends of the identifiers, and the tasks here.
TASKS = {
    "summ": "summarisation",
    "code": "code editing",
    "short": "short text editing",
    "long": "long text editing",
    "turn": "multi-turn",
    "mt": "multi-turn",
}
_ROW = re.compile(r"pld-plus-t(1|2|4|11)-(?:7|13|33)b-[\w-]+-(summ|code|short|long|turn|mt)")


def ours(method: str, names: Collection[str]) -> str | None:
    """The method here that a published row is of: of the same name, or the first that begins with it and a number or a
    variant; None for one that is not here."""
    if method == "SpS":
        method = "SpecDec"
    if method in names:
        return method
    return next((name for name in names if re.match(rf"{re.escape(method)}[ -]", name)), None)


def beside(names: Collection[str]) -> list[dict[str, Any]]:
    """Published speed-ups of all systems on the tasks that are also here.

    Parameters
    ----------
    names : collection of str
        Methods that were run.

    Returns
    -------
    list of dict
        ``table`` (int), ``sampled``, ``task``, ``system`` (the paper's name), ``method`` (ours, None for a system that is not
        here), ``low`` and ``high`` over the sizes of the paper's model, and ``sizes``, how many there are.
    """
    groups: dict[tuple[int, str, str], list[float]] = {}
    for key, row in published("pld_plus").items():
        match = _ROW.fullmatch(key)
        if match is None or row["quantity"] != "speed-up" or row["value"] == "not available":
            continue
        groups.setdefault((int(match[1]), TASKS[match[2]], row["method"]), []).append(float(row["value"]))
    return [
        {
            "table": table,
            "sampled": table == 2,
            "task": task,
            "system": system,
            "method": ours(system, names),
            "low": min(values),
            "high": max(values),
            "sizes": len(values),
        }
        for (table, task, system), values in groups.items()
    ]


def with_ours(
    rows: Sequence[dict[str, Any]], tables: Collection[int], here: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One row a system of some tables: on each task its published range, as text, and what we have, None without a number.

    Parameters
    ----------
    rows : sequence of dict
        Of :func:`beside`.
    tables : collection of int
    here : mapping
        By task, then by method: our number.

    Returns
    -------
    list of dict
        ``system``, ``method``, and for each task that the tables have ``task`` and ``task, here``.
    """
    chosen = [row for row in rows if row["table"] in tables]
    tasks = [task for task in here if any(row["task"] == task for row in chosen)]
    found: dict[str, dict[str, Any]] = {}
    for system, method in {row["system"]: row["method"] for row in chosen}.items():
        line = found[system] = {"system": system, "method": method}
        for task in tasks:
            own = [row for row in chosen if (row["system"], row["task"]) == (system, task)]
            ends = f"{min(row['low'] for row in own):.2f}", f"{max(row['high'] for row in own):.2f}"
            line[task] = ends[0] if ends[0] == ends[1] else " to ".join(ends)
            line[f"{task}, here"] = here[task].get(method)
    return list(found.values())


def neighbours(rows: Sequence[dict[str, Any]], table: int, tasks: Collection[str]) -> list[dict[str, Any]]:
    """Systems that follow one another in a paper's table, by the mean of their published speed-ups on some tasks.

    Returns
    -------
    list of dict
        ``first`` and ``second``, the paper's names, the faster one first; ``pair``, the methods here (None for one that is not
        here); ``published``, the ratio of the means.
    """
    means: dict[str, list[float]] = {}
    method: dict[str, str | None] = {}
    for row in rows:
        if row["table"] == table and row["task"] in tasks:
            means.setdefault(row["system"], []).append((row["low"] + row["high"]) / 2)
            method[row["system"]] = row["method"]
    mean = {system: sum(values) / len(values) for system, values in means.items()}
    order = sorted(mean, key=mean.__getitem__, reverse=True)
    return [
        {
            "first": first,
            "second": second,
            "pair": (method[first], method[second]),
            "published": mean[first] / mean[second],
        }
        for first, second in pairwise(order)
    ]
