"""Intervals of the fitted times of a pass, and a pass of one model timed alone and after one of the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.chapters.ch05_specdec_pp.resampled import resampled
from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.experiments.statistics import Interval, ratio_of_means
from specdec_lib.experiments.sum_of_forwards import fit_forward_times

#: Counts of passes, shape (runs, kinds), and seconds of the runs, as :func:`fit_forward_times` takes them.
Runs = tuple[np.ndarray, np.ndarray]


def r_squared(runs: Runs) -> Interval:
    """R squared of equation 2.1 with its interval over generations; a sample that cannot tell the models apart is left
    out."""
    return resampled(lambda drawn: _fit(runs, drawn)[1], len(runs[1]))


def forward_times(runs: Runs) -> list[Interval]:
    """Seconds of a pass of each model by equation 2.1, with intervals over generations."""
    return [
        resampled(lambda drawn, kind=kind: _times(runs, drawn)[kind], len(runs[1])) for kind in range(runs[0].shape[1])
    ]


def spread_share(sets: Sequence[Runs]) -> Interval:
    """Standard deviation between sets of prompts of the fitted time of the draft model's pass, over its mean."""

    def share(*drawn: np.ndarray) -> float:
        times = [_fit(runs, own)[0] for runs, own in zip(sets, drawn, strict=True)]
        return float(np.std(times, ddof=1) / np.mean(times))

    return resampled(share, [len(seconds) for _, seconds in sets])


def _fit(runs: Runs, drawn: np.ndarray) -> tuple[float, float]:
    try:
        fit = fit_forward_times(runs[0][drawn], runs[1][drawn])
    except ValueError:
        return float("nan"), float("nan")
    return fit.seconds[0], fit.r_squared


def _times(runs: Runs, drawn: np.ndarray) -> Sequence[float]:
    try:
        return fit_forward_times(runs[0][drawn], runs[1][drawn]).seconds
    except ValueError:
        return [float("nan")] * runs[0].shape[1]


@torch.inference_mode()
def alone_over_in_turns(
    model: PreTrainedModel, other: PreTrainedModel, width: int, other_width: int, context: int = 128, repeats: int = 200
) -> Interval:
    """Time of a pass after one of the same model over that of a pass of the same width after one of the other model.

    Parameters
    ----------
    model, other : PreTrainedModel
    width, other_width : int
        Tokens of their passes.
    context : int
        Tokens before.
    repeats : int
        Each times one pass of either kind; intervals are over them.
    """
    marks: tuple[list, list] = [], []
    with (
        Target(model, context, Capture(), context + width) as ours,
        Target(other, context, Capture(), context + other_width) as theirs,
    ):
        clock = clock_of(ours.devices | theirs.devices)
        for target in (ours, theirs):
            target.extend([5] * context)
        own, foreign = DraftTree.chain([5] * (width - 1)), DraftTree.chain([5] * (other_width - 1))
        for _ in range(repeats + 2):
            theirs.verify(5, foreign)
            for kind in (1, 0):  # after the other model's pass, then after its own
                began = clock.mark()
                ours.verify(5, own)
                marks[kind].append((began, clock.mark()))
        clock.settle()
        alone, in_turns = ([clock.seconds(*pair) for pair in pairs[2:]] for pairs in marks)
    return ratio_of_means(alone, in_turns)
