"""Chapter 1: drafts of every length."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.costs import draft_costs
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs import recorded_runs, results
from specdec_lib.experiments.runs.recordings import record_once


def length_sweep(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    draft: PreTrainedModel,
    prompts: Sequence[Prompt],
    longest: int,
    lengths: Sequence[int],
) -> pd.DataFrame:
    """Rows of drafts of each length: ``"SpecDec, 5"``, ``"PLD, original, 5"``, ``"PLD, transformers, 5"``.

    ``ends_inside``: whether the text ends inside a draft; ``unbalanced``: by how much the balance of drafted and emitted tokens is
    off where that is allowed for (:func:`specdec_lib.experiments.costs.draft_costs.count_imbalance`).
    """
    recordings = record_once(model, tokenizer, prompts, None, longest)
    runs = {f"SpecDec, {k}": each for k, each in recorded_runs.sweep_draft_model(recordings, draft, lengths).items()}
    lookups = {
        f"PLD, {variant}, {k}": PromptLookup(3, k, variant) for variant in ("original", "transformers") for k in lengths
    }
    runs |= recorded_runs.replay_each(recordings, lookups)
    each = [run for own in runs.values() for run in own]
    return results.table(recordings, runs).assign(
        unbalanced=[draft_costs.count_imbalance(run) for run in each],
        ends_inside=[int(draft_costs.ends_inside(run)) for run in each],
    )
