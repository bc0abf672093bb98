"""One row for each output and method: what a chapter measured, and rates, ratios and costs of it with 95 % intervals over prompts.

runs = table(recordings, replay_each(recordings, drafters))     # a frame, one row for each
rate(runs, by=["task", "method"])                               # tokens per pass
ratio(runs, "PLD+ (h), 10", "PLD, partial drafts", by="task")   # paired on outputs
ratio(with_cost(runs, curve), "PLD+ (h)", "PLD", value=SPEED)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specdec_lib.decoding.results import Generation
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.experiments.runs.recorded_runs import Recording
from specdec_lib.experiments.statistics.intervals import Interval, interval_of_sums

#: What tells one output from another.
OUTPUT = ["task", "prompt", "turn", "seed"]
#: Rates, as the columns whose sums they are the ratio of.
PER_PASS, SPEED, ACCEPTANCE = ("tokens", "passes"), ("tokens", "cost"), ("accepted", "depth")
#: The group of everything, in the tables that :func:`rate` and :func:`ratio` give.
ALL = "all"


def table(recordings: Sequence[Recording], runs: Mapping[str, Sequence[Generation]]) -> pd.DataFrame:
    """The results table: a row per output and method, of which ``runs`` has one Generation per recording.

    ``task, prompt, turn, seed, temperature, method, looped``; ``tokens`` (of passes, the prefill's first one not counted),
    ``passes``, ``drafts`` (passes that had one), ``drafted`` (tokens), ``accepted``, ``depth`` (sum over drafts), ``levels``
    (passes of a network that drafts level by level), ``draft_s``; and arrays: ``widths``, the number of passes of each width,
    ``kept`` and ``looked_at``, how many draft tokens were kept at each depth, and of how many the target said whether they are
    kept (:func:`kept_by_depth`).
    """
    rows = []
    for method, each in runs.items():
        for recording, run in zip(recordings, each, strict=True):
            drafting = [step for step in run.steps if step.drafted]
            rows.append(
                {
                    "task": recording.task,
                    "prompt": recording.prompt.id,
                    "turn": recording.turn,
                    "seed": recording.trace.sampling.seed,
                    "temperature": recording.trace.sampling.temperature,
                    "method": method,
                    "looped": recording.looped,
                    "tokens": len(run.tokens) - 1,
                    "passes": len(run.steps),
                    "drafts": len(drafting),
                    "drafted": sum(step.drafted for step in drafting),
                    "accepted": sum(step.accepted for step in drafting),
                    "depth": sum(step.tree.depth for step in drafting),
                    "levels": sum(step.tree.levels for step in drafting),
                    "draft_s": sum(step.draft_seconds for step in run.steps),
                    "widths": np.bincount([step.width for step in run.steps]),
                    "kept": _from_depth_one(step.accepted for step in run.steps),
                    # Only a token of the target's own says that the next draft token was looked at and rejected.
                    "looked_at": _from_depth_one(
                        min(step.accepted + (len(step.tokens) > step.accepted), step.tree.depth) for step in run.steps
                    ),
                }
            )
    return pd.DataFrame(rows)


def _from_depth_one(deepest: Iterable[int]) -> np.ndarray:
    """How many of these reach each depth: an array whose entry 0 is 0 and whose entry d counts those of d or more."""
    counts = np.bincount(np.fromiter(deepest, np.int64), minlength=1)
    return np.append(0, counts[::-1].cumsum()[::-1][1:])


def kept_by_depth(runs: pd.DataFrame, depths: int) -> list[Interval]:
    """How often the draft token at each depth is kept, given that those before it were, with its 95 % interval over prompts."""

    def at(counts: np.ndarray, depth: int) -> int:
        return int(counts[depth]) if depth < len(counts) else 0

    return [
        rate(
            runs.assign(
                kept_here=[at(counts, depth) for counts in runs.kept],
                looked_at_here=[at(counts, depth) for counts in runs.looked_at],
            ),
            ("kept_here", "looked_at_here"),
        )
        for depth in range(1, depths + 1)
    ]


def with_cost(
    runs: pd.DataFrame, curve: Mapping[int, float], around: Callable[[str], Mapping[str, float]] = lambda method: {}
) -> pd.DataFrame:
    r"""With a column ``cost``: what the steps cost in passes over one token, the prefill left out.

    :math:`\sum_w n_w r(w) + \sum_u n_u c_u`: the passes by their widths, and what else a method needs. ``curve`` has r, the
    cost of a pass by its width; between two of its widths it is on the line between theirs, above the largest it goes on
    along the last line. ``around`` gives for a method the cost c of each unit, a column of ``runs``: ``passes`` for what each
    step costs, ``drafted`` for a drafted token, ``levels`` for a pass of a drafting network; what it leaves out is free.
    """
    by_width = PassCosts(curve).curve(max(map(len, runs.widths), default=1))
    cost = np.array([float(counts[1:] @ by_width[: len(counts) - 1]) for counts in runs.widths])
    for method in runs.method.unique():
        own = (runs.method == method).to_numpy()
        for unit, each in around(method).items():
            cost[own] += each * runs.loc[own, unit]
    return runs.assign(cost=cost)


def rate(
    runs: pd.DataFrame, value: tuple[str, str] = PER_PASS, by: str | Sequence[str] = ()
) -> Interval | dict[object, Interval]:
    """A ratio of sums over the outputs, or by group (:data:`ALL` and each value of the columns ``by``).

    Its 95 % interval is that of bootstrap samples, which draw as many prompts with replacement.
    """
    return _by(runs, by, lambda frame: _interval(frame, value, lambda a, b: a / b))


def ratio(
    runs: pd.DataFrame, ours: str, theirs: str, value: tuple[str, str] = PER_PASS, by: str | Sequence[str] = ()
) -> Interval | dict[object, Interval]:
    """One method's rate over another's on the outputs that both have; as :func:`rate` otherwise."""
    for method in (ours, theirs):
        if method not in set(runs.method):
            raise ValueError(f"no row of method {method!r}; expected one of {', '.join(sorted(set(runs.method)))}")
    first, second = (runs[runs.method == method] for method in (ours, theirs))
    both = first.merge(second, on=OUTPUT, suffixes=("_ours", "_theirs"), validate="1:1")
    columns = [f"{column}_{side}" for side in ("ours", "theirs") for column in value]
    return _by(both, by, lambda frame: _interval(frame, columns, lambda a, b, c, d: (a / b) / (c / d)))


def won_over_lost(runs: pd.DataFrame, ours: str, theirs: str) -> Interval:
    """The outputs for which one method needs fewer passes than another, over those for which it needs more."""
    first, second = (runs[runs.method == method] for method in (ours, theirs))
    both = first.merge(second, on=OUTPUT, suffixes=("_ours", "_theirs"), validate="1:1")
    counted = both.assign(won=both.passes_ours < both.passes_theirs, lost=both.passes_ours > both.passes_theirs)
    return rate(counted.astype({"won": int, "lost": int}), ("won", "lost"))


def on_common_outputs(rows: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """The rows of some methods on the outputs that all of them have a row of."""
    own = rows[rows.method.isin(methods)]
    return own[own.groupby(OUTPUT).method.transform("nunique") == len(set(methods))]


def of_rates(frames: Sequence[pd.DataFrame], wanted: Callable[..., Any], value: tuple[str, str] = PER_PASS) -> Interval:
    """A function of a rate of each of several frames, with one bootstrap over the prompts of all of them.

    An output that a frame lacks adds nothing to its sums, so that frames of different prompts can be compared too.
    """
    marked = pd.concat([frame[[*OUTPUT, *value]].assign(frame=place) for place, frame in enumerate(frames)])
    # One table of all frames: pandas groups and aligns it far faster than one frame after the other.
    sums = marked.groupby([*OUTPUT, "frame"])[list(value)].sum().unstack(fill_value=0)
    none = np.zeros(len(sums))
    columns = [sums.get((column, place), none) for place in range(len(frames)) for column in value]
    prompts = [(task, prompt) for task, prompt, *_ in sums.index]
    found = interval_of_sums(
        lambda *s: wanted(*(a / b for a, b in zip(s[::2], s[1::2], strict=True))), columns, prompts
    )
    # A method without any draft has no rate to divide by.
    return found if math.isfinite(found.value) else Interval(math.nan, math.nan, math.nan)


def _interval(frame: pd.DataFrame, columns: Sequence[str], of_sums) -> Interval:
    prompts = list(zip(frame.task, frame.prompt, strict=True))
    return interval_of_sums(of_sums, [frame[column].tolist() for column in columns], prompts)


def _by(frame: pd.DataFrame, by: str | Sequence[str], interval) -> Interval | dict[object, Interval]:
    by = [by] if isinstance(by, str) else list(by)
    if not by:
        return interval(frame)
    groups = frame.groupby(by, sort=False)
    return {ALL: interval(frame)} | {name[0] if len(by) == 1 else name: interval(part) for name, part in groups}
