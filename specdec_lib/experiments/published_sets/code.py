"""Code sets: HumanEval, MBPP, CodeEditorBench."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.reading import BadRecord, DataFile, Record, Root, read_jsonl, read_text

HUMANEVAL = DataFile("humaneval/HumanEval.jsonl", "openai/human-eval/data/HumanEval.jsonl.gz", "MIT", distinct=True)
MBPP = DataFile("mbpp/mbpp.jsonl", "google-research/google-research/mbpp/mbpp.jsonl", "CC BY 4.0", distinct=True)
MBPP_SPLITS = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
}
_WIZARD = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n\n"
    "### Instruction:\nCreate a Python script for this problem:\n{prompt}\n\n### Response:"
)
EDIT_VERSIONS = ("plus", "primary", "samples")
EDITS = {
    "debug": (
        "Below is the {language} buggy code:\n{code}\n\n"
        "Correct the code and ensure it passes the following test case:\n{tests}",
        {"language": "code_language", "code": "incorrect_solutions", "answer": "solutions"},
    ),
    "translate": (
        "Below is the source code snippet in {language}:\n{code}\n\nTranslate this code to {target}. "
        "Ensure your translated code works correctly with the test case provided:\n{tests}",
        {"language": "source_lang", "target": "target_lang", "code": "source_code", "answer": "target_code"},
    ),
    "polishment": (
        "Below is the source code snippet that needs optimization:\n{code}\n\n"
        "Optimize the code and ensure it passes the following test case:\n{tests}",
        {"language": "source_lang", "code": "source_code", "answer": "efficient_code"},
    ),
    "switch": (
        "Below is the code snippet that implements a specific function:\n{code}\n\n"
        "It currently performs the operation:\n{similar_tests}\n\n"
        "You are required to modify this code to implement a new function that is related to the original one, "
        "as detailed below:\n{target_tests}\n\nEnsure your modified code passes the provided test case.",
        {"language": "language", "code": "similar_source_code", "answer": "target_source_code"},
    ),
}
"""By kind of edit, as the files are named: the question as in the released code, and the fields that it is made of."""
FENCES = {"python3": "python", "c++": "cpp"}
"""How the released prompts mark the code of these languages."""
_EDIT_LEFT = re.compile(r"_code$|solutions$|^private_")  # the code itself, and tests to judge an answer by


def humaneval(root: Root, style: str) -> Iterator[Prompt]:
    """Yield the HumanEval problems.

    ``style="rest"``: the bare prompt of the file, to be continued (REST, released code). ``style="specdec++"``: the
    WizardCoder instruction as one user's turn (SpecDec++, released code, ``data/gen_dataset.py``).
    """
    for row in read_jsonl(root.find(HUMANEVAL)):
        turn = row.text("prompt") if style == "rest" else _WIZARD.format(prompt=row.text("prompt"))
        meta = {name: row.text(name) for name in ("task_id", "entry_point", "test")}
        answer = row.text("canonical_solution")
        yield Prompt(meta["task_id"], root.task, (turn,), chat=style != "rest", reference=answer, meta=meta)


def mbpp(root: Root, split: str) -> Iterator[Prompt]:
    """Yield the MBPP problems, which none of the four papers uses; ``split`` is the authors', by ``task_id``.

    The wording is that of the set's paper (Austin et al. 2021, section 4) with its three tests, but without
    worked examples and without its ``[BEGIN]`` and ``[DONE]`` marks: that is our choice. Line ends
    are ``\\r\\n`` in the file and ``\\n`` here.
    """
    for row in read_jsonl(root.find(MBPP)):
        number = row.typed("task_id", int, "a whole number")
        tests = tuple(map(_newlines, row.texts("test_list")))
        part = next((name for name, ids in MBPP_SPLITS.items() if number in ids), None)
        if part is None:
            raise row.bad(f"field 'task_id' is {number}; expected 1 to 974")
        if split not in ("all", part):
            continue
        turn = (
            f"You are an expert Python programmer, and here is your task: {row.text('text').strip()} "
            "Your code should pass these tests:\n\n" + "\n".join(tests)
        )
        setup = _newlines(row.text("test_setup_code", empty=True))
        meta = {"task_id": number, "split": part, "test_list": tests, "test_setup_code": setup}
        yield Prompt(str(number), root.task, (_newlines(turn),), reference=_newlines(row.text("code")), meta=meta)


def codeeditorbench(root: Root, subset: str | None, style: str, version: str | None) -> Iterator[Prompt]:
    """Yield the code editing problems of CodeEditorBench, without worked examples.

    The instruction is the head of the released ``few_shot_prompt/close/prompt_*.txt``; of those files nothing
    else is used, because their worked examples are the three records of ``cluster/``, answers included. The
    question is worded as in the released code. The code stands in a fence with its language, as in the
    released prompts, whether or not the record has one; the tests' input and output are stripped (both our
    choice).

    ``subset`` is one kind of edit; without it all four, in this order. ``style="pld+"`` adds PLD+'s last sentence of
    instruction (appendix C.2; shown there for debugging, where one word of the released instruction is also missing).
    ``version``: ``code_<subset>_plus.jsonl`` or ``code_<subset>_primary.jsonl`` of the data set's page on Hugging Face
    (m-a-p/CodeEditorBench), or the three records (``"samples"``) of the repository's ``cluster/``. Without it the
    first of them that is there; ``meta["version"]`` tells which it was. PLD+ samples 20 problems of each kind from
    ``plus``.
    """
    for kind in [subset] if subset else EDITS:
        versions = [version] if version else EDIT_VERSIONS
        path = root.find(*(_edit_file(kind, one) for one in versions))
        found = next(one for one in versions if path.name.startswith(_edit_file(kind, one).place.split("/")[-1]))
        instruction = _edit_instruction(root, kind)
        if style == "pld+":
            instruction += ' Generate only the required code enclosed in "```"'
        for number, row in enumerate(read_jsonl(path), start=1):
            question, answer, language = _edit_question(kind, row)
            turn = f"### Instruction:\n{instruction}\n\n### Question:\n{question}\n\n### Answer:\n"
            meta = {"subset": kind, "version": found, "language": language}
            meta |= {name: value for name, value in row.items() if not _EDIT_LEFT.search(name)}
            yield Prompt(f"{kind}-{number}", root.task, (turn,), reference=answer, meta=meta)


def _edit_file(kind: str, version: str) -> DataFile:
    if version == "samples":
        name = f"cluster/cluster_{kind}.jsonl"
        return DataFile(f"codeeditorbench/{name}", f"CodeEditorBench/CodeEditorBench/{name}", "Apache-2.0")
    name, host = f"code_{kind}_{version}.jsonl", "https://huggingface.co/datasets/"
    return DataFile(f"codeeditorbench/{name}", f"m-a-p/CodeEditorBench/{name}", "Apache-2.0", distinct=True, host=host)


def _edit_instruction(root: Root, kind: str) -> str:
    place, origin = "codeeditorbench/few_shot_prompt", "CodeEditorBench/CodeEditorBench/few_shot_prompt/close"
    path = root.find(DataFile(f"{place}/prompt_{kind}.txt", f"{origin}/prompt_{kind}.txt", "Apache-2.0"))
    head = re.match(r"\s*### Instruction:\s*(.+?)\s*### Question:", read_text(path), re.DOTALL)
    if head is None:
        raise BadRecord(f"{path}: does not begin with '### Instruction:', a text and '### Question:'")
    return head[1]


def _edit_question(kind: str, row: Record) -> tuple[str, str, str]:
    """Return question, answer (bare code) and language of a record."""
    wording, fields = EDITS[kind]
    if kind == "polishment" and "scource_lang" in row:
        fields = fields | {"language": "scource_lang"}  # misspelt in the release
    values = {name: row.text(field) for name, field in fields.items()}
    language, answer = values["language"], _bare(values.pop("answer"))
    values["code"] = f"```{FENCES.get(language, language)}\n{_bare(values['code'])}\n```"
    for part in ("similar_", "target_") if kind == "switch" else ("",):
        given, wanted = (row.text(f"public_{part}tests_{side}", empty=True).strip() for side in ("input", "output"))
        values[f"{part}tests"] = f"Input: {given}\nOutput: {wanted}"
    return wording.format(**values), answer, language


def _bare(code: str) -> str:
    """Return code without its fence and without the language name that some records begin with."""
    code = _newlines(code).strip("\n").removeprefix("```").removesuffix("```").rstrip()
    return re.sub(r"\A\s*(python3?|cpp|c\+\+|java|c)[ \t]*\n", "", code).strip("\n")


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
