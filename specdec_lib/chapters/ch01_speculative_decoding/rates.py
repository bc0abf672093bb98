"""Rates of the chapter's methods on some of its outputs, with and without those that end in a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specdec_lib.experiments.recorded_runs import Recording, Runs, gain, interval, select

Keep = Callable[[Recording], bool]


def unlooped(recording: Recording) -> bool:
    """Whether an output does not end in a loop."""
    return not recording.looped


def tokens_per_pass(
    label: str, recordings: Sequence[Recording], runs_of: Mapping[str, Runs], keep: Keep
) -> dict[str, Any]:
    """One row of the tables of tokens per pass: every method on the outputs that ``keep`` chooses.

    Parameters
    ----------
    label : str
    recordings : sequence of Recording
    runs_of : mapping
        By method, one run a recording; PLD and SpecDec among them.
    keep : callable

    Returns
    -------
    dict
        ``task`` (the label), ``outputs``, ``looped`` (how many of these end in a loop), by method its tokens per pass, and
        ``ratio``, PLD's over SpecDec's. A name with an asterisk has the same without outputs that end in a loop.
    """
    row: dict[str, Any] = {"task": label}
    row |= {"outputs": sum(map(keep, recordings)), "looped": sum(keep(r) and r.looped for r in recordings)}
    for mark, wanted in (("", keep), ("*", lambda r: keep(r) and unlooped(r))):
        own = [recording for recording in recordings if wanted(recording)]
        chosen = {name: select(runs, recordings, wanted) for name, runs in runs_of.items()}
        row |= {name + mark: interval(runs, own) for name, runs in chosen.items()}
        row["ratio" + mark] = gain(chosen["PLD"], chosen["SpecDec"], own)
    return row


def greedy_and_sampled(
    groups: Mapping[str, Keep],
    cold: Mapping[str, Runs],
    same: Sequence[Recording],
    hot: Mapping[str, Runs],
    drawn: Sequence[Recording],
) -> Iterator[dict[str, Any]]:
    """Each method on each group of tasks, greedily and sampled.

    Parameters
    ----------
    groups : mapping
        By name of a group: which recordings are of it.
    cold, hot : mapping
        By method: greedy runs, and sampled ones.
    same, drawn : sequence of Recording
        What they are runs of: the same prompts in the same order.

    Yields
    ------
    dict
        ``group``, ``method``, ``greedy`` and ``sampled`` (tokens per pass), ``greedy_rate`` and ``sampled_rate`` (acceptance),
        and ``ratio``, tokens per pass sampled over greedily.
    """
    for name, keep in groups.items():
        for method in cold:
            row: dict[str, Any] = {"group": name, "method": method}
            chosen = {}
            for how, runs, recordings in (("greedy", cold[method], same), ("sampled", hot[method], drawn)):
                chosen[how], own = select(runs, recordings, keep), [r for r in recordings if keep(r)]
                row[how] = interval(chosen[how], own)
                row[f"{how}_rate"] = interval(chosen[how], own, "acceptance_rate")
            yield row | {"ratio": gain(chosen["sampled"], chosen["greedy"], own)}
