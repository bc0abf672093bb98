"""PLD+ against PLD on many prompts: what is replayed, and ratios of tokens per pass and of speeds at a price of passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments import statistics
from specdec_lib.experiments.input_guided import of_task
from specdec_lib.experiments.metrics import counts
from specdec_lib.experiments.pass_costs import step_seconds
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_numbers import Priced, pass_prices
from specdec_lib.experiments.recorded_runs import Recording, Runs, all_runs, gain, prompts_of, replay_each, select
from specdec_lib.experiments.recordings import record_once
from specdec_lib.experiments.statistics import Counts, Interval
from specdec_lib.methods import METHODS

#: Whose passes price a draft: the card and the model of the paper's main tables, as another benchmark measured them.
CARD = Priced("Spec-Bench", "A100 80GB", "Vicuna 7B v1.3")
#: Ratios that are recorded, by name: of which rule over which other one. ``pldt`` is PLD with partial drafts; a number is
#: the draft length where it is not that of the paper.
GREEDY = {
    "t0_h_over_pld": ("h", "pld"),
    "t0_a_over_pld": ("a", "pld"),
    "t0_h_over_pldt": ("h", "pldt"),
    "equal0_h_over_pldt": ("h10", "pldt10"),
    "equal0_a_over_pldt": ("a10", "pldt10"),
    "k70_h_over_pldt": ("h", "pldt70"),
    "k70_a_over_pldt": ("a", "pldt70"),
    "t0_h_over_a": ("h", "a"),
    "t0_rest_over_pld": ("rest", "pld"),
    "t0_h_over_rest": ("h", "rest"),
}
SAMPLED = {
    "t1_h_over_pld": ("h", "pld"),
    "t1_a_over_pld": ("a", "pld"),
    "t1_h_over_pldt": ("h", "pldt"),
    "t1_a_over_pldt": ("a", "pldt"),
    "t1_h_over_rest": ("h", "rest"),
    "t1_a_over_rest": ("a", "rest"),
    "equal1_h_over_pldt": ("h10", "pldt10"),
}
FAMILY = {"second_h_over_pld": ("h", "pld"), "second_h_over_pldt": ("h", "pldt")}
#: Prompts whose states and attention rows are in memory at a time.
AT_A_TIME = 60


def card_prices() -> dict[int, float]:
    """The published prices of passes on :data:`CARD` by width."""
    return pass_prices()[CARD]


def replay_many(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    sampling: Sampling | None,
    max_new_tokens: int,
    drafters: Mapping[str, Drafter],
) -> tuple[list[Recording], dict[str, Runs]]:
    """Record many prompts and replay several drafters on them, a part at a time; the states are forgotten after it.

    Returns
    -------
    recordings : list of Recording
        Without states and attention rows.
    runs : dict
        By drafter's name one Generation a recording.
    """
    capture = Capture()
    for drafter in drafters.values():
        capture = capture | drafter.capture
    recordings: list[Recording] = []
    runs: dict[str, list] = {name: [] for name in drafters}
    for start in range(0, len(prompts), AT_A_TIME):
        part = prompts[start : start + AT_A_TIME]
        recorded = record_once(model, tokenizer, part, sampling, max_new_tokens, capture)
        for name, replayed in replay_each(recorded, drafters).items():
            runs[name] += replayed
        recordings += [replace(r, trace=replace(r.trace, hidden={}, heads=(), attention=[])) for r in recorded]
    return recordings, runs


def at_lengths(
    model: PreTrainedModel,
    recordings: Sequence[Recording],
    drafters: Mapping[str, Mapping[str, Drafter]],
    state: Mapping[str, str],
) -> dict[str, dict[str, Runs]]:
    """What methods do with each choice of draft lengths, on all cores; one whose drafts have no length runs once.

    Parameters
    ----------
    model : PreTrainedModel
    recordings : sequence of Recording
    drafters : mapping
        By choice of lengths and name of the method.
    state : mapping
        Of each method, as for :func:`specdec_lib.experiments.recorded_runs.all_runs`.
    """
    once = next(iter(drafters))
    asked = {
        (how, name): drafter
        for how, own in drafters.items()
        for name, drafter in own.items()
        if how == once or METHODS[name].length is not None
    }
    runs = all_runs(model, recordings, asked, {key: state[key[1]] for key in asked})
    return {how: {name: runs.get((how, name), runs[once, name]) for name in own} for how, own in drafters.items()}


def priced(runs: Runs, prices: Mapping[int, float]) -> Counts:
    """Tokens after the first, and what the passes cost in passes of plain decoding, run by run; drafting is free."""
    cost = [sum(step_seconds(prices, step.width) for step in run.steps) for run in runs]
    return Counts([len(run.tokens) - 1 for run in runs], cost)


def speed_gain(ours: Runs, theirs: Runs, recordings: Sequence[Recording], prices: Mapping[int, float]) -> Interval:
    """Speed of runs divided by that of others of the same recordings, at given prices of passes."""
    return statistics.ratio_of_rates(priced(ours, prices), priced(theirs, prices), prompts_of(recordings))


def gains(
    ours: Runs, theirs: Runs, recordings: Sequence[Recording], prices: Mapping[int, float] | None = None
) -> Iterator[tuple[str | None, Interval]]:
    """Tokens per pass of runs divided by those of others, on each task and, as None, on all; with ``prices``, speeds."""
    for task in (*dict.fromkeys(r.task for r in recordings), None):

        def chosen(runs: Runs, task: str | None = task) -> Runs:
            return select(runs, recordings, lambda r: task in (None, r.task))

        own = of_task(recordings, task)
        if prices is None:
            yield task, gain(chosen(ours), chosen(theirs), own)
        else:
            yield task, speed_gain(chosen(ours), chosen(theirs), own, prices)


def compare(
    runs: Mapping[str, Runs],
    recordings: Sequence[Recording],
    pairs: Mapping[str, tuple[str, str]],
    prices: Mapping[int, float] | None = None,
) -> dict[str, dict[str | None, Interval]]:
    """:func:`gains` of every pair of rules, such as :data:`GREEDY`, by name and task."""
    return {name: dict(gains(runs[a], runs[b], recordings, prices)) for name, (a, b) in pairs.items()}


def sweep(recordings: Sequence[Recording], make: Callable[[Any], Drafter], values: Iterable[Any]) -> dict[Any, Runs]:
    """Replay the drafter of each value that is swept, on all cores; runs by value."""
    return replay_each(recordings, {value: make(value) for value in values})


def rank_correlation(x: Sequence[float], y: Sequence[float], prompts: Sequence[object]) -> Interval:
    """Spearman's rank correlation of two values of each output, with its interval over prompts.

    The ranks are those among all outputs, in each bootstrap sample too.
    """
    a, b = (pd.Series(list(values)).rank().to_numpy() for values in (x, y))

    def correlation(n, sa, sb, saa, sbb, sab):
        return (n * sab - sa * sb) / np.sqrt((n * saa - sa**2) * (n * sbb - sb**2))

    return statistics.interval_of_sums(correlation, [np.ones(len(a)), a, b, a * a, b * b, a * b], prompts)


def spans_and_gains(long: Runs, short: Runs) -> tuple[list[float], list[float], list[int]]:
    """Mean accepted span with long drafts, and the gain of long drafts over short ones, of each run that drafts.

    Returns
    -------
    spans, gains : list of float
    places : list of int
        Of the runs they are of.
    """
    spans, ratios, places = [], [], []
    for place, (one, other) in enumerate(zip(long, short, strict=True)):
        drafting = [step.accepted for step in one.steps if step.drafted]
        if drafting:
            spans.append(sum(drafting) / len(drafting))
            ratios.append(len(other.steps) / len(one.steps))
            places.append(place)
    return spans, ratios, places


def neighbour_lead(recordings: Sequence[Recording], layer: int, seed: int = 0) -> Interval:
    """Mean cosine of the states of neighbouring positions, less that of pairs of positions drawn at random from the same
    text, over recordings with that layer's states."""
    generator = np.random.default_rng(seed)
    leads = []
    for recording in recordings:
        states = torch.nn.functional.normalize(recording.trace.hidden[layer].float(), dim=-1)
        one, other = (torch.from_numpy(generator.integers(0, len(states), len(states) - 1)) for _ in range(2))
        near, far = (states[:-1] * states[1:]).sum(-1), (states[one] * states[other]).sum(-1)
        leads.append(float(near.mean() - far.mean()))
    return statistics.mean(leads, prompts_of(recordings))


def gain_over_draws(ours: Runs, draws: Sequence[Runs], recordings: Sequence[Recording]) -> Interval:
    """Tokens per pass of runs divided by those of several random draws of a drafter; draws count as runs of a prompt."""
    names = prompts_of(recordings) * len(draws)
    theirs = [run for runs in draws for run in runs]
    mine = [run for _ in draws for run in ours]
    return statistics.ratio_of_rates(counts(mine, "tokens_per_forward"), counts(theirs, "tokens_per_forward"), names)


def over_fastest(
    method: str,
    tried: Sequence[tuple[Sequence[Recording], Mapping[str, Runs]]],
    prices: Mapping[int, float],
) -> dict[str, Interval]:
    """Speed of a method divided by that of whichever other is fastest by estimate, on each task.

    Parameters
    ----------
    method : str
    tried : sequence of (recordings, runs by method)
        Sets of recordings, the largest first, each with runs of ``method``; another method is judged, and compared, by
        the first set that has its runs.
    prices : mapping
        Of passes, by width.
    """
    out = {}
    for task in dict.fromkeys(r.task for r in tried[0][0]):
        speeds: dict[str, float] = {}
        ratios: dict[str, Interval] = {}
        for recordings, runs in tried:
            own = of_task(recordings, task)
            at = {name: select(each, recordings, lambda r, task=task: r.task == task) for name, each in runs.items()}
            for name in at.keys() - speeds.keys() - {method}:
                speeds[name] = statistics.pooled_rate(priced(at[name], prices)).value
                ratios[name] = speed_gain(at[method], at[name], own, prices)
        out[task] = ratios[max(speeds, key=lambda name: speeds[name])]
    return out
