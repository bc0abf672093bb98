"""Chapter 2's measures of stores and searches, against brute force and closed forms."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specdec_lib.chapters import ch02_datastore_construction as chapter
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.drafters import Rest
from specdec_lib.experiments.data import prompts as book_prompts
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.runs import recorded_runs
from specdec_lib.experiments.runs.retrieval import match_lengths
from specdec_lib.experiments.statistics import intervals


def test_the_growth_of_a_line_in_the_logarithm_is_that_line_and_an_interruption_hardly_moves_a_time():
    assert chapter.typical_time([20.0] * 50)[:3] == pytest.approx((20.0,) * 3)
    time = chapter.typical_time([*[20.0] * 499, 5000.0])
    assert time.value == pytest.approx(20.0 * 250 ** (1 / 500)) and time.low == pytest.approx(20.0)
    sizes, noise = [1e3, 1e4, 1e5], np.random.default_rng(0).normal(0, 0.1, 400)
    times = [3 + 0.5 * np.log2(size) + noise for size in sizes]
    growth = chapter.time_growth(sizes, times, 1e6, 3e7)
    assert growth.value == pytest.approx((3 + 0.5 * np.log2(3e7)) / (3 + 0.5 * np.log2(1e6)), rel=1e-3)
    assert growth.low < growth.value < growth.high and growth.prompts == 0, "queries are no prompts"


def test_the_released_search_compares_with_all_middles_and_the_states_of_250_partitions():
    assert chapter.released_comparisons(10_000) == 500 + 250 * 20
    assert chapter.released_comparisons(100) == 50 + 100, "all of so few partitions are searched"


def test_repeated_contexts_are_those_that_a_search_finds_twice():
    rng = np.random.default_rng(0)
    tokens, positions = rng.integers(0, 3, 120), np.arange(121)
    windows = [tuple(tokens[i : i + 4]) for i in range(117)]
    expected = [p >= 4 and windows.count(tuple(tokens[p - 4 : p])) > 1 for p in positions]
    assert chapter.repeated_contexts(tokens, positions, 4).tolist() == expected
    assert set(expected) == {True, False}, "the drawn text has both kinds"


def recording(prompt, tokens):
    hidden = {LAST: torch.zeros(len(prompt) + len(tokens) - 1, 2)}
    return SimpleNamespace(trace=SimpleNamespace(prompt=prompt, tokens=tokens, hidden=hidden))


def index_of(found):
    """An index that finds the given positions for every state."""
    store = SimpleNamespace(tokens=np.array([9, 1, 2, 3]))
    return SimpleNamespace(store=store, search=lambda states, k: (None, np.tile(found, (len(states), 1))))


def test_the_ranks_of_the_next_token_pool_the_states_of_all_outputs_and_contexts_end_inside_them():
    found = chapter.contexts_of([recording(list(range(10)), [40, 41, 42])], 50, length=5)
    assert {tuple(context) for context in found} == {(6, 7, 8, 9, 40), (7, 8, 9, 40, 41), (8, 9, 40, 41, 42)}
    outputs = [recording([5, 5], [1, 1, 2]), recording([5], [3])]
    first, second = (chapter.next_token_counts(index_of(found), outputs) for found in ([1, 2, 3], [3, 2, 1]))
    ratio = intervals.ratio_of_rates(first, second)
    assert ratio.value == pytest.approx((1 + 1 + 1 / 2 + 1 / 3) / (1 / 3 + 1 / 3 + 1 / 2 + 1))
    assert intervals.pooled_rate(first).value == pytest.approx((1 + 1 + 1 / 2 + 1 / 3) / 4)


def test_reciprocal_ranks_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    tokens, found, wanted = rng.integers(0, 9, 40), rng.integers(-1, 40, (60, 4)), rng.integers(0, 9, 60)
    tokens[0] = 9  # the separator, for what was not found
    index = SimpleNamespace(store=SimpleNamespace(tokens=tokens), search=lambda states, k: (None, found[:, :k]))
    firsts = []
    for line, token in zip(found.tolist(), wanted.tolist(), strict=True):
        drafted = [int(tokens[max(place, 0)]) for place in line]
        firsts.append(1 / (drafted.index(token) + 1) if token in drafted else 0)
    assert 0 < np.mean(firsts) < 1
    states = np.zeros((60, 2))
    assert chapter.next_token_reciprocal_rank(index, states, wanted, 4) == pytest.approx(np.mean(firsts))
    with pytest.raises(ValueError, match="one token per state"):
        chapter.next_token_reciprocal_rank(index, states, wanted[:59])


@pytest.fixture
def stored(pocket, monkeypatch, tmp_path):
    """The states of a small store."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    model, tokenizer = pocket
    return chapter.IndexedStates.of(model, stores.text_store("stdlib", tokenizer, 1_200), 80)


def test_rows_of_a_store_have_the_ranks_and_hits_of_searches_one_by_one(stored):
    rows = chapter.state_counts(stored, "stdlib", [4, 64], chapter.factories(len(stored.states))).set_index("method")
    assert set(rows.index) >= {"4", "64", "4, no z-scores", "64, neither", "repeated", "distinct", "Flat", "HNSW32"}
    index = stored.index(4)
    ranks = []
    for state in stored.asked:
        found = index.search(stored.vectors[state][None], chapter.RANKED)[1][0].tolist()
        own = stored.positions[state]
        ranks.append(1 / (1 + found.index(own)) if own in found else 0.0)
    assert chapter.mean_reciprocal_rank(rows.ranks["4"]).value == pytest.approx(np.mean(ranks), abs=1e-3)
    assert chapter.mean_recall(rows.hits["Flat"]).value == 1.0
    halves = [rows.ranks[name].sum() for name in ("repeated", "distinct")]
    assert sum(halves) == len(stored.asked) == rows.ranks["4"].sum()
    assert rows.bytes.notna().sum() == 4


def test_recall_and_ranks_are_means_over_states():
    assert chapter.mean_reciprocal_rank(np.array([1, 2, 1])).value == pytest.approx((0 + 1 + 1 + 1 / 2) / 4)
    assert chapter.mean_recall(np.array([1, 0, 1] + [0] * 7 + [2])).value == pytest.approx((0 + 0.2 + 1 + 1) / 4)
    found, exact = np.array([[3, 1], [5, 6]]), np.array([[1, 2], [5, 6]])
    assert chapter.hits_of(found, exact).tolist() == [1, 2]


def test_sizes_of_stores_are_those_of_their_files(stored):
    rows = chapter.store_sizes(stored, "stdlib", stored.base).set_index("method")
    sparse, dense = rows.loc["sparse, stdlib"], rows.loc["dense, stdlib"]
    assert sparse.bytes == stored.base.bytes_per_token < dense.bytes and sparse.stored == stored.base.store.count
    assert dense.width == stored.vectors.shape[1] and dense.explained[-1] == pytest.approx(1, abs=1e-3)
    # No rescaling of single dimensions changes their correlation.
    assert dense.correlation == pytest.approx(dense.correlation_zscored)


def test_matches_and_dimensions_of_outputs_are_counted_by_output(pocket, stored):
    model, tokenizer = pocket
    prompts = book_prompts.load("report", ("code editing",), 2)
    recorded = recorded_runs.record_prompts(model, tokenizer, prompts, None, 12, Capture(layers=(LAST,)))
    rows = chapter.match_counts(recorded, stored.base, "code")
    whole = match_lengths(recorded, Rest(stored.base))
    assert np.sum(rows.lengths.tolist(), axis=0).tolist() == [whole[n] for n in range(17)]
    by_dims = chapter.dims_counts({4: stored.index(4)}, recorded)
    counted = chapter.next_token_counts(stored.index(4), recorded)
    assert by_dims.next_rank.tolist() == pytest.approx(list(counted.above)) and by_dims.states.tolist() == counted.below
