"""Numbers that the page of claims compares with the paper's and that no section of the chapter discusses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp import draft_pass
from specdec_lib.chapters.ch05_specdec_pp.contest import Contest
from specdec_lib.chapters.ch05_specdec_pp.head_study import Variant, Workshop, met
from specdec_lib.chapters.ch05_specdec_pp.resampled import resampled
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import ORACLE, Study, baselines
from specdec_lib.experiments import calibration
from specdec_lib.experiments.acceptance_training import parted
from specdec_lib.experiments.statistics import Interval


def oracle(contest: Contest) -> dict[str, Interval]:
    """The oracle and the best fixed length over all sets together."""
    study, times, alone = contest.study, contest.times, contest.alone
    best = study.best(contest.families["any fixed K"], study.tuning, times)
    everything = np.ones(len(study.passes), bool)
    return {
        "cost_oracle_over_fixed": study.against(ORACLE, best, everything, times),
        "cost_oracle_over_plain": study.speedup(ORACLE, ~study.tuning, times, alone),
        "cost_fixed_over_plain": study.speedup(best, ~study.tuning, times, alone),
    }


def oracle_passes(passed: draft_pass.DraftPass) -> int:
    """Passes of an oracle that drafts up to the next disagreement, however far that is, round after round."""
    done, calls = 1, 0
    while done < len(passed.trace.tokens):
        done, calls = int(passed.miss[done]) + 1, calls + 1
    return calls


def lemma(study: Study) -> dict[str, int | float]:
    """Lemma 2.1 on every output: where its number of passes is not the oracle's, and whether a fixed length beats that; and
    the passes of the oracle over emitted tokens."""
    needed = np.array([oracle_passes(one) for one in study.passes])
    stated = np.array([1 + np.sum(~one.agreement[1:]) for one in study.passes])
    last = np.array([not one.agreement[-1] for one in study.passes])
    fixed = [[tally.calls for tally in study.play(policy)] for policy in baselines(study.longest)["any fixed K"]]
    beaten = np.min(fixed, axis=0) < needed
    emitted = np.array([len(one.trace.tokens) - 1 for one in study.passes])  # the prefill gives the first
    return {
        "head_lemma_outputs": len(needed),
        "head_lemma_off": int((stated != needed).sum()),
        "head_lemma_last": int(last.sum()),
        "head_lemma_wrong": int((stated - needed != last).sum()),
        "head_oracle_beaten": int(beaten.sum()),
        "cost_oracle_outputs": len(needed),
        "cost_oracle_beaten": int(beaten.sum()),
        "cost_oracle_share": float(np.mean(needed / emitted)),
    }


def best_lengths(contest: Contest) -> dict[str, Interval]:
    """By how much the best fixed length is longer where the models agree more, and where the draft model is faster."""
    study, policies = contest.study, contest.families["any fixed K"]
    some = [i for i, tally in enumerate(study.play(policies[0])) if tally.tokens]

    def speeds(factor: float) -> np.ndarray:
        times = (contest.times[0] * factor, contest.times[1])
        return np.array([draft_pass.throughputs([study.play(p)[i] for i in some], *times) for p in policies])

    def best(table: np.ndarray, drawn: np.ndarray) -> int:
        return 1 + int(table[:, drawn].mean(axis=1).argmax())

    order = np.argsort([study.passes[i].agreement.mean() for i in some], kind="stable")
    other, aligned = np.array_split(order, 2)
    usual, quick, slow = speeds(1), speeds(0.5), speeds(2)
    return {
        "head_best_k_aligned_minus_other": resampled(
            lambda a, b: best(usual, aligned[a]) - best(usual, other[b]), (len(aligned), len(other))
        ),
        "head_best_k_quick_minus_slow": resampled(lambda drawn: best(quick, drawn) - best(slow, drawn), len(some)),
    }


def confidence_auc(contest: Contest) -> dict[str, Interval]:
    """AUC of the draft model's own probability on each set, over prompts; one probability for all tokens has 0.5."""
    made = {}
    for name, keep in contest.sets.items():
        passes = [one for one, kept in zip(contest.study.passes, keep, strict=True) if kept]
        prompts = [i for i, one in enumerate(passes) for _ in one.agreement]
        found = met(passes)
        sure, accepted = found.confidence.numpy().astype(float), found.acceptance.numpy().astype(float)
        lead = calibration.ranking_lead(sure, np.full(len(sure), 0.5), accepted, prompts)
        made[f"head_auc_of_confidence_{name}"] = Interval(*(0.5 + end for end in lead))
    return made


def overconfidence(workshop: Workshop, setting: Variant) -> dict[str, Interval]:
    """What a head that saw the target's own tokens alone predicts of drafted tokens, less their acceptance."""
    head = workshop.head(replace(setting, reject_weight=1.0, mixing=None))
    drafted = workshop.examples(0.0)[1]
    ends = np.cumsum([len(response.tokens) for response in parted(workshop.responses())[1]])
    excess = (head.probability(drafted.states, drafted.confidence) - drafted.acceptance).numpy().astype(float)
    parts = np.split(excess, ends[:-1])
    return {
        "head_overconfidence_unmixed": resampled(
            lambda drawn: np.concatenate([parts[i] for i in drawn]).mean(), len(parts)
        )
    }


def other_speeds(contest: Contest, name: str) -> dict[str, Interval]:
    """SpecDec++ over the best fixed length at the paper's times, with a draft model half and twice as fast."""
    families = {family: contest.families[family] for family in ("SpecDec++", "fixed K")}
    made = {}
    for key, factor in (("slow", 2.0), ("quick", 0.5)):
        there = replace(contest, families=families).at((contest.times[0] * factor, contest.times[1]))
        made[f"head_here_pp_over_fixed_{key}"] = there.over(name, "SpecDec++", "fixed K")
    return made


def all_counted(contest: Contest, inside: str, setting: Variant) -> dict[str, Any]:
    """All of these, by the names they are recorded under."""
    parts: list[Mapping[str, Any]] = [
        oracle(contest),
        best_lengths(contest),
        confidence_auc(contest),
        overconfidence(contest.workshop, setting),
        other_speeds(contest, inside),
    ]
    return {name: value for part in parts for name, value in part.items()}
