"""What chapter 5's two draft models give, of which the coarser one agrees with its target about as often as the paper's pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from specdec_lib.chapters.ch05_specdec_pp.policies import MEAN_SPEED, PolicyComparison
from specdec_lib.experiments.runs.results import rate, ratio
from specdec_lib.experiments.statistics.intervals import Interval, bootstrap_interval

#: The three sets as keys name them.
SETS = {"chat": "conversation", "code": "code", "math": "mathematics"}
#: Heads of another loss weight or depth than the paper's recommended ones; the paper chose among such too.
OTHER_HEADS = ("SpecDec++, equal weights", "SpecDec++, linear")
#: By the word of a key, the family that SpecDec++ is compared with.
RIVALS = {
    "fixed": "fixed K",
    "confidence": "confidence, two or more",
    "equal": "SpecDec++, equal weights",
    "linear": "SpecDec++, linear",
    "unmixed": "SpecDec++, unmixed",
}


def how_often(comparison: PolicyComparison, met: pd.DataFrame, draft: str) -> dict[str, Interval]:
    """How often a draft model and its target agree in conversation, and discard and verification rate of a fixed K of 4 there, as
    the paper's Figure 4 has them; ``met`` are the drafted tokens."""
    four = comparison.first[comparison.first.method == "fixed K, K = 4"]
    here, chat = (rows[rows.task == SETS["chat"]] for rows in (met, four))
    return {
        f"{draft}_agreement_chat": rate(here.assign(tokens=1), ("accepted", "tokens")),
        f"{draft}_k4_discard_chat": rate(chat, ("discarded", "tokens")),
        f"{draft}_k4_verification_chat": rate(chat, ("passes", "tokens")),
    }


def settings(comparison: PolicyComparison, draft: str) -> dict[str, Any]:
    """What the settings of SpecDec++ change: the fixed lengths that its thresholds match in both rates, and what one setting for
    all sets, or that of another set, keeps of a set's best speed. A setting is a threshold and, where there are several, a kind of
    head."""
    front = {key: comparison.front(own) for key, own in SETS.items()}
    family = comparison.plays.family.replace(dict.fromkeys(OTHER_HEADS, "SpecDec++"))
    any_head = PolicyComparison(comparison.plays.assign(family=family), comparison.times)
    return {
        f"{draft}_one_setting": any_head.least_kept(lambda half: half.single("SpecDec++")),
        f"{draft}_transfer_least": any_head.least_transferred(),
        **{f"{draft}_front_share_{key}": found.share for key, found in front.items()},
        **{f"{draft}_front_within_{key}": found.within for key, found in front.items()},
        **{f"{draft}_front_gap_{key}": found.gap for key, found in front.items()},
    }


def coarse_numbers(comparison: PolicyComparison, met: pd.DataFrame) -> dict[str, Any]:
    """The numbers of the chapter about a coarser draft model, by key.

    ``met`` are its drafted tokens.
    """
    held_out = comparison.held_out_rows()
    speedup = rate(held_out[held_out.method == "SpecDec++"], MEAN_SPEED, by="task")
    found = {f"coarse_speedup_pp_{key}": speedup[own] for key, own in SETS.items()}
    for word, rival in RIVALS.items():
        lead = ratio(held_out, "SpecDec++", rival, MEAN_SPEED, by="task")
        found |= {f"coarse_pp_over_{word}_{key}": lead[own] for key, own in SETS.items()}
    found |= how_often(comparison, met, "coarse") | settings(comparison, "coarse")
    return found | _other_times(comparison) | _oracle(comparison) | _tokens(met)


def over_best_length(comparison: PolicyComparison) -> dict[object, Interval]:
    """Speed of SpecDec++ over that of the best fixed length of the paper's grid, by set."""
    return ratio(comparison.held_out_rows(), "SpecDec++", "fixed K", MEAN_SPEED, by="task")


def _other_times(comparison: PolicyComparison) -> dict[str, Any]:
    """SpecDec++ over the best fixed length with a draft model of half and of twice the paper's speed, on each set."""
    draft, target, _ = comparison.times
    return {
        f"coarse_pp_over_fixed_{word}_{key}": lead[own]
        for word, factor in {"slow": 2, "quick": 0.5}.items()
        for lead in [over_best_length(comparison.at(factor * draft, target))]
        for key, own in SETS.items()
    }


def _oracle(comparison: PolicyComparison) -> dict[str, Interval]:
    """The oracle on Alpaca, where the paper has it."""
    length = comparison.fastest("any fixed K", "conversation")
    over_plain = {name: rate(comparison.rows(name, "conversation"), MEAN_SPEED) for name in ("oracle", length)}
    return {
        "coarse_oracle_over_fixed": comparison.over("oracle", length, "conversation"),
        "coarse_oracle_over_plain": over_plain["oracle"],
        "coarse_fixed_over_plain": over_plain[length],
    }


def _tokens(met: pd.DataFrame) -> dict[str, Interval]:
    """Where the models agree more often."""
    sums = met.assign(tokens=1).groupby(["task", "prompt"], sort=False)[["accepted", "tokens"]].sum()
    of = {key: sums.loc[own].to_numpy() for key, own in SETS.items()}

    def more_than_in_conversation(ours: np.ndarray) -> Interval:
        def share(drawn: np.ndarray) -> float:
            accepted, tokens = drawn.sum(0)
            return accepted / tokens

        theirs = of["chat"]
        return bootstrap_interval(lambda a, b: share(ours[a]) - share(theirs[b]), (len(ours), len(theirs)))

    return {f"coarse_agreement_{key}_minus_chat": more_than_in_conversation(of[key]) for key in ("code", "math")}
