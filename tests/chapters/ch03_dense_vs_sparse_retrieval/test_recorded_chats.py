"""The replayed outputs and the text of their stores: no store holds an answer to a question that is replayed."""

import pytest

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import rest_at_scale
from specdec_lib.experiments.published_sets.reading import MissingData
from specdec_lib.experiments.published_sets.replies import Reply, arena_hard_replies


def test_without_data_the_missing_file_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_DATASETS", str(tmp_path))
    with pytest.raises(MissingData, match="alpaca_eval/vicuna-13b-v1.5"):
        rest_at_scale.cases()


def test_an_answer_to_a_replayed_question_is_not_stored_whoever_gave_it():
    stored = [
        Reply("x", "b", "Question: who wrote hamlet", "He did.", questions=("who wrote  Hamlet",)),
        Reply("y", "b", "And when?", "Then.", questions=("AND WHEN?",)),
        Reply("z", "b", "Who wrote Faust?", "Goethe.", questions=("Who wrote Faust?",)),
        Reply("z", "c", "Who wrote Faust?", "Goethe.", questions=("Who wrote Faust?",)),
    ]
    texts = rest_at_scale.mixed_texts(stored, ["Who wrote Hamlet?", "And when?"])
    assert list(texts) == ["Who wrote Faust? Goethe."]


def test_the_order_mixes_sources_and_is_that_of_the_texts_alone():
    replies = [Reply(str(i), "m", f"Ask {i}?", "Yes.") for i in range(20)]
    texts, reversed_texts = (rest_at_scale.mixed_texts(these, []) for these in (replies, replies[::-1]))
    assert list(texts) == list(reversed_texts) != sorted(texts) and texts.key == reversed_texts.key
    assert sorted(texts) == sorted(f"{r.prompt} {r.text}" for r in replies)


@pytest.mark.realdata
def test_no_store_holds_an_answer_to_a_question_that_is_replayed():
    cases = rest_at_scale.cases()
    asked = {rest_at_scale.plain(q) for case in cases for reply in case.replies for q in reply.questions}
    assert len(cases) == 7 and len(cases[0].replies) > 100 and len(asked) > 300
    for store in {name: read for case in cases if case.kind == "chat" for name, read in case.stores.items()}.values():
        first = [text.removeprefix("USER: ").split(" ASSISTANT:")[0] for text in store()]
        assert not asked.intersection(map(rest_at_scale.plain, first))


@pytest.mark.realdata
def test_answers_without_their_questions_are_to_none_that_is_replayed():
    """Arena-Hard's file of answers has no questions, so its own are compared with those that are replayed."""
    import json

    from specdec_lib import paths

    rows = (paths.datasets_root() / "arena_hard" / "question.jsonl").read_text().splitlines()
    questions = {rest_at_scale.plain(turn["content"]) for row in rows for turn in json.loads(row)["turns"]}
    replayed = {rest_at_scale.plain(q) for case in rest_at_scale.cases() for r in case.replies for q in r.questions}
    assert len(questions) > 400 and arena_hard_replies() and not questions & replayed
