"""Published sets of text to edit, and of sources to quote: XATU, JFLEG, ArgRewrite and QuoteSum."""

from __future__ import annotations

import logging
import re
import xml.etree.ElementTree as ElementTree
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_sets.files import DataFile, Root
from specdec_lib.files import check_unpacked
from specdec_lib.records import BadRecord, Record, read_jsonl, read_text

LOG = logging.getLogger(__name__)

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
