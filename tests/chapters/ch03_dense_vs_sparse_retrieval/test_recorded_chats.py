"""Replays on recorded outputs of large models, where the data are."""

import dataclasses

import pytest

from specdec_lib import load_model
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import recorded_chats
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.recorded_chats import Case
from specdec_lib.experiments.published_sets.replies import Reply


def test_without_data_there_are_no_cases_and_a_reason(monkeypatch, tmp_path):
    monkeypatch.delenv("SPECDEC_DATASETS", raising=False)
    assert recorded_chats.cases(5) == ([], "SPECDEC_DATASETS names no folder of data sets")
    monkeypatch.setenv("SPECDEC_DATASETS", str(tmp_path))
    found, reason = recorded_chats.cases(5)
    assert found == [] and "mt_bench" in reason and "alpaca_eval" in reason and "humaneval" in reason


def test_a_case_is_replayed_with_each_store_and_without(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    tokenizer = load_model("pocket")[1]
    text = "The quick brown fox jumps over the lazy dog. " * 3
    case = Case(
        "someone",
        [Reply(str(i), "m", "Say it.", text, tokens=30, steps=10 + i) for i in range(3)],
        {"the same text": lambda: [text] * 3, "another": lambda: ["import os\n" * 20]},
    )
    case = dataclasses.replace(case, authors=case.replies)
    found = recorded_chats.replay_case(case, tokenizer, 10_000)
    rate = {(row["method"], row["store"]): row["characters_per_forward"] for row in found["rows"]}
    assert rate["REST", "the same text"] > 3 * rate["plain", "no draft"] > 0
    assert rate["REST", "another"] == pytest.approx(rate["plain", "no draft"], rel=0.05)
    assert rate["REST, its authors' run", "UltraChat, 12 GB"] == pytest.approx(87 / 33 * len(text) / 30)


def test_an_answer_to_a_replayed_question_is_not_stored_whoever_gave_it():
    replayed = [
        Reply(
            "1-0",
            "a",
            "USER: Who wrote Hamlet? ASSISTANT:",
            "Shakespeare.",
            questions=("Who wrote Hamlet?", "And when?"),
        )
    ]
    stored = [
        Reply("x", "b", "Question: who wrote hamlet", "He did.", questions=("who wrote  Hamlet",)),
        Reply("y", "b", "And when?", "Then.", questions=("AND WHEN?",)),
        Reply("z", "b", "Who wrote Faust?", "Goethe.", questions=("Who wrote Faust?",)),
    ]
    assert recorded_chats._whole(stored, replayed) == ["Who wrote Faust? Goethe."]


@pytest.mark.realdata
def test_no_store_holds_an_answer_to_a_question_that_is_replayed():
    found, reason = recorded_chats.cases(1000)
    assert len(found) == 3 and not reason
    overlaps = 0
    for case in found[:2]:
        asked = {recorded_chats._plain(question) for reply in case.replies for question in reply.questions}
        for texts in case.stores.values():
            first = [text.removeprefix("USER: ").split(" ASSISTANT:")[0] for text in texts()]
            assert not asked.intersection(map(recorded_chats._plain, first)), case.name
        sets = [reply for name in recorded_chats.CHAT_SETS for reply in recorded_chats.chat_texts(name)]
        sets += recorded_chats.alpaca_eval_replies("gpt4")
        overlaps += sum(bool(asked.intersection(map(recorded_chats._plain, reply.questions))) for reply in sets)
    assert overlaps > 0, "the sets share questions, so that the filter has something to do"
