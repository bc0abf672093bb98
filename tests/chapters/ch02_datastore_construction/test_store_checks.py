"""Chapter 2's checks of what the papers say of their stores, against brute force and closed forms."""

import numpy as np
import pytest

from specdec_lib.chapters.ch02_datastore_construction import store_checks
from specdec_lib.datastores.faiss_index import load_faiss


def test_the_growth_of_a_line_in_the_logarithm_is_that_line():
    sizes, noise = [1e3, 1e4, 1e5], np.random.default_rng(0).normal(0, 0.1, 400)
    times = [3 + 0.5 * np.log2(size) + noise for size in sizes]
    growth = store_checks.time_growth(sizes, times, 1e6, 3e7)
    assert growth.value == pytest.approx((3 + 0.5 * np.log2(3e7)) / (3 + 0.5 * np.log2(1e6)), rel=1e-3)
    assert growth.low < growth.value < growth.high


@pytest.mark.parametrize("power", [0, 0.5, 1])
def test_the_power_of_a_power_law_is_found(power):
    sizes, factor = [1e3, 2e3, 4e3], np.random.default_rng(0).lognormal(0, 0.1, 300)
    found = store_checks.power(sizes, [size**power * factor for size in sizes])
    # The same queries at every size: their own times cancel, draw by draw.
    assert found == pytest.approx((power, power, power))


def test_comparisons_are_those_that_the_index_counts():
    rng = np.random.default_rng(0)
    keys, queries = (rng.normal(size=(n, 8)).astype(np.float32) for n in (1000, 7))
    found = store_checks.partitioned_comparisons(keys, queries)
    faiss = load_faiss()
    index = faiss.index_factory(8, "IVF20,Flat", faiss.METRIC_INNER_PRODUCT)  # of 1,000 keys: one partition for 50
    index.train(keys)
    index.add(keys)
    index.nprobe = 8
    counted = []
    for query in queries:
        faiss.cvar.indexIVF_stats.reset()
        index.search(query[None], 10)
        counted.append(20 + faiss.cvar.indexIVF_stats.ndis)
    assert found.tolist() == counted and len(set(counted)) > 1


def test_z_scores_leave_every_correlation_as_it_was():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(200, 5)) @ rng.normal(size=(5, 5)) * [1, 10, 100, 0.1, 3] + [5, 0, -3, 2, 9]
    scaled = store_checks.standardised(states)
    assert scaled.mean(0) == pytest.approx(np.zeros(5), abs=1e-12) and scaled.std(0) == pytest.approx(np.ones(5))
    pairs = [abs(np.corrcoef(states[:, i], states[:, j])[0, 1]) for i in range(5) for j in range(i)]
    assert store_checks.mean_correlation(states) == pytest.approx(np.mean(pairs))
    assert store_checks.mean_correlation(scaled) == pytest.approx(np.mean(pairs))


def test_repeated_contexts_are_those_that_a_search_finds_twice():
    rng = np.random.default_rng(0)
    tokens, positions = rng.integers(0, 3, 120), np.arange(121)
    windows = [tuple(tokens[i : i + 4]) for i in range(117)]
    expected = [p >= 4 and windows.count(tuple(tokens[p - 4 : p])) > 1 for p in positions]
    assert store_checks.repeated_contexts(tokens, positions, 4).tolist() == expected
    assert True in expected and False in expected


class Index:
    """An index that finds the given positions for every state."""

    class store:  # noqa: N801
        tokens = np.array([9, 1, 2, 3])

    def __init__(self, found):
        self.found = found

    def search(self, states, k):
        return None, np.tile(self.found, (len(states), 1))


def test_the_ratio_of_ranks_pools_the_states_of_all_outputs():
    first, second = Index([1, 2, 3]), Index([3, 2, 1])
    outputs = [(np.zeros((3, 2)), [1, 1, 2]), (np.zeros((1, 2)), [3])]
    ratio = store_checks.next_token_ratio(first, second, outputs)
    assert ratio.value == pytest.approx((1 + 1 + 1 / 2 + 1 / 3) / (1 / 3 + 1 / 3 + 1 / 2 + 1))
    assert store_checks.next_token_rank(first, outputs).value == pytest.approx((1 + 1 + 1 / 2 + 1 / 3) / 4)


def test_a_rank_and_a_recall_have_the_interval_of_their_mean_over_queries():
    index = Index([1, 2, 3])
    rank = store_checks.found_again(index, np.zeros((4, 2)), [1, 1, 2, 9])
    assert rank.value == pytest.approx((1 + 1 + 1 / 2 + 0) / 4) and rank.low < rank.value < rank.high
    recall = store_checks.mean_recall(np.array([[1, 2], [3, 4]]), np.array([[2, 1], [4, 5]]))
    assert recall == (0.75, 0.5, 1.0)


def test_a_typical_time_is_hardly_moved_by_an_interruption():
    assert store_checks.typical_time([20.0] * 50) == pytest.approx((20.0,) * 3)
    time = store_checks.typical_time([*[20.0] * 499, 5000.0])
    assert time.value == pytest.approx(20.0 * 250 ** (1 / 500)) and time.low == pytest.approx(20.0)
