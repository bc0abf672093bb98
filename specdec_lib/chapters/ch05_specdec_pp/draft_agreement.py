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
    """What the threshold of SpecDec++ changes: the share of the fixed lengths that it matches in both rates, and what one threshold
    for all sets, or that of another set, keeps of a set's best speed."""
    front = {key: comparison.front(own) for key, own in SETS.items()}
    return {
        f"{draft}_one_setting": comparison.least_kept(lambda half: half.single("SpecDec++")),
        f"{draft}_transfer_least": comparison.least_transferred(),
        **{f"{draft}_front_share_{key}": share for key, (share, _) in front.items()},
        **{f"{draft}_front_within_{key}": within for key, (_, within) in front.items()},
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


def over_best_length(comparison: PolicyComparison, name: str = "conversation") -> Interval:
    """Speed of SpecDec++ over that of the best fixed length of the paper's grid, on a set."""
    return comparison.over(*(comparison.fastest(family, name) for family in ("SpecDec++", "fixed K")), name)


def beyond_fifteen(comparison: PolicyComparison) -> Interval:
    """Speed with drafts of 20 tokens over that with 15, on all outputs (REST, section 4.1)."""
    return ratio(comparison.first, "any fixed K, K = 20", "any fixed K, K = 15", MEAN_SPEED)


def _other_times(comparison: PolicyComparison) -> dict[str, Any]:
    """SpecDec++ over the best fixed length with a draft model of half and of twice the paper's speed."""
    draft, target, _ = comparison.times
    return {
        "coarse_pp_over_fixed_slow": over_best_length(comparison.at(2 * draft, target)),
        "coarse_pp_over_fixed_quick": over_best_length(comparison.at(0.5 * draft, target)),
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
