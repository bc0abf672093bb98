"""Tiny files in the formats in which the data sets are published, and what writes them."""

import gzip
import io
import json
import zipfile
from pathlib import Path

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def write(path: Path, content: str | bytes, packing: str = "") -> None:
    """Write ``content`` at ``path``, packed as ``packing`` says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else content.encode()
    if packing == ".gz":
        data = gzip.compress(data)
    elif packing == ".zip":
        data = zipped(f"inner/{path.name}", data)
    path.with_name(path.name + packing).write_bytes(data)


def zipped(name: str, data: str | bytes = "") -> bytes:
    with zipfile.ZipFile(packed := io.BytesIO(), "w") as file:
        file.writestr(name, data)
    return packed.getvalue()


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def letter(*paragraphs: str) -> bytes:
    """A letter as Office Open XML, each paragraph split over two runs."""
    runs = "".join(f"<w:p><w:r><w:tab/><w:t>{p[:3]}</w:t></w:r><w:r><w:t>{p[3:]}</w:t></w:r></w:p>" for p in paragraphs)
    document = f'<w:document xmlns:w="{WORD}"><w:body>{runs}</w:body></w:document>'
    return zipped("word/document.xml", document)


HUMANEVAL = {
    "task_id": "HumanEval/7", "prompt": 'def f(x):\n    """Größe."""\n', "entry_point": "f",
    "canonical_solution": "    return x\n", "test": "def check(f): pass",
}  # fmt: skip
BUGGY = HUMANEVAL | {"declaration": "def f(x):\n", "buggy_solution": "    return y\n", "bug_type": "variable misuse"}
TWO_TURNS = {"question_id": 81, "category": "math", "turns": ["What?", "And now?"], "reference": ["A", "B"]}
NO_ANSWER = {"question_id": 200, "category": "qa", "turns": ["Who?"]}
TWO_ANSWERS = {"question_id": 201, "category": "rag", "turns": ["Passage. Who?"], "reference": [["He", "Him"]]}
ONE_TURN = {"question_id": 82, "category": "writing", "turns": ["Write."]}
MBPP = {"text": "Add. ", "code": "a\r\nb", "task_id": 11, "test_setup_code": "", "test_list": ["assert 1", "assert 2"]}
ALPACA = [
    {"instruction": "Sort.", "input": "3 1 2", "output": "1 2 3"},
    {"instruction": "Greet. ", "input": "", "output": ""},
]
QUOTE = {
    "qid": "q1",
    "unique_id": "q1_0",
    "question": "Who?",
    "summary": "It was [ 2 the man ] .",
    **{f"{part}{k}": "" for part in ("title", "source") for k in range(1, 9)},
    **{"title1": "One", "source1": "Not him.", "title2": "Two", "source2": "Indeed the man."},
}
QUOTED_TWICE = QUOTE | {"unique_id": "q1_1", "summary": "[ 2 the man ] and [ 1 not him ]"}
QUIX = {"name": "gcd", "docstring": '"""Divisor"""\n', "buggy_program": "bad()", "solution": "good()", "tests": "x"}
EDIT = {"task_id": "EditEval/0", "instruction": "Change it. ", "input": "a()", "output": "b()"}
EDIT_IN_PLACE = EDIT | {"task_id": "EditEval/1", "context": "class A:\n{{Code}}\n"}
_TESTS = {"idx": 5, "public_tests_input": " 1\n", "public_tests_output": " 2\n", "private_tests_input": "['3']"}
_SIDES = [f"{kind} {side}" for kind in ("similar", "target") for side in ("input", "output")]
#: A record of each kind of edit; question and answer are told apart by their words.
EDITOR = {
    "debug": _TESTS | {"code_language": "python3", "incorrect_solutions": "python\ngiven()", "solutions": "right()\n"},
    "translate": _TESTS
    | {"source_lang": "c++", "target_lang": "java", "source_code": "```cpp\ngiven()\n```", "target_code": "right()"},
    "polishment": _TESTS
    | {"scource_lang": "java", "source_code": "```java\ngiven()```", "efficient_code": "java\nright()"},
    "switch": {"language": "python", "similar_source_code": "given()", "target_source_code": "```python\nright()\n```"}
    | {f"public_{side.replace(' ', '_tests_')}": side for side in _SIDES},
}


def editor(name: str) -> dict[str, str]:
    return {f"codeeditorbench/{name.format(kind)}": jsonl(row) for kind, row in EDITOR.items()} | {
        f"codeeditorbench/few_shot_prompt/prompt_{kind}.txt": f"### Instruction: \nChange {kind}.\n\n### Question:\nx\n"
        for kind in EDITOR
    }


def xatu(*edits: tuple[str, int]) -> dict[str, str]:
    """XATU's release with some edits, its prompts, and the sources asset, jfleg and defacto."""
    rows = [{"data_source": name, "data_index": index, "fine_grained": f"Edit {name} well."} for name, index in edits]
    facts = [
        {"has_error": given != "right", "candidate": given, "article": text, "feedback": {"summary": summary}}
        for given, text, summary in (("right", "a", ""), ("wrong", "doc", "mended"), ("", "", ""))
    ]
    return {
        "xatu/xatu_release.jsonl": jsonl(*rows),
        "asset/asset.test.orig": "asset zero\n\nasset two\n",
        **{f"asset/asset.test.simp.{k}": f"asset answer {k}\n\nasset last {k}\n" for k in range(10)},
        "jfleg/test.src": "a {{cat}}\n\nright\n",
        **{f"jfleg/test.ref{k}": f"A cat {k}\n\nright\n" for k in range(4)},
        "defacto/test.jsonl": jsonl(*facts),
    }


ESSAYS = "argrewrite_v2"
FEEDBACK = letter("Thank you for your participation in the study. Read &lt;this&gt;.", "", "Clear words.", "***")
FILES: dict[str, dict[str, str | bytes]] = {
    "humaneval": {"humaneval/HumanEval.jsonl": jsonl(HUMANEVAL)},
    "mt-bench": {"mt_bench/question.jsonl": jsonl(TWO_TURNS, ONE_TURN)},
    "spec-bench": {"spec_bench/question.jsonl": jsonl(TWO_TURNS, NO_ANSWER, TWO_ANSWERS)},
    "gsm8k": {"gsm8k/test.jsonl": jsonl({"question": "How many test?", "answer": "1+1=<<1+1=2>>2\n#### 2"})},
    "alpaca": {"alpaca/random_9k.json": json.dumps(ALPACA, indent=1)},
    "codealpaca": {"codealpaca/code_alpaca_2k.json": json.dumps(ALPACA)},
    "codeeditorbench": editor("code_{}_plus.jsonl"),
    "xatu": xatu(("asset", 2), ("jfleg", 0), ("defacto", 0)),
    "jfleg": xatu(),
    "argrewrite": {
        f"{ESSAYS}/Draft{draft}/draft{draft}_2018argrewrite_{n}.txt": f"Draft {draft} of {n}.\n"
        for draft in (1, 2)
        for n in (2, 10)
    }
    | {f"{ESSAYS}/ExpertFeedback/feedback_{n}.docx": FEEDBACK for n in (2, 10)},
    "quotesum": {"quotesum/dev.jsonl": jsonl(QUOTE, QUOTED_TWICE)},
    "humanevalpack": {
        f"humanevalpack/{name}/humanevalpack.jsonl": jsonl(BUGGY | {"task_id": f"{name}/0"})
        for name in ("python", "go")
    },
    "quixbugs": {"quixbugs/quixbugs_python.jsonl": jsonl(QUIX)},
    "editeval": {"editeval/edit_eval.jsonl": jsonl(EDIT, EDIT_IN_PLACE)},
    "mbpp": {"mbpp/mbpp.jsonl": jsonl(*(MBPP | {"task_id": number} for number in (10, 11, 510, 511)))},
}
"""By set the files of a tiny copy of it."""


def publish(root: Path, name: str, packing: str = "") -> None:
    """Write the tiny copy of a set."""
    for place, content in FILES[name].items():
        write(root / place, content, packing if isinstance(content, str) and name != "argrewrite" else "")
