"""The prompts of the papers' own sets that the model of the book is asked, in the papers' own wording: record_answers.py
--published records the answers.

The sets are read by :func:`~specdec_lib.experiments.data.tasks.load_task`. Sizes are those of the papers, cut to what a small
machine can decode; a set that is cut gives the first prompts of its file, and each subset the same number. MT-Bench is
Spec-Bench's subset ``mt_bench``, so it has no row of its own. CodeEditorBench published three records a task: HumanEvalPack and
EditEval stand in for the rest. The first prompts of some tasks are also sampled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.data.tasks import load_task

#: Tokens of the longest prompt that is asked.
LONGEST = 1600
#: Outputs of a prompt that is sampled.
SEEDS = 3

# Temperature and top-p. REST samples chats at 0.7 and 0.8, and SpecDec++ does not say how; here they are as REST's code and PLD+.
_PLD_PLUS, _REST, _DRESD, _SPECDEC_PP = (1.0, 1.0), (0.8, 0.95), (0.7, 0.95), (1.0, 1.0)


class Part(NamedTuple):
    """Prompts of one task of a set: all of them or the first ``limit``, read with ``options``; ``sampled`` has by setting
    (temperature, top-p) how many of them, the first, are also decoded with it."""

    task: str
    limit: int | None = None
    options: dict[str, Any] = {}
    sampled: dict[tuple[float, float], int] = {}


#: The sets by name. HumanEval is continued as it stands (REST) and asked in a chat (SpecDec++).
SETS = {
    "spec-bench": [
        Part("spec-bench/mt_bench", sampled={_REST: 80, _PLD_PLUS: 24}),
        Part("spec-bench/summarization", sampled={_PLD_PLUS: 24}),
        *(Part(f"spec-bench/{subset}") for subset in ("translation", "qa", "math_reasoning", "rag")),
    ],
    "humaneval": [Part("humaneval", options={"style": "rest"}, sampled={_REST: 164})],
    "humaneval-chat": [Part("humaneval", options={"style": "specdec++"}, sampled={_SPECDEC_PP: 164})],
    "mbpp": [Part("mbpp", 100)],
    "codeeditorbench": [
        Part(f"codeeditorbench/{kind}", sampled={_PLD_PLUS: 24})
        for kind in ("debug", "translate", "polishment", "switch")
    ],
    "xatu": [Part(f"xatu/{source}", 30, sampled={_PLD_PLUS: 24}) for source in ("asset", "jfleg", "defacto")],
    "argrewrite": [Part("argrewrite", 80, sampled={_PLD_PLUS: 24})],
    "gsm8k": [Part("gsm8k", 100, sampled={_SPECDEC_PP: 100})],
    "alpaca": [Part("alpaca", 100, sampled={_SPECDEC_PP: 100})],
    "codealpaca": [Part("codealpaca", 100, {"seed": 42}, {_DRESD: 24})],
    "humanevalpack": [Part("humanevalpack/python", 50, sampled={_PLD_PLUS: 24})],
    "editeval": [Part("editeval", 50, sampled={_PLD_PLUS: 24})],
    "quotesum": [Part("quotesum", 50, {"distinct": True})],
}


def load(
    name: str, tokenizer: PreTrainedTokenizerBase, root: str | os.PathLike[str] | None = None
) -> list[tuple[Prompt, list[Sampling]]]:
    """The prompts of a set of :data:`SETS` of at most :data:`LONGEST` tokens, each with the ways to decode it, greedy first.

    ``root`` is the folder of the sets, else ``SPECDEC_DATASETS`` names it. Raises ValueError for an unknown name, and
    MissingData if a file is not there.
    """
    if name not in SETS:
        raise ValueError(f"set is {name!r}; expected one of {', '.join(SETS)}")
    found = []
    for part in SETS[name]:
        prompts = short_enough(load_task(part.task, root, part.limit, **part.options), tokenizer)
        for i, prompt in enumerate(prompts):
            settings = [setting for setting, first in part.sampled.items() if i < first]
            warm = [Sampling(*setting, seed=seed) for setting in settings for seed in range(SEEDS)]
            found.append((prompt, [Sampling(), *warm]))
    return found


def short_enough(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """The prompts whose first turn has at most :data:`LONGEST` tokens."""
    return [prompt for prompt in prompts if len(render(prompt, tokenizer)) <= LONGEST]
