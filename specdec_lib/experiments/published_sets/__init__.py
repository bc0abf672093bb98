"""The real data sets of the papers, read in their published formats.

:data:`DATASETS` lists them. None of their files is part of this project; ``book/datasets.md`` tells where
each is had and under which licence. Use :func:`specdec_lib.experiments.tasks.load_task`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets import chat, code, editing, human_edits
from specdec_lib.experiments.published_sets.reading import BadRecord, MissingData, Root, choice

__all__ = ["DATASETS", "BadRecord", "DataSet", "MissingData", "Root"]


@dataclass(frozen=True)
class DataSet:
    """One set: what it is, its reader, and the values that each option of the reader may have, the default first."""

    about: str
    reader: Callable[..., Iterable[Prompt]]
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def subsets(self) -> tuple[str, ...]:
        """Its subsets, each also a task ``name/subset``."""
        return self.options.get("subset", (None,))[1:]

    def read(self, root: Root, **options: Any) -> Iterable[Prompt]:
        """Return the prompts. Raises ValueError for a value that an option cannot have, before any file is read."""
        chosen = {name: options.get(name, values[0]) for name, values in self.options.items()}
        for name, value in chosen.items():
            choice(name, value, self.options[name])
        return self.reader(root, **chosen)


DATASETS: dict[str, DataSet] = {
    "humaneval": DataSet(
        "Python functions to complete from their docstrings", code.humaneval, {"style": ("rest", "specdec++")}
    ),
    "mt-bench": DataSet(
        "questions of two turns in eight categories",
        chat.mt_bench,
        {"subset": (None, *chat.MT_BENCH_CATEGORIES), "style": ("chat", "dresd")},
    ),
    "spec-bench": DataSet(
        "six tasks: chat, translation, summarization, questions, mathematics, retrieved passages",
        chat.spec_bench,
        {"subset": (None, *chat.SPEC_BENCH_SUBSETS)},
    ),
    "gsm8k": DataSet(
        "school mathematics in words", chat.gsm8k, {"split": tuple(chat.GSM8K), "style": ("specdec++", "question")}
    ),
    "alpaca": DataSet("instructions", chat.alpaca, {"source": (None, *chat.ALPACA)}),
    "codealpaca": DataSet(
        "instructions about code", chat.codealpaca, {"style": ("dresd", "alpaca"), "source": (None, *chat.CODEALPACA)}
    ),
    "codeeditorbench": DataSet(
        "code to debug, translate, polish or change",
        code.codeeditorbench,
        {"subset": (None, *code.EDITS), "style": ("pld+", "released"), "version": (None, *code.EDIT_VERSIONS)},
    ),
    "xatu": DataSet(
        "sentences to edit",
        editing.xatu,
        {"subset": (None, *editing.XATU_SOURCES), "style": ("released", "pld+"), "instruction": ("fine", "coarse")},
    ),
    "argrewrite": DataSet("essays to revise by an expert's feedback", editing.argrewrite),
    "quotesum": DataSet(
        "questions to answer by quoting sources",
        editing.quotesum,
        {"split": tuple(editing.QUOTESUM), "distinct": (False, True)},
    ),
    "humanevalpack": DataSet(
        "functions with a bug, in six languages", human_edits.humanevalpack, {"subset": (None, *human_edits.LANGUAGES)}
    ),
    "quixbugs": DataSet("small programs with a bug", human_edits.quixbugs),
    "editeval": DataSet("code to change as an instruction says", human_edits.editeval),
    "jfleg": DataSet("sentences to correct", editing.jfleg),
    "mbpp": DataSet("Python functions to write", code.mbpp, {"split": ("all", *code.MBPP_SPLITS)}),
}
"""The real sets by task name."""
