"""What the choice of a head's setting is worth, on prompts that it was not chosen on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.contest import Contest, best_of
from specdec_lib.chapters.ch05_specdec_pp.head_study import Variant, Workshop
from specdec_lib.chapters.ch05_specdec_pp.resampled import resampled
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import Policy, with_head
from specdec_lib.experiments.statistics import Interval

#: Throughput with the best setting of another set over that with the own; with the best loss weight above 1 over equal
#: weights; with the best mixture of prefixes over none.
TRANSFER, WEIGHT, MIXTURE = "another set's setting over the own", "weighted over equal", "mixed over unmixed"


def policies(workshop: Workshop, variants: Sequence[Variant], thresholds: Sequence[float]) -> list[Policy]:
    """SpecDec++ with a head of each variant at each threshold; the variant is the policy's family."""
    return [policy for v in variants for policy in with_head(_name(v), workshop.head(v), thresholds)]


def _name(variant: Variant) -> str:
    mixing = "none" if variant.mixing is None else f"{variant.mixing:g}"
    return f"w = {variant.reject_weight:g}, D = {variant.depth}, r = {mixing}"


def _said(ours: Policy, theirs: Policy) -> str:
    return f"{ours.family}, {ours.setting}; {theirs.family}, {theirs.setting}"


def least_transfer(contest: Contest) -> tuple[str, str, Interval]:
    """Quantity, settings and ratio of the pair of sets that loses most with the setting of the other one."""
    own = {name: contest.chosen[name]["SpecDec++"] for name in contest.sets}
    moved = {(a, b): over(contest, own[a], own[b], b) for a, b in permutations(own, 2)}
    a, b = min(moved, key=lambda pair: moved[pair].value)
    return TRANSFER, f"{a} to {b}: {_said(own[a], own[b])}", moved[a, b]


def gains(
    contest: Contest,
    name: str,
    setting: Variant,
    weights: Sequence[float],
    mixings: Sequence[float],
    thresholds: Sequence[float],
) -> Iterator[tuple[str, str, Interval]]:
    """Quantity, settings and ratio, on a set, of the best loss weight above 1 over equal weights and of the best mixture
    over none, each at its best threshold; nothing of what has no two kinds."""
    weighed = [replace(setting, reject_weight=float(w)) for w in weights]
    kinds = {
        WEIGHT: ([v for v in weighed if v.reject_weight > 1], [v for v in weighed if v.reject_weight == 1]),
        MIXTURE: (
            [replace(setting, mixing=float(r)) for r in mixings if 0 < r < 1],
            [replace(setting, mixing=None), replace(setting, mixing=0.0)],
        ),
    }
    for quantity, (some, others) in kinds.items():
        if some and others:
            tried = [policies(contest.workshop, each, thresholds) for each in (some, others)]
            contest.study.play_all([*tried[0], *tried[1]])
            ours, theirs = (best_of(contest, name, each) for each in tried)
            yield quantity, _said(ours, theirs), over(contest, ours, theirs, name)


def over(contest: Contest, ours: Policy, theirs: Policy, name: str) -> Interval:
    """Throughput of one policy over that of another on a set, each with the heads of all training seeds."""
    both = (contest.reseeded(ours), contest.reseeded(theirs))
    return contest.study.against(*both, contest.sets[name], contest.times)


def agreement(contest: Contest, inside: str) -> dict[str, Interval]:
    """By how much the two models agree more on each other set than on the one that heads are trained on."""
    counts = {}
    for name, keep in contest.sets.items():
        some = [one.agreement for one, kept in zip(contest.study.passes, keep, strict=True) if kept]
        counts[name] = (np.array([own.sum() for own in some]), np.array([len(own) for own in some]))

    def share(name: str, drawn: np.ndarray) -> float:
        agreed, total = counts[name]
        return float(agreed[drawn].sum() / total[drawn].sum())

    return {
        name: resampled(
            lambda a, b, name=name: share(name, a) - share(inside, b), (len(counts[name][0]), len(counts[inside][0]))
        )
        for name in counts
        if name != inside
    }
