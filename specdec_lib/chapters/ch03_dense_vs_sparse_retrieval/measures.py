"""Rates of replayed outputs by their store: one bootstrap over all prompts, and curves in the logarithm of the store's size.

A frame has a row an output (:func:`specdec_lib.experiments.results.table`). The outputs of a prompt are drawn together.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from specdec_lib import paths
from specdec_lib.decoding.contract import Drafter
from specdec_lib.experiments.committed_rows import WIDTHS, committed, write
from specdec_lib.experiments.pass_costs import step_seconds
from specdec_lib.experiments.recorded_runs import Recording, replay_each
from specdec_lib.experiments.results import PER_PASS, SPEED, priced, table
from specdec_lib.experiments.statistics import Interval, interval_of_sums

#: Rates, as the columns whose sums they are the ratio of; tokens a pass, acceptance and speed are those of ``results``.
LENGTH, DRAFTING = ("accepted", "drafts"), ("drafts", "passes")
NODES, PER_NODE = ("drafted", "drafts"), ("accepted", "drafted")
CHARACTERS = ("characters", "passes")
#: What a setting is: a store of some size, how the outputs were decoded, and the kind of prompts.
SETTING = ("stored", "store", "way", "group")


def outputs(recordings: Sequence[Recording], drafters: Mapping[Any, Drafter | None]) -> pd.DataFrame:
    """The results table of drafters that are replayed on recordings, each prompt named by its task too."""
    rows = table(recordings, replay_each(recordings, drafters))
    return rows.assign(prompt=rows.task + " " + rows.prompt)


def of_rates(frames: Sequence[pd.DataFrame], wanted: Callable[..., Any], value: tuple[str, str] = PER_PASS) -> Interval:
    """A function of a rate of several frames, one bootstrap over all of their prompts.

    A prompt that a frame lacks adds nothing to its sums, so frames of different prompts can be compared too.
    """
    sums = [frame.groupby("prompt")[list(value)].sum() for frame in frames]
    names = sorted(set().union(*(each.index for each in sums)))
    columns = [each.reindex(names, fill_value=0)[column].to_numpy() for each in sums for column in value]
    found = interval_of_sums(lambda *s: wanted(*(a / b for a, b in zip(s[::2], s[1::2], strict=True))), columns, names)
    # A method without any draft has no rate to divide by.
    return found if math.isfinite(found.value) else Interval(math.nan, math.nan, math.nan)


def rate(frame: pd.DataFrame, value: tuple[str, str] = PER_PASS) -> Interval:
    """A ratio of sums over the outputs."""
    return of_rates([frame], lambda only: only, value)


def ratio(ours: pd.DataFrame, theirs: pd.DataFrame, value: tuple[str, str] = PER_PASS) -> Interval:
    """The ratio of two frames' rates."""
    return of_rates([ours, theirs], operator.truediv, value)


def geometric_mean(pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]], value: tuple[str, str] = PER_PASS) -> Interval:
    """The geometric mean of the ratios of several pairs of frames."""

    def of_ratios(*rates: Any) -> Any:
        return np.exp(sum(np.log(a / b) for a, b in zip(rates[::2], rates[1::2], strict=True)) / len(pairs))

    return of_rates([frame for pair in pairs for frame in pair], of_ratios, value)


def settings(
    frame: pd.DataFrame, ours: str, theirs: str, by: Sequence[str] = SETTING
) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """The rows of two methods, one pair for each value of the columns ``by``."""
    first, second = (dict(list(frame[frame.method == method].groupby(list(by)))) for method in (ours, theirs))
    return [(rows, second[setting]) for setting, rows in first.items()]


def curve_at(price: Mapping[int, float]) -> dict[int, float]:
    """A price curve at :data:`WIDTHS`; beyond its last width its last slope goes on."""
    return {width: step_seconds(price, width) for width in WIDTHS}


def speed(frame: pd.DataFrame, price: Mapping[int, float]) -> Interval:
    """Speed-up over plain decoding at a price of the passes."""
    return rate(priced(frame, curve_at(price)), SPEED)


def speed_ratio(ours: pd.DataFrame, theirs: pd.DataFrame, price: Mapping[int, float]) -> Interval:
    """The ratio of two frames' speeds at one price of the passes."""
    return ratio(*(priced(frame, curve_at(price)) for frame in (ours, theirs)), SPEED)


# Sizes of the store ----------------------------------------------------------------------------------------------


def by_size(frame: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """The rows of each size of the store, the smallest first."""
    return {int(size): rows for size, rows in frame.groupby("stored")}


def largest(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the largest store."""
    return frame[frame.stored == frame.stored.max()]


def steps(frame: pd.DataFrame) -> list[Interval]:
    """Ratio of tokens per pass with each size of the store to that with the next smaller one."""
    parts = list(by_size(frame).values())
    return [ratio(larger, smaller) for smaller, larger in zip(parts, parts[1:], strict=False)]


def at_size(
    frame: pd.DataFrame, size: float, degree: int = 1, then: Callable[[Any], Any] = lambda rate: rate
) -> Interval:
    """What a polynomial in the logarithm of the store's size, fitted by least squares, gives for another size.

    Every bootstrap sample is fitted again. The interval says nothing of whether the rate goes on along the curve: compare
    ``degree`` 1 and 2 for that. ``then`` is applied to the rate, such as a division by the price of a pass.
    """
    parts = by_size(frame)
    if len(parts) <= degree:
        raise ValueError(f"a curve of degree {degree} through {len(parts)} sizes; expected more sizes")

    def powers(tokens: float) -> np.ndarray:
        return np.log10(tokens) ** np.arange(degree + 1)

    weights = powers(size) @ np.linalg.pinv(np.stack([powers(stored) for stored in parts]))
    return of_rates(list(parts.values()), lambda *rates: then(sum(w * r for w, r in zip(weights, rates, strict=True))))


def study(
    name: str, count: Callable[[], tuple[pd.DataFrame, dict[str, Any]]], recount: bool, **models: PreTrainedModel
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The committed rows of these models; what ``count`` gives where there are none, or with ``recount``, which also
    writes them in place of the committed ones."""
    found = None if recount else committed(name, **models)
    if found is None:
        found = count()
        if recount:
            write(name, *found, paths.DATA / "results" / "cpu", **models)
    return found
