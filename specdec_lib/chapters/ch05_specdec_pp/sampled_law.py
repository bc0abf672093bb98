"""Whether sampled text follows the target's distribution, told from the text alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.sampling import Sampling, distribution


@torch.inference_mode()
def transformed(
    target: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling, seed: int = 0
) -> np.ndarray:
    """Randomised probability integral transform of a sampled text: independent uniform numbers if it follows the target.

    Each token gives the probability of all tokens more likely than it, and a uniform share of its own (Rosenblatt 1952), drawn
    with ``seed``. A method that favours likely tokens gives numbers that are too small.
    """
    ids = torch.tensor([[*prompt, *tokens]], device=target.device)
    logits = target(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    rows = distribution(logits.float().cpu(), sampling)
    own = rows.gather(1, torch.tensor(list(tokens))[:, None])
    before = torch.where(rows > own, rows, 0.0).sum(-1).numpy()
    # Tokens of one probability have no order: they share their interval.
    tied = torch.where(rows == own, rows, 0.0).sum(-1).numpy()
    return before + tied * np.random.default_rng(seed).random(len(tokens))


def uniform_p_value(numbers: np.ndarray) -> float:
    """Probability that some tens or more of independent uniform numbers lie as far from uniform as these or further (Kolmogorov
    and Smirnov)."""
    n, ordered = len(numbers), np.sort(numbers)
    distance = max((np.arange(1, n + 1) / n - ordered).max(), (ordered - np.arange(n) / n).max())
    # Stephens (1970): with this argument the limit serves finite samples.
    x = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    if x < 0.2:
        return 1.0  # the series is 1 to ten places there, and converges slowly
    return float(min(1.0, max(0.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 101)))))
