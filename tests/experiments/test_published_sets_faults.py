"""Files that do not hold what their format says are refused with file, line and value."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile

import pytest

from specdec_lib.experiments.published_sets import DATASETS, BadRecord
from specdec_lib.experiments.tasks import load_task
from tests.experiments.published_formats import (
    ALPACA,
    HUMANEVAL,
    MBPP,
    QUOTE,
    TWO_TURNS,
    editor_records,
    jsonl,
    write,
    write_argrewrite,
    write_editor,
    write_xatu,
)

HUMAN, GSM, MT, MB, QS = (
    "humaneval/HumanEval.jsonl",
    "gsm8k/test.jsonl",
    "mt_bench/question.jsonl",
    "mbpp/mbpp.jsonl",
    "quotesum/dev.jsonl",
)
EDITOR, EDIT, ESSAYS = "codeeditorbench", editor_records(), "argrewrite_v2"
WHOLE = {"codeeditorbench": lambda root: write_editor(root, "code_{}_plus.jsonl"), "argrewrite": write_argrewrite}
"""By set: the writer of all its files, one of which a case then breaks."""


def without(row: dict, field: str) -> dict:
    return {name: value for name, value in row.items() if name != field}


def zipped(name: str) -> bytes:
    with zipfile.ZipFile(packed := io.BytesIO(), "w") as file:
        file.writestr(name, "")
    return packed.getvalue()


def edit(source: str, index: object) -> dict:
    return {"data_source": source, "data_index": index, "fine_grained": "Edit."}


# The task, the file, what it holds instead (a row stands in line 2; None: the file is gone), and what the error says.
BROKEN = [
    ("jfleg", "jfleg/test.ref2", "one line\n", "test.ref2: has 1 lines; expected 3, as test.src has"),
    ("quixbugs", "quixbugs/quixbugs_python.jsonl", {"name": "gcd"}, "field 'docstring' is missing"),
    ("editeval", "editeval/edit_eval.jsonl", {"task_id": "1", "input": ""}, "field 'input' is empty"),
    ("humaneval", HUMAN, jsonl(HUMANEVAL) + "\n{nonsense}\n", "line 3: is not JSON (Expecting property name"),
    ("humaneval", HUMAN, jsonl(HUMANEVAL) + "[1]\n", "line 2: is a list; expected an object"),
    ("humaneval", HUMAN, jsonl(HUMANEVAL, HUMANEVAL), "'HumanEval/7' is in its file twice"),
    ("humaneval", HUMAN, without(HUMANEVAL, "prompt"), "field 'prompt' is missing; there are 'task_id'"),
    ("humaneval", HUMAN, HUMANEVAL | {"prompt": ""}, "field 'prompt' is empty"),
    ("gsm8k", GSM, b'{"question": "a", "answer": "#### 1"}\n{"\xff"}', "line 2: is not UTF-8 text (byte 0xff)"),
    ("gsm8k", GSM, {"question": "q", "answer": "4"}, "field 'answer' has no '####'"),
    ("gsm8k", f"{GSM}.gz", b"not packed", "test.jsonl.gz: cannot be unpacked"),
    ("gsm8k", f"{GSM}.gz", gzip.compress(b"x" * 5000)[:-9], "test.jsonl.gz: cannot be unpacked"),
    ("gsm8k", f"{GSM}.zip", b"not packed", "test.jsonl.zip: cannot be unpacked"),
    ("gsm8k", f"{GSM}.zip", zipped("other.jsonl"), "test.jsonl.zip: holds no test.jsonl, only other.jsonl"),
    ("alpaca", "alpaca/alpaca_data.json", "{}", "holds a dict; expected a list of objects"),
    ("alpaca", "alpaca/alpaca_data.json", "[\n1,\n}", "is not JSON (Expecting value, line 3, column 1)"),
    ("alpaca", "alpaca/alpaca_data.json", json.dumps([ALPACA[0], "text"]), "record 2: is a str; expected an object"),
    ("alpaca", "alpaca/alpaca_data.json", json.dumps([without(ALPACA[0], "input")]), "field 'input' is missing"),
    ("alpaca", "alpaca/alpaca_data.json", json.dumps([ALPACA[0] | {"instruction": " "}]), "'instruction' is empty"),
    ("alpaca", "alpaca/alpaca_data.json", json.dumps([ALPACA[0] | {"instruction": 5}]), "is 5; expected a text"),
    ("mt-bench", MT, TWO_TURNS | {"turns": []}, "field 'turns' is []"),
    ("mt-bench", MT, TWO_TURNS | {"turns": ["a", ""]}, "field 'turns' has an empty turn"),
    ("mt-bench", MT, TWO_TURNS | {"turns": "a"}, "field 'turns' is 'a'; expected a list of texts"),
    ("mt-bench", MT, TWO_TURNS | {"reference": ["a"]}, "field 'reference' has 1 answers to 2 turns"),
    ("mt-bench", MT, TWO_TURNS | {"reference": [1, 2]}, "field 'reference' is [1, 2]; expected texts"),
    ("mt-bench", MT, TWO_TURNS | {"category": "rag"}, "field 'category' is 'rag'; expected one of writing"),
    ("mt-bench", MT, TWO_TURNS | {"question_id": None}, "field 'question_id' is None"),
    ("spec-bench", "spec_bench/question.jsonl", TWO_TURNS | {"category": "mt_bench"}, "'mt_bench'; expected one of"),
    ("mbpp", MB, MBPP | {"task_id": 975}, "field 'task_id' is 975; expected 1 to 974"),
    ("mbpp", MB, MBPP | {"task_id": True}, "field 'task_id' is True; expected a whole number"),
    ("mbpp", MB, MBPP | {"test_list": "x"}, "field 'test_list' is 'x'; expected a list of texts"),
    ("quotesum", QS, QUOTE | {"source1": ""}, "field 'source1' is empty"),
    ("quotesum", QS, without(QUOTE, "qid"), "field 'qid' is missing"),
    *(
        (f"{EDITOR}/{kind}", f"{EDITOR}/code_{kind}_plus.jsonl", without(EDIT[kind], field), f"{field!r} is missing")
        for kind, field in (("debug", "solutions"), ("switch", "language"), ("translate", "target_lang"))
    ),
    (f"{EDITOR}/switch", f"{EDITOR}/few_shot_prompt/prompt_switch.txt", "x", "does not begin with '### Instruction:'"),
    ("xatu", "xatu/xatu_release.jsonl", edit("asset", 3), "'data_index' is 3, but the files of asset have 3 texts"),
    ("xatu", "xatu/xatu_release.jsonl", edit("news", 0), "'data_source' is 'news'; expected one of asset"),
    ("xatu", "jfleg/test.ref2", "one line\n", "test.ref2: has 1 lines; expected 3, as test.src has"),
    ("xatu", "xatu/prompts/text_editing.txt", "{{mood}}", "text_editing.txt: asks for {{mood}}; expected one of"),
    ("argrewrite", f"{ESSAYS}/Draft2/draft2_2018argrewrite_2.txt", None, "Draft2: has no file with number 2"),
    ("argrewrite", f"{ESSAYS}/ExpertFeedback/feedback_2.docx", None, "ExpertFeedback: has no file with number 2"),
    ("argrewrite", f"{ESSAYS}/Draft1/draft1_2018argrewrite_2.txt", " \n", "draft1_2018argrewrite_2.txt: is empty"),
    ("argrewrite", f"{ESSAYS}/ExpertFeedback/feedback_2.docx", b"x", "feedback_2.docx: is not a .docx document"),
]


@pytest.mark.parametrize(("task", "path", "content", "says"), BROKEN)
def test_a_file_with_a_fault_is_refused_by_name(tmp_path, task, path, content, says):
    name, file = task.partition("/")[0], tmp_path / path
    WHOLE.get(name, lambda root: write_xatu(root, ("jfleg", 0)))(tmp_path)
    file.parent.mkdir(exist_ok=True)
    if content is None:
        file.unlink()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        write(file, "\n" + jsonl(content) if isinstance(content, dict) else content)
    with pytest.raises(BadRecord) as error:
        load_task(task, tmp_path)
    assert says in str(error.value) and (str(tmp_path) in str(error.value) or "twice" in says)
    if isinstance(content, dict):
        assert f"{file}, line 2: " in str(error.value)


def test_lines_before_a_fault_are_given_when_the_limit_ends_there(tmp_path):
    write(tmp_path / HUMAN, jsonl(HUMANEVAL) + "{nonsense}\n")
    assert len(load_task("humaneval", tmp_path, limit=1)) == 1


def test_a_byte_order_mark_and_other_line_ends_are_read(tmp_path):
    write(tmp_path / HUMAN, "\ufeff" + jsonl(HUMANEVAL).replace("\n", "\r\n") + "\r\n")
    assert load_task("humaneval", tmp_path)[0].text == HUMANEVAL["prompt"]


@pytest.mark.parametrize(("task", "option"), [(task, option) for task in DATASETS for option in DATASETS[task].options])
@pytest.mark.parametrize("value", ["wrong", 1, []])
def test_a_wrong_option_is_refused_before_any_file_is_looked_for(tmp_path, task, option, value):
    allowed = DATASETS[task].options[option]
    expected = "True or False" if option == "distinct" else f"one of {', '.join(map(repr, allowed))}"
    for limit in (None, 0, 3):
        with pytest.raises(ValueError, match=re.escape(f"{option} is {value!r}; expected {expected}")):
            load_task(task, tmp_path / "nowhere", limit=limit, **{option: value})
