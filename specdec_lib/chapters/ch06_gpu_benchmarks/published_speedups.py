"""The papers' tables of speed-ups, each row with the task, sampling and method here that it is compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specdec_lib.experiments.published_numbers import Priced, published
from specdec_lib.methods import published_as

#: Ends of the identifiers of PLD+'s tables, and the tasks here that they are compared with.
_TASKS = {
    "summ": "summarisation",
    "code": "code editing",
    "short": "short text editing",
    "long": "long text editing",
    "turn": "multi-turn",
}


#: Each paper's own method, by its key.
OWN = {"rest": "REST", "dresd": "DReSD", "pld_plus": "PLD+ (h)", "specdec_pp": "SpecDec++"}


class Beside(NamedTuple):
    """Where rows of a paper's table stand here; group 1 of ``pattern``, where there is one, is a key of the five
    input-guided tasks, and ``task`` is empty then."""

    paper: str
    pattern: str
    sampling: str
    task: str = ""


#: REST generates code and answers chats, DReSD code, SpecDec++ follows instructions: continuing a module and two turns
#: are the nearest here.
BESIDE = (
    Beside("rest", r"rest-t1-he-greedy-(?:7|13)b(?:-specdec)?", "greedy", "completion"),
    Beside("rest", r"rest-t1-he-nucleus-(?:7|13)b(?:-specdec)?", "sampled", "completion"),
    Beside("rest", r"rest-t1-mt-greedy-(?:7|13)b(?:-specdec)?", "greedy", "multi-turn"),
    Beside("rest", r"rest-t1-mt-nucleus-(?:7|13)b(?:-specdec)?", "sampled", "multi-turn"),
    Beside("dresd", r"dresd-best-speedup|dresd-rest-ig-speedup", "greedy", "completion"),
    Beside("dresd", r"dresd-mt-speedup|dresd-mt-rest-speedup", "greedy", "multi-turn"),
    Beside("pld_plus", r"pld-plus-t1-(?:7|13|33)b-\w+-(summ|code|short|long|turn)", "greedy"),
    Beside("pld_plus", r"pld-plus-t2-(?:7|13|33)b-\w+-(summ|code|short|long|turn)", "sampled"),
    Beside("pld_plus", r"pld-plus-t3-[\w-]+-(?:rest|pld|h|a)", "greedy", "summarisation"),
    Beside("specdec_pp", r"specdec-pp-(?:alpaca|humaneval|gsm8k)-(?:specdec-)?speedup", "sampled", "all"),
)


def named_prices(
    sampling: str, here: Sequence[Mapping[str, Any]], published: Mapping[Priced, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Rows for :func:`beside`: composed speed-ups with their sampling and the name of what steps were priced by.

    Parameters
    ----------
    sampling : str
    here : sequence of mapping
        At the prices of this machine.
    published : mapping
        By whose prices (:func:`specdec_lib.chapters.ch06_gpu_benchmarks.composed_speedups.at_published_prices`).
    """
    named = {"this machine": here} | {f"{curve.device} ({curve.source})": rows for curve, rows in published.items()}
    return [{"price": price, "sampling": sampling, **row} for price, rows in named.items() for row in rows]


def beside(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Published speed-ups with ours of the nearest task.

    Parameters
    ----------
    rows : sequence of mapping
        Of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.composed_speedups.composed_table`, with ``sampling`` and
        ``price``, the name of what steps were priced by.

    Returns
    -------
    list of dict
        ``paper``, ``where``, ``id``, ``setting``, ``method``, ``published``; ``task``, ``sampling`` and ``ours``, the
        speed-up here by price, empty where the task was not run. Methods that were not run and numbers that are not
        available are left out.
    """
    ours: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        ours.setdefault((row["sampling"], row["task"], row["method"]), {})[row["price"]] = row["speedup"]
    names = {row["method"] for row in rows}
    found = []
    for place in BESIDE:
        for key, row in published(place.paper).items():
            match = re.fullmatch(place.pattern, key)
            method = published_as(row["method"])
            if match is None or not row["quantity"].endswith("speed-up") or method not in names:
                continue
            if row["value"] == "not available":
                continue
            task = place.task or _TASKS[match[1]]
            found.append(
                {
                    "paper": place.paper,
                    "where": row["where"],
                    "id": key,
                    "setting": row["setting"],
                    "method": method,
                    "published": float(row["value"]),
                    "sampling": place.sampling,
                    "task": task,
                    "ours": ours.get((place.sampling, task, method), {}),
                }
            )
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """:func:`beside` by table, sampling, task and method: how many settings, their range, and ours by price."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in rows:
        key = (row["paper"], row["where"], row["sampling"], row["task"], row["method"])
        groups.setdefault(key, []).append(row)
    return [
        {
            "paper": paper,
            "where": where,
            "sampling": sampling,
            "task": task,
            "method": method,
            "settings": len(group),
            "published_low": min(row["published"] for row in group),
            "published_high": max(row["published"] for row in group),
            "ours": group[0]["ours"],
        }
        for (paper, where, sampling, task, method), group in groups.items()
    ]
