"""What chapter 4 correlates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from specdec_lib.experiments import statistics
from specdec_lib.experiments.recorded_runs import Recording, prompts_of
from specdec_lib.experiments.statistics import Interval


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
