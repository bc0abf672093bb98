"""A draft model that agrees with its target about as often as the pair of SpecDec++'s paper: the target with coarser weights.

Rates of discarded tokens and of passes need a draft model that agrees, and not one that is fast: seconds follow from the rates and
the paper's times of a pass.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from specdec_lib.chapters.ch05_specdec_pp.policies import SPEED, PolicyComparison
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.experiments.runs.results import rate, ratio
from specdec_lib.experiments.statistics.intervals import Interval, bootstrap_interval

#: Bits of a rounded weight, and how many neighbouring weights of an output share a scale.
BITS, GROUP = 3, 32
#: The share of the layers that are rounded, the middle ones: 2 of SmolLM2's 30. It was chosen on twelve conversations of the
#: choosing prompts. There a fixed K of 4 discards 0.35 tokens per token and takes 0.28 passes; with three layers rounded it is 0.49
#: and 0.31. The paper's figure 4 has 0.39 and 0.285 on Alpaca.
SHARE = 2 / 30


def rounded(weights: torch.Tensor, bits: int = BITS, group: int = GROUP) -> torch.Tensor:
    """Round each group of ``group`` neighbours of a row to the nearest of ``2 ** bits`` values, which are evenly spaced from the
    group's smallest to its largest; weights of shape (outputs, inputs)."""
    if weights.shape[-1] % group:
        raise ValueError(
            f"rows of {weights.shape[-1]} weights cannot be parted into groups of {group}; give a group that divides them"
        )
    groups = weights.detach().unflatten(-1, (-1, group))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    step = torch.where(step > 0, step, 1)  # of equal weights the smallest is exact
    return (low + step * ((groups - low) / step).round()).flatten(-2)


def rounded_layers(model: PreTrainedModel, share: float = SHARE) -> int:
    """How many layers of a model :func:`coarser` rounds."""
    count = decoder_config(model).num_hidden_layers
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; expected a share of the model's {count} layers, above 0 and at most 1")
    return max(1, round(share * count))


def coarser(model: PreTrainedModel, share: float = SHARE) -> PreTrainedModel:
    """A model whose middle layers have :func:`rounded` linear weights, ``share`` of all; it has all other weights in common with
    ``model``."""
    count, few = decoder_config(model).num_hidden_layers, rounded_layers(model, share)
    middle = slice((count - few) // 2, (count - few) // 2 + few)
    own = {id(weights) for weights in model.model.layers[middle].parameters()}
    draft = copy.deepcopy(model, {id(weights): weights for weights in model.parameters() if id(weights) not in own})
    for part in draft.model.layers[middle].modules():
        if isinstance(part, torch.nn.Linear):
            part.weight.data = rounded(part.weight)
    return draft


# What both drafts give --------------------------------------------------------------------------------------------

#: The three sets as keys name them.
SETS = {"chat": "conversation", "code": "code", "math": "mathematics"}
#: By the word of a key, the family that SpecDec++ is compared with.
RIVALS = {
    "fixed": "fixed K",
    "confidence": "confidence, two or more",
    "equal": "SpecDec++, equal weights",
    "linear": "SpecDec++, linear",
}


def how_often(comparison: PolicyComparison, met: pd.DataFrame, draft: str) -> dict[str, Interval]:
    """How often a draft model and its target agree in conversation, and discard and verification rate of a fixed K of 4 there, as
    the paper's Figure 4 has them; ``met`` are the drafted tokens."""
    four = comparison.first[comparison.first.method == "fixed K, K = 4"]
    found = {
        "agreement": rate(met.assign(tokens=1), ("accepted", "tokens"), by="task"),
        "k4_discard": rate(four, ("discarded", "tokens"), by="task"),
        "k4_verification": rate(four, ("passes", "tokens"), by="task"),
    }
    return {f"{draft}_{name}_chat": rates[SETS["chat"]] for name, rates in found.items()}


def numbers(comparison: PolicyComparison, met: pd.DataFrame) -> dict[str, Any]:
    """The numbers of the chapter about a :func:`coarser` draft model, by key.

    ``met`` are its drafted tokens.
    """
    held_out = comparison.held_out_rows()
    speedup = rate(held_out[held_out.method == "SpecDec++"], SPEED, by="task")
    found = {f"coarse_speedup_pp_{key}": speedup[own] for key, own in SETS.items()}
    for word, rival in RIVALS.items():
        lead = ratio(held_out, "SpecDec++", rival, SPEED, by="task")
        found |= {f"coarse_pp_over_{word}_{key}": lead[own] for key, own in SETS.items()}
    return found | how_often(comparison, met, "coarse") | _other_times(comparison) | _oracle(comparison) | _tokens(met)


def over_best_length(comparison: PolicyComparison, name: str = "conversation") -> Interval:
    """Speed of SpecDec++ over that of the best fixed length of the paper's grid, on a set."""
    return comparison.over(*(comparison.fastest(family, name) for family in ("SpecDec++", "fixed K")), name)


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
    over_plain = {name: rate(comparison.rows(name, "conversation"), SPEED) for name in ("oracle", length)}
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
