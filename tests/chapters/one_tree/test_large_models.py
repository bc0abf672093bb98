"""Answers of large models: which are replayed, and that what is told of a method is what its replay did."""

from __future__ import annotations

from functools import partial

import pytest

from specdec_lib.chapters import one_tree
from specdec_lib.datastores import SuffixIndex, build_from_texts
from specdec_lib.decoding.replay import replay
from specdec_lib.drafters.pass_prices import CURVES
from specdec_lib.drafters.tree_probabilities import TreeProbabilities
from specdec_lib.experiments.pass_costs import price_of
from specdec_lib.experiments.published_sets import MissingData
from specdec_lib.experiments.published_sets.replies import Reply
from specdec_lib.experiments.recorded_runs import load_pair

TEXTS = [f"def add_{i}(a, b):\n    return a + b\n" for i in range(6)]
PRICES = [CURVES["cpu"]]


def _replies(count: int = 6) -> list[Reply]:
    return [Reply(str(i), "made", TEXTS[i % 6], TEXTS[(i + 1) % 6]) for i in range(count)]


@pytest.fixture
def store(tmp_path) -> SuffixIndex:
    build_from_texts(tmp_path / "store", TEXTS, load_pair("pocket", "pocket")[2], progress=False)
    return SuffixIndex.open(tmp_path / "store")


def test_answers_are_spread_over_a_set_and_empty_ones_left_out():
    replies = [*_replies(10), Reply("x", "made", "asked", "")]
    assert [one.prompt for one in one_tree.spread(replies, 2)] == [replies[0].prompt, replies[5].prompt]
    assert len(one_tree.spread(replies, 99)) == 10


def test_rows_are_those_of_replays_and_absent_sets_are_named(store, monkeypatch):
    def missing() -> list[Reply]:
        raise MissingData("not here")

    monkeypatch.setattr(one_tree, "SETS", {"here": _replies, "elsewhere": missing})
    tokenizer = load_pair("pocket", "pocket")[2]
    sources = partial(one_tree.tokens_alone, store)
    drafters = one_tree.rungs(sources, PRICES, (2, 8), TreeProbabilities.unfitted(list(sources())), unions=False)
    ladders, absent = one_tree.of_large_models(tokenizer, drafters, sources(), 4)
    assert absent == ["elsewhere"] and list(ladders) == ["here"]
    ladder = ladders["here"]
    traces = [recording.trace for recording in ladder.recordings]
    for name in one_tree.ROWS:
        runs, size = [], ladder.best_size(name, PRICES[0])
        assert size in ((2, 8) if name != one_tree.TREE else ("cpu",))
        for trace in traces:
            drafters[name, size].reset()
            runs.append(replay(trace, drafters[name, size]))
        spent = sum(price_of(run, PRICES[0]) for run in runs)
        speedup = sum(len(run.tokens) - 1 for run in runs) / spent
        assert ladder.rate(name, PRICES[0]).value == pytest.approx(speedup)
        assert 0 < ladder.share(name, PRICES[0]).value <= 1 + 1e-9
