"""Generations timed with drafts of several lengths: equation 2.1 fitted to them, equation 2.3 tried on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from specdec_lib.chapters.ch05_specdec_pp import cost_intervals
from specdec_lib.decoding.results import Generation
from specdec_lib.drafters import DraftModel
from specdec_lib.experiments import draft_costs, recorded_runs
from specdec_lib.experiments.recorded_runs import Recording
from specdec_lib.experiments.statistics import Interval
from specdec_lib.experiments.sum_of_forwards import fit_forward_times, latency

#: What the paper's Table 2 fits apart.
SPECDEC, DRAFT_ALONE, TARGET_ALONE = "SpecDec", "draft alone", "target alone"
#: Times as often as the rest that the draft alone is timed: its passes are the shortest, so a disturbance weighs most in them.
DRAFT_REPEATS = 4


class Prediction(NamedTuple):
    """Tokens per second of generations that the fit has not seen: measured, and by equation 2.3."""

    measured: np.ndarray
    predicted: np.ndarray


@dataclass(frozen=True)
class TimedRuns:
    """The same texts decoded with drafts of several lengths, and by either model alone.

    Attributes
    ----------
    recordings : sequence of Recording
    drafted : dict
        By draft length K one generation a recording.
    target_alone, draft_alone : sequence of Generation
    """

    recordings: Sequence[Recording]
    drafted: dict[int, Sequence[Generation]]
    target_alone: Sequence[Generation]
    draft_alone: Sequence[Generation]

    def with_draft(self, places: Sequence[int] | None = None) -> list[Generation]:
        """The generations of all draft lengths that verified something; of some recordings only, if ``places`` are given."""
        kept = range(len(self.recordings)) if places is None else places
        return [runs[place] for runs in self.drafted.values() for place in kept if runs[place].steps]

    def counts(self) -> dict[str, cost_intervals.Runs]:
        """For each row of the paper's Table 2 the numbers of passes and the seconds of its generations."""
        alone = {
            name: draft_costs.forward_counts(runs)
            for name, runs in ((DRAFT_ALONE, self.draft_alone), (TARGET_ALONE, self.target_alone))
        }
        return {
            SPECDEC: draft_costs.forward_counts(self.with_draft()),
            **{name: (passes[:, 1:], seconds) for name, (passes, seconds) in alone.items()},
        }

    def halves(self) -> tuple[list[int], list[int]]:
        """Places of the recordings of every other prompt, and of the rest."""
        prompts = list(dict.fromkeys(tuple(one.trace.prompt) for one in self.recordings))
        even = [prompts.index(tuple(one.trace.prompt)) % 2 == 0 for one in self.recordings]
        return [i for i, first in enumerate(even) if first], [i for i, first in enumerate(even) if not first]

    def widths(self) -> dict[int, float]:
        """Median milliseconds of a pass of the target by the tokens in it, at the widths that the draft lengths give."""
        found = draft_costs.seconds_by_width([*self.with_draft(), *self.target_alone])
        return {width: 1e3 * seconds for width, seconds in found.items() if width - 1 in (0, *self.drafted)}


def time_generations(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    recordings: Sequence[Recording],
    lengths: Sequence[int],
    repeats: int,
) -> TimedRuns:
    """Decode every recording with every draft length and by either model alone, in turns, and keep the fastest repeat.

    Parameters
    ----------
    target, draft : PreTrainedModel
    recordings : sequence of Recording
    lengths : sequence of int
        Values of K.
    repeats : int
        Of the draft alone there are :data:`DRAFT_REPEATS` times as many.
    """
    drafters = {length: DraftModel(draft, length) if length else None for length in (0, *lengths)}
    timed = draft_costs.fastest(recorded_runs.time_methods(target, recordings, drafters, repeats))
    alone = draft_costs.fastest(recorded_runs.time_methods(draft, recordings, {0: None}, DRAFT_REPEATS * repeats))
    return TimedRuns(recordings, {length: timed[length] for length in lengths}, timed[0], alone[0])


def table_2(timed: TimedRuns) -> list[dict[str, Any]]:
    """Time of a pass of each model by least squares, with and without a partner: the paper's Table 2, in milliseconds.

    Returns
    -------
    list of dict
        ``setting``, ``runs``, ``t_draft`` and ``t_target`` (as far as the setting has them) and ``r_squared``, these with
        intervals over the generations.
    """
    names = {SPECDEC: ("t_draft", "t_target"), DRAFT_ALONE: ("t_draft",), TARGET_ALONE: ("t_target",)}
    rows = []
    for setting, (passes, seconds) in timed.counts().items():
        found = cost_intervals.forward_times((passes, seconds))
        times = {
            name: Interval(*(1e3 * end for end in value)) for name, value in zip(names[setting], found, strict=True)
        }
        fit = cost_intervals.r_squared((passes, seconds))
        rows.append({"setting": setting, "runs": len(seconds), **times, "r_squared": fit})
    return rows


def predict(timed: TimedRuns) -> Prediction:
    """Fit the two times to every other prompt and predict the throughput of the generations of the others."""
    fitted_on, judged_on = timed.halves()
    times = fit_forward_times(*draft_costs.forward_counts(timed.with_draft(fitted_on))).seconds
    stats = [run.stats for run in timed.with_draft(judged_on)]
    measured = [one["tokens_per_second"] for one in stats]
    predicted = [1 / latency(*times, one["discard_rate"], one["verification_rate"]) for one in stats]
    return Prediction(np.array(measured), np.array(predicted))


def values(timed: TimedRuns, found: Prediction) -> dict[str, float | Interval]:
    """What is recorded of the fits, by name; all of it comes from a clock."""
    errors = abs(found.predicted - found.measured) / found.measured
    widths = timed.widths()
    steps = [step for run in timed.with_draft() for step in run.steps]
    made: dict[str, float | Interval] = {
        "cost_error_largest": errors.max(),
        "cost_error_median": float(np.median(errors)),
        "cost_draft_seconds_ms": 1e3 * sum(s.draft_seconds for s in steps) / sum(s.drafted for s in steps),
        "cost_wide_ratio": widths[max(widths)] / widths[min(widths)],
    }
    for row in table_2(timed):
        end = row["setting"].lower().replace(" ", "_")
        made[f"cost_r2_{end}"] = row["r_squared"].value
        made[f"cost_fit_{end}"] = row["r_squared"]
        made |= {f"cost_{name}_{end}_ms": row[name].value for name in ("t_draft", "t_target") if name in row}
    return made


def company(target: PreTrainedModel, draft: PreTrainedModel, timed: TimedRuns) -> dict[str, Interval]:
    """Recorded for the claims: how much the fitted time of the draft model varies between tasks, and what a pass of either
    model takes alone over what it takes in turns with the other."""
    tasks = dict.fromkeys(one.task for one in timed.recordings)
    by_task = [[i for i, one in enumerate(timed.recordings) if one.task == task] for task in tasks]
    counts = [draft_costs.forward_counts(timed.with_draft(places)) for places in by_task]
    return {
        "cost_draft_spread_share": cost_intervals.spread_share(counts),
        "cost_alone_over_specdec_draft": cost_intervals.alone_over_in_turns(draft, target, 1, 5),
        "cost_alone_over_specdec_target": cost_intervals.alone_over_in_turns(target, draft, 5, 1),
    }
