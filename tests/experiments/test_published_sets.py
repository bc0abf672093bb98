"""The published data sets: what is written in a published format is what is read, and a fault is named with its place."""

import gzip
import json
import logging
import re
from functools import partial
from pathlib import Path

import pytest

from specdec_lib.experiments.data.published_sets import replies
from specdec_lib.experiments.data.published_sets.files import MissingData
from specdec_lib.experiments.data.published_sets.sets import DATASETS
from specdec_lib.experiments.data.tasks import load_task
from specdec_lib.records import BadRecord
from tests.experiments import published_formats as formats
from tests.experiments.published_formats import ALPACA, ESSAYS, HUMANEVAL, MBPP, TWO_TURNS, jsonl, publish, write

GIVEN, PLUS = "```{}\ngiven()\n```…", ' Generate only the required code enclosed in "```"'
ESSAY = "Essay: Draft 1 of {0}.\nFeedback: Read <this>.\nClear words.\nRevise the essay using the expert feedback."
SOURCES = (
    "Answer the question from the sources below. Quote their words wherever you can.\n\n[1] One\nNot him.\n\n"
    "[2] Two\nIndeed the man.\n\nQuestion: Who?"
)
WIZARD = f"Below…this problem:\n{HUMANEVAL['prompt']}\n\n### Response:"
METAMATH = "Below…### Instruction:\nHow many test?\n\n### Response: Let's…"
EDITED = {
    "debug": f"### Instruction:\nChange debug.{PLUS}\n\n###…{GIVEN.format('python')}Input: 1\nOutput: 2…",
    "translate": f"…code snippet in c++:\n{GIVEN.format('cpp')}this code to java.…",
    "polishment": f"…optimization:\n{GIVEN.format('java')}\n\n### Answer:\n",
    "switch": f"…{GIVEN.format('python')}Input: similar input\nOutput: similar output…Input: target input\n…",
}
BUG = "Fix bugs in f.\n\ndef f(x):\n    return y\n\ndef check(f): pass"
ADD = "You are…here is your task: Add. Your…tests:\n\nassert 1\nassert 2"
# The task, its options, and of each prompt the id, the last turn (… is any text) and the answer.
SETS = [
    ("humaneval", {}, [("HumanEval/7", HUMANEVAL["prompt"], "    return x\n")]),
    ("humaneval", {"style": "specdec++"}, [("HumanEval/7", WIZARD, "    return x\n")]),
    ("mt-bench", {}, [("81", "And now?", "B"), ("82", "Write.", None)]),
    ("mt-bench/writing", {}, [("82", "Write.", None)]),
    ("spec-bench", {}, [("81", "And now?", "B"), ("200", "Who?", None), ("201", "Passage. Who?", "He")]),
    ("spec-bench/mt_bench", {}, [("81", "And now?", "B")]),
    ("gsm8k", {}, [("test-0", METAMATH, "1+1=<<1+1=2>>2\n#### 2")]),
    ("alpaca", {}, [("random_9k-0", "Sort.\nInput: 3 1 2", "1 2 3"), ("random_9k-1", "Greet.", None)]),
    ("codealpaca", {"limit": 1}, [("code_alpaca_2k-0", "Question: Sort.\nAnswer:\n", "1 2 3")]),
    ("codeeditorbench", {}, [(f"{kind}-1", turn, 0) for kind, turn in EDITED.items()]),
    ("codeeditorbench/debug", {}, [("debug-1", EDITED["debug"], 0)]),
    ("xatu", {}, [
        ("asset-2", "…:\nEdit asset well.\n# Input:\nasset two\nResponse:", "asset last 0"),
        ("jfleg-0", "…:\nEdit jfleg well.\n# Input:\na {{cat}}\nResponse:", "A cat 0"),
        ("defacto-0", "…:\nEdit defacto well.\n# Input:\nwrong\n# Reference:\ndoc\nResponse:", "mended"),
    ]),
    ("jfleg", {}, [("0", "Correct the grammar error in the sentence.\n\na {{cat}}", "A cat 0")]),
    ("argrewrite", {}, [(str(n), ESSAY.format(n), f"Draft 2 of {n}.") for n in (2, 10)]),
    ("quotesum", {}, [("q1_0", SOURCES, "It was the man."), ("q1_1", SOURCES, "the man and not him")]),
    ("quotesum", {"distinct": True}, [("q1", SOURCES, "It was the man.")]),
    ("humanevalpack/go", {}, [("go/0", BUG, "def f(x):\n    return x\n")]),
    ("quixbugs", {}, [("gcd", 'Fix bugs in gcd.\n\n"""Divisor"""\nbad()', "good()")]),
    ("editeval", {}, [
        ("EditEval/0", "Change it.\n\na()", "b()"),
        ("EditEval/1", "Change it.\n\na()\n\nIt stands here:\nclass A:\n{{Code}}", "b()"),
    ]),
    ("mbpp", {}, [(number, ADD, "a\nb") for number in ("11", "510")]),
]  # fmt: skip
CONTINUED = {("humaneval", None), ("codealpaca", None)}


@pytest.mark.parametrize("packing", ["", ".gz", ".zip"])
@pytest.mark.parametrize(("task", "options", "expected"), SETS)
def test_what_is_written_is_what_is_read(tmp_path, task, options, expected, packing):
    name, _, subset = task.partition("/")
    publish(tmp_path, name, packing)
    prompts = load_task(task, tmp_path, **options)
    assert not subset or load_task(name, tmp_path, subset=subset, **options) == prompts
    assert [(p.id, p.reference) for p in prompts] == [(id, "right()" if ref == 0 else ref) for id, _, ref in expected]
    for prompt, (_, turn, _) in zip(prompts, expected, strict=True):
        assert re.fullmatch(".*".join(map(re.escape, turn.split("…"))), prompt.turns[-1], re.DOTALL), prompt.turns[-1]
        assert prompt.task == task and "right()" not in prompt.text
        assert prompt.chat == ((name, options.get("style")) not in CONTINUED)


@pytest.mark.parametrize(("task", "files", "packing", "count"), [
    ("humaneval", {"human-eval/data/HumanEval.jsonl": jsonl(HUMANEVAL)}, ".gz", 1),
    ("spec-bench", {"Spec-Bench/data/spec_bench/question.jsonl": jsonl(TWO_TURNS)}, "", 1),
    ("codeeditorbench", formats.editor("cluster/cluster_{}.jsonl"), "", len(EDITED)),
    ("codeeditorbench", formats.editor("code_{}_primary.jsonl"), "", len(EDITED)),
])  # fmt: skip
def test_files_in_a_clone_of_the_repository_and_of_any_version_are_read(tmp_path, task, files, packing, count):
    for place, text in files.items():
        write(tmp_path / place, text, packing)
    assert len(load_task(task, tmp_path)) == count


def test_what_quotesum_marks_and_every_turn_are_kept(tmp_path):
    for name in ("mt-bench", "quotesum"):
        publish(tmp_path, name)
    prompt = load_task("quotesum", tmp_path)[-1]
    assert prompt.meta["quotes"] == ((2, "the man"), (1, "not him")) and prompt.meta["sources"][1][:2] == (2, "Two")
    assert load_task("mt-bench", tmp_path)[0].turns == ("What?", "And now?")


def test_xatu_counts_the_edits_whose_text_is_not_there(tmp_path, caplog):
    edits = [("asset", 0), ("asset", 1), ("defacto", 1), ("fruit", 3), ("fruit", 4), ("wnc", 0)]
    for place, text in formats.xatu(*edits).items():
        write(tmp_path / place, text)
    with caplog.at_level(logging.WARNING):
        (prompt,) = load_task("xatu", tmp_path)
    assert prompt.id == "asset-0" and "5 of 6 edits are left out" in caplog.text
    assert "asset 1, defacto 1, fruit 2, wnc 1" in caplog.text
    (tmp_path / "asset/asset.test.orig").unlink()
    with pytest.raises(MissingData, match="asset.test.orig"):
        load_task("xatu/asset", tmp_path)


@pytest.mark.parametrize("task", DATASETS)
def test_missing_data_are_told_with_origin_licence_and_remedy(tmp_path, monkeypatch, task):
    with pytest.raises(FileNotFoundError) as error:
        load_task(task, tmp_path)
    text = str(error.value)
    assert str(tmp_path) in text and "root=FOLDER" in text and "SPECDEC_DATASETS" in text
    assert re.search(r"^(\S+) is published in \S+ .*licence: (.+)\.", text, re.M)
    page = (Path(__file__).parents[2] / "book" / "datasets.md").read_text()
    assert f"\n| `{task}` |" in page
    monkeypatch.delenv("SPECDEC_DATASETS", raising=False)
    with pytest.raises(MissingData, match="no folder of data sets is given"):
        load_task(task)
    with pytest.raises(MissingData, match="nowhere.* is not a folder"):
        load_task(task, tmp_path / "nowhere")


@pytest.mark.parametrize(("task", "option"), [(task, option) for task in DATASETS for option in DATASETS[task].options])
@pytest.mark.parametrize("value", ["wrong", 1, []])
def test_a_wrong_option_is_refused_before_any_file_is_looked_for(tmp_path, task, option, value):
    allowed = DATASETS[task].options[option]
    expected = "True or False" if option == "distinct" else f"one of {', '.join(map(repr, allowed))}"
    with pytest.raises(ValueError, match=re.escape(f"{option} is {value!r}; expected {expected}")):
        load_task(task, tmp_path / "nowhere", limit=0, **{option: value})


ANSWER = {"index": 0, "turns": ["yes", ""], "new_tokens": [3, 1], "idxs": [1, 0], "wall_time": [0.5, 0.25]}
ANSWERED = {"question_id": 81, "category": "math", "choices": [ANSWER]}
RUN = replies.MT_BENCH_RUNS["REST"].place
REPORT = f"oasst_sampling/{replies.OASST_REPORTS['llama2-70b']}.json"
READERS = {
    "answers": replies.mt_bench_replies,
    "alpaca_eval": partial(replies.alpaca_eval_replies, "gpt5"),
    "oasst": partial(replies.oasst_replies, "llama2-70b"),
}
HUMAN, GSM, MT, MB, QS = (f"{place}.jsonl" for place in ("humaneval/HumanEval", "gsm8k/test", "mt_bench/question", "mbpp/mbpp", "quotesum/dev"))  # fmt: skip
OTHER, EDITS, XATU = "alpaca/alpaca_data.json", "codeeditorbench", "xatu/xatu_release.jsonl"


def answered(**change: object) -> dict:
    return ANSWERED | {"choices": [ANSWER | change]}


# What is read, the file, what it holds instead (a row stands in line 2; None: the file is gone), and what the error says.
BROKEN = [
    ("jfleg", "jfleg/test.ref2", "one line\n", "test.ref2: has 1 lines; expected 3, as test.src has"),
    ("humaneval", HUMAN, jsonl(HUMANEVAL) + "\n{nonsense}\n", "line 3: is not JSON (Expecting property name"),
    ("humaneval", HUMAN, jsonl(HUMANEVAL, HUMANEVAL), "'HumanEval/7' is in its file twice"),
    ("humaneval", HUMAN, {"task_id": "HumanEval/7"}, "field 'prompt' is missing; there are 'task_id'"),
    ("humaneval", HUMAN, HUMANEVAL | {"prompt": ""}, "field 'prompt' is empty"),
    ("gsm8k", GSM, b'{"question": "a", "answer": "#### 1"}\n{"\xff"}', "line 2: is not UTF-8 text (byte 0xff)"),
    ("gsm8k", GSM, {"question": "q", "answer": "4"}, "field 'answer' has no '####'"),
    ("gsm8k", f"{GSM}.gz", b"not packed", "test.jsonl.gz: cannot be unpacked"),
    ("gsm8k", f"{GSM}.gz", gzip.compress(b"x" * 5000)[:-9], "test.jsonl.gz: cannot be unpacked"),
    ("gsm8k", f"{GSM}.zip", formats.zipped("other.jsonl"), "test.jsonl.zip: holds no test.jsonl, only other.jsonl"),
    ("alpaca", OTHER, "{}", "holds a dict; expected a list of objects"),
    ("alpaca", OTHER, "[\n1,\n}", "is not JSON (Expecting value, line 3, column 1)"),
    ("alpaca", OTHER, json.dumps([ALPACA[0], "text"]), "record 2: is a str; expected an object"),
    ("alpaca", OTHER, json.dumps([ALPACA[0] | {"instruction": 5}]), "is 5; expected a text"),
    ("mt-bench", MT, TWO_TURNS | {"turns": ["a", ""]}, "field 'turns' has an empty turn"),
    ("mt-bench", MT, TWO_TURNS | {"reference": ["a"]}, "field 'reference' has 1 answers to 2 turns"),
    ("mt-bench", MT, TWO_TURNS | {"category": "rag"}, "field 'category' is 'rag'; expected one of writing"),
    ("mt-bench", MT, TWO_TURNS | {"question_id": None}, "field 'question_id' is None"),
    ("mbpp", MB, MBPP | {"task_id": True}, "field 'task_id' is True; expected a whole number"),
    ("codeeditorbench", f"{EDITS}/few_shot_prompt/prompt_switch.txt", "x", "does not begin with '### Instruction:'"),
    ("xatu", XATU, {"data_source": "asset", "data_index": 3}, "'data_index' is 3, but the files of asset have 3 texts"),
    ("xatu", XATU, {"data_source": "news"}, "'data_source' is 'news'; expected one of asset"),
    ("argrewrite", f"{ESSAYS}/Draft2/draft2_2018argrewrite_2.txt", None, "Draft2: has no file with number 2"),
    ("argrewrite", f"{ESSAYS}/Draft1/draft1_2018argrewrite_2.txt", " \n", "draft1_2018argrewrite_2.txt: is empty"),
    ("argrewrite", f"{ESSAYS}/ExpertFeedback/feedback_2.docx", b"x", "feedback_2.docx: is not a .docx document"),
    ("answers", RUN, ANSWERED | {"choices": []}, "field 'choices' is []; expected a list of answers"),
    ("answers", RUN, answered(turns=["yes"]), "first of the choices: field 'turns' has 1 texts; expected 2"),
    ("answers", RUN, answered(new_tokens=[3]), "field 'new_tokens' has 1 whole numbers; expected 2"),
    ("answers", RUN, answered(idxs=[1, None]), "field 'idxs' is [1, None]; expected a list of whole numbers"),
    ("answers", RUN, answered(wall_time=["fast", 1.0]), "'wall_time' is ['fast', 1.0]; expected a list of numbers"),
    ("alpaca_eval", "alpaca_eval/gpt5/model_outputs.json", '[{"output": ""}]', "record 1: field 'instruction'"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "path", "content", "says"), BROKEN)
def test_a_file_with_a_fault_is_refused_by_name(tmp_path, monkeypatch, what, path, content, says):
    monkeypatch.setenv("SPECDEC_DATASETS", str(tmp_path))
    name, file = what.partition("/")[0], tmp_path / path
    if name in ("xatu", "argrewrite", "codeeditorbench", "jfleg"):
        publish(tmp_path, name)
    elif name == "answers":
        write(tmp_path / MT, jsonl(TWO_TURNS))
        write(tmp_path / RUN, jsonl(ANSWERED))
    if content is None:
        file.unlink()
    else:
        write(file, "\n" + jsonl(content) if isinstance(content, dict) else content)
    with pytest.raises(BadRecord) as error:
        list(READERS.get(name, partial(load_task, what))())
    assert says in str(error.value) and (str(tmp_path) in str(error.value) or "twice" in says)
    assert not isinstance(content, dict) or f"{file}, line 2" in str(error.value)


def test_lines_before_a_fault_are_given_and_marks_and_line_ends_are_read(tmp_path):
    write(tmp_path / HUMAN, "\ufeff" + jsonl(HUMANEVAL).replace("\n", "\r\n") + "\r\n{nonsense}\n")
    assert load_task("humaneval", tmp_path, limit=1)[0].text == HUMANEVAL["prompt"]


def test_recorded_outputs_are_read_turn_by_turn_and_by_way_of_decoding(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_DATASETS", str(tmp_path))
    write(tmp_path / MT, jsonl(formats.ONE_TURN, TWO_TURNS))
    write(tmp_path / RUN, jsonl(ANSWERED, ANSWERED | {"question_id": 99}))
    first, second = replies.mt_bench_replies()
    read = (first.id, first.text, first.tokens, first.steps, first.seconds)
    assert read == ("81-0", "yes", 3, 2, 0.5)
    assert (second.text, second.tokens, second.steps, second.questions) == ("", 1, 1, ("What?", "And now?"))
    assert second.prompt == "USER: What? ASSISTANT: yes</s>USER: And now? ASSISTANT:"
    results = [{"sampling_config": "nucleus9", "outputs": ["b", "c"]}, {"sampling_config": "greedy", "outputs": ["a"]}]
    silent = {"prompt": "Hush.", "results": [results[1] | {"outputs": [" "]}]}
    write(tmp_path / REPORT, json.dumps({"prompts": [{"prompt": "Say a.", "results": results}, silent]}))
    for way, texts in {"greedy": ["a"], "nucleus9": ["b"], "all": ["b", "c", "a"]}.items():
        assert [reply.text for reply in replies.oasst_replies("llama2-70b", way)] == texts
    row = {"task_id": "HumanEval/0", "all_code": "Do it.\n\n### Response: Here.", "completion": "pass"}
    packed = formats.zipped("T0.0_N1_reproduce.results.59.8.jsonl", json.dumps(row))  # not the name of the archive
    write(tmp_path / f"{replies.WIZARDCODER.place}.zip", packed)
    (reply,) = replies.wizardcoder_replies()
    assert (reply.id, reply.prompt, reply.text) == ("HumanEval/0", "Do it.\n\n", "pass")


def test_recorded_outputs_that_are_not_there_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_DATASETS", str(tmp_path))
    for name, place in (("answers", MT), ("alpaca_eval", "alpaca_eval/gpt5/model_outputs.json"), ("oasst", REPORT)):
        with pytest.raises(MissingData, match=re.escape(place)):
            READERS[name]()
    with pytest.raises(ValueError, match="'web'"):
        next(replies.chat_texts("web"))


# The real data sets, where they are: counts, ids, prompts and references.
#
# The collection that continuous integration reads has some records of MT-Bench, Spec-Bench, GSM8K, MBPP and
# XATU withheld, so that each count has two right values: of the published file and of that collection.
COUNTS = [
    ("humaneval", {}, {164}, None), ("mt-bench", {}, {80, 72}, None), ("spec-bench", {}, {480, 440}, None),
    ("spec-bench/mt_bench", {}, {80, 72}, None), ("spec-bench/translation", {}, {80, 73}, None),
    ("spec-bench/summarization", {}, {80, 73}, None), ("spec-bench/qa", {}, {80, 74}, 0),
    ("spec-bench/math_reasoning", {}, {80, 74}, None), ("spec-bench/rag", {}, {80, 74}, None),
    ("gsm8k", {}, {1319, 1313}, None), ("alpaca", {}, {52002, 5000}, None), ("codealpaca", {}, {20022, 2017}, None),
    ("codeeditorbench", {}, range(12, 10000), None), ("xatu/asset", {}, {136, 150}, None),
    ("xatu/jfleg", {}, {38, 50}, None), ("xatu/defacto", {}, {136, 150}, None), ("argrewrite", {}, {86}, None),
    ("quotesum", {}, {265}, None), ("quotesum", {"distinct": True}, {91}, None), ("humanevalpack", {}, {984}, None),
    ("humanevalpack/python", {}, {164}, None), ("quixbugs", {}, {40}, None), ("editeval", {}, {194}, None),
    ("jfleg", {}, {627}, None), ("mbpp", {}, range(460, 501), None),
]  # fmt: skip
#: Sets in which only some questions have an answer.
PARTLY = {"mt-bench", "spec-bench", "spec-bench/mt_bench", "alpaca", "codealpaca"}


@pytest.mark.realdata
@pytest.mark.parametrize(("task", "options", "counts", "references"), COUNTS)
def test_a_real_set_has_its_records_with_ids_prompts_and_answers(task, options, counts, references):
    prompts = load_task(task, **options)
    assert len(prompts) in counts
    assert len({p.id for p in prompts}) == len(prompts)
    assert all(p.task == task and p.turns and all(turn.strip() for turn in p.turns) for p in prompts)
    answered = sum(bool(p.reference and p.reference.strip()) for p in prompts)
    if task in PARTLY:
        assert 0 < answered < len(prompts)
    else:
        assert answered == (len(prompts) if references is None else references)


@pytest.mark.realdata
@pytest.mark.parametrize("task", ["humaneval", "gsm8k", "codeeditorbench", "mbpp"])
def test_no_prompt_shows_its_answer(task):
    assert [p.id for p in load_task(task) if p.reference.strip() in "\n".join(p.turns)] == []


@pytest.mark.realdata
def test_mt_bench_asks_two_turns_in_eight_categories_and_is_a_part_of_spec_bench():
    prompts, categories = load_task("mt-bench"), DATASETS["mt-bench"].subsets
    assert {len(p.turns) for p in prompts} == {2}
    assert len(categories) == 8 and all(load_task(f"mt-bench/{name}") for name in categories)
    assert [p.turns for p in load_task("spec-bench/mt_bench")] == [p.turns for p in prompts]


@pytest.mark.realdata
def test_xatu_explanations_quote_the_texts_they_are_joined_with():
    """The join is right if phrases that an explanation quotes are in its own texts, not in another's."""
    prompts = [p for p in load_task("xatu") if re.findall(r'"([^"]{4,})"', p.meta["explanation"])]

    def found(explained, joined) -> bool:
        text = " ".join([joined.meta["input"], *joined.meta["references"], joined.meta["document"]]).lower()
        phrases = re.findall(r'"([^"]{4,})"', explained.meta["explanation"])
        return any(phrase.strip(" .,").lower() in text for phrase in phrases)

    same = sum(found(p, p) for p in prompts) / len(prompts)
    by_source = {s: [p for p in prompts if p.meta["subset"] == s] for s in ("asset", "jfleg", "defacto")}
    shifted = [(a, b) for group in by_source.values() for a, b in zip(group, group[1:], strict=False)]
    other = sum(found(a, b) for a, b in shifted) / len(shifted)
    assert same > 0.95 and other < 0.15


@pytest.mark.realdata
def test_the_authors_runs_count_as_their_result_files_do():
    """The mean of the accept lengths in the files is tokens per forward without the prefill, turn by turn."""
    read = replies.mt_bench_replies()
    assert len(read) in (2 * 72, 2 * 80) and {r.model for r in read} == {"vicuna-7b-v1.5"}
    file = replies.Root("test").find(replies.MT_BENCH_RUNS["REST"])
    lengths = [json.loads(line)["choices"][0]["accept_lengths:"] for line in file.read_text().splitlines()]
    assert sum(r.steps for r in read) == sum(map(len, lengths))
    assert sum(r.tokens - 1 for r in read) == sum(map(sum, lengths))
    plain = replies.mt_bench_replies(run="plain")
    assert all(r.tokens == r.steps for r in plain)
    first, second = read[:2]  # later turns are asked with the turns before
    assert second.prompt.startswith(f"{first.prompt} {first.text}</s>USER: ") and second.prompt.endswith(" ASSISTANT:")
