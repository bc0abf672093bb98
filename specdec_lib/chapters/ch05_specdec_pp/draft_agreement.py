"""What chapter 5's two draft models give, of which the coarser one agrees with its target about as often as the paper's pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from specdec_lib.chapters.ch05_specdec_pp.policies import MEAN_SPEED, PolicyComparison, best_length
from specdec_lib.experiments.runs.results import OUTPUT, rate, ratio
from specdec_lib.experiments.statistics.intervals import Interval, bootstrap_interval

#: The three sets as keys name them.
SETS = {"chat": "conversation", "code": "code", "math": "mathematics"}
#: Heads of another loss weight or depth than the paper's recommended ones; the paper chose among such too.
OTHER_HEADS = ("SpecDec++, equal weights", "SpecDec++, linear")
#: By the word of a key, the family that SpecDec++ is compared with, or several. The paper names two heuristics: a threshold on the
#: draft model's confidence, here with one token at least or two, and on the product of the confidences.
RIVALS = {
    "fixed": "fixed K",
    "heuristics": ("confidence", "confidence, two or more", "cumulative confidence"),
    "confidence": "confidence, two or more",
    "plain_confidence": "confidence",
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
    crossed = comparison.crossed_rows({name: name for name in ("SpecDec++", "oracle", "any fixed K")} | RIVALS)
    speedup = rate(crossed[crossed.method == "SpecDec++"], MEAN_SPEED, by="task")
    found = {f"coarse_speedup_pp_{key}": speedup[own] for key, own in SETS.items()}
    for word in RIVALS:
        lead = ratio(crossed, "SpecDec++", word, MEAN_SPEED, by="task")
        found |= {f"coarse_pp_over_{word}_{key}": lead[own] for key, own in SETS.items()}
    found |= how_often(comparison, met, "coarse") | settings(comparison, "coarse") | overconfidence(met, "coarse")
    return found | _other_times(comparison) | _oracle(crossed) | _tokens(met) | best_lengths(comparison, met, "coarse")


def overconfidence(met: pd.DataFrame, draft: str) -> dict[str, Interval]:
    """By how much the acceptance that a head predicts on average is above that which is realised, on each set."""
    more = rate(met.assign(more=met["head"] - met.accepted, tokens=1), ("more", "tokens"), by="task")
    return {f"{draft}_overconfidence_{key}": more[own] for key, own in SETS.items()}


def best_lengths(comparison: PolicyComparison, met: pd.DataFrame, draft: str) -> dict[str, Interval]:
    """By how many tokens the best fixed length is longer on the half of the outputs where the models agree more, and with a draft
    model of twice the paper's speed instead of half of it."""
    seconds, *others = comparison.times
    usual, fast, dear = (comparison.at(factor * seconds, *others).by_length("speed") for factor in (1, 0.5, 2))
    agreed = met.groupby(OUTPUT, sort=False).accepted.mean().to_numpy()
    other, alike = np.array_split(np.argsort(agreed, kind="stable"), 2)  # half agrees less, half more
    return {
        f"{draft}_best_k_aligned_minus_other": bootstrap_interval(
            lambda a, b: best_length(usual, alike[a]) - best_length(usual, other[b]), (len(alike), len(other))
        ),
        f"{draft}_best_k_quick_minus_slow": bootstrap_interval(
            lambda some: best_length(fast, some) - best_length(dear, some), len(agreed)
        ),
    }


def over_best_length(comparison: PolicyComparison, name: str = "conversation") -> Interval:
    """Speed of SpecDec++ over that of the best fixed length of the paper's grid, on a set."""
    return comparison.over(*(comparison.fastest(family, name) for family in ("SpecDec++", "fixed K")), name)


def beyond_fifteen(comparison: PolicyComparison) -> Interval:
    """Speed with drafts of 20 tokens over that with 15, on all outputs (REST, section 4.1)."""
    return ratio(comparison.first, "any fixed K, K = 20", "any fixed K, K = 15", MEAN_SPEED)


def _other_times(comparison: PolicyComparison) -> dict[str, Any]:
    """SpecDec++ over the best fixed length of the paper's grid by set, if the draft model takes twice the paper's time, or half."""
    draft, target, _ = comparison.times
    found = {}
    for word, factor in {"slow": 2, "quick": 0.5}.items():
        crossed = comparison.at(factor * draft, target).crossed_rows({"ours": "SpecDec++", "theirs": RIVALS["fixed"]})
        lead = ratio(crossed, "ours", "theirs", MEAN_SPEED, by="task")
        found |= {f"coarse_pp_over_fixed_{word}_{key}": lead[own] for key, own in SETS.items()}
    return found


def _oracle(crossed: pd.DataFrame) -> dict[str, Interval]:
    """The oracle on Alpaca, where the paper has it."""
    chat = crossed[crossed.task == SETS["chat"]]
    over_plain = rate(chat, MEAN_SPEED, by="method")
    return {
        "coarse_oracle_over_fixed": ratio(chat, "oracle", "any fixed K", MEAN_SPEED),
        "coarse_oracle_over_plain": over_plain["oracle"],
        "coarse_fixed_over_plain": over_plain["any fixed K"],
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
