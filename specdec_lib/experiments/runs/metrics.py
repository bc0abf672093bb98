"""What is counted over many prompts, each metric under its own name.

Counts of one run, or of runs pooled, are :func:`specdec_lib.decoding.results.metrics`. Here are the averages over
prompts, the speed-ups, acceptance by position, and what flatters copying: loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from specdec_lib.decoding.results import RATES, Generation, metrics, sums
from specdec_lib.experiments.statistics.intervals import Counts

#: Shortest period, in repetitions, that counts as a loop.
LOOP_REPEATS = 3


def pooled_metrics(runs: Sequence[Generation]) -> dict[str, float]:
    """Micro averages: sums over all prompts, then ratios."""
    if not runs:
        raise ValueError("no runs; expected at least one")
    return metrics(list(runs))


def rate_counts(runs: Sequence[Generation], name: str) -> Counts:
    """Return the two counts that a rate of :data:`specdec_lib.decoding.results.RATES` is the ratio of, run by run."""
    if name not in RATES:
        raise ValueError(f"metric {name!r} is no ratio of sums; expected one of {', '.join(RATES)}")
    each = [sums([run]) for run in runs]
    above, below = RATES[name]
    return Counts([total[above] for total in each], [total[below] for total in each])


def speedup_of_mean_rates(method: Sequence[Generation], plain: Sequence[Generation]) -> float:
    """Speed-up of a method over plain decoding of the same prompts, as Spec-Bench has it: the ratio of the mean tokens per second
    of a prompt, prefill counted."""
    if len(method) != len(plain) or not method:
        raise ValueError(f"{len(method)} runs of the method and {len(plain)} plain ones; expected the same prompts")
    ours, theirs = (mean(run.stats["tokens_per_second_with_prefill"] for run in runs) for runs in (method, plain))
    return ours / theirs


def ends_in_loop(tokens: Sequence[int], repeats: int = LOOP_REPEATS, longest: int = 32) -> bool:
    """Whether the text ends with one block of at most ``longest`` tokens said ``repeats`` times or more in a row.

    A block of one or two tokens must be repeated for at least six tokens, so that a line of dashes is no loop.
    """
    for period in range(1, longest + 1):
        span = max(period * repeats, 6)
        if span > len(tokens):
            break
        tail = list(tokens[-span:])
        if tail[period:] == tail[:-period]:
            return True
    return False
