"""Intervals against loops over the same draws and laws whose true value is known; calibration against counting."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_lib.decoding.results import RATES
from specdec_lib.experiments.runs.metrics import pooled_metrics, rate_counts
from specdec_lib.experiments.statistics import intervals
from specdec_lib.experiments.statistics.calibration import roc_auc, roc_auc_difference
from specdec_lib.experiments.statistics.intervals import (
    Counts,
    mean_interval,
    pooled_rate,
    ratio_of_means,
    ratio_of_rates,
)


def drawn_prompts(rng, prompts, seeds, spread=0.4, own=0.2):
    """Passes and tokens of ``seeds`` runs of each prompt, whose tokens per pass differ by prompt and less by seed."""
    ease = np.repeat(rng.lognormal(0, spread, prompts), seeds)
    passes = rng.integers(10, 60, prompts * seeds)
    return ease, passes, passes * ease * rng.lognormal(0, own, prompts * seeds), np.repeat(np.arange(prompts), seeds)


def brute_force(of_sums, rows, prompts, rng, samples=4000):
    """The ends of the interval, drawing prompts and then runs one by one."""
    by_prompt = [rows[prompts == name] for name in dict.fromkeys(prompts)]
    values = []
    for _ in range(samples):
        sums = 0
        for prompt in rng.integers(len(by_prompt), size=len(by_prompt)):
            own = by_prompt[prompt]
            sums = sums + sum(own[run] for run in rng.integers(len(own), size=len(own)))
        values.append(of_sums(sums))
    return np.quantile(values, [0.025, 0.975])


def test_the_interval_is_that_of_drawing_prompts_and_runs_one_by_one():
    rng = np.random.default_rng(0)
    _, passes, tokens, prompts = drawn_prompts(rng, 12, 2)
    passes, tokens, prompts = (values[:-1] for values in (passes, tokens, prompts))  # one prompt has a single run
    other = passes * rng.lognormal(0.1, 0.1, len(passes))
    value, *ends, counted = ratio_of_rates(Counts(tokens, passes), Counts(other, passes), prompts)
    rows = np.stack([tokens, passes, other, passes], 1)
    expected = brute_force(lambda s: s[0] / s[1] / (s[2] / s[3]), rows, prompts, rng)
    assert value == pytest.approx(tokens.sum() / other.sum())
    assert ends == pytest.approx(expected, abs=0.06 * (expected[1] - expected[0])) and counted == len(set(prompts))


def test_every_statistic_is_its_formula():
    a, b, c, d = np.array([[3.0, 5, 9], [1, 2, 4], [2, 2, 8], [1, 3, 2]])
    assert pooled_rate(Counts(a, b)).value == 17 / 7
    assert ratio_of_rates(Counts(a, b), Counts(c, d)).value == (17 / 7) / (12 / 6)
    assert intervals.difference_of_rates(Counts(a, b), Counts(c, d)).value == 17 / 7 - 12 / 6
    assert mean_interval(a).value == 17 / 3 and ratio_of_means(a, c).value == 17 / 12


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_interval_covers_the_true_ratio_as_often_as_it_says(seeds, monkeypatch):
    monkeypatch.setattr(intervals, "SAMPLES", 600)
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(300):
        ease, passes, tokens, prompts = drawn_prompts(rng, 40, seeds, own=0.1)
        # Both methods profit from an easy prompt; the gain, of mean 1.1, differs by prompt.
        gains = np.repeat(rng.lognormal(math.log(1.1) - 0.15**2 / 2, 0.15, 40), seeds)
        other = passes * ease * rng.lognormal(0, 0.1, len(passes))
        interval = ratio_of_rates(Counts(tokens * gains, passes), Counts(other, passes), prompts)
        assert interval.low <= interval.value <= interval.high
        inside += interval.low <= 1.1 <= interval.high
    assert 0.92 * 300 <= inside <= 0.98 * 300


def test_one_prompt_alone_has_no_interval_samples_without_a_rate_are_left_out_and_other_prompts_refused():
    alone = pooled_rate(Counts([4, 6], [2, 2]), ["a", "a"])
    assert alone.value == 2.5 and math.isnan(alone.low) and math.isnan(alone.high) and not alone.known
    assert all(map(math.isnan, pooled_rate(Counts([], []))[:3]))
    # Prompts of which nothing is counted are no evidence that the rate of the only other one holds.
    silent = ratio_of_rates(Counts([6, 0, 0], [2, 0, 0]), Counts([4, 0, 0], [2, 0, 0]), ["a", "b", "c"])
    assert silent.value == 1.5 and math.isnan(silent.low) and math.isnan(silent.high)
    # Two prompts of four have a draft: samples without either have no acceptance rate.
    assert pooled_rate(Counts([1, 1, 0, 0], [2, 4, 0, 0]))[:3] == (1 / 3, 0.25, 0.5)
    with pytest.raises(ValueError, match="2, 3, 2 values; expected as many of each"):
        pooled_rate(Counts([1, 2], [1, 2, 3]))
    with pytest.raises(ValueError, match="as many of each"):
        pooled_rate(Counts([1, 2], [1, 2]), ["a"])


def run(*steps, prefill=0.5):
    """A run as far as its sums go: each step has drafted, accepted, depth."""
    parts = dict(draft_seconds=0.1, verify_seconds=0.2, commit_seconds=0.3, host_seconds=0.4)
    made = [SimpleNamespace(drafted=n, accepted=k, tree=SimpleNamespace(depth=d), **parts) for n, k, d in steps]
    return SimpleNamespace(tokens=[0] * (1 + sum(s.accepted + 1 for s in made)), steps=made, prefill_seconds=prefill)


@pytest.mark.parametrize("name", RATES)
def test_the_counts_of_each_run_pool_to_the_metric(name):
    runs = [run((4, 2, 3), (0, 0, 0)), run((5, 5, 5), (6, 0, 2), prefill=0.25)]
    above, below = rate_counts(runs, name)
    assert sum(above) / sum(below) == pytest.approx(pooled_metrics(runs)[name])
    with pytest.raises(ValueError, match="'calls' is no ratio"):
        rate_counts([], "calls")


def test_the_median_has_the_interval_of_its_repeats():
    values = np.random.default_rng(4).lognormal(0, 0.5, 41)
    found = intervals.median_interval(values)
    ordered = np.sort(values)
    assert found.value == ordered[20]
    # The order statistics that bracket a median with 95 % probability: those of a fair coin thrown 41 times.
    assert ordered[12] <= found.low <= ordered[16] and ordered[24] <= found.high <= ordered[28]
    assert (
        intervals.median_interval([2.0, 2.0, 2.0]) == (2.0, 2.0, 2.0, 0) and not intervals.median_interval([2.0]).known
    )


def test_a_bootstrap_of_a_mean_has_the_interval_of_the_pooled_rate():
    values = np.random.default_rng(2).gamma(3.0, size=50)
    found = intervals.bootstrap_interval(lambda drawn: values[drawn].mean(), 50, 2000)
    expected = intervals.pooled_rate((values, np.ones(50)))
    assert found.value == pytest.approx(expected.value)
    assert found.low == pytest.approx(expected.low, abs=0.05) and found.high == pytest.approx(expected.high, abs=0.05)
    groups = intervals.bootstrap_interval(lambda one, two: values[one].mean() - values[two + 10].mean(), (10, 40))
    assert groups.value == pytest.approx(values[:10].mean() - values[10:].mean())
    assert not intervals.bootstrap_interval(lambda drawn: 1.0, 1).known


def test_values_that_are_no_probabilities_are_refused():
    for predicted, outcome in (([0.1], [1, 0]), ([], []), ([1.1], [1]), ([0.5], [float("nan")])):
        with pytest.raises(ValueError, match="expected"):
            roc_auc(np.array(predicted), np.array(outcome))


@pytest.mark.parametrize("seed", range(4))
def test_ranking_accuracy_counts_pairs(seed):
    rng = np.random.default_rng(seed)
    predicted, outcome = rng.integers(0, 6, 40) / 5, rng.random(40).round() if seed else rng.random(40)
    rows = list(zip(predicted, outcome, strict=True))
    pairs = [(a * (1 - b), (x > y) + (x == y) / 2) for x, a in rows for y, b in rows]
    expected = sum(w * v for w, v in pairs) / sum(w for w, _ in pairs)
    assert roc_auc(predicted, outcome) == pytest.approx(expected)
    assert np.isnan(roc_auc([0.1, 0.2], [1, 1])), "outcomes all alike"


def test_the_lead_of_a_prediction_is_the_difference_of_the_areas():
    rng = np.random.default_rng(1)
    outcome = rng.integers(0, 2, 200).astype(float)
    good, poor = np.clip(outcome * 0.4 + rng.random(200) * 0.6, 0, 1), rng.random(200)
    names = np.repeat(np.arange(20), 10).tolist()
    lead = roc_auc_difference(good, poor, outcome, names)
    assert lead.value == pytest.approx(roc_auc(good, outcome) - roc_auc(poor, outcome))
    assert 0 < lead.low < lead.value < lead.high
    assert roc_auc_difference(good, good, outcome, names) == (0.0, 0.0, 0.0, len(set(names)))
