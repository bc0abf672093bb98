"""Every system in its published shape and in the shape that the prices of a machine ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from specdec_lib.chapters.ch07_other_systems.prices import Prices, mean_width, names_of, speedup, tokens_per_pass
from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.experiments import recorded_runs
from specdec_lib.experiments.recorded_runs import Recording, Runs, select
from specdec_lib.experiments.statistics import Counts, Interval, pooled_rate
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS, PLAIN, Unavailable, compared_in, states

#: Shapes by their names in tables.
PUBLISHED, SIZED = "published", "sized"


def everything(drafters: Sequence[Drafter | None]) -> Capture:
    """What recordings must keep for all of some drafters."""
    capture = Capture()
    for drafter in drafters:
        capture = capture if drafter is None else capture | drafter.capture
    return capture


def sized(pair: ModelPair, widths: Sequence[int]) -> dict[str, dict[int, Drafter]]:
    """By method of the chapter that has more than one shape: its drafters by width.

    What these models have nothing for is left out.
    """
    found: dict[str, dict[int, Drafter]] = {}
    for name in compared_in("07"):
        make = METHODS[name].sized
        try:
            if make is not None:
                found[name] = {width: make(pair, width) for width in widths}
        except Unavailable:
            continue
    return found


def best_widths(
    model: PreTrainedModel,
    recordings: Sequence[Recording],
    candidates: Mapping[str, Mapping[int, Drafter]],
    prices: Prices,
) -> list[dict[str, Any]]:
    """Composed speed-up of every method at every width, on prompts that are not measured.

    Returns
    -------
    list of dict
        ``method``, ``width`` asked for, ``speedup`` with its interval, and ``chosen``, true for the width of the largest
        speed-up of its method (the smallest such width).
    """
    plain = recorded_runs.replay_all(recordings, None)
    drafters = {f"{name}, {width}": each for name, by in candidates.items() for width, each in by.items()}
    state = {f"{name}, {width}": states([name])[name] for name, by in candidates.items() for width in by}
    # All in one go: one method after the other, a core would wait for the longest piece of each.
    runs_of_shape = recorded_runs.all_runs(model, recordings, drafters, state)
    rows: list[dict[str, Any]] = []
    for name, by_width in candidates.items():
        found = [
            {
                "method": name,
                "width": width,
                "speedup": speedup(recordings, plain, name, runs_of_shape[f"{name}, {width}"], prices),
            }
            for width in by_width
        ]
        best = max(found, key=lambda row: (row["speedup"].value, -row["width"]))
        rows += [row | {"chosen": row is best} for row in found]
    return rows


@dataclass(frozen=True)
class Measured:
    """Runs of all systems on the same recordings.

    Attributes
    ----------
    recordings : sequence of Recording
    runs : mapping
        By shape and method: one run a recording. Plain decoding is under both shapes.
    """

    recordings: Sequence[Recording]
    runs: Mapping[str, Mapping[str, Runs]]

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        recordings: Sequence[Recording],
        shapes: Mapping[str, Mapping[str, Drafter | None]],
    ) -> Measured:
        """Run all systems on the recordings, in some shapes."""
        every = {(shape, name): drafter for shape, drafters in shapes.items() for name, drafter in drafters.items()}
        state = states({name for _, name in every})
        # All in one go: one shape after the other, a core would wait for the longest piece of each.
        runs = recorded_runs.all_runs(model, recordings, every, {key: state[key[1]] for key in every})
        return cls(recordings, {shape: {name: runs[shape, name] for name in own} for shape, own in shapes.items()})

    def table(self, prices: Mapping[str, Prices], task: str | None = None) -> list[dict[str, Any]]:
        """One row a method and shape: ``method``, ``shape``, ``tokens_per_pass``, ``width``, and under the name of each of the
        prices the composed speed-up. Rates are intervals; ``task`` None stands for all tasks.
        """

        def keep(recording: Recording) -> bool:
            return task in (None, recording.task)

        known = [r for r in self.recordings if keep(r)]
        plain = select(self.runs[PUBLISHED][PLAIN], self.recordings, keep)
        rows = []
        for name in self.runs[PUBLISHED]:
            for shape, by_method in self.runs.items():
                if name == PLAIN or name not in by_method:
                    continue
                runs = select(by_method[name], self.recordings, keep)
                row = {"method": name, "shape": shape, "tokens_per_pass": tokens_per_pass(known, runs)}
                row["width"] = mean_width(known, runs)
                rows.append(row | {key: speedup(known, plain, name, runs, each) for key, each in prices.items()})
        return rows

    def by_task(self, prices: Prices, tasks: Sequence[str]) -> dict[str, dict[str, Interval]]:
        """By task and method: the composed speed-up in the published shape."""
        return {
            task: {
                row["method"]: row["speedup"]
                for row in self.table({"speedup": prices}, task)
                if row["shape"] == PUBLISHED
            }
            for task in tasks
        }


def ratios(
    measured: Measured, prices: Prices, tasks: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> list[Interval | None]:
    """Composed speed-up of the first of two methods over that of the second, in their published shapes, on the same prompts.

    None for a pair that is not here.
    """
    known = [recording for recording in measured.recordings if recording.task in tasks]
    cost = {
        name: prices.of(METHODS[name], select(runs, measured.recordings, lambda recording: recording.task in tasks))
        for name, runs in measured.runs[PUBLISHED].items()
        if any(name in pair for pair in pairs)
    }
    return [
        pooled_rate(Counts(cost[second], cost[first]), names_of(known)) if first in cost and second in cost else None
        for first, second in pairs
    ]
