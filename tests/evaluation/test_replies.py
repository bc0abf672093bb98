"""Recorded outputs of large models, where the data are: what the files say is what is read."""
import json

import pytest

from specdec_lib.evaluation.datasets import replies
from specdec_lib.evaluation.datasets.files import MissingData


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
