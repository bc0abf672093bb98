"""Seconds of whole generations as a sum over passes (section 4.2 of SpecDec++), and a pass alone and in turns."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.experiments.recorded_runs import Runs
from specdec_lib.experiments.statistics import Interval, ratio_of_means, resampled
from specdec_lib.experiments.sum_of_forwards import fit_forward_times


def fastest(repeats: Sequence[Runs]) -> list[Generation]:
    """Of each run the repeat that took the least time: what else the machine does only ever adds to it."""
    return [min(runs, key=lambda run: run.stats["seconds"]) for runs in zip(*repeats, strict=True)]


def forward_counts(runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """What the regression is fitted to: N_draft and N_target of each run after the prefill, and its seconds."""
    counts = [(sum(step.drafted for step in run.steps), len(run.steps)) for run in runs]
    seconds = [run.stats["seconds"] - run.stats["prefill_seconds"] for run in runs]
    return np.array(counts, dtype=np.int64).reshape(-1, 2), np.array(seconds)


def seconds_by_width(runs: Runs) -> dict[int, float]:
    """Median time of a pass of the target by the tokens it runs over: the draft and the token before it."""
    seconds: dict[int, list[float]] = {}
    for run in runs:
        for step in run.steps:
            seconds.setdefault(step.width, []).append(step.verify_seconds)
    return {width: median(seconds[width]) for width in sorted(seconds)}


class Fit(NamedTuple):
    """Seconds of a pass of each kind by least squares, and R squared, with intervals over the generations."""

    seconds: list[Interval]
    r_squared: Interval


def fit(forwards: np.ndarray, seconds: np.ndarray) -> Fit:
    """:func:`~specdec_lib.experiments.sum_of_forwards.fit_forward_times` with intervals; a sample that cannot tell the kinds
    of passes apart is left out."""
    kinds = forwards.shape[1]

    def fitted(drawn: np.ndarray) -> list[float]:
        try:
            found = fit_forward_times(forwards[drawn], seconds[drawn])
        except ValueError:
            return [float("nan")] * (kinds + 1)
        return [*found.seconds, found.r_squared]

    *times, r_squared = (
        resampled(lambda drawn, place=place: fitted(drawn)[place], len(seconds)) for place in range(kinds + 1)
    )
    return Fit(times, r_squared)


def spread_share(sets: Sequence[tuple[np.ndarray, np.ndarray]]) -> Interval:
    """Standard deviation between sets of prompts of the fitted time of the draft model's pass, over its mean; each set as
    :func:`forward_counts` gives it."""

    def share(*drawn: np.ndarray) -> float:
        try:
            times = [
                fit_forward_times(counts[own], seconds[own]).seconds[0]
                for (counts, seconds), own in zip(sets, drawn, strict=True)
            ]
        except ValueError:
            return float("nan")
        return float(np.std(times, ddof=1) / np.mean(times))

    return resampled(share, [len(seconds) for _, seconds in sets])


@torch.inference_mode()
def alone_over_in_turns(
    model: PreTrainedModel, other: PreTrainedModel, width: int, other_width: int, context: int = 128, repeats: int = 200
) -> Interval:
    """Time of a pass over ``width`` tokens after one of the same model, over that after a pass of the other model over
    ``other_width`` tokens; the interval is over repeats."""
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
