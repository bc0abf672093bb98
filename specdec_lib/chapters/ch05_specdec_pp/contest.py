"""Families of stopping policies on sets of prompts: each at the setting that is best on half of a set, compared on the
other half."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.draft_pass import DraftPass
from specdec_lib.chapters.ch05_specdec_pp.head_study import Workshop
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import (
    ORACLE,
    Policy,
    Study,
    below,
    matched,
    with_head,
    with_heads,
)
from specdec_lib.experiments.statistics import Interval, told
from specdec_lib.heads.acceptance import AcceptanceHead

#: The paper's head, and the same head with the draft model's probability of the token as one more input.
OURS = {"SpecDec++": "pp", "SpecDec++ with confidence": "seeing"}
#: What they are compared with, and the short name in what is recorded.
THEIRS = {"fixed K": "fixed", "any fixed K": "any", "confidence": "confidence", "cumulative confidence": "cumulative"}
#: With fewer outputs than this a mean says nothing.
FEW = 5


@dataclass(frozen=True)
class Contest:
    """Families of policies, played on the prompts of a study at given times of a pass.

    Attributes
    ----------
    study : Study
    families : mapping
        By name, the policies that a family's setting is chosen from.
    workshop : Workshop
        Trains a chosen head again from other seeds.
    times : pair of float
        Seconds of a pass of the draft model and of the target.
    alone : float
        Seconds of a pass of the target in plain decoding.
    seeds : int
        Training seeds of a chosen head.
    """

    study: Study
    families: Mapping[str, Sequence[Policy]]
    workshop: Workshop
    times: tuple[float, float]
    alone: float
    seeds: int = 1

    @cached_property
    def sets(self) -> dict[str, np.ndarray]:
        """Which outputs are of each set, bool."""
        return {name: self.study.groups == name for name in dict.fromkeys(self.study.groups.tolist())}

    @cached_property
    def chosen(self) -> dict[str, dict[str, Policy]]:
        """By set and family the setting that is best on the tuning half of the set."""
        return {name: self.study.chosen(self.families, keep, self.times) for name, keep in self.sets.items()}

    def at(self, times: tuple[float, float], alone: float | None = None) -> Contest:
        """The same contest at other times of a pass."""
        return replace(self, times=times, alone=self.alone if alone is None else alone)

    def reseeded(self, policy: Policy) -> list[Policy]:
        """A setting with the heads of all training seeds; a policy without a head as it is."""
        if policy.head is None:
            return [policy]
        return with_heads(policy, self.workshop.reseeded(policy.head, self.seeds))

    def speedup(self, name: str, family: str, keep: np.ndarray | None = None) -> Interval:
        """Speed-up of a family over plain decoding on the half of a set that settings were not chosen on."""
        policy = ORACLE if family == ORACLE.family else self.chosen[name][family]
        test = self.sets[name] & ~self.study.tuning
        return self.study.speedup(self.reseeded(policy), test if keep is None else test & keep, self.times, self.alone)

    def over(self, name: str, ours: str, theirs: str) -> Interval:
        """Throughput of one family over that of another on the half of a set that settings were not chosen on."""
        policies = self.reseeded(self.chosen[name][ours])
        return self.study.against(policies, self.chosen[name][theirs], self.sets[name], self.times)

    def mean_speedup(self, policy: Policy, keep: np.ndarray) -> float:
        """Mean speed-up of a policy over plain decoding on some prompts."""
        return float(self.study.throughput(policy, keep, self.times).mean() * self.alone)


def gains(contest: Contest) -> list[dict[str, Any]]:
    """Throughput of each kind of SpecDec++ over that of other policies, by set.

    Returns
    -------
    list of dict
        ``set``, ``ours``, ``theirs`` and ``ratio``.
    """
    return [
        {"set": name, "ours": ours, "theirs": theirs, "ratio": contest.over(name, ours, theirs)}
        for name in contest.sets
        for ours in OURS
        for theirs in THEIRS
    ]


def gain_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is recorded of :func:`gains`, by name: ratios, gains with their ends, and gains in words."""
    made: dict[str, Any] = {}
    for row in rows:
        pair, ratio = (OURS[row["ours"]], THEIRS[row["theirs"]]), row["ratio"]
        made[f"head_{pair[0]}_over_{pair[1]}_{row['set']}"] = ratio
        for key, end in zip(("gain", "low", "high"), ratio, strict=True):
            made[f"head_{key}_{pair[0]}_{pair[1]}_{row['set']}"] = end - 1 if ratio.known else "not available"
        made[f"head_said_{pair[0]}_{pair[1]}_{row['set']}"] = f"{ratio:.2f} times"
    return made


def speedups(contest: Contest, free: np.ndarray) -> list[dict[str, Any]]:
    """Speed-up of every family over plain decoding, one row a family: the paper's Table 1.

    Parameters
    ----------
    contest : Contest
    free : bool array
        Outputs that do not end in a loop.

    Returns
    -------
    list of dict
        ``family`` and for each set its name: the speed-up; the name with an asterisk: without outputs that end in a loop,
        None where fewer than :data:`FEW` remain.
    """
    rows = []
    for family in (*contest.families, ORACLE.family):
        row: dict[str, Any] = {"family": family}
        for name, keep in contest.sets.items():
            row[name] = contest.speedup(name, family)
            many = int((keep & ~contest.study.tuning & free).sum()) >= FEW
            row[f"{name}*"] = contest.speedup(name, family, free) if many else None
        rows.append(row)
    return rows


#: Verification and discard rate of one policy.
Rates = tuple[Interval, Interval]


def rates(contest: Contest, families: Mapping[str, Sequence[Policy]]) -> dict[str, dict[str, list[Rates]]]:
    """Verification and discard rate of every setting of some families, by set and family: the paper's Figure 4."""
    return {
        name: {family: contest.study.rate_intervals(policies, keep) for family, policies in families.items()}
        for name, keep in contest.sets.items()
    }


def _points(curve: Sequence[Rates]) -> np.ndarray:
    return np.array([[verified.value, discarded.value] for verified, discarded in curve])


def rate_values(contest: Contest, points: Mapping[str, Mapping[str, Sequence[Rates]]]) -> dict[str, Any]:
    """What is recorded of :func:`rates`: the share of points below the line of fixed lengths, and of the fixed lengths those
    that some head and threshold match; a length with a rate lower than that of every setting is out of reach."""
    made: dict[str, Any] = {}
    for name, found in points.items():
        curves = {family: _points(curve) for family, curve in found.items()}
        fixed, ours = curves["fixed K"], contest.study.rates(contest.families["SpecDec++"], contest.sets[name])
        for key, family in (("", "SpecDec++"), ("seeing_", "SpecDec++ with confidence")):
            made[f"head_pareto_{key}{name}"] = told(below(curves[family], fixed))
        share, near = matched(ours, fixed), (fixed >= ours.min(axis=0)).all(axis=1)
        made[f"head_front_{name}"] = share
        made[f"head_front_count_{name}"] = round(share * len(fixed))
        made[f"head_front_within_{name}"] = near.sum()
        made[f"head_front_share_{name}"] = share * len(fixed) / near.sum() if near.any() else "not available"
        made["head_front_lengths"] = len(fixed)
    return made


def one_setting(contest: Contest, paper_setting: Policy) -> dict[str, Any]:
    """What one setting of SpecDec++ for all sets keeps of the best throughput of each, recorded by name."""
    study, policies = contest.study, contest.families["SpecDec++"]
    speed = np.array([[contest.mean_speedup(p, keep) for keep in contest.sets.values()] for p in policies])
    best = speed.max(axis=0)
    tuned = np.array(
        [[contest.mean_speedup(p, keep & study.tuning) for keep in contest.sets.values()] for p in policies]
    )
    single = policies[int((tuned / tuned.max(axis=0)).min(axis=1).argmax())]
    own = {name: contest.chosen[name]["SpecDec++"] for name in contest.sets}
    keeps, theirs = (
        min(
            (study.against(policy, own[name], keep, contest.times) for name, keep in contest.sets.items()),
            key=lambda ratio: ratio.value,
        )
        for policy in (single, paper_setting)
    )
    paper = np.array([contest.mean_speedup(paper_setting, keep) for keep in contest.sets.values()])
    return {
        "head_single_share": float((speed / best).min(axis=1).max()),
        "head_paper_setting_share": float((paper / np.maximum(best, paper)).min()),
        "head_one_setting": keeps,
        "said_one_setting": f"{keeps:.3f}",
        "said_paper_setting": f"{theirs:.3f}",
    }


def best_thresholds(
    contest: Contest, name: str, heads: Mapping[str, AcceptanceHead], thresholds: Sequence[float]
) -> dict[str, Policy]:
    """Each head at the threshold h that is best for it on the tuning half of a set."""
    return {label: best_of(contest, name, with_head("SpecDec++", head, thresholds)) for label, head in heads.items()}


def on_the_rest(contest: Contest, name: str, policies: Mapping[str, Policy]) -> dict[str, Interval]:
    """Speed-up of some policies over plain decoding on the half of a set that settings were not chosen on."""
    test = contest.sets[name] & ~contest.study.tuning
    return {
        label: contest.study.speedup(policy, test, contest.times, contest.alone) for label, policy in policies.items()
    }


def best_over_worst(contest: Contest, name: str, policies: Mapping[str, Policy]) -> Interval:
    """Throughput of the best of some policies over that of the worst, on the half of a set that neither was chosen on."""
    tuned = contest.sets[name] & contest.study.tuning
    ordered = sorted(policies.values(), key=lambda policy: contest.mean_speedup(policy, tuned))
    return contest.study.against(ordered[-1], ordered[0], contest.sets[name], contest.times)


def best_of(contest: Contest, name: str, policies: Iterator[Policy] | Sequence[Policy]) -> Policy:
    """The policy that is best on the tuning half of a set."""
    return contest.study.best(list(policies), contest.sets[name] & contest.study.tuning, contest.times)


def on_other_prompts(
    contest: Contest, policies: Mapping[str, Policy], outputs: Sequence[tuple[str, DraftPass]]
) -> list[dict[str, Any]]:
    """Speed-up of chosen policies on outputs of other sets, with intervals over them, one row a policy.

    Parameters
    ----------
    contest : Contest
        Whose times of a pass count.
    policies : mapping
        By family.
    outputs : sequence of (str, DraftPass)
        The set of each output, and its pass; without any there are no rows.
    """
    if not outputs:
        return []
    study = Study([passed for _, passed in outputs], [name for name, _ in outputs], contest.study.longest)
    there = replace(contest, study=study)
    return [
        {"family": family, "setting": policy.setting}
        | {name: study.speedup(policy, keep, contest.times, contest.alone) for name, keep in there.sets.items()}
        for family, policy in policies.items()
    ]
