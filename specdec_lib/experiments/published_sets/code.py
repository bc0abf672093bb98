"""Code sets: HumanEval, MBPP, Code Alpaca, CodeEditorBench."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.reading import (
    BadRecord,
    DataFile,
    Record,
    Root,
    choice,
    read_json_list,
    read_jsonl,
    read_text,
)

HUMANEVAL = DataFile(
    "humaneval", "HumanEval.jsonl", "openai/human-eval", "data/HumanEval.jsonl.gz", "MIT", distinct=True
)
MBPP = DataFile(
    "mbpp", "mbpp.jsonl", "google-research/google-research", "mbpp/mbpp.jsonl", "CC BY 4.0", distinct=True
)
CODEALPACA = {
    name: DataFile(
        "codealpaca",
        f"{name}.json",
        "sahil280114/codealpaca",
        f"data/{name}.json",
        "CC BY-NC 4.0",
        distinct=True,
    )
    for name in ("code_alpaca_20k", "code_alpaca_2k")
}
EDITOR_TASKS = ("debug", "translate", "polishment", "switch")
"""Debugging, translating, polishing and requirement switching, as the files are named."""
FENCES = {"python3": "python", "c++": "cpp"}
"""How the released prompts mark the code of these languages."""
_EDITOR_LEFT = re.compile(r"_code$|solutions$|^private_")  # the code itself, and tests to judge an answer by
EDITOR_VERSIONS = ("plus", "primary", "samples")
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


def humaneval(root: Root, task: str, style: str = "rest") -> Iterator[Prompt]:
    """Yield the HumanEval problems.

    Parameters
    ----------
    style : {"rest", "specdec++"}
        ``"rest"``: the bare prompt of the file, to be continued (REST, released code). ``"specdec++"``: the
        WizardCoder instruction as one user's turn (SpecDec++, released code, ``data/gen_dataset.py``).
    """
    choice("style", style, ("rest", "specdec++"))
    for row in read_jsonl(root.find(HUMANEVAL)):
        prompt = row.text("prompt")
        turn = prompt if style == "rest" else _WIZARD.format(prompt=prompt)
        yield Prompt(
            id=row.text("task_id"),
            task=task,
            turns=(turn,),
            chat=style != "rest",
            reference=row.text("canonical_solution"),
            meta={name: row.text(name) for name in ("task_id", "entry_point", "test")},
        )


def mbpp(root: Root, task: str, split: str = "all") -> Iterator[Prompt]:
    """Yield the MBPP problems, which none of the four papers uses.

    The wording is that of the set's paper (Austin et al. 2021, section 4) with its three tests, but without
    worked examples and without its ``[BEGIN]`` and ``[DONE]`` marks: that is our choice. Line ends
    are ``\\r\\n`` in the file and ``\\n`` here.

    Parameters
    ----------
    split : {"all", "prompt", "test", "validation", "train"}
        The authors' split by ``task_id``: 1-10, 11-510, 511-600, 601-974.
    """
    choice("split", split, ("all", *MBPP_SPLITS))
    for row in read_jsonl(root.find(MBPP)):
        number = row.typed("task_id", int, "a whole number")
        tests = tuple(map(_newlines, row.texts("test_list")))
        part = next((name for name, ids in MBPP_SPLITS.items() if number in ids), None)
        if part is None:
            raise row.bad(f"field 'task_id' is {number}; expected 1 to 974")
        if split in ("all", part):
            turn = (
                f"You are an expert Python programmer, and here is your task: {row.text('text').strip()} "
                "Your code should pass these tests:\n\n" + "\n".join(tests)
            )
            yield Prompt(
                id=str(number),
                task=task,
                turns=(_newlines(turn),),
                reference=_newlines(row.text("code")),
                meta={
                    "task_id": number,
                    "split": part,
                    "test_list": tests,
                    "test_setup_code": _newlines(row.text("test_setup_code", empty=True)),
                },
            )


def codealpaca(root: Root, task: str, style: str = "dresd", source: str | None = None) -> Iterator[Prompt]:
    """Yield the Code Alpaca instructions.

    Parameters
    ----------
    style : {"dresd", "alpaca"}
        ``"dresd"``: ``Question: ...`` and ``Answer:`` to be continued, with the instruction alone, as DReSD's
        released ``evaluate.py`` does: it leaves the record's ``input`` out, even where the instruction speaks
        of it. ``"alpaca"``: instruction and input as one user's turn, worded as :func:`.chat.alpaca` does
        (our choice).
    source : {"code_alpaca_20k", "code_alpaca_2k"}, optional
        Which file. Without it the first of them that is there; ``meta["source"]`` tells which it was.
    """
    choice("style", style, ("dresd", "alpaca"))
    choice("source", source, (None, *CODEALPACA))
    path = root.find(*([CODEALPACA[source]] if source else CODEALPACA.values()))
    name = path.name.split(".")[0]
    for number, row in enumerate(read_json_list(path)):
        instruction, given = row.text("instruction").strip(), row.text("input", empty=True)
        if style == "dresd":
            turn = f"Question: {instruction}\nAnswer:\n"
        else:
            turn = with_input(instruction, given)
        yield Prompt(
            id=f"{name}-{number}",
            task=task,
            turns=(turn,),
            chat=style != "dresd",
            reference=row.text("output", empty=True) or None,
            meta={"source": name, "instruction": instruction, "input": given},
        )


def with_input(instruction: str, given: str) -> str:
    """Return instruction and input in one turn, as SpecDec++'s released ``data/gen_dataset.py`` does."""
    return (f"{instruction}\nInput: {given}" if given.strip() else instruction).strip()


def codeeditorbench(
    root: Root, task: str, subset: str | None = None, style: str = "pld+", version: str | None = None
) -> Iterator[Prompt]:
    """Yield the code editing problems of CodeEditorBench, without worked examples.

    The instruction is the head of the released ``few_shot_prompt/close/prompt_*.txt``; of those files nothing
    else is used, because their worked examples are the three records of ``cluster/``, answers included. The
    question is worded as in the released code. The code stands in a fence with its language, as in the
    released prompts, whether or not the record has one; the tests' input and output are stripped (both our
    choice).

    Parameters
    ----------
    subset : {"debug", "translate", "polishment", "switch"}, optional
        One kind of edit; without it all four, in this order.
    style : {"pld+", "released"}
        ``"pld+"`` adds PLD+'s last sentence of instruction (appendix C.2; shown there for debugging, where
        one word of the released instruction is also missing). ``"released"`` does not.
    version : {"plus", "primary", "samples"}, optional
        ``code_<subset>_plus.jsonl`` or ``code_<subset>_primary.jsonl`` of the data set's page on Hugging Face
        (m-a-p/CodeEditorBench), or the three records of the repository's ``cluster/``. Without it the first
        of them that is there; ``meta["version"]`` tells which it was. PLD+ samples 20 problems of each kind
        from ``plus``.
    """
    choice("subset", subset, (None, *EDITOR_TASKS))
    choice("style", style, ("pld+", "released"))
    choice("version", version, (None, *EDITOR_VERSIONS))
    for kind in [subset] if subset else EDITOR_TASKS:
        files = {name: _editor_file(kind, name) for name in EDITOR_VERSIONS}
        path = root.find(*([files[version]] if version else files.values()))
        found = next(
            name for name in EDITOR_VERSIONS if path.name.startswith(files[name].name.split("/")[-1])
        )
        instruction = _editor_instruction(root, kind)
        if style == "pld+":
            instruction += ' Generate only the required code enclosed in "```"'
        for number, row in enumerate(read_jsonl(path), start=1):
            question, answer, language = _editor_question(kind, row)
            turn = f"### Instruction:\n{instruction}\n\n### Question:\n{question}\n\n### Answer:\n"
            yield Prompt(
                id=f"{kind}-{number}",
                task=task,
                turns=(turn,),
                reference=answer,
                meta={
                    "subset": kind,
                    "version": found,
                    "language": language,
                    **{name: value for name, value in row.items() if not _EDITOR_LEFT.search(name)},
                },
            )


def _editor_file(kind: str, version: str) -> DataFile:
    if version == "samples":
        name = f"cluster/cluster_{kind}.jsonl"
        return DataFile("codeeditorbench", name, "CodeEditorBench/CodeEditorBench", name, "Apache-2.0")
    name = f"code_{kind}_{version}.jsonl"
    return DataFile(
        "codeeditorbench",
        name,
        "m-a-p/CodeEditorBench",
        name,
        "Apache-2.0",
        distinct=True,
        host="https://huggingface.co/datasets/",
    )


def _editor_instruction(root: Root, kind: str) -> str:
    name = f"prompt_{kind}.txt"
    path = root.find(
        DataFile(
            "codeeditorbench",
            f"few_shot_prompt/{name}",
            "CodeEditorBench/CodeEditorBench",
            f"few_shot_prompt/close/{name}",
            "Apache-2.0",
        )
    )
    head = re.match(r"\s*### Instruction:\s*(.+?)\s*### Question:", read_text(path), re.DOTALL)
    if head is None:
        raise BadRecord(f"{path}: does not begin with '### Instruction:', a text and '### Question:'")
    return head[1]


def _editor_question(kind: str, row: Record) -> tuple[str, str, str]:
    """Return question, answer (bare code) and language of a record."""

    def tests(name: str = "") -> str:
        given, wanted = (
            row.text(f"public_{name}tests_{side}", empty=True).strip() for side in ("input", "output")
        )
        return f"Input: {given}\nOutput: {wanted}"

    def code(name: str, language: str) -> str:
        return f"```{FENCES.get(language, language)}\n{_bare(row.text(name))}\n```"

    if kind == "debug":
        language = row.text("code_language")
        question = (
            f"Below is the {language} buggy code:\n{code('incorrect_solutions', language)}\n\n"
            f"Correct the code and ensure it passes the following test case:\n{tests()}"
        )
        answer = "solutions"
    elif kind == "translate":
        language, target = row.text("source_lang"), row.text("target_lang")
        question = (
            f"Below is the source code snippet in {language}:\n{code('source_code', language)}\n\n"
            f"Translate this code to {target}. Ensure your translated code works correctly with the "
            f"test case provided:\n{tests()}"
        )
        answer = "target_code"
    elif kind == "polishment":
        language = row.text(
            "scource_lang" if "scource_lang" in row else "source_lang"
        )  # misspelt in the release
        question = (
            f"Below is the source code snippet that needs optimization:\n{code('source_code', language)}\n\n"
            f"Optimize the code and ensure it passes the following test case:\n{tests()}"
        )
        answer = "efficient_code"
    else:
        language = row.text("language")
        question = (
            "Below is the code snippet that implements a specific function:\n"
            f"{code('similar_source_code', language)}\n\nIt currently performs the operation:\n"
            f"{tests('similar_')}\n\nYou are required to modify this code to implement a new function "
            f"that is related to the original one, as detailed below:\n{tests('target_')}\n\n"
            "Ensure your modified code passes the provided test case."
        )
        answer = "target_source_code"
    return question, _bare(row.text(answer)), language


def _bare(code: str) -> str:
    """Return code without its fence and without the language name that some records begin with."""
    code = _newlines(code).strip("\n").removeprefix("```").removesuffix("```").rstrip()
    return re.sub(r"\A\s*(python3?|cpp|c\+\+|java|c)[ \t]*\n", "", code).strip("\n")


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
