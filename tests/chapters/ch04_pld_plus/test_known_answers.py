"""Rules replayed on answers that others wrote, and what is made of their counts."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib import Capture, load_model, paths
from specdec_lib.chapters.ch04_pld_plus import known_answers
from specdec_lib.decoding.served_models import context_limit
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.drafters import PromptLookup, PromptLookupHidden
from specdec_lib.experiments import results
from specdec_lib.experiments.overlap import overlap
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.replies import Reply
from specdec_lib.experiments.recorded_runs import replay_all
from specdec_lib.experiments.retrieval import record_replies
from specdec_lib.models.fingerprint import fingerprint
from tests.experiments.made import made_up


def grams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def by_hand(prompt, answer):
    """The geometric mean of clipped n-gram precisions; None where one of them is 0, which BLEU smooths."""
    shares = []
    for n in range(1, 5):
        ours, theirs = grams(answer, n), grams(prompt, n)
        if ours:
            shares.append(sum(min(count, theirs[gram]) for gram, count in ours.items()) / ours.total())
    return None if 0 in shares else math.exp(sum(map(math.log, shares)) / len(shares))


@settings(max_examples=100, deadline=None)
@given(st.text("abc", min_size=1, max_size=30), st.text("abc", min_size=1, max_size=9))
def test_the_overlap_is_bleu_4_without_the_penalty_for_shortness(prompt, answer):
    wanted = by_hand(prompt, answer)
    if wanted is not None:
        assert overlap(" ".join(prompt), " ".join(answer)) == pytest.approx(wanted)


def test_recordings_are_cut_to_the_context_and_answers_taken_at_equal_distances():
    long, short, none = (made_up(range(prompt), range(40)) for prompt in (10, 50, 90))
    cut = known_answers.fit([long, short, none], 100)
    assert [len(r.trace.tokens) for r in cut] == [40, 40]
    cut = known_answers.fit([long, short, none], 70)
    assert [len(r.trace.prompt) + len(r.trace.tokens) for r in cut] == [50, 70]
    assert cut[1].trace.limits.max_new_tokens == 20 and len(cut[1].trace.tokens) == 20
    replies = [Reply(str(i), "m", "p", "t") for i in range(10)]
    assert [r.id for r in known_answers.spread_out(replies, 4)] == ["0", "2", "5", "7"]
    assert known_answers.spread_out(replies, 12) == replies


def test_every_answer_has_the_passes_of_each_rule_on_the_same_tokens():
    (model, tokenizer), text = load_model("pocket-draft", "cpu"), "def f(x):\n    return x + 1\n" * 2
    questions = ("q", "r")
    replies = [Reply("a", "m", text, text), Reply("b", "m", "Say it.", text, questions)]
    replies.append(Reply("c", "m", "Again.", "return x + 1\n", questions))
    rows = list(known_answers.measure("made", model, tokenizer, 1, 5, {"made": lambda: replies}))
    assert [row["prompt"] for row in rows] == [0, 1, 1]
    first = known_answers.fit(record_replies(replies, tokenizer), context_limit(model))[0]
    assert rows[0]["tokens"] == len(first.trace.tokens) - 1
    assert rows[0]["partial_10"] == len(replay_all([first], PromptLookup(3, 10, "transformers"))[0].steps)
    count = len(first.trace.tokens)
    read = record_known(model, first.trace.prompt, first.trace.tokens, "length", None, count, Capture((1,)))
    first.trace.hidden.update(read.trace.hidden)
    assert rows[0]["h_70"] == len(replay_all([first], PromptLookupHidden(1, 70))[0].steps)
    for row in rows:
        for rule in ("partial", "h"):
            for length in known_answers.LENGTHS:
                assert row[f"best_{length}"] <= row[f"{rule}_{length}"] <= row["tokens"]
    frame = pd.DataFrame(rows)
    table = known_answers.table(frame)
    assert results.rate(table[table.method == "h_70"]).value == frame.tokens.sum() / frame.h_70.sum()
    assert results.ratio(table, "best_10", "partial_10", by="task").keys() == {"all", "made"}


def test_two_models_answers_to_one_problem_have_one_number():
    words = "Add two numbers of any kind to one another."
    base = Reply("7-0", "base", f'import re\n\ndef add(x, y):\n    """{words}\n    >>> add(1, 2)', "a")
    other = Reply("8-0", "base", 'def last(x):\n    """Give the last of them, or None if there is none', "b")
    tuned = Reply("HumanEval/3", "tuned", f"Write this:\ndef add(x, y):\n  {words}\n\n###", "c")
    assert [r.text for r in known_answers._by_problem(lambda: [other, base])()] == ["a", "b"]
    (first,) = known_answers._by_problem(lambda: [tuned])()
    assert first.questions == known_answers._by_problem(lambda: [base])()[0].questions


def test_words_are_counted_by_turn(monkeypatch):
    prompts = [Prompt("1", "t", ("one two three", "four")), Prompt("2", "t", ("one\ntwo",))]
    monkeypatch.setattr(known_answers, "load_task", lambda name, **options: prompts)
    rows = list(known_answers.prompt_words())
    assert [row["task"] for row in rows] == list(known_answers.PUBLISHED) and rows[0]["value"] == 2


def test_the_kept_answers_were_read_by_the_target_that_is_shipped():
    kept = (paths.DATA / "results" / "pld_plus" / "known_answers.csv").read_text(encoding="utf-8")
    assert f"# target: {fingerprint(load_model('pocket')[0])}\n" in kept, "-p 04.answers=200 reads them again"


def test_the_rank_correlation_is_spearmans():
    x, y = pd.Series([3, 1, 4, 1, 5, 9]), pd.Series([2, 7, 1, 8, 2, 8])
    ranks = [np.array([3, 1.5, 4, 1.5, 5, 6]), np.array([2.5, 4, 1, 5.5, 2.5, 5.5])]
    found = known_answers.rank_correlation(x, y, range(6))
    assert found.value == pytest.approx(np.corrcoef(*ranks)[0, 1]) and found.low < found.value < found.high
    assert known_answers.rank_correlation(x, 2 * x, range(6)).value == pytest.approx(1)
