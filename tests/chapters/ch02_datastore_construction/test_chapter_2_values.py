"""What chapter 2 records, of times and ranks that follow a rule."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from specdec_lib.chapters.ch02_datastore_construction import page_values
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import datastore_pages


def test_times_that_grow_by_a_rule_are_carried_on_by_it():
    sizes = [2**10, 2**14, 2**18]
    noise = np.random.default_rng(0).normal(0, 0.01, 300)
    sparse = [
        {"tokens": n, "search": 2 + 0.5 * np.log2(n), "draft": 30.0, "each": 2 + 0.5 * np.log2(n) + noise}
        for n in sizes
    ]
    linear = {n: 0.01 * n for n in (1000, 2000, 4000)}
    values = page_values.times(sparse, linear)
    assert values["doubling_us"] == pytest.approx(0.5)
    assert values["billion_us"] == pytest.approx(2 + 0.5 * np.log2(1e9))
    assert values["dense_million_us"] == pytest.approx(1e4) and values["dense_billion_ms"] == pytest.approx(1e4)
    expected = (2 + 0.5 * np.log2(page_values.PAPER_TOKENS)) / (2 + 0.5 * np.log2(page_values.PAPER_TOKENS / 30))
    assert values["retrieval_growth_30"].value == pytest.approx(expected, rel=1e-2)


def known(value):
    return Interval(value, value, value)


def test_the_fewest_the_kept_and_the_most_components_are_recorded():
    keys = ("variance", "both", "next", "rate", "calls")
    rows = [{"dims": d, **{key: known(d + i / 10) for i, key in enumerate(keys)}} for d in (64, 4, 256)]
    ablated = {(d, name): known(d / 1000) for d in (4, 64) for name in page_values.WITHOUT}
    values = page_values.dimensions(rows, ablated, 64)
    assert (values["mrr_both"], values["kept_rate"], values["widest_mrr"]) == (64.1, 64.3, 256.1)
    assert (values["narrow_dims"], values["widest_dims"], values["narrow_variance"]) == (4, 256, 4.0)
    assert (values["mrr_no_unit"], values["narrow_mrr_no_zscore"]) == (0.064, 0.004)


def test_shares_of_matches_are_of_all_steps_and_of_those_with_a_draft():
    values = page_values.matches([Counter({0: 2, 1: 2, 2: 1, 9: 1}), Counter({2: 2, 10: 1, 16: 1})])
    assert values == {"share_matched": 0.6, "share_short": 4 / 6, "share_long": 2 / 6}


def test_bars_of_match_lengths_have_an_interval_over_outputs():
    each = [Counter({2: 3, 5: 1}), Counter({2: 1, 5: 3})]
    (ax,) = datastore_pages.match_lengths(each, each[:1]).axes
    heights = [bar.get_height() for bar in ax.patches]
    assert heights[2] == heights[5] == 0.5, "all outputs together"
    assert (heights[17 + 2], heights[17 + 5]) == (0.75, 0.25)
    segments = [s for lines in ax.collections for s in lines.get_segments() if s[0][0] < 2.1 and s[0][0] > 1.5]
    assert [tuple(segment[:, 1]) for segment in segments] == [(0.25, 0.75)], "one output alone has no interval"
