"""Rates with their 95 % intervals: the bootstrap over prompts, and over the seeds of each prompt.

All that is compared in the book is a ratio of sums: tokens over passes, accepted over drafted tokens. A bootstrap
sample draws as many prompts as there are, with replacement, and for each drawn prompt as many of its runs as it has
(Davison and Hinkley 1997, section 3.8). Two methods on the same prompts are drawn together, so what makes a prompt easy
for both does not widen the interval of their ratio.

Percentile intervals of ten prompts or fewer are somewhat too narrow: with ten they hold the true value in about nine of
ten experiments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

#: Share of experiments whose interval holds the true value.
LEVEL = 0.95
#: Bootstrap samples; with this many the ends are known to a few hundredths of the interval's length.
SAMPLES = 2000
#: Of the generator that draws them, so that the same data always have the same interval.
SEED = 0


class Interval(NamedTuple):
    """A number and the ends of its 95 % interval; the ends are NaN where one prompt alone tells nothing of them.

    ``prompts`` is how many prompts count in it, 0 where it rests on something else, such as repeats of a measurement.
    A format applies to the first three: ``f"{interval:.2f}"`` is ``1.23 (1.10–1.36)``, and ``1.23`` without known ends.
    """

    value: float
    low: float
    high: float
    prompts: int = 0

    @property
    def known(self) -> bool:
        """Whether the value and both ends are numbers."""
        return all(map(math.isfinite, self[:3]))

    def __format__(self, spec: str) -> str:
        value, low, high = (format(number, spec) if math.isfinite(number) else "–" for number in self[:3])
        # A word joiner on either side of the dash keeps the bracket on one line. No dash stands before a minus.
        between = " to " if low.startswith("-") else "\u2060–\u2060"
        return f"{value} ({low}{between}{high})" if self.known else value


class Counts(NamedTuple):
    """The two counts that a rate is the ratio of: ``above`` and ``below``, each with one number per run."""

    above: Sequence[float]
    below: Sequence[float]


def pooled_rate(counts: Counts, prompts: Sequence[Hashable] | None = None) -> Interval:
    """Sum of ``above`` over sum of ``below``.

    ``prompts`` says which prompt each run is of: runs of one prompt with several seeds, or its turns, share a name.
    Without it each run is of a prompt of its own.
    """
    return interval_of_sums(lambda a, b: a / b, counts, prompts)


def mean_interval(values: Sequence[float], prompts: Sequence[Hashable] | None = None) -> Interval:
    """Mean over runs; ``prompts`` is as for :func:`pooled_rate`."""
    return pooled_rate(_each_once(values), prompts)


def median_interval(values: Sequence[float]) -> Interval:
    """Median of repeats of one measurement, with the percentiles of the medians of bootstrap samples of the repeats."""
    repeats = np.asarray(values, float)
    places = np.random.default_rng(SEED).integers(len(repeats), size=(SAMPLES, len(repeats)))
    return Interval(float(np.median(repeats)), *interval_ends(np.median(repeats[places], axis=1), len(repeats)))


def ratio_of_rates(ours: Counts, theirs: Counts, prompts: Sequence[Hashable] | None = None) -> Interval:
    """Ratio of two pooled rates over the same runs in the same order; ``prompts`` is as for :func:`pooled_rate`."""
    return interval_of_sums(lambda a, b, c, d: (a / b) / (c / d), (*ours, *theirs), prompts)


def difference_of_rates(ours: Counts, theirs: Counts, prompts: Sequence[Hashable] | None = None) -> Interval:
    """Difference of two pooled rates, otherwise as :func:`ratio_of_rates`."""
    return interval_of_sums(lambda a, b, c, d: a / b - c / d, (*ours, *theirs), prompts)


def ratio_of_means(
    ours: Sequence[float], theirs: Sequence[float], prompts: Sequence[Hashable] | None = None
) -> Interval:
    """Ratio of the means of two values of the same runs, otherwise as :func:`ratio_of_rates`."""
    return ratio_of_rates(_each_once(ours), _each_once(theirs), prompts)


def _each_once(values: Sequence[float]) -> Counts:
    return Counts(values, np.ones(len(values)))


def interval_of_sums(
    of_sums: Callable[..., Any], columns: Sequence[Sequence[float]], prompts: Sequence[Hashable] | None = None
) -> Interval:
    """A function of the columns' sums, and the percentiles of what it is of the sums of bootstrap samples.

    ``of_sums`` gets the sum of each column, as numbers and as arrays over the samples. Each column has one number per run, of
    the same prompts in the same order; ``prompts`` is as for :func:`pooled_rate`.
    """
    runs = len(columns[0])
    names = range(runs) if prompts is None else prompts
    if any(len(column) != runs for column in (*columns, names)):
        lengths = ", ".join(str(len(column)) for column in (*columns, names))
        raise ValueError(
            f"{lengths} values; expected as many of each: one a run, of the same prompts in the same order"
        )
    table = np.array(columns, dtype=np.float64).T
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(of_sums(*table.sum(0)))
        drawn = of_sums(*_drawn_sums(table, names).T)
    # One prompt alone has no spread, whether it is the only one or the only one that counts: an answer of one token has no
    # pass to compare.
    telling = {name for name, row in zip(names, table, strict=True) if row.any()}
    return Interval(value, *interval_ends(drawn, len(telling)), len(telling))


def interval_ends(drawn: np.ndarray, count: int) -> tuple[float, float]:
    """The ends of the 95 % interval, from what a number is in each bootstrap sample; NaN if one of ``count`` things was drawn.

    A sample of prompts without any draft, say, has no rate: it is left out.
    """
    drawn = drawn[np.isfinite(drawn)]
    if count < 2 or not len(drawn):
        return math.nan, math.nan
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _drawn_sums(table: np.ndarray, prompts: Sequence[Hashable]) -> np.ndarray:
    """Sums of each column over each bootstrap sample: shape (runs, columns) to (samples, columns)."""
    number = {name: i for i, name in enumerate(dict.fromkeys(prompts))}
    if not number:
        return np.zeros((0, table.shape[1]))
    own = np.array([number[name] for name in prompts])
    runs_of, by_prompt = np.bincount(own), np.argsort(own, kind="stable")
    sums = np.zeros((SAMPLES, table.shape[1]))
    for count, weights in _drawn_runs(tuple(runs_of.tolist())).items():
        sums += weights @ table[by_prompt[runs_of[own[by_prompt]] == count]]
    return sums


@lru_cache(maxsize=8)
def _drawn_runs(runs_of: tuple[int, ...]) -> dict[int, np.ndarray]:
    """How often each run is in each bootstrap sample, by how many runs its prompt has: shape (samples, their runs), in the
    order of the prompts. ``runs_of`` says how many each prompt has. Intervals of the same prompts share one draw."""
    times, state = _drawn(len(runs_of), SAMPLES)
    generator = np.random.default_rng()
    generator.bit_generator.state = state
    found, counts = {}, np.array(runs_of)
    for count in np.unique(counts).tolist():
        weights = times[:, np.flatnonzero(counts == count)]
        if count > 1:
            # A prompt drawn t times has t * count runs drawn, each any of its own.
            weights = generator.multinomial(weights * count, np.full(count, 1 / count)).reshape(SAMPLES, -1)
        found[count] = weights
    return found


def bootstrap_counts(count: int) -> np.ndarray:
    """How often each of so many prompts is in each bootstrap sample: shape (samples, count). The draw is always the same."""
    return _drawn(count, SAMPLES)[0]


@lru_cache(maxsize=16)
def _drawn(count: int, samples: int) -> tuple[np.ndarray, Mapping[str, Any]]:
    """What :func:`bootstrap_counts` gives, and the state of the generator after it."""
    generator = np.random.default_rng(SEED)
    times = generator.multinomial(count, np.full(count, 1 / count), size=samples)
    times.flags.writeable = False
    return times, generator.bit_generator.state


def bootstrap_interval(
    statistic: Callable[..., float], counts: Sequence[int] | int, samples: int = SAMPLES // 4
) -> Interval:
    """A statistic that is no ratio of sums, and its 95 % interval over bootstrap samples of the runs.

    ``statistic`` takes the indices of the drawn runs, one int array for each group of ``counts`` runs; groups are drawn each
    by itself. The ends are NaN where a group has fewer than two runs or no sample has a finite value.
    """
    sizes = [counts] if isinstance(counts, int) else list(counts)
    value = float(statistic(*(np.arange(n) for n in sizes)))
    if min(sizes) < 2:
        return Interval(value, math.nan, math.nan)
    generator = np.random.default_rng(SEED)
    drawn = np.array([statistic(*(generator.integers(n, size=n) for n in sizes)) for _ in range(samples)], float)
    return Interval(value, *interval_ends(drawn, min(sizes)))
