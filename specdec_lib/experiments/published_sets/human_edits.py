"""Edits of code that people made, for methods that copy: HumanEvalPack, QuixBugs, EditEval.

None of the four papers uses them in this form. They stand for the part of PLD+'s code editing whose records are not
published. The wording of every prompt is ours; the reference is the person's answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.reading import DataFile, Root, read_jsonl

LANGUAGES = ("python", "java", "cpp", "js", "go", "rust")
HUMANEVALPACK = {
    language: DataFile(
        f"humanevalpack/{language}/humanevalpack.jsonl",
        f"bigcode-project/octopack/evaluation/create/humaneval-x/data/{language}/data/humanevalpack.jsonl",
        "MIT",
    )
    for language in LANGUAGES
}
QUIXBUGS = DataFile(
    "quixbugs/quixbugs_python.jsonl",
    "bigcode-project/octopack/evaluation/other/QuixBugs/quixbugs_python.jsonl",
    "MIT",
    distinct=True,
)
EDITEVAL = DataFile(
    "editeval/edit_eval.jsonl", "qishenghu/CodeInstruct/edit_eval/edit_eval.jsonl", "MIT", distinct=True
)


def humanevalpack(root: Root, subset: str | None) -> Iterator[Prompt]:
    """Yield the functions of HumanEvalPack with a bug, of one language with ``subset``.

    The prompt has the function and its tests, as OctoPack's evaluation shows them; the reference is the whole function
    without the bug.
    """
    for language in [subset] if subset else LANGUAGES:
        for row in read_jsonl(root.find(HUMANEVALPACK[language])):
            start, name = row.text("declaration"), row.text("entry_point")
            buggy, right = row.text("buggy_solution"), row.text("canonical_solution")
            turn = f"Fix bugs in {name}.\n\n{start}{buggy}\n{row.text('test').strip()}"
            meta = {"subset": language, "bug_type": row.text("bug_type")}
            yield Prompt(row.text("task_id"), root.task, (turn,), reference=start + right, meta=meta)


def quixbugs(root: Root) -> Iterator[Prompt]:
    """Yield the QuixBugs programs with a bug, below their docstrings; the reference is the program without it."""
    for row in read_jsonl(root.find(QUIXBUGS)):
        turn = f"Fix bugs in {row.text('name')}.\n\n{row.text('docstring').strip()}\n{row.text('buggy_program')}"
        yield Prompt(row.text("name"), root.task, (turn,), reference=row.text("solution"))


def editeval(root: Root) -> Iterator[Prompt]:
    """Yield the EditEval edits: the instruction, and the code within its surroundings where the record has some."""
    for row in read_jsonl(root.find(EDITEVAL)):
        code, around = row.text("input"), row.get("context") or ""
        shown = f"\n\nIt stands here:\n{around.strip()}" if around.strip() else ""
        turn = f"{row.text('instruction').strip()}\n\n{code}{shown}"
        yield Prompt(row.text("task_id"), root.task, (turn,), reference=row.text("output"))
