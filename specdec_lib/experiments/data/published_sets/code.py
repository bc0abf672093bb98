"""Published sets of code: HumanEval, HumanEvalPack, QuixBugs, EditEval, MBPP and CodeEditorBench."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_sets.chat import INSTRUCTION
from specdec_lib.experiments.data.published_sets.files import DataFile, Root
from specdec_lib.records import BadRecord, Record, read_jsonl, read_text


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


HUMANEVAL = DataFile("humaneval", "openai/human-eval/data/HumanEval.jsonl.gz", "MIT")
WIZARD = INSTRUCTION + ("\n### Instruction:\nCreate a Python script for this problem:\n{prompt}\n\n### Response:")
_OCTOPACK = "bigcode-project/octopack/evaluation"
HUMANEVALPACK = {
    language: DataFile(
        f"humanevalpack/{language}", f"{_OCTOPACK}/create/humaneval-x/data/{language}/data/humanevalpack.jsonl", "MIT"
    )
    for language in ("python", "java", "cpp", "js", "go", "rust")
}
QUIXBUGS = DataFile("quixbugs", f"{_OCTOPACK}/other/QuixBugs/quixbugs_python.jsonl", "MIT")
EDITEVAL = DataFile("editeval", "qishenghu/CodeInstruct/edit_eval/edit_eval.jsonl", "MIT")
MBPP = DataFile("mbpp", "google-research/google-research/mbpp/mbpp.jsonl", "CC BY 4.0")
MBPP_TEST = range(11, 511)
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


def editeval(root: Root) -> Iterator[Prompt]:
    """Yield the EditEval edits: the instruction, and the code within its surroundings where the record has some."""
    for row in read_jsonl(root.find(EDITEVAL)):
        around = (row.get("context") or "").strip()
        turn = row.fill("{instruction:strip}\n\n{input}") + (f"\n\nIt stands here:\n{around}" if around else "")
        yield Prompt(row.text("task_id"), root.task, (turn,), reference=row.text("output"))


def mbpp(root: Root) -> Iterator[Prompt]:
    """Yield MBPP's test problems, worded as in its paper (Austin et al. 2021, section 4) but without examples and marks."""
    start = "You are an expert Python programmer, and here is your task: {text:strip} Your code should pass these tests:\n\n"
    for row in read_jsonl(root.find(MBPP)):
        number = row.typed("task_id", int, "a whole number")
        turn = _newlines(row.fill(start) + "\n".join(row.texts("test_list")))
        if number in MBPP_TEST:
            yield Prompt(str(number), root.task, (turn,), reference=_newlines(row.text("code")))


def codeeditorbench(root: Root, subset: str | None) -> Iterator[Prompt]:
    """Yield the code editing problems of CodeEditorBench, without worked examples, which show their own answers."""
    for kind in [subset] if subset else EDITS:
        path = root.find(*(_edit_file(kind, version) for version in EDIT_VERSIONS))
        instruction = _edit_instruction(root, kind) + ' Generate only the required code enclosed in "```"'
        for number, row in enumerate(read_jsonl(path), start=1):
            question, answer = _edit_question(kind, row)
            turn = f"### Instruction:\n{instruction}\n\n### Question:\n{question}\n\n### Answer:\n"
            yield Prompt(f"{kind}-{number}", root.task, (turn,), reference=answer)


def _edit_file(kind: str, version: str) -> DataFile:
    if version == "samples":
        origin = f"CodeEditorBench/CodeEditorBench/cluster/cluster_{kind}.jsonl"
        return DataFile("codeeditorbench/cluster", origin, "Apache-2.0")
    origin = f"m-a-p/CodeEditorBench/code_{kind}_{version}.jsonl"
    return DataFile("codeeditorbench", origin, "Apache-2.0", "https://huggingface.co/datasets/")


def _edit_instruction(root: Root, kind: str) -> str:
    origin = f"CodeEditorBench/CodeEditorBench/few_shot_prompt/close/prompt_{kind}.txt"
    path = root.find(DataFile("codeeditorbench/few_shot_prompt", origin, "Apache-2.0"))
    head = re.match(r"\s*### Instruction:\s*(.+?)\s*### Question:", read_text(path), re.DOTALL)
    if head is None:
        raise BadRecord(f"{path}: does not begin with '### Instruction:', a text and '### Question:'")
    return head[1]


def _edit_question(kind: str, row: Record) -> tuple[str, str]:
    """Return question and answer (bare code) of a record."""
    wording, fields = EDITS[kind]
    if kind == "polishment" and "scource_lang" in row:
        fields = fields | {"language": "scource_lang"}  # misspelt in the release
    values = {name: row.text(field) for name, field in fields.items()}
    language, answer = values["language"], _bare(values.pop("answer"))
    values["code"] = f"```{FENCES.get(language, language)}\n{_bare(values['code'])}\n```"
    for part in ("similar_", "target_") if kind == "switch" else ("",):
        given, wanted = (row.text(f"public_{part}tests_{side}", empty=True).strip() for side in ("input", "output"))
        values[f"{part}tests"] = f"Input: {given}\nOutput: {wanted}"
    return wording.format(**values), answer


def _bare(code: str) -> str:
    """Return code without its fence and without the language name that some records begin with."""
    code = _newlines(code).strip("\n").removeprefix("```").removesuffix("```").rstrip()
    return re.sub(r"\A\s*(python3?|cpp|c\+\+|java|c)[ \t]*\n", "", code).strip("\n")
