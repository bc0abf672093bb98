"""What a step costs: a pass of its width, and its draft at a given ratio of drafting to the target's pass."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from specdec_lib.experiments.metrics import counts
from specdec_lib.experiments.pass_costs import step_seconds
from specdec_lib.experiments.pass_widths import units
from specdec_lib.experiments.recorded_runs import Recording, Runs
from specdec_lib.experiments.statistics import LEVEL, SAMPLES, SEED, Counts, Interval, pooled_rate
from specdec_lib.methods import Method, method_of


def seconds_a_unit(method: Method, runs: Runs) -> float:
    """Median time of drafting for each unit, over the steps that drafted; 0 where none did.

    The median leaves out the first step, in which loops are compiled.
    """
    spent = [step.draft_seconds / count for run in runs for step in run.steps if (count := units(method, step))]
    return median(spent) if spent else 0.0


@dataclass(frozen=True)
class Prices:
    """What passes and drafts cost, in units of the target's pass over one token.

    Attributes
    ----------
    passes : mapping
        Price of a pass by width, 1 among them.
    pass_seconds : float
        Of the target's pass over one token: what a search on the host is compared with.
    network : float, optional
        Price of a pass of a network that drafts, a draft model or heads; None takes the measured one.
    """

    passes: Mapping[int, float]
    pass_seconds: float
    network: float | None = None

    def draft(self, method: Method, runs: Runs) -> float:
        """Price of drafting for each unit, from runs of the method."""
        if method.network and self.network is not None:
            return self.network
        return seconds_a_unit(method, runs) / self.pass_seconds

    def of(self, method: Method | None, runs: Runs) -> list[float]:
        """Price of each run without its prefill; of plain decoding where ``method`` is None."""
        draft = self.draft(method, runs) if method is not None else 0.0
        return [
            sum(
                step_seconds(self.passes, step.width) + (draft * units(method, step) if method is not None else 0.0)
                for step in run.steps
            )
            for run in runs
        ]


def names_of(recordings: Sequence[Recording]) -> list[Hashable]:
    """Which prompt each recording is of: turns of one prompt share a name."""
    return [recording.prompt.id for recording in recordings]


def tokens_per_pass(recordings: Sequence[Recording], runs: Runs) -> Interval:
    """Tokens that a pass of the target emits, after the prefill."""
    return pooled_rate(counts(runs, "tokens_per_forward"), names_of(recordings))


def speedup(recordings: Sequence[Recording], plain: Runs, name: str, runs: Runs, prices: Prices) -> Interval:
    """Price of plain decoding over that of a method on the same prompts; prefill left out.

    Parameters
    ----------
    recordings : sequence of Recording
    plain, runs : sequence of Generation
        Of the recordings, in their order.
    name : str
        Of the method, or a variant of it.
    prices : Prices
    """
    return pooled_rate(Counts(prices.of(None, plain), prices.of(method_of(name), runs)), names_of(recordings))


def mean_width(recordings: Sequence[Recording], runs: Runs) -> Interval:
    """Mean tokens of a pass."""
    widths = Counts([sum(step.width for step in run.steps) for run in runs], [len(run.steps) for run in runs])
    return pooled_rate(widths, names_of(recordings))


def curve(spent: Mapping[int, Sequence[float]]) -> dict[int, Interval]:
    """Price of a pass by width: its median time over that of a pass over one token, with its interval over the rounds.

    Parameters
    ----------
    spent : mapping
        By width, 1 among them: the time in each round, in the order of the rounds
        (:func:`specdec_lib.experiments.pass_costs.step_samples`).
    """
    times = {width: np.asarray(own) for width, own in spent.items()}
    rounds = len(times[1])
    drawn = np.random.default_rng(SEED).integers(rounds, size=(SAMPLES, rounds))
    one = np.median(times[1][drawn], axis=1)
    found = {}
    for width, own in times.items():
        ratios = np.median(own[drawn], axis=1) / one
        ends = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if rounds > 1 else (math.nan, math.nan)
        found[width] = Interval(float(np.median(own) / np.median(times[1])), *map(float, ends))
    return found
