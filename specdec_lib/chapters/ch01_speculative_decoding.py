"""Chapter 1: drafts of every length, and the forwards that SpecDec++ counts (Huang et al. 2024, section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.results import Generation
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs import recorded_runs, results
from specdec_lib.experiments.runs.metrics import pooled_metrics
from specdec_lib.experiments.runs.recorded_runs import Runs
from specdec_lib.experiments.runs.recordings import record_once


def ends_inside(run: Generation) -> bool:
    """Whether the last round of a run ended the text inside its draft, so that it has no token of the target's own."""
    return bool(run.steps) and len(run.steps[-1].tokens) == run.steps[-1].accepted


def count_imbalance(run: Generation) -> int:
    """By how much N_draft + N_target differs from N + N_discarded (section 2).

    Each round emits its accepted tokens and one of the target's own, so the two sums are equal, but for a last
    round of the kind of :func:`ends_inside`. That round is allowed for, so anything but 0 is a fault of the
    counting.
    """
    drafted, accepted = sum(s.drafted for s in run.steps), sum(s.accepted for s in run.steps)
    emitted = len(run.tokens) - 1
    return drafted + len(run.steps) - (emitted + drafted - accepted) - ends_inside(run)


class ForwardTimes(NamedTuple):
    """Seconds of one forward, medians over the repeats: the draft model and the target over one token, and the target
    over a draft and the token before it (``verify``)."""

    draft: float
    target: float
    verify: float


def forward_times(plain: Sequence[Runs], drafted: Sequence[Runs]) -> ForwardTimes:
    """Times of the forwards from timed runs of plain decoding and of a draft model, one entry per repeat."""
    counts = [sum(step.drafted for run in runs for step in run.steps) for runs in drafted]
    if not all(counts):
        raise ValueError("no draft was verified in the timed runs; time longer outputs")
    target, verify = (
        [m["verify_seconds"] / m["calls"] for m in map(pooled_metrics, repeats)] for repeats in (plain, drafted)
    )
    draft = [pooled_metrics(runs)["draft_seconds"] / count for runs, count in zip(drafted, counts, strict=True)]
    return ForwardTimes(median(draft), median(target), median(verify))


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
    off where that is allowed for (:func:`count_imbalance`).
    """
    recordings = record_once(model, tokenizer, prompts, None, longest)
    runs = {f"SpecDec, {k}": each for k, each in recorded_runs.sweep_draft_model(recordings, draft, lengths).items()}
    lookups = {
        f"PLD, {variant}, {k}": PromptLookup(3, k, variant) for variant in ("original", "transformers") for k in lengths
    }
    runs |= recorded_runs.replay_each(recordings, lookups)
    each = [run for own in runs.values() for run in own]
    return results.table(recordings, runs).assign(
        unbalanced=[count_imbalance(run) for run in each],
        ends_inside=[int(ends_inside(run)) for run in each],
    )
