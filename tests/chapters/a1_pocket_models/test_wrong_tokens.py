"""Kinds of tokens, and where answers go wrong."""

from types import SimpleNamespace

import pytest

from specdec_lib.chapters.a1_pocket_models import training, wrong_tokens
from specdec_lib.chapters.a1_pocket_models.wrong_tokens import (
    first_wrong,
    forced,
    kinds,
    missing,
    proportion,
    tokens_right,
)
from specdec_lib.experiments.prompt import Prompt

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_copied_tokens_lie_in_a_run_of_the_prompt_and_their_first_is_an_edge():
    assert kinds(PROMPT, [1, 2, 3, 4, 99, 5, 6, 7, 8]) == ["edge", *["copied"] * 3, "new", "edge", *["copied"] * 3]
    assert kinds(PROMPT, [1, 2, 3]) == ["new"] * 3


class Letters:
    def __call__(self, text, add_special_tokens):
        return {"input_ids": list(text.encode())}


def answer(text, right=False):
    return SimpleNamespace(prompt=Prompt("0", "rename", ("abcdefgh",), reference="abcdXefgh"), text=text, right=right)


@pytest.mark.parametrize(
    ("text", "place", "kind"),
    [
        ("abXdXefgh", 3, "copied"),
        ("abcdefgh", 5, "new"),
        ("abcdXXefgh", 6, "edge"),
        ("abcdXefghi", 10, "end"),
        ("ab", 3, "copied"),
    ],
)
def test_the_first_wrong_token_is_the_first_that_differs_or_is_missing(text, place, kind):
    found = first_wrong(answer(text), Letters())
    assert (found.place, found.tokens, found.kind) == (place, 9, kind)
    assert first_wrong(answer(text, right=True), Letters()) is None


def test_each_answer_token_is_told_its_kind_by_all_that_stands_before_it(monkeypatch):
    # Two turns: the second answer copies the first one.
    ids, inside = [1, 2, 3, 4, 1, 2, 3, 4, 0, 7, 4, 1, 2, 3, 0], [0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1]
    monkeypatch.setattr(training, "answer_hits", lambda model, ids, is_answer: [True] * 9 + [False])
    (read,) = forced(None, [("two-turn", ids, inside)])
    assert read.kinds == ["edge", *["copied"] * 3, "end", "edge", *["copied"] * 3, "end"]
    assert tokens_right([read], ["two-turn"], ["end"]).value == 0.5 and tokens_right([read], ["two-turn"]).value == 0.9
    assert missing([read], ["two-turn"], ["end"]).value == 1.0


def test_outcomes_that_are_all_alike_have_an_exact_interval():
    none = proportion([False] * 12)
    assert (none.value, none.low) == (0.0, 0.0) and none.high == pytest.approx(0.2646, abs=1e-4)
    assert proportion([True] * 12) == pytest.approx((1.0, 1 - none.high, 1.0))
    mixed = proportion([True, False] * 10)
    assert mixed.value == 0.5 and 0.2 < mixed.low < 0.4


def test_loops_are_counted_by_package():
    outputs = [
        SimpleNamespace(prompt=SimpleNamespace(meta={"module": module}), looped=looped)
        for module, looped in (("ssl", True), ("email.utils", True), ("email.message", False))
    ]
    found = wrong_tokens.by_source(outputs)
    assert list(found) == ["email", "ssl"] and found["email"][0].value == 0.5 and found["email"][1] == 2
