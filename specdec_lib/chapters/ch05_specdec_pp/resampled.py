"""Intervals of what is no ratio of sums: a bootstrap of any statistic of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specdec_lib.experiments.statistics import LEVEL, SEED, Interval


def resampled(statistic: Callable[..., float], counts: Sequence[int] | int, samples: int = 500) -> Interval:
    """A statistic of all runs, and its 95 % interval over bootstrap samples of them.

    Parameters
    ----------
    statistic : callable
        Takes the indices of the drawn runs, one int array for each group.
    counts : int, or a sequence of int
        Runs in all, or of each group; groups are drawn each by itself.
    samples : int

    Returns
    -------
    Interval
        Its ends are NaN where a group has fewer than two runs or no sample has a finite value.
    """
    sizes = [counts] if isinstance(counts, int) else list(counts)
    value = float(statistic(*(np.arange(n) for n in sizes)))
    if min(sizes) < 2:
        return Interval(value, np.nan, np.nan)
    generator = np.random.default_rng(SEED)
    drawn = np.array([statistic(*(generator.integers(n, size=n) for n in sizes)) for _ in range(samples)], float)
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Interval(value, np.nan, np.nan)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))
