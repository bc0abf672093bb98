"""Writers of tiny files in the formats in which the data sets are published."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def write(path: Path, text: str, packing: str = "") -> None:
    """Write ``text`` at ``path``, packed as ``packing`` says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if packing == ".gz":
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(text.encode()))
    elif packing == ".zip":
        with zipfile.ZipFile(path.with_name(path.name + ".zip"), "w") as packed:
            packed.writestr(f"inner/{path.name}", text)
    else:
        path.write_bytes(text.encode())


def jsonl(*rows: dict) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def docx(path: Path, *paragraphs: str) -> None:
    """Write a letter as Office Open XML, each paragraph split over two runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = "".join(
        f"<w:p><w:r><w:tab/><w:t>{escape(p[:3])}</w:t></w:r><w:r><w:t>{escape(p[3:])}</w:t></w:r></w:p>"
        for p in paragraphs
    )
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(
            "word/document.xml",
            f'<w:document xmlns:w="{WORD}"><w:body>{runs}</w:body></w:document>',
        )


HUMANEVAL = {
    "task_id": "HumanEval/7",
    "prompt": 'def f(x):\n    """Größe."""\n',
    "entry_point": "f",
    "canonical_solution": "    return x\n",
    "test": "def check(f): pass",
}
HUMANEVALPACK = {
    "task_id": "Python/0",
    "declaration": "def f(x):\n",
    "buggy_solution": "    return y\n",
    "canonical_solution": "    return x\n",
    "test": "\n\nassert f(1) == 1\n",
    "entry_point": "f",
    "bug_type": "variable misuse",
}
TWO_TURNS = {"question_id": 81, "category": "math", "turns": ["What?", "And now?"], "reference": ["A", "B"]}
MBPP = {
    "text": "Add.",
    "code": "def add(a, b):\r\n    return a + b",
    "task_id": 11,
    "test_setup_code": "",
    "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
    "challenge_test_list": [],
}
ALPACA = [
    {"instruction": "Sort.", "input": "3 1 2", "output": "1 2 3"},
    {"instruction": "Greet.", "input": "", "output": "Hello"},
]
QUOTE = {
    "qid": "q1",
    "unique_id": "q1_0",
    "question": "Who?",
    "summary": "It was [ 2 the second man ] .",
    "covered_short_answers": "[ 2 the second man ]",
    **{f"title{k}": "" for k in range(1, 9)},
    **{f"source{k}": "" for k in range(1, 9)},
    "title1": "One",
    "source1": "Not him.",
    "title2": "Two",
    "source2": "Indeed the second man was it.",
}


def editor_records() -> dict[str, dict]:
    """One record of each kind; question and answer code are told apart by their words."""
    tests = {"public_tests_input": " n = 1\n", "public_tests_output": " 2\n", "private_tests_input": "['3']"}
    similar = {f"public_{k}_tests_{s}": f"{k} {s}" for k in ("similar", "target") for s in ("input", "output")}
    return {
        "debug": {
            "code_language": "python3",
            "incorrect_solutions": "python\ngiven()",
            "solutions": "right()\n",
        }
        | tests,
        "translate": {
            "source_lang": "c++",
            "target_lang": "java",
            "source_code": "```cpp\ngiven()\n```",
            "target_code": "```java\nright()\n```",
        }
        | tests,
        "polishment": {
            "scource_lang": "java",
            "source_code": "```java\ngiven()```",
            "efficient_code": "java\nright()",
        }
        | tests,
        "switch": {
            "language": "python",
            "similar_source_code": "given()",
            "target_source_code": "```python\nright()\n```",
        }
        | similar,
    }


def write_editor(root: Path, name: str, packing: str = "") -> None:
    for kind, record in editor_records().items():
        write(root / f"codeeditorbench/{name.format(kind)}", jsonl(record | {"idx": 5}), packing)
        shown = f"### Instruction: \nChange the {kind} code.\n\n### Question:\nx\n\n### Answer:\nright()\n"
        write(root / f"codeeditorbench/few_shot_prompt/prompt_{kind}.txt", shown)


def write_xatu(root: Path, *rows: tuple[str, int], packing: str = "") -> None:
    """Write the release with ``rows``, its prompts, and the sources asset, jfleg and defacto."""
    edits = [
        {
            "data_source": source,
            "data_index": index,
            "coarse_grained": "Edit.",
            "fine_grained": f"Edit {source} well.",
            "explanation": "why",
        }
        for source, index in rows
    ]
    write(root / "xatu/xatu_release.jsonl", jsonl(*edits), packing)
    write(root / "xatu/prompts/text_editing.txt", "I:{{instruction}} T:{{input}} R:")
    write(root / "xatu/prompts/text_editing_w_ref.txt", "I:{{instruction}} T:{{input}} D:{{reference}} R:")
    for folder, first, names in (
        ("asset", "asset.test.orig", [f"asset.test.simp.{k}" for k in range(10)]),
        ("jfleg", "test.src", [f"test.ref{k}" for k in range(4)]),
    ):
        write(root / folder / first, f"{folder} zero {{{{input}}}}\n\n{folder} two\n", packing)
        for k, name in enumerate(names):
            write(root / folder / name, f"{folder} answer {k}\n\n{folder} last {k}\n", packing)
    facts = [
        {"has_error": False, "candidate": "right", "article": "a", "feedback": {"summary": ""}},
        {"has_error": True, "candidate": "wrong", "article": "doc", "feedback": {"summary": "mended"}},
        {"has_error": True, "candidate": "", "article": "", "feedback": {"summary": ""}},
    ]
    write(root / "defacto/test.jsonl", jsonl(*facts), packing)


def write_argrewrite(root: Path, numbers=(2, 10)) -> None:
    for n in numbers:
        for draft in (1, 2):
            write(
                root / f"argrewrite_v2/Draft{draft}/draft{draft}_2018argrewrite_{n}.txt",
                f"Draft {draft} of {n}.\n",
            )
        docx(
            root / f"argrewrite_v2/ExpertFeedback/feedback_{n}.docx",
            "Thank you for your participation in the study. Read <this>.",
            "",
            "Clear words.",
            "***",
        )
