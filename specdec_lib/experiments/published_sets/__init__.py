"""The real data sets of the papers, read in their published formats by :func:`specdec_lib.experiments.tasks.load_task`.

None of their files is part of this project. ``book/datasets.md`` says where to get each, under which licence, and which
wording is a paper's and which is ours.
"""

from __future__ import annotations

import logging
import re
import xml.etree.ElementTree as ElementTree
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.reading import DataFile, MissingData, Root
from specdec_lib.files import check_unpacked
from specdec_lib.records import BadRecord, Record, read_jsonl, read_records, read_text

__all__ = ["DATASETS", "DataSet", "MissingData", "Root"]

LOG = logging.getLogger(__name__)
Reader = Callable[..., Iterable[Prompt]]


@dataclass(frozen=True)
class DataSet:
    """The reader of a set, and the values that each option of the reader may have, the default first."""

    reader: Reader
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def subsets(self) -> tuple[str, ...]:
        """Its subsets, each also a task ``name/subset``."""
        return self.options.get("subset", (None,))[1:]

    def read(self, root: Root, **options: Any) -> Iterable[Prompt]:
        """Return the prompts. Raises ValueError for a value that an option cannot have, before any file is read."""
        chosen = {name: options.get(name, values[0]) for name, values in self.options.items()}
        for name, value in chosen.items():
            allowed = self.options[name]
            if (type(value), value) not in [(type(one), one) for one in allowed]:
                expected = "True or False" if True in allowed else f"one of {', '.join(map(repr, allowed))}"
                raise ValueError(f"{name} is {value!r}; expected {expected}")
        return self.reader(root, **chosen)


def _by_fields(
    files: Mapping[str | None, DataFile], id: str, turns: Mapping[str | None, str], answer: str, continued: str = ""
) -> Reader:
    """Return the reader of a set whose prompts are templates over the fields of a row: files by subset, turns by style.

    Prompts of the style ``continued`` are continued as they stand; all others are a user's turn.
    """

    def read(root: Root, subset: str | None = None, style: str | None = None) -> Iterator[Prompt]:
        for part in [subset] if subset else files:
            for row in read_jsonl(root.find(files[part])):
                turn = row.fill(turns[style])
                yield Prompt(row.fill(id), root.task, (turn,), style != continued, row.fill(answer))

    return read


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


# ---- chat and instructions -----------------------------------------------------------------------------------

MT_BENCH = DataFile("mt_bench", "lm-sys/FastChat/fastchat/llm_judge/data/mt_bench/question.jsonl", "Apache-2.0")
SPEC_BENCH = DataFile("spec_bench", "hemingkx/Spec-Bench/data/spec_bench/question.jsonl", "Apache-2.0")
SPEC_BENCH_SUBSETS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
# The subset of each category: MT-Bench's are its own, and all are Spec-Bench's "mt_bench".
_CATEGORIES = {
    name: name for name in ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
}
_PARTS = dict.fromkeys(_CATEGORIES, "mt_bench") | {name: name for name in SPEC_BENCH_SUBSETS[1:]}
GSM8K = {
    split: DataFile("gsm8k", f"openai/grade-school-math/grade_school_math/data/{split}.jsonl", "MIT")
    for split in ("test", "train")
}
_PULL_REQUEST = "at commit 5e69c50c54048cd3b919c46d13bb2d92a62f4498 of a pull request"
ALPACA = {
    "alpaca_data": DataFile("alpaca", "tatsu-lab/stanford_alpaca/alpaca_data.json", "CC BY-NC 4.0"),
    "alpaca_5000": DataFile(
        "alpaca", "tatsu-lab/stanford_alpaca/data/alpaca_5000.json", "CC BY-NC 4.0", note=_PULL_REQUEST
    ),
    "random_9k": DataFile("alpaca", "gpt4life/alpagasus/data/random/random_9k.json", "CC BY-NC 4.0"),
}
CODEALPACA = {
    name: DataFile("codealpaca", f"sahil280114/codealpaca/data/{name}.json", "CC BY-NC 4.0")
    for name in ("code_alpaca_20k", "code_alpaca_2k")
}
_INSTRUCTION = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
)
_METAMATH = _INSTRUCTION + "### Instruction:\n{question}\n\n### Response: Let's think step by step."


def _questions(file: DataFile, subsets: Mapping[str, str], root: Root, subset: str | None) -> Iterator[Prompt]:
    """Yield the rows of a FastChat ``question.jsonl``, worded as there; ``subsets`` has the subset of each category.

    A reference has one text a turn (empty where a turn has none), or every acceptable answer where a question of one turn has
    several; the prompt's is that of the last turn, the first of several.
    """
    for row in read_jsonl(root.find(file)):
        turns = row.texts("turns")
        if not all(turn.strip() for turn in turns):
            raise row.bad("field 'turns' has an empty turn")
        category = row.one_of("category", tuple(subsets))
        answers: Any = row.typed("reference", list, "a list of texts") if "reference" in row else ()
        if len(turns) == len(answers) == 1 and isinstance(answers[0], list):
            answers = answers[0]
        elif answers and len(answers) != len(turns):
            raise row.bad(f"field 'reference' has {len(answers)} answers to {len(turns)} turns")
        if not all(isinstance(answer, str) for answer in answers):
            raise row.bad(f"field 'reference' is {answers!r:.80}; expected texts")
        last = answers[-1 if len(turns) > 1 else 0] if answers else None
        number = row.typed("question_id", (int, str), "a number or a text")
        if subset in (None, subsets[category]):
            yield Prompt(str(number), root.task, turns, reference=last or None)


def gsm8k(root: Root) -> Iterator[Prompt]:
    """Yield the GSM8K questions as SpecDec++'s released ``data/gen_dataset.py`` asks them."""
    for number, row in enumerate(read_jsonl(root.find(GSM8K["test"]))):
        turn, answer = row.fill(_METAMATH), row.text("answer")
        if "####" not in answer:
            raise row.bad("field 'answer' has no '####' before the final number")
        yield Prompt(f"test-{number}", root.task, (turn,), reference=answer)


def alpaca(root: Root) -> Iterator[Prompt]:
    """Yield the Alpaca instructions, as SpecDec++'s released ``data/gen_dataset.py`` asks them."""
    yield from _instructions(root, ALPACA)


def codealpaca(root: Root) -> Iterator[Prompt]:
    """Yield the Code Alpaca instructions.

    DReSD's released ``evaluate.py`` leaves the record's ``input`` out, even where the instruction speaks of it.
    """
    for prompt in _instructions(root, CODEALPACA):
        turn = f"Question: {prompt.meta['instruction'].strip()}\nAnswer:\n"
        yield replace(prompt, turns=(turn,), chat=False)


def _instructions(root: Root, files: Mapping[str, DataFile]) -> Iterator[Prompt]:
    """Yield the records of the first file that is there, which the ids name."""
    path = root.find(*files.values())
    name = path.name.split(".")[0]
    for number, row in enumerate(read_records(path)):
        meta, given = {"instruction": row.text("instruction")}, row.text("input", empty=True)
        turn = meta["instruction"] + (f"\nInput: {given}" if given.strip() else "")
        answer = row.text("output", empty=True) or None
        yield Prompt(f"{name}-{number}", root.task, (turn.strip(),), reference=answer, meta=meta)


# ---- code ----------------------------------------------------------------------------------------------------

HUMANEVAL = DataFile("humaneval", "openai/human-eval/data/HumanEval.jsonl.gz", "MIT")
_WIZARD = _INSTRUCTION + ("\n### Instruction:\nCreate a Python script for this problem:\n{prompt}\n\n### Response:")
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


# ---- text to edit, and sources to quote ----------------------------------------------------------------------

_XATU_LICENCE = "CC BY-NC 4.0; each source set has its own"
XATU = DataFile("xatu", "megagonlabs/xatu/data/xatu_release.jsonl", _XATU_LICENCE)
XATU_SOURCES = ("asset", "jfleg", "defacto", "evidence", "factedit", "fruit", "stylePTB", "wikibias", "wnc")
_PLD_PLUS = (
    "Below is an instruction that describes a task, along with an input text. "
    "Please edit the input text based on the instruction. "
    "Your response should only include the edited output.\n"
    "# Instruction:\n{instruction}\n# Input:\n{input}\n{document}Response:"
)
ASSET = [
    DataFile("asset", f"facebookresearch/asset/dataset/{name}", "CC BY-NC 4.0")
    for name in ("asset.test.orig", *(f"asset.test.simp.{k}" for k in range(10)))
]
JFLEG = [
    DataFile("jfleg", f"keisks/jfleg/test/{name}", "CC BY-NC-SA 4.0")
    for name in ("test.src", *(f"test.ref{k}" for k in range(4)))
]
DEFACTO = DataFile("defacto", "microsoft/DeFacto/data/test.jsonl", "MIT; articles from XSum (BBC)")
_ARGREWRITE = "omidkashefi/ArgRewrite/dataset"
ARGREWRITE = {
    DataFile("argrewrite_v2", f"{_ARGREWRITE}/{where}", "CC BY 4.0 (the PLD+ paper says GNU GPL)"): suffix
    for where, suffix in (("essays/Draft1", ".txt"), ("essays/Draft2", ".txt"), ("meta-data/ExpertFeedback", ".docx"))
}
QUOTESUM = DataFile("quotesum", "google-research-datasets/QuoteSum/v1/dev.jsonl", "CC BY-SA 4.0")
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_QUOTE = re.compile(r"\[ (\d+) (.*?) \]")

Edit = tuple[str, tuple[str, ...], str]
"""The texts of an edit of XATU: the input, every right answer, and the reference document or ``""``."""


def xatu(root: Root, subset: str | None) -> list[Prompt]:
    """Return the XATU edits whose texts are there, worded as in PLD+.

    XATU publishes instructions; the texts come from nine other sets by ``data_source`` and ``data_index``, of which ASSET,
    JFLEG and DeFacto are joined here. How many edits were left out for lack of a text is logged as a warning.
    """
    readers = {
        "asset": partial(_parallel, root, ASSET),
        "jfleg": partial(_parallel, root, JFLEG),
        "defacto": partial(_defacto, root),
    }
    rows = list(read_jsonl(root.find(XATU)))
    texts = {name: readers[name]() for name in ([subset] if subset else readers)}
    prompts: list[Prompt] = []
    left_out: Counter[str] = Counter()
    for row in rows:
        source = row.one_of("data_source", XATU_SOURCES)
        if subset not in (None, source):
            continue
        edit = _xatu_join(row, texts)
        if edit is None:
            left_out[source] += 1
            continue
        given, answers, document = edit
        shown = f"# Reference:\n{document}\n" if document else ""
        turn = _PLD_PLUS.format(instruction=row.text("fine_grained"), input=given, document=shown)
        meta = {"subset": source, "input": given, "document": document, "references": answers}
        meta["explanation"] = row.get("explanation")
        prompts.append(Prompt(f"{source}-{row['data_index']}", root.task, (turn,), reference=answers[0], meta=meta))
    if left_out:
        each = ", ".join(f"{source} {count}" for source, count in sorted(left_out.items()))
        everything = left_out.total() + len(prompts)
        text = "%s: %d of %d edits are left out, because their texts are not there: %s"
        LOG.warning(text, root.task, left_out.total(), everything, each)
    return prompts


def _parallel(root: Root, files: Sequence[DataFile]) -> list[Edit | None]:
    """Read a file of sentences and the files of their answers, line by line."""
    paths = [root.find(file) for file in files]
    lines = [[line.strip() for line in read_text(path).split("\n")] for path in paths]
    for path, own in zip(paths, lines, strict=True):
        if len(own) != len(lines[0]):
            raise BadRecord(f"{path}: has {len(own)} lines; expected {len(lines[0])}, as {paths[0].name} has")
    return [
        (given, tuple(a for a in answers if a), "") if given and any(answers) else None
        for given, *answers in zip(*lines, strict=True)
    ]


def _defacto(root: Root) -> list[Edit | None]:
    """Read the rows of DeFacto with an error, in order. An emptied row keeps its place."""
    edits: list[Edit | None] = []
    for row in read_jsonl(root.find(DEFACTO)):
        if row.typed("has_error", bool, "true or false"):
            answer = Record(row.typed("feedback", dict, "an object"), row.where).text("summary", empty=True)
            given, article = row.text("candidate", empty=True), row.text("article", empty=True)
            edits.append((given, (answer,), article) if given and answer and article else None)
    return edits


def _xatu_join(row: Record, texts: dict[str, list[Edit | None]]) -> Edit | None:
    """Return what an edit is joined with, or None if its text is not there."""
    index, source = row.typed("data_index", int, "a whole number"), row["data_source"]
    if source not in texts:
        return None
    if not 0 <= index < len(texts[source]):
        raise row.bad(f"field 'data_index' is {index}, but the files of {source} have {len(texts[source])} texts")
    return texts[source][index]


def jfleg(root: Root) -> Iterator[Prompt]:
    """Yield the JFLEG sentences that the first of their four corrections, the reference, changes, as XATU asks them."""
    for number, edit in enumerate(_parallel(root, JFLEG)):
        if edit is not None and edit[1][0] != edit[0]:
            given, answers, _ = edit
            turn = f"Correct the grammar error in the sentence.\n\n{given}"
            yield Prompt(str(number), root.task, (turn,), reference=answers[0])


def argrewrite(root: Root) -> Iterator[Prompt]:
    """Yield the ArgRewrite V.2 essays with the expert's feedback, worded as in PLD+, appendix C.4.

    Of the feedback its sentence of thanks is left out, as there, and empty paragraphs and rows of asterisks (our choice).
    """
    folders = {root.find(file): suffix for file, suffix in ARGREWRITE.items()}
    files = {folder: _numbered(folder, suffix) for folder, suffix in folders.items()}
    essays = next(iter(files.values()))
    for number in sorted(essays):
        texts = []
        for folder, own in files.items():
            if number not in own:
                raise BadRecord(f"{folder}: has no file with number {number}, which {essays[number].name} belongs to")
            path = own[number]
            texts.append(_letter(path) if path.suffix == ".docx" else read_text(path).strip())
            if not texts[-1]:
                raise BadRecord(f"{path}: is empty; expected a text")
        essay, revised, feedback = texts
        turn = f"Essay: {essay}\nFeedback: {feedback}\nRevise the essay using the expert feedback."
        yield Prompt(str(number), root.task, (turn,), reference=revised)


def _numbered(folder: Path, suffix: str) -> dict[int, Path]:
    """Return the files of a folder by the number at the end of their names."""
    found = ((re.search(r"(\d+)$", path.stem), path) for path in folder.iterdir() if path.suffix == suffix)
    numbered = {int(match[1]): path for match, path in found if match}
    if not numbered:
        raise BadRecord(f"{folder}: holds no *{suffix} file with a number at the end of its name")
    return numbered


def _letter(path: Path) -> str:
    """Return the text of a letter (Office Open XML), one paragraph a line."""
    try:
        check_unpacked(path)
        with zipfile.ZipFile(path) as packed:
            document = ElementTree.fromstring(packed.read("word/document.xml"))
    except (zipfile.BadZipFile, KeyError, ValueError, ElementTree.ParseError) as error:
        raise BadRecord(f"{path}: is not a .docx document ({error})") from None
    spaces = {f"{_WORD}tab": " ", f"{_WORD}br": "\n", f"{_WORD}cr": "\n"}
    paragraphs = (
        "".join(node.text or "" if node.tag == f"{_WORD}t" else spaces.get(node.tag, "") for node in own.iter()).strip()
        for own in document.iter(f"{_WORD}p")
    )
    lines = [line for line in paragraphs if line.strip("* ")]
    return "\n".join(lines).removeprefix("Thank you for your participation in the study.").strip()


def quotesum(root: Root, distinct: bool) -> Iterator[Prompt]:
    """Yield the QuoteSum questions with their sources; the reference is a person's answer without marks of quotation.

    Several rows ask the same question and differ in the answer: ``distinct`` yields the first of them. ``meta["quotes"]`` has
    the marked spans as (number of the source, text).
    """
    seen: set[str] = set()
    for row in read_jsonl(root.find(QUOTESUM)):
        qid, summary = row.text("qid"), row.text("summary")
        if distinct and qid in seen:
            continue
        seen.add(qid)
        plain = re.sub(r" (?=[.,;:!?](?:\s|$))", "", _QUOTE.sub(r"\2", summary)).strip()
        sources = tuple(
            (k, row.text(f"title{k}", empty=True), row.text(f"source{k}", empty=k > 1))
            for k in range(1, 9)
            if row.get(f"source{k}") or k == 1
        )
        blocks = "\n\n".join(f"[{k}] {title}\n{text.strip()}" for k, title, text in sources)
        asked = "Answer the question from the sources below. Quote their words wherever you can."
        turn = f"{asked}\n\n{blocks}\n\n" + row.fill("Question: {question:strip}")
        meta = {"quotes": tuple((int(k), text) for k, text in _QUOTE.findall(summary)), "sources": sources}
        name = qid if distinct else row.text("unique_id")
        yield Prompt(name, root.task, (turn,), reference=plain, meta=meta)


# HumanEvalPack, QuixBugs and EditEval are people's edits of code, for methods that copy: they stand for the part of PLD+'s
# code editing whose records are not published. Their wording is ours; OctoPack's evaluation also shows a function's tests.
_BUG = {None: "Fix bugs in {entry_point}.\n\n{declaration}{buggy_solution}\n{test:strip}"}
_PROGRAM = {None: "Fix bugs in {name}.\n\n{docstring:strip}\n{buggy_program}"}
_COMPLETION = {
    "rest": "{prompt}",
    "specdec++": _WIZARD,
}  # as their released codes ask, SpecDec++'s in data/gen_dataset.py
DATASETS = {
    "humaneval": DataSet(
        _by_fields({None: HUMANEVAL}, "{task_id}", _COMPLETION, "{canonical_solution}", continued="rest"),
        {"style": ("rest", "specdec++")},
    ),
    "mt-bench": DataSet(partial(_questions, MT_BENCH, _CATEGORIES), {"subset": (None, *_CATEGORIES)}),
    "spec-bench": DataSet(partial(_questions, SPEC_BENCH, _PARTS), {"subset": (None, *SPEC_BENCH_SUBSETS)}),
    "gsm8k": DataSet(gsm8k),
    "alpaca": DataSet(alpaca),
    "codealpaca": DataSet(codealpaca),
    "codeeditorbench": DataSet(codeeditorbench, {"subset": (None, *EDITS)}),
    "xatu": DataSet(xatu, {"subset": (None, *XATU_SOURCES[:3])}),
    "argrewrite": DataSet(argrewrite),
    "quotesum": DataSet(quotesum, {"distinct": (False, True)}),
    "humanevalpack": DataSet(
        _by_fields(HUMANEVALPACK, "{task_id}", _BUG, "{declaration}{canonical_solution}"),
        {"subset": (None, *HUMANEVALPACK)},
    ),
    "quixbugs": DataSet(_by_fields({None: QUIXBUGS}, "{name}", _PROGRAM, "{solution}")),
    "editeval": DataSet(editeval),
    "jfleg": DataSet(jfleg),
    "mbpp": DataSet(mbpp),
}
"""The real sets by task name."""
