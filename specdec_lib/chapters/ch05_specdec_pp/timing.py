"""Seconds of whole generations as a sum over passes (SpecDec++, sections 2 and 4.2), and a pass alone and in turns.

With N tokens emitted after the prefill, N_draft forwards of the draft model, N_target of the target and N_discarded drafted
tokens refused, each round emits what is accepted and one token more, so N_draft + N_target = N + N_discarded. A last round
without a token of the target's own breaks that by one: it ended with an accepted end token, or its surplus was cut at the length
limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

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


def fastest(repeats: Sequence[Runs]) -> list[Generation]:
    """Return the fastest repeat of each run: other work of the machine only ever adds time."""
    return [min(runs, key=lambda run: run.stats["seconds"]) for runs in zip(*repeats, strict=True)]


def forward_counts(runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Return the data of the regression: N_draft and N_target of each run after the prefill, and its seconds."""
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


def latency(draft_seconds: float, target_seconds: float, discard_rate: float, verification_rate: float) -> float:
    """Time a token as the forwards add up, equation 2.3, from discarded tokens and target forwards per emitted token; 1
    over it is the throughput."""
    return draft_seconds * (1 + discard_rate) + (target_seconds - draft_seconds) * verification_rate


def oracle_calls(agreement: np.ndarray) -> int:
    """Target calls of an oracle that drafts exactly as far as the target will agree.

    Where the greedy tokens differ (``agreement`` is false) a call ends, and one more ends the text (Lemma 2.1); the lemma
    counts one too many if they differ in the last token, which the call before then gives.
    """
    agreement = np.asarray(agreement, dtype=bool)
    if agreement.size == 0:
        return 0
    return int((~agreement).sum()) + int(agreement[-1])


class Fit(NamedTuple):
    """Seconds of a forward of each kind by least squares, and the share of the variance of the times that the fit explains (NaN
    if they are all equal); each with an interval over the generations where :func:`fit` gives them."""

    seconds: Sequence[Any]
    r_squared: Any


def fit_forward_times(forwards: np.ndarray, seconds: np.ndarray) -> Fit:
    """Regress the time of whole runs on their numbers of forwards, without an intercept (section 4.2).

    ``forwards`` has one row a run and one column a kind; the fit of equation 2.1 takes N_draft and N_target. Its first
    coefficient is the time that one more drafted token costs, wherever it is spent: the draft model's forward, and the
    wider forward of the target. ValueError if the runs do not tell the kinds apart.
    """
    forwards, seconds = np.asarray(forwards, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if forwards.ndim != 2 or seconds.shape != forwards.shape[:1]:
        raise ValueError(
            f"forwards has shape {forwards.shape} and seconds {seconds.shape}; expected (runs, kinds) and (runs,)"
        )
    fitted, _, rank, _ = np.linalg.lstsq(forwards, seconds, rcond=None)
    if rank < forwards.shape[1]:
        raise ValueError(
            f"{len(seconds)} runs do not tell {forwards.shape[1]} kinds of forwards apart; expected "
            "runs of several draft lengths"
        )
    missed = float(((seconds - forwards @ fitted) ** 2).sum())
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    return Fit(tuple(fitted.tolist()), 1 - missed / spread if spread else float("nan"))


def fit(forwards: np.ndarray, seconds: np.ndarray) -> Fit:
    """:func:`fit_forward_times` with intervals; a sample that cannot tell the kinds
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
