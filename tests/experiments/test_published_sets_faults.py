"""Files that do not hold what their format says are refused with file, line and value."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from specdec_lib.experiments.published_sets import BadRecord
from specdec_lib.experiments.tasks import load_task
from tests.experiments.published_formats import (
    ALPACA,
    HUMANEVAL,
    MBPP,
    QUOTE,
    TWO_TURNS,
    jsonl,
    write,
    write_argrewrite,
    write_editor,
    write_xatu,
)


def refused(task: str, root, *parts: str, **options) -> None:
    """Assert that loading raises BadRecord with every part in its message."""
    with pytest.raises(BadRecord) as error:
        load_task(task, root, **options)
    for part in parts:
        assert part in str(error.value), f"{part!r} is not in {error.value}"


def test_a_line_that_is_not_json_is_named(tmp_path):
    write(tmp_path / "humaneval/HumanEval.jsonl", jsonl(HUMANEVAL) + "\n{nonsense}\n")
    refused("humaneval", tmp_path, "HumanEval.jsonl, line 3: is not JSON", "column 2")


def test_a_line_that_is_no_object_is_named(tmp_path):
    write(tmp_path / "humaneval/HumanEval.jsonl", jsonl(HUMANEVAL) + "[1]\n")
    refused("humaneval", tmp_path, "HumanEval.jsonl, line 2: is a list; expected an object")


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    write(tmp_path / "gsm8k/test.jsonl", "")
    (tmp_path / "gsm8k/test.jsonl").write_bytes(
        b'{"question": "a", "answer": "#### 1"}\n{"question": "\xff"}\n'
    )
    refused("gsm8k", tmp_path, "test.jsonl, line 2: is not UTF-8 text (byte 0xff)")


def test_lines_before_a_fault_are_given_when_the_limit_ends_there(tmp_path):
    write(tmp_path / "humaneval/HumanEval.jsonl", jsonl(HUMANEVAL) + "{nonsense}\n")
    assert len(load_task("humaneval", tmp_path, limit=1)) == 1


def test_a_byte_order_mark_and_other_line_ends_are_read(tmp_path):
    write(tmp_path / "humaneval/HumanEval.jsonl", "\ufeff" + jsonl(HUMANEVAL).replace("\n", "\r\n") + "\r\n")
    assert load_task("humaneval", tmp_path)[0].text == HUMANEVAL["prompt"]


@pytest.mark.parametrize(
    "content", [b"not packed", gzip.compress(b"x" * 5000)[:-9]], ids=["no gzip", "cut short"]
)
def test_a_damaged_gzip_file_is_named(tmp_path, content):
    write(tmp_path / "gsm8k/test.jsonl", "", ".gz")
    (tmp_path / "gsm8k/test.jsonl.gz").write_bytes(content)
    refused("gsm8k", tmp_path, "test.jsonl.gz")


def test_a_damaged_zip_file_is_named(tmp_path):
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/test.jsonl.zip").write_bytes(b"not packed")
    refused("gsm8k", tmp_path, "test.jsonl.zip: cannot be unpacked", "get the file again")


def test_a_zip_file_without_the_file_tells_what_it_holds(tmp_path):
    write(tmp_path / "gsm8k/other.jsonl", "", ".zip")
    (tmp_path / "gsm8k/other.jsonl.zip").rename(tmp_path / "gsm8k/test.jsonl.zip")
    refused("gsm8k", tmp_path, "holds no test.jsonl, only other.jsonl")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{}", "holds a dict; expected a list of objects"),
        ("[\n1,\n}", "is not JSON (Expecting value, line 3, column 1)"),
        (json.dumps([ALPACA[0], "text"]), "record 2: is a str; expected an object"),
        (json.dumps([{"instruction": "x", "output": "y"}]), "record 1: field 'input' is missing"),
        (json.dumps([ALPACA[0] | {"instruction": " "}]), "record 1: field 'instruction' is empty"),
        (json.dumps([ALPACA[0] | {"instruction": 5}]), "record 1: field 'instruction' is 5; expected a text"),
    ],
)
def test_a_json_list_with_a_fault_is_named_with_the_record(tmp_path, content, says):
    write(tmp_path / "alpaca/alpaca_data.json", content)
    refused("alpaca", tmp_path, "alpaca_data.json", says)


def without(row: dict, field: str) -> dict:
    return {name: value for name, value in row.items() if name != field}


@pytest.mark.parametrize(
    ("task", "path", "row", "says"),
    [
        ("humaneval", "humaneval/HumanEval.jsonl", without(HUMANEVAL, "prompt"), "field 'prompt' is missing"),
        ("humaneval", "humaneval/HumanEval.jsonl", HUMANEVAL | {"prompt": ""}, "field 'prompt' is empty"),
        ("mt-bench", "mt_bench/question.jsonl", TWO_TURNS | {"turns": []}, "field 'turns' is []"),
        ("mt-bench", "mt_bench/question.jsonl", TWO_TURNS | {"turns": ["a", ""]}, "has an empty turn"),
        ("mt-bench", "mt_bench/question.jsonl", TWO_TURNS | {"turns": "a"}, "expected a list of texts"),
        ("mt-bench", "mt_bench/question.jsonl", TWO_TURNS | {"reference": ["a"]}, "1 answers to 2 turns"),
        ("mt-bench", "mt_bench/question.jsonl", TWO_TURNS | {"reference": [1, 2]}, "expected texts"),
        ("mt-bench", "mt_bench/question.jsonl", TWO_TURNS | {"category": "rag"}, "'category' is 'rag'"),
        ("mt-bench", "mt_bench/question.jsonl", TWO_TURNS | {"question_id": None}, "'question_id' is None"),
        (
            "spec-bench",
            "spec_bench/question.jsonl",
            TWO_TURNS | {"category": "mt_bench"},
            "'mt_bench'; expected",
        ),
        ("gsm8k", "gsm8k/test.jsonl", {"question": "q", "answer": "4"}, "has no '####'"),
        ("mbpp", "mbpp/mbpp.jsonl", MBPP | {"task_id": 975}, "'task_id' is 975; expected 1 to 974"),
        ("mbpp", "mbpp/mbpp.jsonl", MBPP | {"task_id": True}, "'task_id' is True; expected a whole number"),
        ("mbpp", "mbpp/mbpp.jsonl", MBPP | {"test_list": "x"}, "expected a list of texts"),
        ("quotesum", "quotesum/dev.jsonl", QUOTE | {"source1": ""}, "field 'source1' is empty"),
        ("quotesum", "quotesum/dev.jsonl", without(QUOTE, "qid"), "field 'qid' is missing"),
    ],
)
def test_a_row_with_a_fault_is_named_with_its_line(tmp_path, task, path, row, says):
    write(tmp_path / path, "\n" + jsonl(row))
    refused(task, tmp_path, f"{path.split('/')[1]}, line 2: ", says)


@pytest.mark.parametrize(
    ("kind", "field"), [("debug", "solutions"), ("switch", "language"), ("translate", "target_lang")]
)
def test_a_code_editing_record_without_a_field_is_named(tmp_path, kind, field):
    write_editor(tmp_path, "code_{}_plus.jsonl")
    path = tmp_path / f"codeeditorbench/code_{kind}_plus.jsonl"
    write(path, jsonl(without(json.loads(path.read_text()), field)))
    refused(
        f"codeeditorbench/{kind}", tmp_path, f"code_{kind}_plus.jsonl, line 1: field {field!r} is missing"
    )


def test_a_prompt_file_without_its_instruction_is_named(tmp_path):
    write_editor(tmp_path, "code_{}_plus.jsonl")
    write(tmp_path / "codeeditorbench/few_shot_prompt/prompt_switch.txt", "something else")
    refused("codeeditorbench/switch", tmp_path, "prompt_switch.txt: does not begin with '### Instruction:'")


def test_an_index_beyond_the_source_is_named(tmp_path):
    write_xatu(tmp_path, ("asset", 0), ("asset", 3))
    refused("xatu", tmp_path, "xatu_release.jsonl, line 2: field 'data_index' is 3", "asset have 3 texts")


def test_an_unknown_source_is_named(tmp_path):
    write_xatu(tmp_path, ("news", 0))
    refused("xatu", tmp_path, "line 1: field 'data_source' is 'news'; expected one of asset")


def test_answers_that_do_not_run_parallel_to_the_sentences_are_named(tmp_path):
    write_xatu(tmp_path, ("jfleg", 0))
    write(tmp_path / "jfleg/test.ref2", "one line\n")
    refused("xatu", tmp_path, "test.ref2: has 1 lines; expected 3, as test.src has")


def test_a_template_that_asks_for_something_else_is_named(tmp_path):
    write_xatu(tmp_path, ("jfleg", 0))
    write(tmp_path / "xatu/prompts/text_editing.txt", "{{instruction}} {{mood}}")
    refused("xatu", tmp_path, "text_editing.txt: asks for {{mood}}; expected one of instruction, input")


@pytest.mark.parametrize(
    ("path", "content", "says"),
    [
        ("Draft2/draft2_2018argrewrite_2.txt", None, "Draft2: has no file with number 2"),
        ("ExpertFeedback/feedback_2.docx", None, "ExpertFeedback: has no file with number 2"),
        ("Draft1/draft1_2018argrewrite_2.txt", b" \n", "draft1_2018argrewrite_2.txt: is empty"),
        ("ExpertFeedback/feedback_2.docx", b"no document", "feedback_2.docx: is not a .docx document"),
    ],
)
def test_an_essay_without_its_parts_is_named(tmp_path, path, content, says):
    write_argrewrite(tmp_path)
    file = tmp_path / "argrewrite_v2" / path
    file.write_bytes(content) if content is not None else file.unlink()
    refused("argrewrite", tmp_path, says)


def test_an_id_that_comes_twice_is_named(tmp_path):
    write(tmp_path / "humaneval/HumanEval.jsonl", jsonl(HUMANEVAL, HUMANEVAL))
    refused("humaneval", tmp_path, "'HumanEval/7' is in its file twice")


@pytest.mark.parametrize(
    ("task", "option", "value", "says"),
    [
        ("humaneval", "style", "wizard", "style is 'wizard'; expected one of 'rest', 'specdec++'"),
        ("mt-bench", "subset", "poetry", "subset is 'poetry'; expected one of None, 'writing'"),
        ("mt-bench", "style", "x", "style is 'x'"),
        (
            "spec-bench",
            "subset",
            "summarisation",
            "subset is 'summarisation'; expected one of None, 'mt_bench'",
        ),
        ("gsm8k", "split", "dev", "split is 'dev'; expected one of 'test', 'train'"),
        ("gsm8k", "style", 1, "style is 1; expected"),
        ("alpaca", "source", "all", "source is 'all'; expected one of None, 'alpaca_data'"),
        ("codealpaca", "source", "all", "source is 'all'"),
        ("codealpaca", "style", "all", "style is 'all'"),
        ("codeeditorbench", "subset", "polish", "subset is 'polish'; expected one of None, 'debug'"),
        ("codeeditorbench", "version", "minus", "version is 'minus'"),
        ("codeeditorbench", "style", "close", "style is 'close'"),
        ("xatu", "subset", "Asset", "subset is 'Asset'; expected one of None, 'asset'"),
        ("xatu", "style", "long", "style is 'long'"),
        ("xatu", "instruction", "medium", "instruction is 'medium'; expected one of 'fine', 'coarse'"),
        ("quotesum", "split", "all", "split is 'all'; expected one of 'dev', 'test', 'train'"),
        ("quotesum", "distinct", "yes", "distinct is 'yes'; expected True or False"),
        ("mbpp", "split", "dev", "split is 'dev'; expected one of 'all'"),
    ],
)
def test_a_wrong_option_is_refused_before_any_file_is_looked_for(tmp_path, task, option, value, says):
    for limit in (None, 0, 3):
        with pytest.raises(ValueError, match=re.escape(says)):
            load_task(task, tmp_path / "nowhere", limit=limit, **{option: value})
