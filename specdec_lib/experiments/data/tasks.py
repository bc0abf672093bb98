"""Tasks by name: the book's own prompts, which need no download, and the published sets."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from specdec_lib.decoding.checks import whole_number
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_sets.files import MissingData, Root
from specdec_lib.experiments.data.published_sets.sets import DATASETS
from specdec_lib.records import BadRecord

__all__ = ["BadRecord", "MissingData", "choosing_prompts", "load_task", "task_names"]


def task_names(subsets: bool = False) -> list[str]:
    """Return the names that :func:`load_task` knows: the book's, then the published sets, also with their subsets."""
    names = list(prompts.TASKS)
    for name, dataset in DATASETS.items():
        names.append(name)
        if subsets:
            names += [f"{name}/{subset}" for subset in dataset.subsets]
    return names


def load_task(
    name: str, root: str | os.PathLike[str] | None = None, limit: int | None = None, **options: Any
) -> list[Prompt]:
    """Return the prompts of a task, whose ids do not repeat: all of them or the first ``limit``.

    ``"spec-bench/summarization"`` means ``"spec-bench"`` with ``subset="summarization"``. The real data sets are in the folder
    ``root``, without it in that of the environment variable ``SPECDEC_DATASETS``. MissingData says which file is missing,
    where to get it, and how to name the folder; BadRecord names the file and line that break their format.

    The book's own tasks have the option ``half`` (``"report"`` or ``"choose"``). A published set has those of its row in
    :data:`~specdec_lib.experiments.data.published_sets.sets.DATASETS`, such as ``subset`` or ``style``, and ``seed``: with it the
    prompts are permuted before the limit cuts, by ``numpy.random.default_rng(seed).permutation``, which is also how Hugging Face
    ``datasets`` shuffles. DReSD's choice is ``limit=100, seed=42`` on the complete Code Alpaca.
    """
    if not isinstance(name, str):
        raise ValueError(f"name is {name!r}; expected the name of a task, such as 'humaneval'")
    if limit is not None:
        whole_number("limit", limit, meaning="0 or more, or None for no limit")
    base, _, subset = name.partition("/")
    if base not in DATASETS:
        return _load_own(name, limit, options)
    dataset = DATASETS[base]
    if "/" in name:
        if subset not in dataset.subsets:
            raise ValueError(
                f"task {name!r} is unknown; {base!r} has "
                f"{_listed(dataset.subsets) if dataset.subsets else 'no subsets'}"
            )
        if options.get("subset", subset) != subset:
            raise ValueError(f"subset is {options['subset']!r}, but task {name!r} names another")
        options["subset"] = subset
    _check_options(name, options, ["seed", *dataset.options])
    seed = options.pop("seed", None)
    if seed is not None:
        whole_number("seed", seed, meaning="0 or more, or None for the order of the file")
    task = f"{base}/{options['subset']}" if options.get("subset") else base
    found = iter(dataset.read(Root(task, root), **options))
    if seed is None:
        # at least one is read, so that a missing file is an error at limit 0 too
        chosen = list(islice(found, None if limit is None else max(limit, 1)))[:limit]
    else:
        everything = list(found)
        order = np.random.default_rng(seed).permutation(len(everything))
        chosen = [everything[i] for i in order[:limit]]
    for id, count in Counter(prompt.id for prompt in chosen).items():
        if count > 1:
            raise BadRecord(f"task {task!r}: the id {id!r} is in its file twice; get the file again")
    return chosen


def choosing_prompts(names: Sequence[str], limit: int) -> list[Prompt]:
    """Up to ``limit`` prompts of each task to choose or to train on: the choosing half of the book's own, another set's first."""
    half = {name: {"half": "choose"} if name in prompts.TASKS else {} for name in names}
    return [prompt for name in names for prompt in load_task(name, limit=limit, **half[name])]


def _load_own(name: str, limit: int | None, options: dict[str, Any]) -> list[Prompt]:
    if name not in prompts.TASKS:
        close = difflib.get_close_matches(name, task_names(subsets=True), n=1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"task {name!r} is unknown.{meant} There are {_listed(task_names())}")
    _check_options(name, options, ["half"])
    return prompts.load(options.get("half", "report"), (name,), limit)


def _check_options(name: str, options: dict[str, Any], accepted: list[str]) -> None:
    for option in options:
        if option not in accepted:
            raise TypeError(f"task {name!r} has no option {option!r}; expected {_listed(accepted)}")


def _listed(names) -> str:
    return ", ".join(map(repr, names))
