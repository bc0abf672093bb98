"""Text editing and quotation sets: XATU, ArgRewrite V.2, QuoteSum."""

from __future__ import annotations

import logging
import re
import xml.etree.ElementTree as ElementTree
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.reading import (
    BadRecord,
    DataFile,
    Record,
    Root,
    choice,
    missing,
    read_jsonl,
    read_lines,
    read_text,
)

LOG = logging.getLogger(__name__)
_XATU_LICENCE = "CC BY-NC 4.0; each source set has its own"
XATU = DataFile(
    "xatu", "xatu_release.jsonl", "megagonlabs/xatu", "data/xatu_release.jsonl", _XATU_LICENCE, distinct=True
)
XATU_BUILT = DataFile(
    "xatu",
    "xatu.jsonl",
    "megagonlabs/xatu",
    "data/xatu.jsonl",
    _XATU_LICENCE,
    distinct=True,
    note="written by its scripts/setup.py, not part of it",
)
XATU_PROMPTS = {
    name: DataFile("xatu", f"prompts/{name}.txt", "megagonlabs/xatu", f"prompts/{name}.txt", "BSD-3-Clause")
    for name in ("text_editing", "text_editing_w_ref")
}
XATU_SOURCES = ("asset", "jfleg", "defacto", "evidence", "factedit", "fruit", "stylePTB", "wikibias", "wnc")
ASSET = [
    DataFile("asset", name, "facebookresearch/asset", f"dataset/{name}", "CC BY-NC 4.0", distinct=True)
    for name in ["asset.test.orig"] + [f"asset.test.simp.{k}" for k in range(10)]
]
JFLEG = [
    DataFile("jfleg", name, "keisks/jfleg", f"test/{name}", "CC BY-NC-SA 4.0")
    for name in ["test.src"] + [f"test.ref{k}" for k in range(4)]
]
DEFACTO = DataFile(
    "defacto", "test.jsonl", "microsoft/DeFacto", "data/test.jsonl", "MIT; articles from XSum (BBC)"
)
_CC_BY = "CC BY 4.0 (the PLD+ paper says GNU GPL)"
DRAFT1, DRAFT2, FEEDBACK = (
    DataFile(
        "argrewrite_v2", name, "omidkashefi/ArgRewrite", f"dataset/{where}/{name}", _CC_BY, is_folder=True
    )
    for name, where in (("Draft1", "essays"), ("Draft2", "essays"), ("ExpertFeedback", "meta-data"))
)
QUOTESUM = {
    split: DataFile(
        "quotesum", f"{split}.jsonl", "google-research-datasets/QuoteSum", f"v1/{split}.jsonl", "CC BY-SA 4.0"
    )
    for split in ("dev", "test", "train")
}
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_THANKS = "Thank you for your participation in the study."
_QUOTE = re.compile(r"\[ (\d+) (.*?) \]")


def xatu(
    root: Root, task: str, subset: str | None = None, style: str = "released", instruction: str = "fine"
) -> list[Prompt]:
    """Return the XATU edits whose texts are there.

    XATU publishes instructions; the texts come from nine other sets by ``data_source`` and ``data_index``.
    ASSET, JFLEG and DeFacto are joined here. The texts of the other six are read from ``xatu.jsonl`` only,
    which the authors' ``scripts/setup.py`` writes from all nine; where that file is there it is used for
    every edit. An edit whose text is not there is left out; how many of which source is logged as a warning
    and stands in every prompt's ``meta["left_out"]``.

    Parameters
    ----------
    subset : str, optional
        One source. Its texts must be there.
    style : {"released", "pld+"}
        ``"released"``: the two files ``prompts/text_editing*.txt``, which speak of a reference and an
        explanation even where there is none. ``"pld+"``: the wording of PLD+, appendix C.3; where it puts the
        reference document of a DeFacto edit is not shown there, and stands before the response here.
    instruction : {"fine", "coarse"}
        ``fine_grained`` or ``coarse_grained``. PLD+ does not say which; for ASSET and JFLEG they are equal.
        The fine ones of DeFacto quote words of the answer, so that copying is easier with them.
    """
    choice("subset", subset, (None, *XATU_SOURCES))
    choice("style", style, ("released", "pld+"))
    choice("instruction", instruction, ("fine", "coarse"))
    path = root.find(XATU_BUILT, XATU)
    templates = (
        {
            name: (file, read_text(file))
            for name, file in ((name, root.find(item)) for name, item in XATU_PROMPTS.items())
        }
        if style == "released"
        else {}
    )
    texts = {} if path.name.startswith("xatu.jsonl") else _xatu_texts(root, subset)
    prompts: list[Prompt] = []
    left_out: Counter[str] = Counter()
    total = 0
    for row in read_jsonl(path):
        source = row.text("data_source")
        if source not in XATU_SOURCES:
            raise row.bad(f"field 'data_source' is {source!r}; expected one of {', '.join(XATU_SOURCES)}")
        if subset not in (None, source):
            continue
        total += 1
        joined = _xatu_join(row, texts)
        if joined is None:
            left_out[source] += 1
            continue
        given, answers, document = joined
        fields = {"instruction": row.text(f"{instruction}_grained"), "input": given, "reference": document}
        if style == "pld+":
            turn = _pld_plus_edit(fields)
        else:
            turn = _fill(*templates["text_editing_w_ref" if document else "text_editing"], fields)
        prompts.append(
            Prompt(
                id=f"{source}-{row['data_index']}",
                task=task,
                turns=(turn,),
                reference=answers[0],
                meta={
                    **{
                        name: row.get(name)
                        for name in (
                            "data_source",
                            "data_index",
                            "coarse_grained",
                            "fine_grained",
                            "explanation",
                        )
                    },
                    "subset": source,
                    "input": given,
                    "document": document,
                    "references": answers,
                },
            )
        )
    for prompt in prompts:
        prompt.meta["left_out"] = dict(left_out)
    if left_out:
        LOG.warning(
            "%s: %d of %d edits are left out, because their texts are not there: %s",
            task,
            left_out.total(),
            total,
            ", ".join(f"{source} {count}" for source, count in sorted(left_out.items())),
        )
    return prompts


def _xatu_texts(root: Root, subset: str | None) -> dict[str, list[tuple[str, tuple[str, ...], str] | None]]:
    """Return per source the (input, answers, document) of every index; None where the source withholds
    them."""
    readers = {
        "asset": (ASSET[0], lambda: _parallel(root, ASSET)),
        "jfleg": (JFLEG[0], lambda: _parallel(root, JFLEG)),
        "defacto": (DEFACTO, lambda: _defacto(root)),
    }
    if subset is not None and subset not in readers:
        raise missing(root.task, [XATU_BUILT], None, f"the texts of {subset!r} are read from that file only")
    return {
        name: read()
        for name, (file, read) in readers.items()
        if name == subset or subset is None and root.has(file)
    }


def _parallel(root: Root, files: list[DataFile]) -> list[tuple[str, tuple[str, ...], str] | None]:
    """Read a file of sentences and the files of their answers, line by line."""
    paths = [root.find(file) for file in files]
    lines = [read_lines(path) for path in paths]
    for path, found in zip(paths, lines):
        if len(found) != len(lines[0]):
            raise BadRecord(
                f"{path}: has {len(found)} lines; expected {len(lines[0])}, as {paths[0].name} has"
            )
    return [
        (given, tuple(a for a in answers if a), "") if given and any(answers) else None
        for given, *answers in zip(*lines)
    ]


def _defacto(root: Root) -> list[tuple[str, tuple[str, ...], str] | None]:
    """Read the rows of DeFacto with an error, in order. An emptied row keeps its place."""
    found: list[tuple[str, tuple[str, ...], str] | None] = []
    for row in read_jsonl(root.find(DEFACTO)):
        if not row.typed("has_error", bool, "true or false"):
            continue
        answer = Record(row.typed("feedback", dict, "an object"), row.where).text("summary", empty=True)
        parts = row.text("candidate", empty=True), (answer,), row.text("article", empty=True)
        found.append(parts if all((parts[0], answer, parts[2])) else None)
    return found


def _xatu_join(row: Record, texts: dict) -> tuple[str, tuple[str, ...], str] | None:
    """Return input, answers and reference document (or "") of an edit, or None if its text is not there."""
    if "input" in row:
        answers = (row["output"],) if isinstance(row.get("output"), str) else row.texts("output")
        document = row.get("reference") or ""
        return (
            row.text("input"),
            answers,
            "\n".join(document) if isinstance(document, list) else str(document),
        )
    index, source = row.typed("data_index", int, "a whole number"), row["data_source"]
    if source not in texts:
        return None
    if not 0 <= index < len(texts[source]):
        raise row.bad(
            f"field 'data_index' is {index}, but the files of {source} have {len(texts[source])} texts"
        )
    return texts[source][index]


def _fill(path: Path, template: str, fields: dict[str, str]) -> str:
    """Replace each ``{{name}}`` of a template."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in fields:
            raise BadRecord(f"{path}: asks for {match[0]}; expected one of {', '.join(fields)}")
        return fields[match[1]]

    return re.sub(r"\{\{(\w+)\}\}", value, template)


def _pld_plus_edit(fields: dict[str, str]) -> str:
    document = f"# Reference:\n{fields['reference']}\n" if fields["reference"] else ""
    return (
        "Below is an instruction that describes a task, along with an input text. "
        "Please edit the input text based on the instruction. "
        "Your response should only include the edited output.\n"
        f"# Instruction:\n{fields['instruction']}\n# Input:\n{fields['input']}\n{document}Response:"
    )


def argrewrite(root: Root, task: str) -> Iterator[Prompt]:
    """Yield the ArgRewrite V.2 essays with the expert's feedback, worded as in PLD+, appendix C.4.

    The reference is the writer's second draft. As in the appendix the feedback loses its sentence of thanks;
    it also loses rows of asterisks at its end and empty paragraphs (our choice).
    """
    folders = [root.find(folder) for folder in (DRAFT1, DRAFT2, FEEDBACK)]
    first, second, letters = (
        _numbered(path, suffix) for path, suffix in zip(folders, (".txt", ".txt", ".docx"))
    )
    for number, essay in sorted(first.items()):
        for folder, found in zip(folders[1:], (second, letters)):
            if number not in found:
                raise BadRecord(f"{folder}: has no file with number {number}, which {essay.name} belongs to")
        feedback = _feedback(letters[number])
        texts = [read_text(path).strip() for path in (essay, second[number])]
        for path, text in zip((essay, second[number], letters[number]), (*texts, feedback)):
            if not text:
                raise BadRecord(f"{path}: is empty; expected a text")
        yield Prompt(
            id=str(number),
            task=task,
            reference=texts[1],
            turns=(f"Essay: {texts[0]}\nFeedback: {feedback}\nRevise the essay using the expert feedback.",),
            meta={"number": number, "essay": texts[0], "feedback": feedback},
        )


def _numbered(folder: Path, suffix: str) -> dict[int, Path]:
    """Return the files of a folder by the number at the end of their names."""
    found = {
        int(match[1]): path
        for path in folder.iterdir()
        if path.suffix == suffix and (match := re.search(r"(\d+)$", path.stem))
    }
    if not found:
        raise BadRecord(f"{folder}: holds no *{suffix} file with a number at the end of its name")
    return found


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
            node.text or "" if node.tag == f"{_WORD}t" else spaces.get(node.tag, "")
            for node in paragraph.iter()
        ).strip()
        for paragraph in document.iter(f"{_WORD}p")
    )
    lines = [line for line in paragraphs if line.strip("* ")]
    return "\n".join(lines).removeprefix(_THANKS).strip()


def quotesum(root: Root, task: str, split: str = "dev", distinct: bool = False) -> Iterator[Prompt]:
    """Yield the QuoteSum questions with their sources.

    PLD+ (appendix D) gives no prompt, so the wording is ours. The reference is a person's answer without its
    marks of quotation; ``meta["summary"]`` has it as published and ``meta["quotes"]`` the marked spans as
    (number of the source, text), nearly all verbatim in that source.

    Parameters
    ----------
    split : {"dev", "test", "train"}
        PLD+ uses ``test``.
    distinct : bool
        False: one prompt a row, as published; several rows ask the same question of the same sources and
        differ in the answer alone. True: the first row of each question, with every answer in
        ``meta["references"]``.
    """
    choice("split", split, tuple(QUOTESUM))
    if not isinstance(distinct, bool):
        raise ValueError(f"distinct is {distinct!r}; expected True or False")
    questions: dict[str, Prompt] = {}
    for row in read_jsonl(root.find(QUOTESUM[split])):
        summary = row.text("summary")
        plain = re.sub(r" (?=[.,;:!?](?:\s|$))", "", _QUOTE.sub(r"\2", summary)).strip()
        first = questions.get(row.text("qid"))
        if distinct and first is not None:
            first.meta["references"] += (plain,)
            continue
        question = row.text("question").strip()
        sources = [
            (k, row.text(f"title{k}", empty=True), row.text(f"source{k}", empty=True))
            for k in range(1, 9)
            if row.get(f"source{k}") or k == 1
        ]
        if not sources[0][2]:
            raise row.bad("field 'source1' is empty; expected a text")
        blocks = "\n\n".join(f"[{k}] {title}\n{text.strip()}" for k, title, text in sources)
        prompt = Prompt(
            id=row["qid"] if distinct else row.text("unique_id"),
            task=task,
            reference=plain,
            turns=(
                "Answer the question from the sources below. Quote their words wherever you can.\n\n"
                f"{blocks}\n\nQuestion: {question}",
            ),
            meta={
                "qid": row["qid"],
                "split": split,
                "question": question,
                "summary": summary,
                "quotes": tuple((int(k), text) for k, text in _QUOTE.findall(summary)),
                "sources": tuple((k, title, text) for k, title, text in sources),
                "references": (plain,),
                "covered_short_answers": row.get("covered_short_answers"),
            },
        )
        questions.setdefault(row["qid"], prompt)
        if not distinct:
            yield prompt
    if distinct:
        yield from questions.values()
