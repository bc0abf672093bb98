"""Families of policies against each other: who is chosen where, what is compared, what is recorded."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_lib import record
from specdec_lib.chapters.ch05_specdec_pp import claim_values, contest
from specdec_lib.chapters.ch05_specdec_pp.contest import Contest
from specdec_lib.chapters.ch05_specdec_pp.draft_pass import draft_along
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import ORACLE, Study, baselines, with_head
from specdec_lib.experiments.sum_of_forwards import oracle_calls
from tests.chaos import head_of
from tests.families import perturbed, prompt

TIMES, ALONE = (0.02, 0.1), 0.09


class OneMoreHead:
    """Trains a head again by handing out another one that was made before."""

    def __init__(self, *heads):
        self.heads = list(heads)

    def reseeded(self, head, seeds):
        return ([head] + [one for one in self.heads if one is not head])[:seeds]


@pytest.fixture(scope="module")
def played(llama):
    """Eight outputs of two sets, a family of fixed lengths, two kinds of SpecDec++."""
    small = perturbed(llama)
    traces = [record(llama, prompt(s, 12), max_new_tokens=24) for s in range(8)]
    study = Study([draft_along(t, small, 12) for t in traces], ["a"] * 4 + ["b"] * 4, 12)
    first, second = head_of(small), head_of(perturbed(small))
    families = baselines(12)
    families["SpecDec++"] = with_head("SpecDec++", first, [0.3, 0.8])
    families["SpecDec++ with confidence"] = with_head("SpecDec++ with confidence", second, [0.3, 0.8])
    return Contest(study, families, OneMoreHead(first, second), TIMES, ALONE, seeds=2)


def test_a_family_is_compared_with_its_heads_of_all_seeds(played):
    ours, theirs = played.chosen["b"]["SpecDec++"], played.chosen["b"]["fixed K"]
    both = with_head("SpecDec++", played.workshop.heads[1], [float(ours.setting.split("= ")[1])])
    expected = played.study.against([ours, *both], theirs, played.sets["b"], TIMES)
    assert played.over("b", "SpecDec++", "fixed K") == expected
    assert played.reseeded(theirs) == [theirs]


def test_settings_are_chosen_anew_at_other_times(played):
    dear = played.at((1.0, 1.0))
    assert dear.chosen["a"]["any fixed K"].setting == "K = 1" and played.times == TIMES
    assert dear.alone == ALONE and played.at(TIMES, 0.5).alone == 0.5


def test_speedups_have_a_row_a_family_and_leave_out_what_is_too_few(played):
    rows = contest.speedups(played, np.ones(8, bool))
    assert [row["family"] for row in rows] == [*played.families, "oracle"]
    assert all(row["a*"] is None for row in rows)  # two outputs of each set are left to judge on
    oracle = played.study.speedup(ORACLE, played.sets["a"] & ~played.study.tuning, TIMES, ALONE)
    assert rows[-1]["a"] == oracle and all(row["a"].value <= oracle.value + 1e-9 for row in rows)


def test_gains_are_recorded_as_ratios_and_as_shares(played):
    rows = contest.gains(played)
    assert len(rows) == len(played.sets) * len(contest.OURS) * len(contest.THEIRS)
    values = contest.gain_values(rows)
    ratio = played.over("b", "SpecDec++", "confidence")
    assert values["head_pp_over_confidence_b"] == ratio
    assert values["head_gain_pp_confidence_b"] == pytest.approx(ratio.value - 1)
    assert values["head_low_pp_confidence_b"] <= values["head_gain_pp_confidence_b"]
    assert values["head_said_pp_confidence_b"] == f"{ratio:.2f} times"


def test_matched_lengths_are_counted_among_those_within_reach(played):
    lines = {"fixed K": played.families["any fixed K"]}
    lines |= {name: played.families[name] for name in contest.OURS}
    points = contest.rates(played, lines)
    values = contest.rate_values(played, points)
    assert values["head_front_lengths"] == 12
    for name in played.sets:
        fixed, ours = (played.study.rates(lines[kind], played.sets[name]) for kind in ("fixed K", "SpecDec++"))
        found = [[rate.value for rate in both] for both in points[name]["fixed K"]]
        assert np.allclose(found, fixed)
        assert all(one.low <= one.value <= one.high for both in points[name]["SpecDec++"] for one in both)
        matched = sum(bool(((ours <= length).all(axis=1)).any()) for length in fixed)
        assert values[f"head_front_count_{name}"] == matched <= values[f"head_front_within_{name}"]


def test_one_setting_keeps_at_most_all(played):
    setting = played.families["SpecDec++"][0]
    values = contest.one_setting(played, setting)
    assert 0 < values["head_paper_setting_share"] <= 1 and 0 < values["head_single_share"] <= 1
    alone = Contest(played.study, {"SpecDec++": [setting]}, played.workshop, TIMES, ALONE)
    only = contest.one_setting(alone, setting)
    assert only["head_single_share"] == only["head_paper_setting_share"] == 1
    assert only["said_one_setting"] == only["said_paper_setting"] == f"{only['head_one_setting']:.3f}"


def test_settings_are_chosen_on_one_half_and_compared_on_the_other(played):
    heads = {"one": played.workshop.heads[0], "two": played.workshop.heads[1]}
    best = contest.best_thresholds(played, "a", heads, [0.3, 0.8])
    tuned, test = played.sets["a"] & played.study.tuning, played.sets["a"] & ~played.study.tuning
    for label, head in heads.items():
        speeds = [played.mean_speedup(policy, tuned) for policy in with_head("SpecDec++", head, [0.3, 0.8])]
        assert played.mean_speedup(best[label], tuned) == max(speeds)
    shown = contest.on_the_rest(played, "a", best)
    assert shown["one"].value == pytest.approx(played.mean_speedup(best["one"], test))
    ordered = sorted(best.values(), key=lambda policy: played.mean_speedup(policy, tuned))
    ratio = contest.best_over_worst(played, "a", best)
    assert ratio == played.study.against(ordered[1], ordered[0], played.sets["a"], TIMES)


def test_other_prompts_have_a_row_a_policy(played):
    policies = {name: played.chosen["a"][name] for name in ("fixed K", "SpecDec++")}
    outputs = [("c", passed) for passed in played.study.passes[:3]]
    rows = contest.on_other_prompts(played, policies, outputs)
    first = np.arange(8) < 3
    assert [row["c"].value for row in rows] == pytest.approx([played.mean_speedup(p, first) for p in policies.values()])
    assert all(row["c"].low <= row["c"].value <= row["c"].high for row in rows)
    assert contest.on_other_prompts(played, policies, []) == []


def test_the_oracle_counted_round_by_round_is_the_lemma_put_right(played):
    for passed in played.study.passes:
        assert claim_values.oracle_passes(passed) == oracle_calls(passed.agreement[1:])
    values = claim_values.lemma(played.study)
    assert values["head_lemma_outputs"] == 8 and values["head_lemma_wrong"] == 0 == values["cost_oracle_beaten"]
    assert values["head_lemma_off"] == values["head_lemma_last"] and 0 < values["cost_oracle_share"] <= 1


def test_a_quicker_draft_model_never_shortens_the_best_length(played):
    values = claim_values.best_lengths(played)
    assert values["head_best_k_quick_minus_slow"].value >= 0
