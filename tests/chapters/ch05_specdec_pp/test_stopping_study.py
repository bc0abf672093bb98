"""Policies side by side: what is tried, chosen and compared."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from specdec_lib import record
from specdec_lib.chapters.ch05_specdec_pp.draft_pass import Judged, draft_along, play
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import (
    ORACLE,
    Policy,
    Study,
    baselines,
    below,
    matched,
    with_head,
)
from specdec_lib.drafters import stopping
from specdec_lib.experiments import all_cores
from tests.chaos import head_of
from tests.families import perturbed, prompt

TIMES = (0.02, 0.1)


@pytest.fixture(scope="module")
def study(llama):
    small = perturbed(llama)
    traces = [record(llama, prompt(s, 12), max_new_tokens=24) for s in range(8)]
    return Study([draft_along(t, small, 12) for t in traces], ["a"] * 4 + ["b"] * 4, 12), head_of(small)


def test_every_family_is_played_and_none_beats_the_oracle(study):
    found, head = study
    families = {**baselines(12), "SpecDec++": with_head("SpecDec++", head, [0.5, 0.9])}
    everything = np.ones(8, bool)
    top = found.throughput(ORACLE, everything, TIMES).mean()
    for policies in families.values():
        for policy in policies:
            assert found.throughput(policy, everything, TIMES).mean() <= top + 1e-12
    assert set(baselines()) == {
        "fixed K",
        "any fixed K",
        "heuristic",
        "confidence",
        "fitted confidence",
        "cumulative confidence",
        "entropy",
    }


def test_a_policy_is_played_as_its_rule(study):
    found, head = study
    policy = with_head("SpecDec++", head, [0.6, 0.9], check_newest=True)[1]
    expected = [play(Judged.of(p, head), stopping.PredictedRejection(0.9, True), 1, 12) for p in found.passes]
    assert found.play(policy) == expected and policy.setting == "h = 0.9"
    assert found.play(policy) is found.play(policy)


def test_policies_played_at_once_are_those_played_one_by_one(study, monkeypatch):
    one_by_one, head = study
    monkeypatch.setattr(all_cores, "ALONE_SECONDS", 0.0)
    at_once = Study(one_by_one.passes, one_by_one.groups.tolist(), one_by_one.longest)
    policies = [ORACLE, *baselines(12)["confidence"], *with_head("head", head, [0.3, 0.7])]
    at_once.play_all(policies)
    monkeypatch.setattr(at_once, "_play", None)  # all are there
    assert [at_once.play(p) for p in policies] == [one_by_one.play(p) for p in policies]


def test_settings_are_chosen_on_one_half_and_compared_on_the_other(study):
    found, _ = study
    assert found.tuning.tolist() == [True, False] * 4
    own = found.groups == "b"
    lengths = baselines(12)["fixed K"]
    chosen = found.chosen({"fixed K": lengths}, own, TIMES)["fixed K"]
    means = {p.setting: found.throughput(p, own & found.tuning, TIMES).mean() for p in lengths}
    assert means[chosen.setting] == max(means.values())
    ratio, low, high = found.against(ORACLE, chosen, own, TIMES)
    test = own & ~found.tuning
    expected = found.throughput(ORACLE, test, TIMES).mean() / found.throughput(chosen, test, TIMES).mean()
    assert low <= ratio <= high and ratio == pytest.approx(expected)


def test_rates_of_a_policy_that_never_drafts_are_those_of_plain_decoding(study):
    silent = Policy("silent", "", lambda passed: stopping.Oracle([], 0), least=0)
    assert study[0].rates([silent], np.ones(8, bool)).tolist() == [[1.0, 0.0]]


def test_points_below_a_curve_are_counted_where_it_reaches():
    curve = np.array([[0.4, 0.2], [0.2, 1.0]])
    points = np.array([[0.3, 0.59], [0.3, 0.61], [0.25, 0.1], [0.1, 0.0], [0.5, 0.0]])
    assert below(points, curve) == pytest.approx(2 / 3)
    assert np.isnan(below(points[3:], curve))


def test_points_of_a_curve_are_matched_by_one_that_is_no_higher_in_either_rate():
    curve = np.array([[0.4, 0.2], [0.3, 0.5], [0.2, 1.0]])
    assert matched(np.array([[0.3, 0.2]]), curve) == pytest.approx(2 / 3)
    assert matched(curve, curve) == 1
    assert matched(np.array([[0.1, 1.1], [0.5, 0.0]]), curve) == 0


def test_unequal_groups_are_refused(study):
    with pytest.raises(ValueError, match="expected one group and one prompt for each pass"):
        Study(study[0].passes, ["a"])


@pytest.mark.parametrize("ask", ["judged", "play"])
def test_a_head_lives_as_long_as_what_is_kept_of_it(study, llama, ask):
    """Were it gone, another one built later in its place in memory would be taken for it."""
    found, head = Study(study[0].passes, study[0].groups, 12), head_of(perturbed(llama))
    (policy,) = with_head("SpecDec++", head, [0.5])
    found.judged(head) if ask == "judged" else found.play(policy)
    held = weakref.ref(head)
    del head, policy
    gc.collect()
    assert held() is not None


def test_two_heads_are_asked_each_for_itself(study, llama):
    found, first = Study(study[0].passes, study[0].groups, 12), study[1]
    second = head_of(perturbed(llama))
    with torch.no_grad():
        second.out.bias -= 4
    for head in (first, second):
        for ours, passed in zip(found.judged(head), found.passes, strict=True):
            assert np.array_equal(ours.chain, Judged.of(passed, head).chain)
    low, high = (with_head("SpecDec++", head, [0.5])[0] for head in (second, first))
    assert low == high and found.play(low) != found.play(high)
