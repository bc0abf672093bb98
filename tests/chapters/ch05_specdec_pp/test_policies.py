"""Policies on the same outputs: what is counted, chosen and compared."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from specdec_lib import Sampling, record
from specdec_lib.chapters.ch05_specdec_pp import policies
from specdec_lib.chapters.ch05_specdec_pp.draft_pass import Judged, draft_along, play
from specdec_lib.chapters.ch05_specdec_pp.policies import SPEED, Contest, Output, baselines, play_all, with_heads
from specdec_lib.drafters import stopping
from specdec_lib.experiments import all_cores
from specdec_lib.experiments.recorded_runs import Recording
from specdec_lib.experiments.results import rate, ratio
from specdec_lib.experiments.statistics import pooled_rate, ratio_of_means
from tests.chaos import head_of
from tests.families import perturbed, prompt

TIMES = (0.02, 0.1, 0.09)


def outputs_of(target, small, sampling=Sampling(), seeds=1):
    made = []
    for place in range(8):
        own = SimpleNamespace(task=f"task {place % 2}", id=str(place))
        for seed in range(seeds):
            trace = record(target, prompt(place, 12), replace(sampling, seed=seed), 24)
            along = draft_along(trace, small, 20, target)
            made.append(Output("ab"[place // 4], Recording(own, 0, trace), along))
    return made


@pytest.fixture(scope="module")
def contest(llama):
    """Eight outputs of two sets, all rules, and a head of two training seeds."""
    small = perturbed(llama)
    heads = [head_of(small), head_of(small)]
    with torch.no_grad():
        heads[0].out.bias -= 1.0  # untrained heads; each says something else
    played = [*baselines(), *with_heads("SpecDec++", heads, [0.3, 0.8])]
    return Contest(outputs_of(llama, small), played, TIMES)


def speed_of(contest, policy, places):
    """Speed-up of each of some outputs, counted afresh."""
    tallies = []
    for place in places:
        passed = contest.outputs[place].passed
        shown = Judged.of(passed, policy.heads[0]) if policy.heads else passed
        tallies.append(play(shown, policy.make(passed), policy.least))
    draft, target, alone = contest.times
    return np.array([alone * t.tokens / (draft * t.passes + target * t.calls) for t in tallies])


def test_every_family_is_played_and_none_beats_the_oracle(contest):
    speed = contest.plays.groupby("method", sort=False).speed.mean()
    assert set(speed.index) == {policy.name for policy in contest.policies} and len(speed) == len(contest.policies)
    assert (speed <= speed["oracle"] + 1e-12).all()
    settings = [policy.setting for policy in contest.policies if policy.family == "fixed K"]
    assert settings == [f"K = {k}" for k in policies.PAPER_LENGTHS]
    assert sum(policy.family == "any fixed K" for policy in contest.policies) == 20


def test_a_policy_is_played_as_its_rule(contest):
    (head, _) = next(policy.heads for policy in contest.policies if policy.heads)
    (policy,) = with_heads("newest", [head], [0.9], check_newest=True)
    assert policy.name == "newest, h = 0.9" and policy.least == 1
    found = play_all(contest.outputs, [policy])
    for row, one in zip(found.itertuples(), contest.outputs, strict=True):
        expected = play(Judged.of(one.passed, head), stopping.PredictedRejection(0.9, True))
        assert (row.tokens, row.passes, row.drafted) == (expected.tokens, expected.calls, expected.drafted)
        assert (row.accepted, row.draft_passes) == (expected.accepted, expected.passes)
        assert row.discarded == row.drafted - row.accepted and row.tokens == len(one.recording.trace.tokens) - 1


def test_policies_played_at_once_are_those_played_one_by_one(contest, monkeypatch):
    monkeypatch.setattr(all_cores, "ALONE_SECONDS", 0.0)
    some = contest.policies[::9]
    alone = pd.concat([play_all(contest.outputs, [policy]) for policy in some], ignore_index=True)
    pd.testing.assert_frame_equal(play_all(contest.outputs, some), alone)
    # A policy that never drafts decodes plainly.
    silent = policies.Policy("silent", "", lambda passed: stopping.Oracle([], 0), least=0)
    found = policies.timed(play_all(contest.outputs, [silent]), *TIMES)
    assert (found.passes == found.tokens).all() and found.speed.tolist() == pytest.approx([0.9] * 8)


def test_settings_are_chosen_on_every_second_prompt_and_compared_on_the_others(contest):
    assert [place for place in range(8) if contest.plays.tuning[place]] == [0, 2, 4, 6]
    for family in ("fixed K", "SpecDec++"):
        own = [policy for policy in contest.policies if policy.family == family]
        means = {policy.name: speed_of(contest, policy, [4, 6]).mean() for policy in own}
        assert means[contest.fastest(family, "b")] == pytest.approx(max(means.values()))
        assert contest.fastest(list(means), "b") == contest.fastest(family, "b")
    rows = contest.rows("oracle", "b")
    assert set(rows.prompt) == {"task 1: 5", "task 1: 7"} and len(rows) == 2 * contest.seeds


def test_a_head_is_compared_with_those_of_all_training_seeds(contest):
    judged = contest.judged()
    named = {policy.name: policy for policy in contest.policies}
    ours, theirs = (named[contest.fastest(family, "b")] for family in ("SpecDec++", "fixed K"))
    assert contest.seeds == len(ours.heads) == 2
    each = np.concatenate([speed_of(contest, replace(ours, heads=(head,)), [5, 7]) for head in ours.heads])
    fixed = np.tile(speed_of(contest, theirs, [5, 7]), 2)
    expected = ratio_of_means(each, fixed, [5, 7, 5, 7])
    assert ratio(judged, "SpecDec++", "fixed K", SPEED, by="task")["b"] == pytest.approx(expected)
    assert contest.over(ours.name, theirs.name, "b") == pytest.approx(expected)
    speed = rate(judged[judged.method == "SpecDec++"], SPEED, by="task")["b"]
    assert speed == pytest.approx(pooled_rate((each, np.ones(4)), [5, 7, 5, 7]))
    # Without a head each seed has the same row, so the interval is that of one.
    once = Contest(contest.outputs, baselines(), TIMES)
    assert contest.over("oracle", theirs.name) == pytest.approx(once.over("oracle", theirs.name))


def test_at_other_times_settings_are_chosen_anew(contest):
    dear = contest.at(1.0, 1.0)
    assert dear.fastest("any fixed K", "a") == "any fixed K, K = 1" and contest.times == TIMES
    assert dear.times == (1.0, 1.0, TIMES[2]) and contest.at(0.1, 1.0, 0.5).times[2] == 0.5
    assert dear.rows("oracle").speed.mean() < contest.rows("oracle").speed.mean()
    lengths = [int(contest.at(0.1 * f, 1.0).fastest("any fixed K").split()[-1]) for f in (4, 1, 0.25)]
    assert lengths == sorted(lengths)  # a quicker draft model never shortens the best length


def test_outputs_of_one_prompt_stay_in_one_half(llama):
    small = perturbed(llama)
    found = play_all(outputs_of(llama, small, Sampling(0.7), seeds=2)[:8], baselines(4)[:1])
    assert found.tuning.tolist() == [True, True, False, False] * 2
    assert found.seed.tolist() == ["0", "1"] * 4 and found.prompt.nunique() == 4
