"""Rows that the pocket models are trained on: a function of seed and place, with answers weighted and no task cut."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from specdec_lib import paths
from specdec_lib.chapters.a1_pocket_models import training_rows
from specdec_lib.chapters.a1_pocket_models.training_rows import ANSWER_WEIGHT, ASSISTANT, END, Rows
from specdec_lib.experiments import made_tasks
from specdec_lib.experiments.corpus import Module

TEXTS = ["def add(a, b):\n    return a + b\n", "class Point:\n    def move(self, dx):\n        self.x += dx\n"] * 20
TASKS = {"rename": 0.5, "quote-lines": 0.3, "two-turn": 0.2}
LENGTH = 512


@pytest.fixture(scope="module")
def small_tokenizer():
    return training_rows.train_tokenizer(TEXTS, 300, 64)


@pytest.fixture(scope="module")
def tokenizer():
    return PreTrainedTokenizerFast.from_pretrained(paths.POCKET / "target")


@pytest.fixture(scope="module")
def materials():
    files = {module.__name__: Path(module.__file__) for module in (argparse, textwrap)}
    return made_tasks.materials([Module(name, file.read_text(encoding="utf-8")) for name, file in files.items()])


@pytest.fixture(scope="module")
def rows(tokenizer, materials):
    return Rows(tokenizer, np.random.default_rng(0).integers(4, 4096, 5000).astype(np.uint16), materials, 0.5, seed=3)


def test_tokenizer_gives_back_any_text(small_tokenizer):
    for text in ["def f(x):\n        return x  # naïve 東京\t\n", "a\r\nb", "  x", "<|end|>", "1234567"]:
        assert small_tokenizer.decode(small_tokenizer.encode(text, add_special_tokens=False)) == text


def test_conversation_is_the_chat_template_and_marks_answers_only(small_tokenizer):
    ids, is_answer = training_rows.conversation(small_tokenizer, ("rename a", "again"), ("def b", "def c"))
    messages = [
        {"role": "user", "content": "rename a"},
        {"role": "assistant", "content": "def b"},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "def c"},
    ]
    assert small_tokenizer.decode(ids) == small_tokenizer.apply_chat_template(messages, tokenize=False)
    marked = small_tokenizer.decode([i for i, a in zip(ids, is_answer, strict=True) if a])
    assert marked == "def b<|end|>def c<|end|>"


def test_a_block_is_a_function_of_the_seed_and_its_place(rows):
    later, first = rows.block(5, 6, LENGTH, TASKS), rows.block(0, 6, LENGTH, TASKS)
    fresh = Rows(rows.tokenizer, rows.stream, rows.materials, rows.task_share, rows.seed)
    for (tokens, weights), number in ((first, 0), (later, 5)):
        again = fresh.block(number, 6, LENGTH, TASKS)
        assert np.array_equal(tokens, again[0]) and np.array_equal(weights, again[1])
        assert tokens.shape == weights.shape == (6, LENGTH + 1) and tokens.dtype == np.int64
    other = Rows(rows.tokenizer, rows.stream, rows.materials, rows.task_share, rows.seed + 1)
    assert not np.array_equal(first[0], later[0]) and not np.array_equal(first[0], other.block(0, 6, LENGTH, TASKS)[0])


def test_answers_and_their_end_weigh_more_and_no_exchange_is_cut(rows):
    """The special tokens tell what is an answer; the running text of this test has none of them."""
    assistant, end = (rows.tokenizer.convert_tokens_to_ids(token) for token in (ASSISTANT, END))
    tokens, weights = rows.block(1, 8, LENGTH, TASKS)
    with_tasks = 0
    for row, weight in zip(tokens.tolist(), weights.tolist(), strict=True):
        expected, answering = [], False
        for token in row:
            expected.append(ANSWER_WEIGHT if answering else 1)
            answering = token == assistant or (answering and token != end)
        assert weight == expected
        assert row.count(assistant) == row.count(end)
        with_tasks += assistant in row
    assert with_tasks == 4  # the share of 0.5


def test_rows_of_text_walk_through_the_stream_and_start_again_at_its_end(rows):
    text = Rows(rows.tokenizer, rows.stream, rows.materials, 0.0, rows.seed)
    for number in (0, 1, 4):
        tokens, weights = text.block(number, 3, LENGTH, TASKS)
        first = [(number * 3 + i) * LENGTH for i in range(3)]
        expected = [np.take(rows.stream, range(start, start + LENGTH + 1), mode="wrap").tolist() for start in first]
        assert sorted(tokens.tolist()) == sorted(expected) and (weights == 1).all()


def test_text_that_allows_none_of_a_task_is_an_error(tokenizer, monkeypatch):
    documented = Module("m", 'def f(a):\n    """Return twice what is given, as a number."""\n    return a + a\n' * 6)
    imports = {"imports": [made_tasks.Snippet("m", "import os\nimport sys\n")]}
    rows = Rows(tokenizer, np.arange(4, 2000, dtype=np.uint16), made_tasks.materials([documented]) | imports, 1.0, 0)
    monkeypatch.setattr(training_rows, "TRIES", 50)
    with pytest.raises(ValueError, match="none of 50 pieces of imports .*'sort-imports'"):
        rows.block(0, 1, LENGTH, {"sort-imports": 1.0})
