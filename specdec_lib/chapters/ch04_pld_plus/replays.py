"""Many prompts replayed a part at a time, and what chapter 4 correlates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments import results, statistics
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import Recording, prompts_of, replay_each
from specdec_lib.experiments.recordings import record_once
from specdec_lib.experiments.statistics import Interval

#: Prompts whose states and attention rows are in memory at a time.
AT_A_TIME = 60


def replay_many(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    sampling: Sampling | None,
    max_new_tokens: int,
    drafters: Mapping[str, Drafter],
) -> tuple[list[Recording], pd.DataFrame]:
    """Record prompts and replay drafters on them; gives the recordings, without their states, and the results table."""
    capture = Capture()
    for drafter in drafters.values():
        capture = capture | drafter.capture
    recordings: list[Recording] = []
    runs: dict[str, list] = {name: [] for name in drafters}
    for start in range(0, len(prompts), AT_A_TIME):
        part = prompts[start : start + AT_A_TIME]
        recorded = record_once(model, tokenizer, part, sampling, max_new_tokens, capture)
        for name, replayed in replay_each(recorded, drafters).items():
            runs[name] += replayed
        recordings += [replace(r, trace=replace(r.trace, hidden={}, heads=(), attention=[])) for r in recorded]
    return recordings, results.table(recordings, runs)


def rank_correlation(x: pd.Series, y: pd.Series, prompts: Sequence[object]) -> Interval:
    """Spearman's rank correlation of two values of each output, with its interval over prompts.

    The ranks are those among all outputs, in each bootstrap sample too.
    """
    a, b = x.rank().to_numpy(), y.rank().to_numpy()

    def correlation(n, sa, sb, saa, sbb, sab):
        return (n * sab - sa * sb) / np.sqrt((n * saa - sa**2) * (n * sbb - sb**2))

    return statistics.interval_of_sums(correlation, [np.ones(len(a)), a, b, a * a, b * b, a * b], list(prompts))


def neighbour_lead(recordings: Sequence[Recording], layer: int, seed: int = 0) -> Interval:
    """Mean cosine of a layer's states at neighbouring positions, minus that of positions drawn at random from the same text."""
    generator = np.random.default_rng(seed)
    leads = []
    for recording in recordings:
        states = torch.nn.functional.normalize(recording.trace.hidden[layer].float(), dim=-1)
        one, other = (torch.from_numpy(generator.integers(0, len(states), len(states) - 1)) for _ in range(2))
        near, far = (states[:-1] * states[1:]).sum(-1), (states[one] * states[other]).sum(-1)
        leads.append(float(near.mean() - far.mean()))
    return statistics.mean(leads, prompts_of(recordings))
