"""The copying methods on answers of a second model, of another family than SmolLM2: Gemma 3 270M, greedily, to the papers' prompts.

It is a base model, so that each prompt is given to it as plain text, the first turn alone. Its answers are not part of the
project; rows of counts of them are. Where it is not in the cache, these are read and none is made again. SmolLM2's rows on the
same prompts are those of the papers' prompts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.drafters import PromptLookup, PromptLookupAttention, PromptLookupHidden, Rest, SuffixDecoding
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_sets.files import MissingData
from specdec_lib.experiments.data.tasks import load_task
from specdec_lib.experiments.runs import results
from specdec_lib.experiments.runs.checked_rows import CheckedRows
from specdec_lib.experiments.runs.row_makers import replayed_rows
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.models import gemma3
from specdec_lib.models.loading import load_model

NAME, TITLE = gemma3.NAME, "Gemma 3 270M"
#: Prompts of each task, and new tokens of an answer.
PROMPTS, LENGTH = 24, 128
#: Tokens of each of REST's stores, at most.
STORED = 1_000_000
#: PLD+'s five tasks, each with its sets, which give their prompts in turns.
TASKS = {
    "code editing": (
        *(f"codeeditorbench/{kind}" for kind in ("debug", "translate", "polishment", "switch")),
        "humanevalpack/python",
    ),
    "short text editing": ("xatu/asset", "xatu/jfleg", "xatu/defacto"),
    "conversation": ("spec-bench/mt_bench",),
    "summarisation": ("spec-bench/summarization",),
    "long text editing": ("argrewrite",),
}
#: Tasks for which REST searches code; for the others it searches chats.
CODE = ("code editing",)
#: How the chapters' keys name them.
KEYS = {
    "summarisation": "summarisation",
    "code editing": "code",
    "short text editing": "short",
    "long text editing": "long",
    "conversation": "turns",
}
#: What :meth:`~specdec_lib.experiments.workbench.ModelPair.choose_heads` chooses for it, on two prompts of each task.
LAYER, HEADS = 13, [(5, 1), (11, 2), (13, 3), (5, 3), (5, 2), (9, 3), (12, 0), (7, 0)]
PARTIAL_10, PARTIAL_70 = "PLD, partial drafts, 10", "PLD, partial drafts, 70"
_TASK_OF = {name: task for task, names in TASKS.items() for name in names}


def prompts(task: str, count: int = PROMPTS, root: str | os.PathLike[str] | None = None) -> list[Prompt]:
    """The first turns of the first ``count`` prompts of a task; a smaller count gives the beginning of a larger one's prompts."""
    sets = [load_task(name, root, count) for name in TASKS[task]]
    in_turns = [own[place] for place in range(count) for own in sets if place < len(own)]
    return [replace(one, turns=one.turns[:1]) for one in in_turns[:count]]


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


def read(evidence: CheckedRows) -> pd.DataFrame:
    """The second model's rows of chapter 4, of which a sample is made again where the model and the prompts are at hand."""
    model = tokenizer = None
    asked: list[Prompt] = []
    searched: dict[str, SuffixIndex] = {}
    if gemma3.at_hand():
        model, tokenizer = load_model(NAME, "cpu", "float32")
        texts = {"code": "stdlib", "chats": "chat"}
        searched = {kind: stores.text_store(text, tokenizer, STORED) for kind, text in texts.items()}
        try:
            asked = [replace(prompt, chat=False) for task in TASKS for prompt in prompts(task)]
        except MissingData:
            asked = []
    make = partial(made, model, tokenizer, drafters(LAYER, HEADS), searched)
    checksums = {kind: (index.store.digest, ["REST"]) for kind, index in searched.items()}
    return replace(evidence, models={"second": model}, own=()).rows("second_model", make, asked, checksums)


def of_both(second: pd.DataFrame, published: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By the models' names their rows on the same prompts, under the names of :data:`TASKS`; ``published`` are SmolLM2's rows on
    the papers' prompts."""
    greedy = (published.temperature == 0) & (published.turn == 0)
    first = published[greedy].merge(second[["task", "prompt"]].drop_duplicates(), on=["task", "prompt"])
    return {name: rows.assign(task=rows.task.map(_TASK_OF)) for name, rows in {"SmolLM2": first, TITLE: second}.items()}


def compared(models: Mapping[str, pd.DataFrame], costs: Mapping[int, float]) -> pd.DataFrame:
    """What the copying methods gain on PLD+'s five tasks, in speed at ``costs``: a row for each comparison, with the ratio of each
    model and whether they agree (:func:`same_side`), of all outputs and of those that do not end in a loop."""
    pairs = [(method, "plain") for method in ("PLD", PARTIAL_10, "PLD+ (h)", "PLD+ (a)", "REST", "SuffixDecoding")]
    pairs += [
        ("PLD+ (h)", "PLD"),
        ("PLD+ (h)", PARTIAL_10),
        ("PLD+ (a)", "PLD"),
        ("SuffixDecoding", "PLD"),
        ("REST", "PLD"),
    ]
    costed = {name: results.with_cost(rows, costs) for name, rows in models.items()}
    found = []
    for ours, theirs in pairs:
        row: dict[str, Any] = {"comparison": f"{ours} over {theirs}"}
        for ending, kept in {
            "": costed,
            ", no loops": {name: rows[~rows.looped] for name, rows in costed.items()},
        }.items():
            values = {
                name: results.rate(rows[rows.method == ours], results.SPEED)
                if theirs == "plain"
                else results.ratio(rows, ours, theirs, results.SPEED)
                for name, rows in kept.items()
            }
            row |= {f"{name}{ending}": value for name, value in values.items()} | {
                f"agree{ending}": same_side(*values.values())
            }
        found.append(row)
    return pd.DataFrame(found)


def same_side(first: Interval, second: Interval) -> str:
    """Whether two intervals lie on the same side of 1: yes, no, or open if one of them holds it."""
    sides = {(value.low > 1) - (value.high < 1) for value in (first, second)}
    return "open" if 0 in sides else "yes" if len(sides) == 1 else "no"


def numbers(rows: pd.DataFrame, costs: Mapping[int, float]) -> dict[str, Interval | int]:
    """What the claims ask of the second model, under the keys that the first model's numbers have with another beginning.

    Speeds are compared at ``costs``.
    """
    rows = results.with_cost(rows, costs)
    looped = rows[rows.method == "PLD"].assign(outputs=1).astype({"looped": int})
    found: dict[str, Any] = {
        "prompts": len(rows[["task", "prompt"]].drop_duplicates()),
        "looped": results.rate(looped, ("looped", "outputs")),
        "equal_h_over_pldt": results.ratio(rows, "PLD+ (h), 10", PARTIAL_10),
        "equal_a_over_pldt": results.ratio(rows, "PLD+ (a), 10", PARTIAL_10),
        "k70_h_over_pldt": results.ratio(rows, "PLD+ (h)", PARTIAL_70),
        "k70_a_over_pldt": results.ratio(rows, "PLD+ (a)", PARTIAL_70),
        "equal_h_won_over_lost": results.won_over_lost(rows, "PLD+ (h), 10", PARTIAL_10),
        "k70_h_won_over_lost": results.won_over_lost(rows, "PLD+ (h)", PARTIAL_70),
        "k_last_over_first_h": results.ratio(rows, "PLD+ (h), 100", "PLD+ (h), 10"),
        "k_last_over_first_a": results.ratio(rows, "PLD+ (a), 100", "PLD+ (a), 10"),
        "rest_over_plain_gpu": results.rate(rows[rows.method == "REST"], results.SPEED),
        "h_over_rest_summarisation_gpu": results.ratio(
            rows[rows.task == "summarisation"], "PLD+ (h)", "REST", results.SPEED
        ),
        "h_over_pld_all_gpu": results.ratio(rows, "PLD+ (h)", "PLD", results.SPEED),
        "h_over_pld_all_unlooped_gpu": results.ratio(rows[~rows.looped], "PLD+ (h)", "PLD", results.SPEED),
    }
    by_task = {
        ("h_over_pld", "_gpu"): ("PLD+ (h)", "PLD", results.SPEED),
        ("h_over_pldt", "_gpu"): ("PLD+ (h)", PARTIAL_10, results.SPEED),
        ("h_over_a", ""): ("PLD+ (h)", "PLD+ (a)", results.PER_PASS),
        ("rest_over_pld", ""): ("REST", "PLD", results.PER_PASS),
    }
    for (name, ending), of in by_task.items():
        ratios = results.ratio(rows, *of, by="task")
        found |= {f"{name}_{key}{ending}": ratios[task] for task, key in KEYS.items()}
    return {f"second_{name}": value for name, value in found.items()}
