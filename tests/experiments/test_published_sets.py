"""The readers of the published data sets: what is written in a published format is what is read."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from specdec_lib.experiments.published_sets import DATASETS, MissingData
from specdec_lib.experiments.tasks import load_task
from tests.experiments.published_formats import (
    ALPACA,
    HUMANEVAL,
    HUMANEVALPACK,
    MBPP,
    QUOTE,
    TWO_TURNS,
    jsonl,
    write,
    write_argrewrite,
    write_editor,
    write_xatu,
)


@pytest.fixture(params=["", ".gz", ".zip"], ids=["plain", "gz", "zip"])
def packing(request) -> str:
    return request.param


# ---- what is written is what is read -----------------------------------------------------------------------


def test_humaneval_gives_the_raw_prompt_to_be_continued(tmp_path, packing):
    write(tmp_path / "humaneval/HumanEval.jsonl", jsonl(HUMANEVAL), packing)
    (prompt,) = load_task("humaneval", tmp_path)
    assert (prompt.id, prompt.task, prompt.turns, prompt.chat, prompt.reference) == (
        "HumanEval/7",
        "humaneval",
        (HUMANEVAL["prompt"],),
        False,
        HUMANEVAL["canonical_solution"],
    )
    assert prompt.meta == {name: HUMANEVAL[name] for name in ("task_id", "entry_point", "test")}


def test_humaneval_as_specdec_asks_it_holds_the_prompt_in_an_instruction(tmp_path):
    write(tmp_path / "HumanEval.jsonl", jsonl(HUMANEVAL))
    (prompt,) = load_task("humaneval", tmp_path, style="specdec++")
    assert prompt.chat
    before, after = prompt.text.split(HUMANEVAL["prompt"])
    assert before.endswith("### Instruction:\nCreate a Python script for this problem:\n")
    assert after == "\n\n### Response:"


def test_mt_bench_keeps_both_turns_and_the_answer_to_the_last(tmp_path, packing):
    rows = [TWO_TURNS, {"question_id": 82, "category": "writing", "turns": ["Write.", "Again."]}]
    write(tmp_path / "mt_bench/question.jsonl", jsonl(*rows), packing)
    first, second = load_task("mt-bench", tmp_path)
    assert first.turns == ("What?", "And now?") and first.reference == "B" and first.chat
    assert first.meta == {"question_id": 81, "category": "math", "subset": "math", "references": ("A", "B")}
    assert second.turns == ("Write.", "Again.") and second.reference is None
    assert [p.id for p in load_task("mt-bench/writing", tmp_path)] == ["82"]


def test_mt_bench_as_dresd_asks_it_is_the_first_turn_alone(tmp_path):
    write(tmp_path / "mt_bench/question.jsonl", jsonl(TWO_TURNS))
    (prompt,) = load_task("mt-bench", tmp_path, style="dresd")
    assert prompt.turns == ("Question: What?\nAnswer:\n",) and not prompt.chat and prompt.reference == "A"


def test_spec_bench_sorts_its_questions_into_six_subsets(tmp_path, packing):
    other = {
        "translation": (["Translate."], ["Done."]),
        "summarization": (["Summarize: x"], ["x."]),
        "qa": (["Who?"], None),
        "math_reasoning": (["2+2?"], ["#### 4"]),
        "rag": (["Passage. Who?"], [["He", "Him"]]),
    }
    rows = [TWO_TURNS] + [
        {"question_id": 200 + i, "category": category, "turns": turns} | ({"reference": answers} if answers else {})
        for i, (category, (turns, answers)) in enumerate(other.items())
    ]
    write(tmp_path / "spec_bench/question.jsonl", jsonl(*rows), packing)
    everything = load_task("spec-bench", tmp_path)
    assert [p.meta["subset"] for p in everything] == ["mt_bench", *other]
    assert [p.turns for p in everything] == [tuple(row["turns"]) for row in rows]
    assert [p.reference for p in everything] == ["B", "Done.", "x.", None, "#### 4", "He"]
    assert everything[-1].meta["references"] == ("He", "Him")
    for subset in DATASETS["spec-bench"].subsets:
        (prompt,) = load_task(f"spec-bench/{subset}", tmp_path)
        assert prompt.task == f"spec-bench/{subset}" and prompt.meta["subset"] == subset
        assert load_task("spec-bench", tmp_path, subset=subset) == [prompt]


def test_gsm8k_asks_the_question_and_knows_the_final_number(tmp_path, packing):
    for split in ("test", "train"):
        row = {"question": f"How many {split}?", "answer": "1+1=<<1+1=2>>2\n#### 2"}
        write(tmp_path / f"gsm8k/{split}.jsonl", jsonl(row), packing)
        (prompt,) = load_task("gsm8k", tmp_path, split=split)
        assert f"### Instruction:\n{row['question']}\n\n### Response: Let's think" in prompt.text
        assert prompt.reference == row["answer"] and prompt.meta["final"] == "2"
        assert load_task("gsm8k", tmp_path, split=split, style="question")[0].turns == (row["question"],)


@pytest.mark.parametrize("source", ["alpaca_data", "alpaca_5000", "random_9k"])
def test_alpaca_puts_the_input_on_its_own_line(tmp_path, packing, source):
    write(tmp_path / f"alpaca/{source}.json", json.dumps(ALPACA, indent=1), packing)
    for prompts in (load_task("alpaca", tmp_path), load_task("alpaca", tmp_path, source=source)):
        assert [p.text for p in prompts] == ["Sort.\nInput: 3 1 2", "Greet."]
        assert [p.reference for p in prompts] == ["1 2 3", "Hello"]
        assert {p.meta["source"] for p in prompts} == {source}


@pytest.mark.parametrize("source", ["code_alpaca_20k", "code_alpaca_2k"])
def test_codealpaca_as_dresd_asks_it_leaves_the_input_out(tmp_path, packing, source):
    write(tmp_path / f"{source}.json", json.dumps(ALPACA), packing)
    prompts = load_task("codealpaca", tmp_path)
    assert [p.text for p in prompts] == ["Question: Sort.\nAnswer:\n", "Question: Greet.\nAnswer:\n"]
    assert not any(p.chat for p in prompts) and prompts[0].meta["input"] == "3 1 2"
    assert [p.text for p in load_task("codealpaca", tmp_path, style="alpaca")] == [
        "Sort.\nInput: 3 1 2",
        "Greet.",
    ]


def test_mbpp_shows_the_tests_and_splits_by_task_id(tmp_path, packing):
    rows = [MBPP | {"task_id": number} for number in (10, 11, 510, 511, 600, 601, 974)]
    write(tmp_path / "mbpp/mbpp.jsonl", jsonl(*rows), packing)
    prompts = load_task("mbpp", tmp_path)
    assert [p.id for p in prompts] == ["10", "11", "510", "511", "600", "601", "974"]
    assert prompts[0].text.endswith("\n\nassert add(1, 2) == 3\nassert add(0, 0) == 0")
    assert prompts[0].reference == "def add(a, b):\n    return a + b"
    parts = {s: [p.id for p in load_task("mbpp", tmp_path, split=s)] for s in ("prompt", "test", "validation")}
    assert parts == {"prompt": ["10"], "test": ["11", "510"], "validation": ["511", "600"]}


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("samples", "cluster/cluster_{}.jsonl"),
        ("plus", "code_{}_plus.jsonl"),
        ("primary", "code_{}_primary.jsonl"),
    ],
)
def test_codeeditorbench_fences_the_code_and_never_shows_the_answer(tmp_path, packing, version, name):
    write_editor(tmp_path, name, packing)
    prompts = load_task("codeeditorbench", tmp_path)
    assert [p.meta["subset"] for p in prompts] == list(DATASETS["codeeditorbench"].subsets)
    assert [p.text.split("```")[2] for p in prompts] == [
        "python\ngiven()\n",
        "cpp\ngiven()\n",
        "java\ngiven()\n",
        "python\ngiven()\n",
    ]
    for prompt in prompts:
        assert prompt.reference == "right()" and "right()" not in prompt.text
        assert prompt.text.startswith(f"### Instruction:\nChange the {prompt.meta['subset']} code. Generate")
        assert prompt.meta["version"] == version and prompt.meta["idx"] == 5
        assert not any("private" in field for field in prompt.meta)
        assert load_task(f"codeeditorbench/{prompt.meta['subset']}", tmp_path, version=version)[0].turns == prompt.turns
    assert "Input: n = 1\nOutput: 2\n" in prompts[0].text
    assert "Generate" not in load_task("codeeditorbench", tmp_path, style="released")[0].text


def test_xatu_joins_its_instructions_with_the_texts_of_their_sources(tmp_path, packing):
    write_xatu(tmp_path, ("asset", 2), ("jfleg", 0), ("defacto", 0), packing=packing)
    asset, jfleg, defacto = load_task("xatu", tmp_path)
    assert asset.turns == ("I:Edit asset well. T:asset two R:",)
    assert (asset.id, asset.reference) == ("asset-2", "asset last 0")
    assert asset.meta["references"] == tuple(f"asset last {k}" for k in range(10))
    assert jfleg.turns == ("I:Edit jfleg well. T:jfleg zero {{input}} R:",) and len(jfleg.meta["references"]) == 4
    assert defacto.turns == ("I:Edit defacto well. T:wrong D:doc R:",) and defacto.reference == "mended"
    assert asset.meta["left_out"] == {}
    coarse = load_task("xatu/defacto", tmp_path, style="pld+", instruction="coarse")[0].text
    assert coarse.endswith("# Instruction:\nEdit.\n# Input:\nwrong\n# Reference:\ndoc\nResponse:")


def test_xatu_counts_the_edits_whose_text_is_not_there(tmp_path, caplog):
    write_xatu(tmp_path, ("asset", 0), ("asset", 1), ("defacto", 1), ("fruit", 3), ("fruit", 4), ("wnc", 0))
    with caplog.at_level(logging.WARNING):
        (prompt,) = load_task("xatu", tmp_path)
    assert prompt.meta["left_out"] == {"asset": 1, "defacto": 1, "fruit": 2, "wnc": 1}
    assert "5 of 6 edits are left out" in caplog.text and "fruit 2" in caplog.text


def test_xatu_built_by_its_authors_script_is_used_for_every_source(tmp_path):
    write_xatu(tmp_path, ("asset", 0))
    edit = {"data_index": 0, "coarse_grained": "E.", "fine_grained": "E.", "explanation": ""}
    rows = [
        edit | {"data_source": "fruit", "input": "in", "output": "out", "reference": "doc"},
        edit | {"data_source": "factedit", "input": "in", "output": "out", "reference": ["a", "b"]},
        edit | {"data_source": "jfleg", "input": "in", "output": ["out", "also"]},
    ]
    write(tmp_path / "xatu/data/xatu.jsonl", jsonl(*rows))
    prompts = load_task("xatu", tmp_path)
    assert [p.text for p in prompts] == ["I:E. T:in D:doc R:", "I:E. T:in D:a\nb R:", "I:E. T:in R:"]
    assert [p.meta["references"] for p in prompts] == [("out",), ("out",), ("out", "also")]


def test_argrewrite_gives_essay_and_feedback_and_expects_the_second_draft(tmp_path):
    write_argrewrite(tmp_path)
    two, ten = load_task("argrewrite", tmp_path)
    assert (two.id, ten.id) == ("2", "10")
    assert two.turns == (
        "Essay: Draft 1 of 2.\nFeedback: Read <this>.\nClear words.\nRevise the essay using the expert feedback.",
    )
    assert two.reference == "Draft 2 of 2." and two.meta["number"] == 2


def test_quotesum_shows_numbered_sources_and_expects_an_answer_without_marks(tmp_path, packing):
    again = QUOTE | {"unique_id": "q1_1", "summary": "[ 2 the second man ] and [ 1 not him ]"}
    write(tmp_path / "quotesum/dev.jsonl", jsonl(QUOTE, again), packing)
    first, second = load_task("quotesum", tmp_path)
    assert "[1] One\nNot him.\n\n[2] Two\nIndeed the second man was it.\n\nQuestion: Who?" in first.text
    assert "[3]" not in first.text
    assert first.reference == "It was the second man." and first.meta["quotes"] == ((2, "the second man"),)
    assert second.id == "q1_1" and second.meta["quotes"] == ((2, "the second man"), (1, "not him"))
    (one,) = load_task("quotesum", tmp_path, distinct=True)
    assert one.id == "q1" and one.meta["references"] == (first.reference, second.reference)


# ---- where files are looked for ----------------------------------------------------------------------------


def test_a_clone_of_the_publishing_repository_serves_as_it_is(tmp_path):
    write(tmp_path / "human-eval/data/HumanEval.jsonl.gz.txt", "")  # not the file
    write(tmp_path / "human-eval/data/HumanEval.jsonl", jsonl(HUMANEVAL), ".gz")
    write(tmp_path / "Spec-Bench/data/spec_bench/question.jsonl", jsonl(TWO_TURNS))
    write(tmp_path / "FastChat/fastchat/llm_judge/data/mt_bench/question.jsonl", jsonl(TWO_TURNS))
    assert [len(load_task(task, tmp_path)) for task in ("humaneval", "spec-bench", "mt-bench")] == [1, 1, 1]


def test_the_root_may_be_the_folder_of_the_one_set(tmp_path):
    write(tmp_path / "mt_bench/question.jsonl", jsonl(TWO_TURNS))
    assert len(load_task("mt-bench", tmp_path / "mt_bench")) == 1


def test_humanevalpack_shows_the_buggy_function_with_its_tests(tmp_path, packing):
    for language in ("python", "go"):
        write(
            tmp_path / f"humanevalpack/{language}/humanevalpack.jsonl",
            jsonl(HUMANEVALPACK | {"task_id": f"{language}/0"}),
            packing,
        )
    (prompt,) = load_task("humanevalpack/go", tmp_path)
    assert (prompt.id, prompt.reference) == ("go/0", "def f(x):\n    return x\n")
    assert prompt.text == "Fix bugs in f.\n\ndef f(x):\n    return y\n\nassert f(1) == 1"
    assert prompt.meta == {"subset": "go", "bug_type": "variable misuse"}
    with pytest.raises(MissingData, match="humanevalpack/java/humanevalpack.jsonl"):
        load_task("humanevalpack", tmp_path)


def test_quixbugs_shows_the_docstring_and_the_buggy_program(tmp_path, packing):
    row = {"name": "gcd", "docstring": '"""Divisor"""\n', "buggy_program": "bad()", "solution": "good()", "tests": "x"}
    write(tmp_path / "quixbugs/quixbugs_python.jsonl", jsonl(row), packing)
    (prompt,) = load_task("quixbugs", tmp_path)
    assert prompt.text == 'Fix bugs in gcd.\n\n"""Divisor"""\nbad()' and prompt.reference == "good()"


def test_editeval_shows_the_surroundings_where_there_are_some(tmp_path):
    row = {"task_id": "EditEval/0", "instruction": "Change it. ", "input": "a()", "output": "b()"}
    around = row | {"task_id": "EditEval/1", "context": "class A:\n{{Code}}\n"}
    write(tmp_path / "editeval/edit_eval.jsonl", jsonl(row, row | {"task_id": "EditEval/2", "context": ""}, around))
    bare, empty, framed = load_task("editeval", tmp_path)
    assert bare.text == empty.text == "Change it.\n\na()" and bare.reference == "b()"
    assert framed.text == "Change it.\n\na()\n\nIt stands here:\nclass A:\n{{Code}}"


def test_jfleg_gives_the_sentences_that_the_first_correction_changes(tmp_path):
    write(tmp_path / "jfleg/test.src", "a cat\n\nright\nno dog\n")
    write(tmp_path / "jfleg/test.ref0", "A cat\n\nright\n\n")
    for k in (1, 2, 3):
        write(tmp_path / f"jfleg/test.ref{k}", f"cat {k}\n\nright {k}\nNo dog {k}\n")
    first, last = load_task("jfleg", tmp_path)
    assert (first.id, first.reference, last.reference) == ("0", "A cat", "No dog 1")
    assert first.meta["references"] == ("A cat", "cat 1", "cat 2", "cat 3")
    assert first.text == "Correct the grammar error in the sentence.\n\na cat"


def test_a_name_that_many_sets_share_is_not_taken_from_the_root_itself(tmp_path):
    write(tmp_path / "question.jsonl", jsonl(TWO_TURNS))
    with pytest.raises(MissingData, match="mt_bench/question.jsonl"):
        load_task("mt-bench", tmp_path)


FIRST_FILE = {
    "humaneval": ("HumanEval.jsonl", "openai/human-eval", "MIT"),
    "mt-bench": ("question.jsonl", "lm-sys/FastChat", "Apache-2.0"),
    "spec-bench": ("question.jsonl", "hemingkx/Spec-Bench", "Apache-2.0"),
    "gsm8k": ("test.jsonl", "openai/grade-school-math", "MIT"),
    "alpaca": ("alpaca_data.json", "tatsu-lab/stanford_alpaca", "CC BY-NC 4.0"),
    "codealpaca": ("code_alpaca_20k.json", "sahil280114/codealpaca", "CC BY-NC 4.0"),
    "codeeditorbench": ("code_debug_plus.jsonl", "CodeEditorBench/CodeEditorBench", "Apache-2.0"),
    "xatu": ("xatu_release.jsonl", "megagonlabs/xatu", "CC BY-NC 4.0"),
    "argrewrite": ("Draft1", "omidkashefi/ArgRewrite", "CC BY 4.0"),
    "quotesum": ("dev.jsonl", "google-research-datasets/QuoteSum", "CC BY-SA 4.0"),
    "humanevalpack": ("humanevalpack.jsonl", "bigcode-project/octopack", "MIT"),
    "quixbugs": ("quixbugs_python.jsonl", "bigcode-project/octopack", "MIT"),
    "editeval": ("edit_eval.jsonl", "qishenghu/CodeInstruct", "MIT"),
    "jfleg": ("test.src", "keisks/jfleg", "CC BY-NC-SA 4.0"),
    "mbpp": ("mbpp.jsonl", "google-research/google-research", "CC BY 4.0"),
}


@pytest.mark.parametrize("task", DATASETS)
def test_missing_data_are_told_with_file_folder_origin_licence_and_remedy(tmp_path, monkeypatch, task):
    name, repository, licence = FIRST_FILE[task]
    with pytest.raises(FileNotFoundError) as error:
        load_task(task, tmp_path)
    for part in (name, str(tmp_path), repository, licence, "root=FOLDER", "SPECDEC_DATASETS"):
        assert part in str(error.value)
    monkeypatch.delenv("SPECDEC_DATASETS", raising=False)
    with pytest.raises(MissingData, match="no folder of data sets is given"):
        load_task(task)
    with pytest.raises(MissingData, match="nowhere.* is not a folder"):
        load_task(task, tmp_path / "nowhere")


def test_a_source_of_xatu_asked_for_by_name_must_be_there(tmp_path):
    write_xatu(tmp_path, ("asset", 0), ("fruit", 0))
    (tmp_path / "asset/asset.test.orig").unlink()
    with pytest.raises(MissingData, match="asset.test.orig"):
        load_task("xatu/asset", tmp_path)
    with pytest.raises(MissingData, match="texts of 'fruit' are read from that file only"):
        load_task("xatu/fruit", tmp_path)


@pytest.mark.parametrize("task", DATASETS)
def test_the_page_on_data_sets_tells_origin_licence_and_subsets_of_each(task):
    page = (Path(__file__).parents[2] / "book" / "datasets.md").read_text()
    name, repository, licence = FIRST_FILE[task]
    about, origin, wording = page.split("\n## ")[2:5]
    (row,) = [line for line in about.splitlines() if line.startswith(f"| `{task}` |")]
    (entry,) = [part for part in origin.split("\n\n") if part.startswith(f"`{task}` (")]
    assert name in entry and repository in entry and licence in entry.splitlines()[0]
    assert f"\n`{task}`\n: " in wording
    if task in ("spec-bench", "codeeditorbench"):
        assert all(f"`{subset}`" in row for subset in DATASETS[task].subsets)
