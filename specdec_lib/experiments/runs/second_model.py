"""The copying methods on answers of a second model, of another family than SmolLM2: Gemma 3 270M, greedily, to the papers' prompts.

It is a base model, so that each prompt is given to it as plain text, the first turn alone. Its answers are not part of the
project; rows of counts of them are. Where the model is not in the cache, the rows are read and none is made again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.drafters import PromptLookup, PromptLookupAttention, PromptLookupHidden, Rest, SuffixDecoding
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.data.published_sets.files import MissingData
from specdec_lib.experiments.data.tasks import load_task
from specdec_lib.experiments.runs import results
from specdec_lib.experiments.runs.evidence import Evidence
from specdec_lib.experiments.runs.row_makers import replayed_rows
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.models import gemma3
from specdec_lib.models.loading import load_model

NAME, TITLE = gemma3.NAME, "Gemma 3 270M"
#: Prompts of each task, new tokens of an answer, and tokens of the longest prompt that is asked.
PROMPTS, LENGTH, LONGEST = 24, 128, 1600
#: Tokens of each of REST's stores, at most.
STORED = 1_000_000


class Part(NamedTuple):
    """A part of a task: its set and how it is read."""

    set: str
    options: dict[str, Any] = {}


#: The tasks, each with its sets, which give their prompts in turns. The first five are those of PLD+.
TASKS = {
    "code editing": [
        *(Part(f"codeeditorbench/{kind}") for kind in ("debug", "translate", "polishment", "switch")),
        Part("humanevalpack/python"),
    ],
    "short text editing": [Part(f"xatu/{source}") for source in ("asset", "jfleg", "defacto")],
    "conversation": [Part("spec-bench/mt_bench")],
    "summarisation": [Part("spec-bench/summarization")],
    "long text editing": [Part("argrewrite")],
    "code completion": [Part("humaneval", {"style": "rest"})],
    "instructions for code": [Part("codealpaca", {"seed": 42})],
}
#: Tasks for which REST searches code; for the others it searches chats.
CODE = ("code editing", "code completion", "instructions for code")
#: How the chapters' keys name PLD+'s five tasks.
KEYS = {
    "summarisation": "summarisation",
    "code editing": "code",
    "short text editing": "short",
    "long text editing": "long",
    "conversation": "turns",
}
#: What :meth:`~specdec_lib.experiments.workbench.ModelPair.choose_heads` chooses for it, on the prompts of the choosing half.
LAYER, HEADS = 0, [(0, 0)]
_TASK_OF = {part.set: task for task, parts in TASKS.items() for part in parts}


def prompts(
    task: str, tokenizer: PreTrainedTokenizerBase, count: int = PROMPTS, root: str | os.PathLike[str] | None = None
) -> list[Prompt]:
    """The first ``count`` prompts of a task as plain text; longer ones than :data:`LONGEST` are left out.

    A smaller count gives the beginning of a larger one's prompts.
    """
    sets = [load_task(part.set, root, count, **part.options) for part in TASKS[task]]
    in_turns = [own[place] for place in range(count) for own in sets if place < len(own)]
    as_text = (replace(one, turns=one.turns[:1], chat=False) for one in in_turns)
    return [one for one in as_text if len(render(one, tokenizer)) <= LONGEST][:count]


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows under the names of :data:`TASKS`, instead of those of their sets."""
    return rows.assign(task=rows.task.map(_TASK_OF))


def drafters(layer: int, heads: Sequence[tuple[int, int]]) -> dict[str, Drafter]:
    """The copying methods without a store, under the names that the rows of published prompts have."""
    made: dict[str, Drafter] = {"PLD": PromptLookup(3, 10)}
    made |= {f"PLD, partial drafts, {k}": PromptLookup(3, k, variant="transformers") for k in (10, 70)}
    for k in (70, 10, 100):
        ending = "" if k == 70 else f", {k}"
        made[f"PLD+ (h){ending}"] = PromptLookupHidden(layer, k)
        made[f"PLD+ (a){ending}"] = PromptLookupAttention(heads, k)
    return made | {"SuffixDecoding": SuffixDecoding()}


def made(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    copying: Mapping[str, Drafter],
    searched: Mapping[str, SuffixIndex],
    prompts: Sequence[Prompt],
) -> pd.DataFrame:
    """Rows of the copying methods and of REST on the model's greedy answers; ``searched`` has its stores, of code and of chats."""
    capture = Capture()
    for drafter in copying.values():
        capture |= drafter.capture
    frames = []
    for kind, index in searched.items():
        own = [one for one in prompts if (_TASK_OF[one.task] in CODE) == (kind == "code")]
        if own:
            methods = {**copying, "REST": Rest(index)}
            frames.append(replayed_rows(model, tokenizer, own, methods, LENGTH, capture=capture))
    return pd.concat(frames, ignore_index=True)


def read(evidence: Evidence) -> pd.DataFrame:
    """The second model's rows of chapter 4, of which a sample is made again where the model and the sets are at hand."""
    model = tokenizer = None
    asked: list[Prompt] = []
    searched: dict[str, SuffixIndex] = {}
    if gemma3.at_hand():
        model, tokenizer = load_model(NAME, "cpu", "float32")
        searched = {
            kind: stores.text_store(name, tokenizer, STORED) for kind, name in (("code", "stdlib"), ("chats", "chat"))
        }
        try:
            asked = [prompt for task in TASKS for prompt in prompts(task, tokenizer)]
        except (MissingData, ValueError):
            pass
    make = partial(made, model, tokenizer, drafters(LAYER, HEADS), searched)
    checksums = {kind: (index.store.digest, ["REST"]) for kind, index in searched.items()}
    mine = replace(evidence, models={"second": model}, own=())
    return named(mine.rows("second_model", make, asked, checksums))


def numbers(rows: pd.DataFrame, costs: Mapping[int, float]) -> dict[str, Interval | int]:
    """What the claims ask of the second model, under the keys that the first model's numbers have with another beginning.

    Speeds are compared at ``costs``. Claims about PLD+'s five tasks read these, REST over plain decoding all tasks.
    """
    every = results.with_cost(rows, costs)
    five = every[every.task.isin(KEYS)]
    partial_10, partial_70 = "PLD, partial drafts, 10", "PLD, partial drafts, 70"
    looped = five[five.method == "PLD"].assign(outputs=1).astype({"looped": int})
    found: dict[str, Any] = {
        "prompts": len(five[["task", "prompt"]].drop_duplicates()),
        "tasks_prompts": len(every[["task", "prompt"]].drop_duplicates()),
        "looped": results.rate(looped, ("looped", "outputs")),
        "equal_h_over_pldt": results.ratio(five, "PLD+ (h), 10", partial_10),
        "equal_a_over_pldt": results.ratio(five, "PLD+ (a), 10", partial_10),
        "k70_h_over_pldt": results.ratio(five, "PLD+ (h)", partial_70),
        "k70_a_over_pldt": results.ratio(five, "PLD+ (a)", partial_70),
        "k_last_over_first_h": results.ratio(five, "PLD+ (h), 100", "PLD+ (h), 10"),
        "k_last_over_first_a": results.ratio(five, "PLD+ (a), 100", "PLD+ (a), 10"),
        "k_70_over_10_h_gpu": results.ratio(five, "PLD+ (h)", "PLD+ (h), 10", results.SPEED),
        "k_100_over_70_h_gpu": results.ratio(five, "PLD+ (h), 100", "PLD+ (h)", results.SPEED),
        "rest_over_plain_gpu": results.rate(every[every.method == "REST"], results.SPEED),
        "h_over_pld_all_unlooped_gpu": results.ratio(five[~five.looped], "PLD+ (h)", "PLD", results.SPEED),
    }
    by_task = {
        ("h_over_pld", "_gpu"): ("PLD+ (h)", "PLD", results.SPEED),
        ("h_over_pldt", "_gpu"): ("PLD+ (h)", partial_10, results.SPEED),
        ("h_over_a", ""): ("PLD+ (h)", "PLD+ (a)", results.PER_PASS),
        ("rest_over_pld", ""): ("REST", "PLD", results.PER_PASS),
    }
    for (name, ending), of in by_task.items():
        ratios = results.ratio(five, *of, by="task")
        found |= {f"{name}_{KEYS.get(task, task)}{ending}": value for task, value in ratios.items()}
    return {f"second_{name}": value for name, value in found.items()}
