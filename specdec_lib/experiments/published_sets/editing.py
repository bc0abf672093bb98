"""Text editing and quotation sets: XATU, JFLEG, ArgRewrite V.2, QuoteSum."""

from __future__ import annotations

import logging
import re
import xml.etree.ElementTree as ElementTree
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.reading import (
    BadRecord,
    DataFile,
    Record,
    Root,
    read_jsonl,
    read_lines,
    read_text,
)

LOG = logging.getLogger(__name__)
_XATU_LICENCE = "CC BY-NC 4.0; each source set has its own"
XATU = DataFile("xatu/xatu_release.jsonl", "megagonlabs/xatu/data/xatu_release.jsonl", _XATU_LICENCE, distinct=True)
XATU_BUILT = DataFile(
    "xatu/xatu.jsonl",
    "megagonlabs/xatu/data/xatu.jsonl",
    _XATU_LICENCE,
    distinct=True,
    note="written by its scripts/setup.py, not part of it",
)
XATU_PROMPTS = [
    DataFile(f"xatu/prompts/{name}.txt", f"megagonlabs/xatu/prompts/{name}.txt", "BSD-3-Clause")
    for name in ("text_editing", "text_editing_w_ref")
]
XATU_SOURCES = ("asset", "jfleg", "defacto", "evidence", "factedit", "fruit", "stylePTB", "wikibias", "wnc")
ASSET = [
    DataFile(f"asset/{name}", f"facebookresearch/asset/dataset/{name}", "CC BY-NC 4.0", distinct=True)
    for name in ("asset.test.orig", *(f"asset.test.simp.{k}" for k in range(10)))
]
JFLEG = [
    DataFile(f"jfleg/{name}", f"keisks/jfleg/test/{name}", "CC BY-NC-SA 4.0")
    for name in ("test.src", *(f"test.ref{k}" for k in range(4)))
]
DEFACTO = DataFile("defacto/test.jsonl", "microsoft/DeFacto/data/test.jsonl", "MIT; articles from XSum (BBC)")
_CC_BY = "CC BY 4.0 (the PLD+ paper says GNU GPL)"
ARGREWRITE = [
    DataFile(f"argrewrite_v2/{name}", f"omidkashefi/ArgRewrite/dataset/{where}/{name}", _CC_BY, is_folder=True)
    for name, where in (("Draft1", "essays"), ("Draft2", "essays"), ("ExpertFeedback", "meta-data"))
]
_SUFFIXES = (".txt", ".txt", ".docx")
QUOTESUM = {
    split: DataFile(f"quotesum/{split}.jsonl", f"google-research-datasets/QuoteSum/v1/{split}.jsonl", "CC BY-SA 4.0")
    for split in ("dev", "test", "train")
}
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_THANKS = "Thank you for your participation in the study."
_QUOTE = re.compile(r"\[ (\d+) (.*?) \]")
_PLD_PLUS = (
    "Below is an instruction that describes a task, along with an input text. "
    "Please edit the input text based on the instruction. "
    "Your response should only include the edited output.\n"
    "# Instruction:\n{instruction}\n# Input:\n{input}\n{document}Response:"
)

Edit = tuple[str, tuple[str, ...], str]
"""What an edit of XATU is joined with: the input, every right answer, and the reference document or ``""``."""


def xatu(root: Root, subset: str | None, style: str, instruction: str) -> list[Prompt]:
    """Return the XATU edits whose texts are there, of one source with ``subset``, whose texts must be there.

    XATU publishes instructions; the texts come from nine other sets by ``data_source`` and ``data_index``.
    ASSET, JFLEG and DeFacto are joined here. The texts of the other six are read from ``xatu.jsonl`` only,
    which the authors' ``scripts/setup.py`` writes from all nine; where that file is there it is used for
    every edit. An edit whose text is not there is left out; how many of which source is logged as a warning
    and stands in every prompt's ``meta["left_out"]``.

    ``style="released"``: the two files ``prompts/text_editing*.txt``, which speak of a reference and an
    explanation even where there is none. ``style="pld+"``: the wording of PLD+, appendix C.3; where it puts the
    reference document of a DeFacto edit is not shown there, and stands before the response here.
    ``instruction``: ``fine_grained`` or ``coarse_grained``. PLD+ does not say which; for ASSET and JFLEG they are
    equal. The fine ones of DeFacto quote words of the answer, so that copying is easier with them.
    """
    path = root.find(XATU_BUILT, XATU)
    templates = [(file, read_text(file)) for file in map(root.find, XATU_PROMPTS)] if style == "released" else []
    texts = {} if path.name.startswith("xatu.jsonl") else _xatu_texts(root, subset)
    prompts: list[Prompt] = []
    left_out: Counter[str] = Counter()
    for row in read_jsonl(path):
        source = row.one_of("data_source", XATU_SOURCES)
        if subset not in (None, source):
            continue
        edit = _xatu_join(row, texts)
        if edit is None:
            left_out[source] += 1
            continue
        given, answers, document = edit
        wanted = row.text(f"{instruction}_grained")
        if style == "released":
            fields = {"instruction": wanted, "input": given, "reference": document}
            turn = _fill(*templates[bool(document)], fields)
        else:
            shown = f"# Reference:\n{document}\n" if document else ""
            turn = _PLD_PLUS.format(instruction=wanted, input=given, document=shown)
        names = ("data_source", "data_index", "coarse_grained", "fine_grained", "explanation")
        meta = {name: row.get(name) for name in names}
        meta |= {"subset": source, "input": given, "document": document, "references": answers}
        prompts.append(Prompt(f"{source}-{row['data_index']}", root.task, (turn,), reference=answers[0], meta=meta))
    for prompt in prompts:
        prompt.meta["left_out"] = dict(left_out)
    if left_out:
        LOG.warning(
            "%s: %d of %d edits are left out, because their texts are not there: %s",
            root.task,
            left_out.total(),
            left_out.total() + len(prompts),
            ", ".join(f"{source} {count}" for source, count in sorted(left_out.items())),
        )
    return prompts


def _xatu_texts(root: Root, subset: str | None) -> dict[str, list[Edit | None]]:
    """Return per source the edit of every index; None where the source withholds it."""
    readers = {
        "asset": (ASSET[0], lambda: _parallel(root, ASSET)),
        "jfleg": (JFLEG[0], lambda: _parallel(root, JFLEG)),
        "defacto": (DEFACTO, lambda: _defacto(root)),
    }
    if subset is not None and subset not in readers:
        raise root.missing([XATU_BUILT], f"but the texts of {subset!r} are read from that file only.")
    return {
        name: read() for name, (file, read) in readers.items() if name == subset or subset is None and root.has(file)
    }


def _parallel(root: Root, files: Sequence[DataFile]) -> list[Edit | None]:
    """Read a file of sentences and the files of their answers, line by line."""
    paths = [root.find(file) for file in files]
    lines = [read_lines(path) for path in paths]
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
    if "input" in row:
        answers = (row["output"],) if isinstance(row.get("output"), str) else row.texts("output")
        document = row.get("reference") or ""
        return row.text("input"), answers, "\n".join(document) if isinstance(document, list) else str(document)
    index, source = row.typed("data_index", int, "a whole number"), row["data_source"]
    if source not in texts:
        return None
    if not 0 <= index < len(texts[source]):
        raise row.bad(f"field 'data_index' is {index}, but the files of {source} have {len(texts[source])} texts")
    return texts[source][index]


def _fill(path: Path, template: str, fields: dict[str, str]) -> str:
    """Replace each ``{{name}}`` of a template."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in fields:
            raise BadRecord(f"{path}: asks for {match[0]}; expected one of {', '.join(fields)}")
        return fields[match[1]]

    return re.sub(r"\{\{(\w+)\}\}", value, template)


def jfleg(root: Root) -> Iterator[Prompt]:
    """Yield the JFLEG sentences that the first of their four corrections, the reference, changes.

    None of the four papers uses JFLEG but through XATU, whose request to correct its sentences is asked here.
    """
    for number, edit in enumerate(_parallel(root, JFLEG)):
        if edit is not None and edit[1][0] != edit[0]:
            given, answers, _ = edit
            turn = f"Correct the grammar error in the sentence.\n\n{given}"
            yield Prompt(str(number), root.task, (turn,), reference=answers[0], meta={"references": answers})


def argrewrite(root: Root) -> Iterator[Prompt]:
    """Yield the ArgRewrite V.2 essays with the expert's feedback, worded as in PLD+, appendix C.4.

    The reference is the writer's second draft. As in the appendix the feedback loses its sentence of thanks;
    it also loses rows of asterisks at its end and empty paragraphs (our choice).
    """
    folders = [root.find(folder) for folder in ARGREWRITE]
    files = [_numbered(folder, suffix) for folder, suffix in zip(folders, _SUFFIXES, strict=True)]
    for number in sorted(files[0]):
        for folder, own in zip(folders, files, strict=True):
            if number not in own:
                essay = files[0][number].name
                raise BadRecord(f"{folder}: has no file with number {number}, which {essay} belongs to")
        paths = [own[number] for own in files]
        texts = [read_text(paths[0]).strip(), read_text(paths[1]).strip(), _feedback(paths[2])]
        for path, text in zip(paths, texts, strict=True):
            if not text:
                raise BadRecord(f"{path}: is empty; expected a text")
        essay, revised, feedback = texts
        turn = f"Essay: {essay}\nFeedback: {feedback}\nRevise the essay using the expert feedback."
        meta = {"number": number, "essay": essay, "feedback": feedback}
        yield Prompt(str(number), root.task, (turn,), reference=revised, meta=meta)


def _numbered(folder: Path, suffix: str) -> dict[int, Path]:
    """Return the files of a folder by the number at the end of their names."""
    numbered = {
        int(match[1]): path
        for path in folder.iterdir()
        if path.suffix == suffix and (match := re.search(r"(\d+)$", path.stem))
    }
    if not numbered:
        raise BadRecord(f"{folder}: holds no *{suffix} file with a number at the end of its name")
    return numbered


def _feedback(path: Path) -> str:
    """Return the text of a letter (Office Open XML), one paragraph a line."""
    try:
        with zipfile.ZipFile(path) as packed:
            document = ElementTree.fromstring(packed.read("word/document.xml"))
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError) as error:
        raise BadRecord(f"{path}: is not a .docx document ({error})") from None
    spaces = {f"{_WORD}tab": " ", f"{_WORD}br": "\n", f"{_WORD}cr": "\n"}
    paragraphs = (
        "".join(
            node.text or "" if node.tag == f"{_WORD}t" else spaces.get(node.tag, "") for node in paragraph.iter()
        ).strip()
        for paragraph in document.iter(f"{_WORD}p")
    )
    lines = [line for line in paragraphs if line.strip("* ")]
    return "\n".join(lines).removeprefix(_THANKS).strip()


def quotesum(root: Root, split: str, distinct: bool) -> Iterator[Prompt]:
    """Yield the QuoteSum questions with their sources; PLD+ uses the split ``test``.

    PLD+ (appendix D) gives no prompt, so the wording is ours. The reference is a person's answer without its
    marks of quotation; ``meta["summary"]`` has it as published and ``meta["quotes"]`` the marked spans as
    (number of the source, text), nearly all verbatim in that source.

    ``distinct=False``: one prompt a row, as published; several rows ask the same question of the same sources and
    differ in the answer alone. ``distinct=True``: the first row of each question, with every answer in
    ``meta["references"]``.
    """
    questions: dict[str, Prompt] = {}
    for row in read_jsonl(root.find(QUOTESUM[split])):
        qid, summary = row.text("qid"), row.text("summary")
        plain = re.sub(r" (?=[.,;:!?](?:\s|$))", "", _QUOTE.sub(r"\2", summary)).strip()
        if distinct and qid in questions:
            questions[qid].meta["references"] += (plain,)
            continue
        sources = tuple(
            (k, row.text(f"title{k}", empty=True), row.text(f"source{k}", empty=k > 1))
            for k in range(1, 9)
            if row.get(f"source{k}") or k == 1
        )
        blocks = "\n\n".join(f"[{k}] {title}\n{text.strip()}" for k, title, text in sources)
        question = row.text("question").strip()
        turn = (
            "Answer the question from the sources below. Quote their words wherever you can.\n\n"
            f"{blocks}\n\nQuestion: {question}"
        )
        meta = {
            "qid": qid,
            "split": split,
            "question": question,
            "summary": summary,
            "quotes": tuple((int(k), text) for k, text in _QUOTE.findall(summary)),
            "sources": sources,
            "references": (plain,),
            "covered_short_answers": row.get("covered_short_answers"),
        }
        name = qid if distinct else row.text("unique_id")
        questions[qid] = Prompt(name, root.task, (turn,), reference=plain, meta=meta)
        if not distinct:
            yield questions[qid]
    if distinct:
        yield from questions.values()
