"""What a head's setting is worth: compared on prompts that it was not chosen on, with the heads of all seeds."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from specdec_lib import record
from specdec_lib.chapters.ch05_specdec_pp import setting_choices
from specdec_lib.chapters.ch05_specdec_pp.contest import Contest
from specdec_lib.chapters.ch05_specdec_pp.draft_pass import draft_along
from specdec_lib.chapters.ch05_specdec_pp.head_study import Variant
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import Study
from tests.chaos import head_of
from tests.families import perturbed, prompt

TIMES, ALONE = (0.02, 0.1), 0.09
THRESHOLDS = (0.3, 0.8)


class Heads:
    """Hands out one untrained head a variant and seed, always the same."""

    def __init__(self, draft):
        self.draft, self.made = draft, {}

    def head(self, variant):
        if variant not in self.made:
            head = head_of(self.draft)
            with torch.no_grad():
                head.out.bias += len(self.made) - 2.0  # each says something else
            self.made[variant] = head
        return self.made[variant]

    def reseeded(self, head, seeds):
        (variant,) = [variant for variant, own in self.made.items() if own is head]
        return [self.head(replace(variant, seed=seed)) for seed in range(seeds)]


@pytest.fixture
def played(llama):
    """Eight outputs of two sets and heads of three weights."""
    small = perturbed(llama)
    traces = [record(llama, prompt(s, 12), max_new_tokens=24) for s in range(8)]
    study = Study([draft_along(t, small, 12) for t in traces], ["a"] * 4 + ["b"] * 4, 12)
    workshop = Heads(small)
    tried = setting_choices.policies(workshop, [Variant(reject_weight=w) for w in (1, 3, 6)], THRESHOLDS)
    return Contest(study, {"SpecDec++": tried}, workshop, TIMES, ALONE, seeds=2)


def compared(contest, ours, theirs, name):
    """Mean throughput over that of another policy on the prompts of a set that settings are not chosen on, seed by seed."""
    test = contest.sets[name] & ~contest.study.tuning
    means = [
        np.mean([contest.study.throughput(one, test, TIMES).mean() for one in contest.reseeded(policy)])
        for policy in (ours, theirs)
    ]
    return means[0] / means[1]


def test_the_least_transfer_is_that_of_the_pair_of_sets_that_loses_most(played):
    own = {name: played.chosen[name]["SpecDec++"] for name in played.sets}
    expected = {(a, b): compared(played, own[a], own[b], b) for a, b in permutations(own, 2)}
    quantity, setting, ratio = setting_choices.least_transfer(played)
    least = min(expected, key=expected.get)
    assert quantity == setting_choices.TRANSFER and setting.startswith(f"{least[0]} to {least[1]}: w = ")
    assert ratio.value == pytest.approx(expected[least]) and ratio.low <= ratio.value <= ratio.high


def test_weights_and_mixtures_are_compared_at_the_best_threshold_of_each(played):
    found = {
        quantity: (setting, ratio)
        for quantity, setting, ratio in setting_choices.gains(played, "a", Variant(), (1, 6), (0.5,), THRESHOLDS)
    }
    assert list(found) == [setting_choices.WEIGHT, setting_choices.MIXTURE]
    tuning = played.sets["a"] & played.study.tuning
    best = [
        played.study.best(setting_choices.policies(played.workshop, [variant], THRESHOLDS), tuning, TIMES)
        for variant in (Variant(reject_weight=6.0), Variant(reject_weight=1.0))
    ]
    setting, ratio = found[setting_choices.WEIGHT]
    assert setting == "; ".join(f"{one.family}, {one.setting}" for one in best)
    assert ratio.value == pytest.approx(compared(played, *best, "a"))
    assert "r = 0.5" in found[setting_choices.MIXTURE][0]


def test_nothing_is_said_of_weights_without_equal_ones(played):
    found = setting_choices.gains(played, "a", Variant(), (3, 6), (0.5,), THRESHOLDS)
    assert [quantity for quantity, *_ in found] == [setting_choices.MIXTURE]


def test_agreement_is_compared_with_the_set_that_heads_know(played):
    found = setting_choices.agreement(played, "a")
    share = {
        name: np.concatenate([p.agreement for p, kept in zip(played.study.passes, keep, strict=True) if kept]).mean()
        for name, keep in played.sets.items()
    }
    assert set(found) == {"b"} and found["b"].value == pytest.approx(share["b"] - share["a"])
