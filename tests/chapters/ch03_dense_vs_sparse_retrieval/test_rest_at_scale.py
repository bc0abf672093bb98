"""REST on recorded outputs: what is counted, and what the counts say of the papers' values."""

import dataclasses
import json

import pandas as pd
import pytest

from specdec_lib import paths
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import measures, rest_at_scale
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.rest_at_scale import Case
from specdec_lib.drafters import Rest
from specdec_lib.experiments import stores
from specdec_lib.experiments.package_files import package_files
from specdec_lib.experiments.published_sets.replies import Reply, arena_hard_replies
from specdec_lib.experiments.recorded_runs import replay_all
from specdec_lib.experiments.retrieval import match_lengths, record_replies

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 4


@pytest.fixture
def case(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    turns = [(q, turn) for q in range(3) for turn in range(2)]
    replies = [Reply(f"{q}-{turn}", "m", f"Say {q}.", TEXT, questions=(f"{q}?",)) for q, turn in turns]
    stored = [TEXT + str(i) for i in range(30)]
    return Case("someone", "chat", "greedy", replies, {"chat": lambda: stores.Texts(lambda: iter(stored), "stored")})


def test_rows_are_prompts_and_count_what_the_replays_do(case, tokenizer):
    frame = rest_at_scale.case_counts(case, tokenizer, (300, 2000))
    assert list(frame.groupby("stored").size()) == [3, 3] and set(frame.variant) == {rest_at_scale.PUBLISHED}
    rows = measures.largest(rest_at_scale.select(frame, "someone"))
    index = stores.text_store("at-scale-chat", tokenizer, 2000, case.stores["chat"]())
    recorded = record_replies(case.replies, tokenizer)
    runs = replay_all(recorded, Rest(index))
    assert rows.passes.sum() == sum(len(run.steps) for run in runs)
    # After the prefill, whose token and forward are left out.
    characters = sum(len(tokenizer.decode(run.tokens[1:])) for run in runs)
    assert measures.rate(rows, measures.CHARACTERS).value == pytest.approx(characters / rows.passes.sum())
    lengths = match_lengths(recorded, Rest(index))
    assert rows.matched_10.sum() == sum(n for length, n in lengths.items() if length >= 10)
    assert rows.matched.sum() == sum(n for length, n in lengths.items() if length >= 2)
    assert rows.cut.sum() == 0


def test_text_in_parts_fills_shards_and_each_size_holds_the_one_before(case, tokenizer, monkeypatch, tmp_path):
    (tmp_path / "packages").mkdir()
    for i in range(30):
        (tmp_path / "packages" / f"m{i}.py").write_text(f"{TEXT}{i}\n{TEXT}")
    monkeypatch.setattr(stores, "SHARD_TOKENS", 1000)
    packages = {"code": lambda: package_files(installed=[tmp_path / "packages"])}
    code = dataclasses.replace(case, name=rest_at_scale.CODE, kind="code", stores=packages)
    rows = rest_at_scale.case_counts(code, tokenizer, (300, 1000, 2000, 4000))
    frame = rows[rows.variant == rest_at_scale.PUBLISHED]
    sizes = frame.stored.unique()
    assert len(sizes) == 4 and list(sizes) == sorted(sizes)
    assert all(0.6 * asked < size <= asked for size, asked in zip(sizes, (300, 1000, 2000, 4000), strict=True))
    assert set(frame.store) == {"code"} and list(frame.groupby("stored").size()) == [3] * 4
    variants = rows[rows.variant != rest_at_scale.PUBLISHED]
    assert set(variants.stored) == {sizes[-1]} and set(variants.variant) == set(rest_at_scale.VARIANTS)


def test_the_largest_stores_of_equal_size_are_compared_at_the_price_and_sizes_that_the_paper_implies():
    ours, theirs = (pd.DataFrame({"stored": sizes}) for sizes in ([10, 100, 1000], [9.5, 98, 3000]))
    first, second = rest_at_scale.equally_large(ours, theirs)
    assert (first.stored.item(), second.stored.item()) == (100, 98)
    with pytest.raises(ValueError, match="to a tenth"):
        rest_at_scale.equally_large(ours, theirs * 1.5)
    # Table 2: mean length, and milliseconds a token, of which plain decoding takes 27.89.
    table_2 = [(1.96, 15.28), (2.18, 13.98), (2.35, 13.24), (2.45, 12.99), (2.65, 11.82)]
    found = rest_at_scale.own_step_price()
    assert found == pytest.approx(sum(length * ms for length, ms in table_2) / 5 / 27.89)
    assert rest_at_scale.released_tokens(27) == 4.5e9
    assert rest_at_scale.released_tokens(12, 4 / 3) == pytest.approx(12e9 / 6 * 4 / 3)
    rows = pd.DataFrame({"characters": [120], "tokens": [40]})
    assert rest_at_scale.in_their_tokens(rows, {"characters_per_token": [4.0]}).tokens.tolist() == [30]


@pytest.mark.realdata
def test_the_authors_files_say_what_table_1_prints():
    found = rest_at_scale.authors_run()
    assert found["speed_up"].low < 1.69 < found["speed_up"].high
    assert found["tokens"].value == pytest.approx(1.99, abs=0.005)
    assert found["speed_up"].value == pytest.approx(found["tokens"].value / found["step"].value)


def test_an_answer_to_a_replayed_question_is_not_stored_and_the_order_is_that_of_the_texts_alone():
    stored = [
        Reply("x", "b", "Question: who wrote hamlet", "He did.", questions=("who wrote  Hamlet",)),
        Reply("y", "b", "And when?", "Then.", questions=("AND WHEN?",)),
        Reply("z", "b", "Who wrote Faust?", "Goethe.", questions=("Who wrote Faust?",)),
        Reply("z", "c", "Who wrote Faust?", "Goethe.", questions=("Who wrote Faust?",)),
    ]
    texts = rest_at_scale.mixed_texts(stored, ["Who wrote Hamlet?", "And when?"])
    assert list(texts) == ["Who wrote Faust? Goethe."]
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
    # Arena-Hard's file of answers has no questions, so its own are compared with those that are replayed.
    rows = (paths.datasets_root() / "arena_hard" / "question.jsonl").read_text().splitlines()
    questions = {rest_at_scale.plain(turn["content"]) for row in rows for turn in json.loads(row)["turns"]}
    assert len(questions) > 400 and arena_hard_replies() and not questions & asked
