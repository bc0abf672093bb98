"""The real data sets of the papers, read in their published formats.

:data:`DATASETS` lists them. None of their files is part of this project; ``book/datasets.md`` tells where
each is had and under which licence. Use :func:`specdec_lib.experiments.tasks.load_task`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets import chat, code, editing
from specdec_lib.experiments.published_sets.reading import BadRecord, MissingData, Root

__all__ = ["DATASETS", "BadRecord", "DataSet", "MissingData", "Root"]


@dataclass(frozen=True)
class DataSet:
    """One set: what it is, its reader, and its subsets (each also a task ``name/subset``)."""

    about: str
    reader: Callable[..., Iterable[Prompt]]
    subsets: tuple[str, ...] = ()


DATASETS: dict[str, DataSet] = {
    "humaneval": DataSet("Python functions to complete from their docstrings", code.humaneval),
    "mt-bench": DataSet(
        "questions of two turns in eight categories", chat.mt_bench, chat.MT_BENCH_CATEGORIES
    ),
    "spec-bench": DataSet(
        "six tasks: chat, translation, summarization, questions, mathematics, retrieved passages",
        chat.spec_bench,
        chat.SPEC_BENCH_SUBSETS,
    ),
    "gsm8k": DataSet("school mathematics in words", chat.gsm8k),
    "alpaca": DataSet("instructions", chat.alpaca),
    "codealpaca": DataSet("instructions about code", code.codealpaca),
    "codeeditorbench": DataSet(
        "code to debug, translate, polish or change", code.codeeditorbench, code.EDITOR_TASKS
    ),
    "xatu": DataSet("sentences to edit", editing.xatu, editing.XATU_SOURCES),
    "argrewrite": DataSet("essays to revise by an expert's feedback", editing.argrewrite),
    "quotesum": DataSet("questions to answer by quoting sources", editing.quotesum),
    "mbpp": DataSet("Python functions to write", code.mbpp),
}
"""The real sets by task name."""
