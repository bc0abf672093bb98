"""The prompts of the papers' own sets that the model of the book is asked, in the papers' own wording.

The sets are read by :func:`specdec_lib.experiments.tasks.load_task`. Sizes are those of the papers, cut to what a small
machine can decode; a set that is cut gives the first prompts of its file, and each subset the same number. MT-Bench is
Spec-Bench's subset ``mt_bench``, so it has no row of its own. CodeEditorBench published three records a task: HumanEvalPack
and EditEval stand in for the rest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.experiments.tasks import load_task

#: Tokens of the longest prompt that is asked.
LONGEST = 1600


class Part(NamedTuple):
    """Prompts of one task of a set: all of them or the first ``limit``, read with ``options``."""

    task: str
    limit: int | None = None
    options: dict[str, Any] = {}


#: The sets by name. HumanEval is continued as it stands (REST) and asked in a chat (SpecDec++).
SETS = {
    "spec-bench": [
        Part(f"spec-bench/{subset}")
        for subset in ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
    ],
    "humaneval": [Part("humaneval", options={"style": "rest"})],
    "humaneval-chat": [Part("humaneval", options={"style": "specdec++"})],
    "mbpp": [Part("mbpp", 100, {"split": "test"})],
    "codeeditorbench": [Part(f"codeeditorbench/{kind}") for kind in ("debug", "translate", "polishment", "switch")],
    "xatu": [Part(f"xatu/{source}", 30, {"style": "pld+"}) for source in ("asset", "jfleg", "defacto")],
    "argrewrite": [Part("argrewrite", 80)],
    "gsm8k": [Part("gsm8k", 100)],
    "alpaca": [Part("alpaca", 100)],
    "codealpaca": [Part("codealpaca", 100, {"seed": 42})],
    "humanevalpack": [Part("humanevalpack/python", 50)],
    "editeval": [Part("editeval", 50)],
    "quotesum": [Part("quotesum", 50, {"distinct": True})],
}


def load(name: str, root: str | os.PathLike[str] | None = None) -> list[Prompt]:
    """The prompts of a set of :data:`SETS`; ``root`` is the folder of the sets, else ``SPECDEC_DATASETS`` names it.

    Raises ValueError for an unknown name, and MissingData if a file is not there.
    """
    if name not in SETS:
        raise ValueError(f"set is {name!r}; expected one of {', '.join(SETS)}")
    return [prompt for part in SETS[name] for prompt in load_task(part.task, root, part.limit, **part.options)]


def short_enough(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """The prompts whose first turn has at most :data:`LONGEST` tokens."""
    return [prompt for prompt in prompts if len(render(prompt, tokenizer)) <= LONGEST]
