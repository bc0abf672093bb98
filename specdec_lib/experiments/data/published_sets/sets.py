"""The real data sets of the papers by name, which :func:`specdec_lib.experiments.data.tasks.load_task` reads as published.

None of their files is part of this project. ``book/datasets.md`` says where to get each, under which licence, and which
wording is a paper's and which is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_sets.chat import (
    CATEGORIES,
    MT_BENCH,
    PARTS,
    SPEC_BENCH,
    SPEC_BENCH_SUBSETS,
    alpaca,
    codealpaca,
    gsm8k,
    questions,
)
from specdec_lib.experiments.data.published_sets.code import (
    EDITS,
    HUMANEVAL,
    HUMANEVALPACK,
    QUIXBUGS,
    WIZARD,
    codeeditorbench,
    editeval,
    mbpp,
)
from specdec_lib.experiments.data.published_sets.files import DataFile, Root
from specdec_lib.experiments.data.published_sets.text import XATU_SOURCES, argrewrite, jfleg, quotesum, xatu
from specdec_lib.records import read_jsonl

Reader = Callable[..., Iterable[Prompt]]


@dataclass(frozen=True)
class DataSet:
    """The reader of a set, and the values that each option of the reader may have, the default first."""

    reader: Reader
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def subsets(self) -> tuple[str, ...]:
        """Its subsets, each also a task ``name/subset``."""
        return self.options.get("subset", (None,))[1:]

    def read(self, root: Root, **options: Any) -> Iterable[Prompt]:
        """Return the prompts. Raises ValueError for a value that an option cannot have, before any file is read."""
        chosen = {name: options.get(name, values[0]) for name, values in self.options.items()}
        for name, value in chosen.items():
            allowed = self.options[name]
            if (type(value), value) not in [(type(one), one) for one in allowed]:
                expected = "True or False" if True in allowed else f"one of {', '.join(map(repr, allowed))}"
                raise ValueError(f"{name} is {value!r}; expected {expected}")
        return self.reader(root, **chosen)


def _by_fields(
    files: Mapping[str | None, DataFile], id: str, turns: Mapping[str | None, str], answer: str, continued: str = ""
) -> Reader:
    """Return the reader of a set whose prompts are templates over the fields of a row: files by subset, turns by style.

    Prompts of the style ``continued`` are continued as they stand; all others are a user's turn.
    """

    def read(root: Root, subset: str | None = None, style: str | None = None) -> Iterator[Prompt]:
        for part in [subset] if subset else files:
            for row in read_jsonl(root.find(files[part])):
                turn = row.fill(turns[style])
                yield Prompt(row.fill(id), root.task, (turn,), style != continued, row.fill(answer))

    return read


# HumanEvalPack, QuixBugs and EditEval are people's edits of code, for methods that copy: they stand for the part of PLD+'s
# code editing whose records are not published. Their wording is ours; OctoPack's evaluation also shows a function's tests.
_BUG = {None: "Fix bugs in {entry_point}.\n\n{declaration}{buggy_solution}\n{test:strip}"}
_PROGRAM = {None: "Fix bugs in {name}.\n\n{docstring:strip}\n{buggy_program}"}
_COMPLETION = {
    "rest": "{prompt}",
    "specdec++": WIZARD,
}  # as their released codes ask, SpecDec++'s in data/gen_dataset.py
DATASETS = {
    "humaneval": DataSet(
        _by_fields({None: HUMANEVAL}, "{task_id}", _COMPLETION, "{canonical_solution}", continued="rest"),
        {"style": ("rest", "specdec++")},
    ),
    "mt-bench": DataSet(partial(questions, MT_BENCH, CATEGORIES), {"subset": (None, *CATEGORIES)}),
    "spec-bench": DataSet(partial(questions, SPEC_BENCH, PARTS), {"subset": (None, *SPEC_BENCH_SUBSETS)}),
    "gsm8k": DataSet(gsm8k),
    "alpaca": DataSet(alpaca),
    "codealpaca": DataSet(codealpaca),
    "codeeditorbench": DataSet(codeeditorbench, {"subset": (None, *EDITS)}),
    "xatu": DataSet(xatu, {"subset": (None, *XATU_SOURCES[:3])}),
    "argrewrite": DataSet(argrewrite),
    "quotesum": DataSet(quotesum, {"distinct": (False, True)}),
    "humanevalpack": DataSet(
        _by_fields(HUMANEVALPACK, "{task_id}", _BUG, "{declaration}{canonical_solution}"),
        {"subset": (None, *HUMANEVALPACK)},
    ),
    "quixbugs": DataSet(_by_fields({None: QUIXBUGS}, "{name}", _PROGRAM, "{solution}")),
    "editeval": DataSet(editeval),
    "jfleg": DataSet(jfleg),
    "mbpp": DataSet(mbpp),
}
"""The real sets by task name."""
