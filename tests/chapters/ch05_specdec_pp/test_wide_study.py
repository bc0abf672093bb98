"""The study on many prompts: its file, its intervals, and text that does not follow the target."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specdec_lib import Sampling, generate
from specdec_lib.chapters.a1_pocket_models.training import DRAFTS
from specdec_lib.chapters.ch05_specdec_pp import cost_intervals, wide_study
from specdec_lib.chapters.ch05_specdec_pp.draft_pass import draft_along, throughputs
from specdec_lib.chapters.ch05_specdec_pp.resampled import resampled
from specdec_lib.chapters.ch05_specdec_pp.sampled_law import transformed, uniform_p_value
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import PAPER_LENGTHS, Study, baselines, with_head
from specdec_lib.commands import stopping
from specdec_lib.decoding.generate import record
from specdec_lib.drafters import SpecDecPP
from specdec_lib.experiments.calibration import ranking_accuracy, ranking_lead
from specdec_lib.experiments.statistics import pooled_rate
from tests.chaos import CountingClock, head_of
from tests.families import perturbed, prompt

TIMES = (0.02, 0.1)


@pytest.fixture(scope="module")
def study(llama):
    """Two sampled outputs of each of four prompts."""
    small = perturbed(llama)
    traces = [record(llama, prompt(s, 12), Sampling(0.7, seed=seed), 20) for s in range(4) for seed in range(2)]
    passes = [draft_along(t, small, 20, llama) for t in traces]
    return Study(passes, ["a"] * 8, prompts=[i // 2 for i in range(8)]), head_of(small)


def test_outputs_of_one_prompt_stay_in_one_half(study):
    assert study[0].tuning.tolist() == [True, True, False, False] * 2


def test_fixed_lengths_are_those_of_the_paper_beside_all():
    families = baselines(20)
    assert [p.setting for p in families["fixed K"]] == [f"K = {k}" for k in PAPER_LENGTHS]
    assert len(families["any fixed K"]) == 20


def test_several_heads_are_runs_of_the_same_prompts(study):
    found, head = study
    ours, theirs = with_head("one", head, [0.3, 0.8]), baselines(20)["fixed K"][1]
    test = ~found.tuning
    rates = [throughputs(found.tallies(policy, test), *TIMES) for policy in (*ours, theirs)]
    gain = found.against(ours, theirs, np.ones(8, bool), TIMES)
    assert gain.value == pytest.approx(np.mean(rates[:2]) / np.mean(rates[2]))
    speed = found.speedup(ours, test, TIMES, 0.1)
    assert speed.value == pytest.approx(0.1 * np.mean(rates[:2])) and speed.low <= speed.value <= speed.high


def test_rows_are_written_and_read_again(study, tmp_path):
    found, head = study
    plan = wide_study.Plan(thresholds=(0.3, 0.8))
    rows = [
        wide_study.Row("draft", 7, 0.7, name, 4, 8, quantity, setting, *interval, least, most)
        for name, quantity, setting, interval, least, most in wide_study.rows_of(found, [head, head], plan, TIMES, 0.1)
    ]
    assert {row.quantity for row in rows} >= {"acceptance", "speed-up, SpecDec++", "over fixed K", "AUC, head"}
    accepted = np.concatenate([p.acceptance for p in found.passes])
    assert rows[0].value == pytest.approx(accepted.mean())
    (tmp_path / "rows.csv").write_text(wide_study.as_csv(rows))
    again = wide_study.read(tmp_path / "rows.csv")
    for old, new in zip(rows, again, strict=True):
        numbers = [np.array(row[8:], float) for row in (old, new)]
        assert old[:8] == new[:8] and np.allclose(*numbers, rtol=1e-5, equal_nan=True)
    assert wide_study.read(tmp_path / "none.csv") == []
    (tmp_path / "other.csv").write_text("a,b\n")
    with pytest.raises(ValueError, match="has the columns a, b"):
        wide_study.read(tmp_path / "other.csv")


def row(draft, temperature, name, quantity, setting, *interval):
    return wide_study.Row(draft, 3_000_000, temperature, name, 40, 90, quantity, setting, *interval, *(2 * [np.nan]))


def test_the_best_length_is_read_off_the_row_of_its_set_and_temperature():
    rows = [
        row("draft", 1.0, "code", "speed-up, fixed K", "K = 2", 1.1, 1.0, 1.2),
        row("draft", 0.6, "code", "speed-up, fixed K", "K = 4", 1.1, 1.0, 1.2),
        row("draft", 1.0, "prose", "speed-up, fixed K", "K = 6", 1.1, 1.0, 1.2),
    ]
    assert [wide_study.best_length(rows, "draft", *at) for at in ((1.0, "code"), (0.6, "code"), (1.0, "prose"))] == [
        2,
        4,
        6,
    ]
    assert wide_study.best_length(rows, "larger", 1.0, "code") == "not available"


def test_a_drafts_sampled_factors_are_those_at_the_least_and_the_highest_temperature():
    cold = [
        row("large", 0.0, "editing", quantity, "", 0.9, 0.8, 1.0)
        for quantity in ("acceptance", "AUC, head less confidence", "over any fixed K")
    ]
    hot = [row("large", t, "editing", "over any fixed K", "", value, 0.5, 1.5) for t, value in ((1.0, 0.7), (0.6, 0.8))]
    found = wide_study.by_size([*cold, *hot], ["large", "small"])
    assert found["sizes_large_gain_warm"].startswith("0.80") and found["sizes_large_gain_hot"].startswith("0.70")
    assert (
        wide_study.by_size(cold, ["large"])["sizes_large_gain_hot"] == found["sizes_small_gain_hot"] == "not available"
    )


def test_further_drafts_are_sampled_on_fewer_prompts_and_measured_again_where_their_number_changes():
    def options(*given):
        return stopping.build_parser().parse_args(list(given))

    first, further = DRAFTS[:2]
    usual, other = options(), options("--further-prompts", "7")
    assert stopping.asked(usual, first, 1.0) == stopping.asked(other, first, 1.0)
    assert stopping.asked(usual, further, 0.0) == stopping.asked(other, further, 0.0)
    assert stopping.asked(usual, further, 1.0) != stopping.asked(other, further, 1.0)
    assert "prompts" in stopping.asked(usual, first, 1.0) and "prompts" not in stopping.asked(usual, further, 1.0)


def test_the_options_of_what_the_file_has_are_those_that_are_asked_today():
    usual = stopping.build_parser().parse_args([])
    made = json.loads(wide_study.RESULTS.with_suffix(".json").read_text(encoding="utf-8"))["made"]
    for part, how in made.items():
        draft, _, temperature = part.partition(" at ")
        assert how["options"] == stopping.asked(usual, draft, float(temperature)), part


def test_text_that_follows_the_target_gives_uniform_numbers_and_other_text_does_not(llama):
    drafter, sampling = SpecDecPP(perturbed(llama), head_of(perturbed(llama)), 0.6), Sampling(0.9)
    numbers, cold = [], []
    for seed in range(12):
        ids, own = prompt(seed, 10), Sampling(0.9, seed=seed)
        numbers.append(transformed(llama, ids, generate(llama, ids, drafter, own, 24).tokens, sampling, seed))
        cold.append(transformed(llama, ids, generate(llama, ids, None, Sampling(0.5, seed=seed), 24).tokens, sampling))
    assert all(((part >= 0) & (part <= 1)).all() for part in numbers)
    assert uniform_p_value(np.concatenate(numbers)) > 1e-3
    assert uniform_p_value(np.concatenate(cold)) < 1e-6


def test_the_p_value_is_as_small_as_it_says_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = np.array([uniform_p_value(rng.random(60)) for _ in range(800)])
    for level in (0.05, 0.5):
        assert abs((found < level).mean() - level) < 4 * np.sqrt(level * (1 - level) / 800)


def test_the_lead_of_a_prediction_is_the_difference_of_the_areas():
    rng = np.random.default_rng(1)
    outcome = rng.integers(0, 2, 200).astype(float)
    good, poor = np.clip(outcome * 0.4 + rng.random(200) * 0.6, 0, 1), rng.random(200)
    names = np.repeat(np.arange(20), 10).tolist()
    lead = ranking_lead(good, poor, outcome, names)
    assert lead.value == pytest.approx(ranking_accuracy(good, outcome) - ranking_accuracy(poor, outcome))
    assert 0 < lead.low < lead.value < lead.high
    same = ranking_lead(good, good, outcome, names)
    assert same == (0.0, 0.0, 0.0)


def test_a_bootstrap_of_a_mean_has_the_interval_of_the_pooled_rate():
    values = np.random.default_rng(2).gamma(3.0, size=50)
    found = resampled(lambda drawn: values[drawn].mean(), 50, 2000)
    expected = pooled_rate((values, np.ones(50)))
    assert found.value == pytest.approx(expected.value)
    assert found.low == pytest.approx(expected.low, abs=0.05) and found.high == pytest.approx(expected.high, abs=0.05)
    groups = resampled(lambda one, two: values[one].mean() - values[two + 10].mean(), (10, 40))
    assert groups.value == pytest.approx(values[:10].mean() - values[10:].mean())
    assert not resampled(lambda drawn: 1.0, 1).known


def test_fits_have_intervals_and_a_set_of_one_price_has_no_spread():
    rng = np.random.default_rng(3)
    counts = rng.integers(1, 30, (40, 2))
    exact = counts @ np.array([0.02, 0.1])
    assert cost_intervals.r_squared((counts, exact)).low == pytest.approx(1)
    noisy = cost_intervals.r_squared((counts, exact * rng.lognormal(0, 0.3, 40)))
    assert noisy.low < noisy.value < noisy.high < 1
    halves = [(counts[:20], exact[:20]), (counts[20:], exact[20:])]
    assert cost_intervals.spread_share(halves).value == pytest.approx(0, abs=1e-9)
    halves[1] = (counts[20:], counts[20:] @ np.array([0.04, 0.1]))
    assert cost_intervals.spread_share(halves).value == pytest.approx(np.std([0.02, 0.04], ddof=1) / 0.03)


def test_passes_alone_and_in_turns_are_timed_by_the_clock_of_the_devices(llama, monkeypatch):
    monkeypatch.setattr(cost_intervals, "clock_of", lambda devices: CountingClock(0.5))
    assert cost_intervals.alone_over_in_turns(llama, perturbed(llama), 3, 1, 8, 4) == (1.0, 1.0, 1.0)
