"""Recorded outputs of large models, where the data are: what the files say is what is read."""

import json
import zipfile

import pytest

from specdec_lib.experiments.published_sets import replies
from specdec_lib.experiments.published_sets.reading import BadRecord, MissingData
from tests.experiments.published_formats import jsonl, write


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


@pytest.mark.realdata
def test_later_turns_are_asked_with_the_turns_before():
    first, second = replies.mt_bench_replies()[:2]
    assert second.prompt.startswith(f"{first.prompt} {first.text}</s>USER: ") and second.prompt.endswith(" ASSISTANT:")


@pytest.mark.realdata
def test_every_set_gives_text():
    assert len(replies.alpaca_eval_replies("llama-2-7b-chat-hf")) == 805
    codegen = replies.codegen_replies(samples=2)
    assert 300 < len(codegen) <= 328 and all(r.text and "def " in r.prompt for r in codegen)
    for name in replies.CHAT_SETS:
        reply = next(replies.chat_texts(name))
        assert reply.prompt == f"USER: {reply.questions[0]} ASSISTANT:" and reply.text


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MissingData, match="mt_bench/question.jsonl"):
        replies.mt_bench_replies(tmp_path)
    with pytest.raises(MissingData, match="alpaca_eval/gpt5/model_outputs.json"):
        replies.alpaca_eval_replies("gpt5", tmp_path)
    with pytest.raises(ValueError, match="'web'"):
        next(replies.chat_texts("web", tmp_path))


ASKED = {"question_id": 81, "category": "writing", "turns": ["one?", "two?"]}
ANSWER = {"index": 0, "turns": ["yes", ""], "new_tokens": [3, 1], "idxs": [1, 0], "wall_time": [0.5, 0.25]}
ANSWERED = {"question_id": 81, "category": "writing", "choices": [ANSWER]}


def answered(root, record, asked=ASKED):
    write(root / "mt_bench/question.jsonl", jsonl(asked))
    write(root / replies.MT_BENCH_RUNS["REST"].folder / replies.MT_BENCH_RUNS["REST"].name, jsonl(ANSWERED, record))
    return replies.mt_bench_replies(root)


def test_an_answer_is_read_turn_by_turn(tmp_path):
    *_, first, second = answered(tmp_path, ANSWERED)
    assert (first.id, first.text, first.tokens, first.steps, first.group) == ("81-0", "yes", 3, 2, "writing")
    assert (second.text, second.tokens, second.steps, second.questions) == ("", 1, 1, ("one?", "two?"))
    assert second.prompt == "USER: one? ASSISTANT: yes</s>USER: two? ASSISTANT:"


def without(record, name):
    return {key: value for key, value in record.items() if key != name}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (without(ANSWERED, "question_id"), "field 'question_id' is missing"),
        (without(ANSWERED, "category"), "field 'category' is missing"),
        (without(ANSWERED, "choices"), "field 'choices' is missing"),
        (ANSWERED | {"choices": []}, r"field 'choices' is \[\]; expected a list of answers"),
        (ANSWERED | {"choices": ["yes"]}, "expected a list of answers"),
        (ANSWERED | {"choices": [without(ANSWER, "turns")]}, "first of the choices: field 'turns' is missing"),
        (ANSWERED | {"choices": [ANSWER | {"turns": ["yes"]}]}, "field 'turns' has 1 texts; expected 2"),
        (ANSWERED | {"choices": [ANSWER | {"turns": ["a", "b", "c"]}]}, "field 'turns' has 3 texts; expected 2"),
        (ANSWERED | {"choices": [ANSWER | {"new_tokens": [3]}]}, "field 'new_tokens' has 1 numbers; expected 2"),
        (ANSWERED | {"choices": [without(ANSWER, "idxs")]}, "field 'idxs' is missing"),
        (ANSWERED | {"choices": [ANSWER | {"idxs": [1, None]}]}, "field 'idxs' is .*whole numbers"),
    ],
)
def test_an_answer_that_is_not_as_the_format_says_is_named_with_its_line(tmp_path, record, message):
    with pytest.raises(BadRecord, match=f"jsonl, line 2.*{message}"):
        answered(tmp_path, record)


def test_a_question_without_a_number_is_named(tmp_path):
    with pytest.raises(BadRecord, match=r"question\.jsonl, line 1: field 'question_id' is missing"):
        answered(tmp_path, ANSWERED, without(ASKED, "question_id"))


def test_an_output_without_its_source_is_named(tmp_path):
    text = '[{"instruction": "Sing.", "output": "La."}]'
    write(tmp_path / "alpaca_eval/gpt5/model_outputs.json", text)
    with pytest.raises(BadRecord, match="record 1: field 'dataset' is missing"):
        replies.alpaca_eval_replies("gpt5", tmp_path)


def test_times_of_the_authors_runs_are_read(tmp_path):
    *_, first, second = answered(tmp_path, ANSWERED)
    assert (first.seconds, second.seconds) == (0.5, 0.25)
    with pytest.raises(BadRecord, match="field 'wall_time' is .*decimal point"):
        answered(tmp_path, ANSWERED | {"choices": [ANSWER | {"wall_time": ["fast", 1.0]}]})


def test_a_zip_may_hold_a_file_of_another_name(tmp_path):
    row = {"task_id": "HumanEval/0", "all_code": "Do it.\n\n### Response: Here.", "completion": "pass"}
    path = tmp_path / f"{replies.WIZARDCODER.place}.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("T0.0_N1_reproduce.results.59.8.jsonl", json.dumps(row))
    (reply,) = replies.wizardcoder_replies(tmp_path)
    assert (reply.id, reply.prompt, reply.text) == ("HumanEval/0", "Do it.\n\n", "pass")


def test_reports_are_read_by_way_of_decoding(tmp_path):
    results = [{"sampling_config": "nucleus9", "outputs": ["b", "c"]}, {"sampling_config": "greedy", "outputs": ["a"]}]
    report = {
        "prompts": [
            {"prompt": "Say a.", "results": results},
            {"prompt": "Hush.", "results": [results[1] | {"outputs": [" "]}]},
        ]
    }
    write(tmp_path / f"oasst_sampling/{replies.OASST_REPORTS['llama2-70b']}.json", json.dumps(report))
    texts = {
        way: [r.text for r in replies.oasst_replies("llama2-70b", way, tmp_path)]
        for way in ("greedy", "nucleus9", "all")
    }
    assert texts == {"greedy": ["a"], "nucleus9": ["b"], "all": ["b", "c", "a"]}
    write(tmp_path / f"oasst_sampling/{replies.OASST_REPORTS['llama2-70b']}.json", "[]")
    with pytest.raises(BadRecord, match="expected an object"):
        replies.oasst_replies("llama2-70b", root=tmp_path)
