"""Replays on recorded outputs of large models, where the data are."""
import dataclasses

import pytest

from specdec_lib import load_model
from specdec_lib.evaluation import real_text
from specdec_lib.evaluation.datasets.replies import Reply
from specdec_lib.evaluation.real_text import Case


def test_without_data_there_are_no_cases_and_a_reason(monkeypatch, tmp_path):
    monkeypatch.delenv("SPECDEC_DATASETS", raising=False)
    assert real_text.cases(5) == ([], "SPECDEC_DATASETS names no folder of data sets")
    monkeypatch.setenv("SPECDEC_DATASETS", str(tmp_path))
    found, reason = real_text.cases(5)
    assert found == [] and "mt_bench" in reason and "alpaca_eval" in reason and "humaneval" in reason


def test_a_case_is_replayed_with_each_store_and_without(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    tokenizer = load_model("pocket")[1]
    text = "The quick brown fox jumps over the lazy dog. " * 3
    case = Case("someone", [Reply(str(i), "m", "Say it.", text, tokens=30, steps=10 + i) for i in range(3)], {
        "the same text": lambda: [text] * 3, "another": lambda: ["import os\n" * 20]})
    case = dataclasses.replace(case, authors=case.replies)
    found = real_text.replay_case(case, tokenizer, 10_000)
    rate = {(row["method"], row["store"]): row["characters_per_forward"] for row in found["rows"]}
    assert rate["REST", "the same text"] > 3 * rate["plain", "no draft"] > 0
    assert rate["REST", "another"] == pytest.approx(rate["plain", "no draft"], rel=0.05)
    assert rate["REST, its authors' run", "UltraChat, 12 GB"] == pytest.approx(87 / 33 * len(text) / 30)


def test_an_answer_to_a_replayed_question_is_not_stored_whoever_gave_it():
    replayed = [Reply("1-0", "a", "USER: Who wrote Hamlet? ASSISTANT:", "Shakespeare.", questions=("Who wrote Hamlet?",
                                                                                                  "And when?"))]
    stored = [Reply("x", "b", "Question: who wrote hamlet", "He did.", questions=("who wrote  Hamlet",)),
              Reply("y", "b", "And when?", "Then.", questions=("AND WHEN?",)),
              Reply("z", "b", "Who wrote Faust?", "Goethe.", questions=("Who wrote Faust?",))]
    assert real_text._whole(stored, replayed) == ["Who wrote Faust? Goethe."]


@pytest.mark.realdata
def test_no_store_holds_an_answer_to_a_question_that_is_replayed():
    found, reason = real_text.cases(1000)
    assert len(found) == 3 and not reason
    overlaps = 0
    for case in found[:2]:
        asked = {real_text._plain(question) for reply in case.replies for question in reply.questions}
        for texts in case.stores.values():
            first = [text.removeprefix("USER: ").split(" ASSISTANT:")[0] for text in texts()]
            assert not asked.intersection(map(real_text._plain, first)), case.name
        sets = [reply for name in real_text.CHAT_SETS for reply in real_text.chat_texts(name)]
        sets += real_text.alpaca_eval_replies("gpt4")
        overlaps += sum(bool(asked.intersection(map(real_text._plain, reply.questions))) for reply in sets)
    assert overlaps > 0, "the sets share questions, so that the filter has something to do"
