"""Tables and figures of chapter 1: what its cells computed, as a reader sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from specdec_lib import methods
from specdec_lib.chapters.ch01_speculative_decoding.rates import Keep, unlooped
from specdec_lib.experiments import metrics, recorded_runs
from specdec_lib.experiments.recorded_runs import Recording, Runs
from specdec_lib.report.display import charts
from specdec_lib.report.display.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
#: Definitions of a speed-up, in the order of the text.
SPEEDUPS = {
    "speedup_ratio_of_pooled_rates": "Ratio of pooled rates",
    "speedup_ratio_of_mean_rates": "Ratio of mean rates",
    "speedup_mean_of_ratios": "Mean of ratios",
}


def prompts_table(recordings: Sequence[Recording]) -> Table:
    """The prompts of each task, and what plain decoding makes of them."""
    by_task = {task: [r for r in recordings if r.task == task] for task in dict.fromkeys(r.task for r in recordings)}
    rows = [{"task": task, **recorded_runs.describe(own)} for task, own in by_task.items()]
    columns = {"task": "Task", "outputs": "Outputs", "prompt_tokens": "Prompt tokens, mean"}
    columns |= {"new_tokens": "New tokens, mean", "ended": "Ended by itself", "looped": "Ends in a loop"}
    return Table(
        pd.DataFrame(rows),
        "tab-decoding-prompts",
        "The prompts, and what plain greedy decoding makes of them.",
        columns,
        {"prompt_tokens": ".0f", "new_tokens": ".0f", "ended": ".0%", "looped": ".0%"},
    )


def lossless_table(rows: Rows) -> Table:
    """Outputs compared with plain decoding, one row a method and way of decoding."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    columns = {"method": "Method", "how": "Decoding", "outputs": "Outputs", "tokens": "Tokens compared"}
    return Table(
        pd.DataFrame(rows),
        "tab-decoding-lossless",
        f"Outputs compared with plain decoding, token for token. {methods.how_measured(names)}",
        columns | {"differ": "Outputs that differ", "rounding": "of these by rounding"},
    )


def tokens_table(rows: Rows, lengths: Mapping[str, int], names: Sequence[str]) -> Table:
    """Tokens per pass of all outputs, one row a task or group of tasks."""
    said = ", ".join(f"{name} with $K$ = {length}" for name, length in lengths.items())
    return Table(
        pd.DataFrame(rows),
        "tab-decoding-tokens-per-forward",
        f"Tokens per forward pass, greedy: {said}. {methods.how_measured(names)}",
        {"task": "Task", "outputs": "Outputs", **{name: name for name in names}, "ratio": "PLD / SpecDec"},
        dict.fromkeys([*names, "ratio"], ".2f"),
    )


def unlooped_table(rows: Rows, names: Sequence[str]) -> Table:
    """The same without outputs that end in a loop."""
    of_name = {f"{name}*": name for name in names}
    return Table(
        pd.DataFrame(rows),
        "tab-decoding-tokens-unlooped",
        "The same without outputs that end in a loop.",
        {"task": "Task", "looped": "Outputs in a loop", **of_name, "ratio*": "PLD / SpecDec"},
        dict.fromkeys([*of_name, "ratio*"], ".2f"),
    )


def tokens_chart(rows: Rows, names: Sequence[str]) -> Figure:
    """Draw tokens per pass by task and method, with and without outputs that end in a loop."""
    heights = {name: [row[name] for row in rows] for name in names}
    without = {name: [row[f"{name}*"] for row in rows] for name in names}
    tasks = [row["task"] for row in rows]
    return charts.task_bars(tasks, heights, "tokens per forward pass", without, "without loops", reference=1.0)


def depth_chart(
    runs_of: Mapping[str, Runs], recordings: Sequence[Recording], groups: Mapping[str, Keep], depths: int
) -> Figure:
    """Draw how often the draft token at each depth is kept, with and without outputs that end in a loop."""
    curves: dict[str, dict[str, charts.Curve]] = {}
    for group, keep in groups.items():
        lines = curves[group] = {}
        for method, runs in runs_of.items():
            for end, among in (("", lambda r: True), (", without loops", unlooped)):
                chosen = recorded_runs.select(runs, recordings, lambda r: keep(r) and among(r))
                own = [r for r in recordings if keep(r) and among(r)]
                lines[method + end] = (range(1, depths + 1), recorded_runs.kept_by_depth(chosen, own, depths))
    return charts.panels(
        curves, "depth in the draft", "kept, given that all before were", integers=True, ylim=(0, 1.03)
    )


def time_table(timings: Mapping[str, Sequence[Runs]], speedups: Mapping[str, Rows]) -> Table:
    """Tokens a second and the three speed-ups of each method, as medians over repeats.

    Parameters
    ----------
    timings : mapping
        By method: for each repeat its runs.
    speedups : mapping
        By method: for each repeat :func:`specdec_lib.experiments.metrics.speedups`.
    """
    rows = []
    for name, repeats in timings.items():
        rate = [metrics.pooled(runs)["tokens_per_second"] for runs in repeats]
        spread = {key: charts.spread([each[key] for each in speedups[name]]) for key in SPEEDUPS}
        rows.append({"method": name, "rate": charts.spread(rate, ".0f"), **spread})
    return Table(
        pd.DataFrame(rows),
        "tab-decoding-time",
        "Greedy decoding, batch of one: tokens per second without the prefill, and the speed-up over plain decoding by its "
        f"three definitions. {methods.how_measured(timings)}",
        {"method": "Method", "rate": "Tokens/s", **SPEEDUPS},
        timed=["rate", *SPEEDUPS],
    )


def waste_chart(
    sweeps: Mapping[str, Mapping[int, Runs]], recordings: Sequence[Recording], groups: Mapping[str, Keep]
) -> Figure:
    """Draw the target's passes and the discarded tokens of each emitted one against the draft length."""
    curves = {
        title: {
            f"{method}, {group}": recorded_runs.over_lengths(runs, recordings, title.replace(" ", "_"), keep)
            for method, runs in sweeps.items()
            for group, keep in groups.items()
        }
        for title in ("verification rate", "discard rate")
    }
    ylabels = ["passes per token", "discarded tokens per token"]
    return charts.panels(curves, "draft length $K$", ylabels, markers=False, integers=True)


def oracle_table(rows: Rows) -> Table:
    """The best fixed draft length and the oracle of SpecDec++, one row a group of tasks."""
    columns = {"group": "Group", "alpha": r"$\alpha$", "best": "Best $K$", "tokens_per_forward": "Tokens per pass"}
    columns |= {"expected": "by the formula", "oracle_tokens_per_forward": "Oracle: tokens per pass"}
    columns |= {"speedup": "Speed-up", "oracle_speedup": "Oracle: speed-up", "room": "Oracle / best $K$"}
    rates = ["tokens_per_forward", "expected", "oracle_tokens_per_forward", "speedup", "oracle_speedup", "room"]
    return Table(
        pd.DataFrame(rows),
        "tab-decoding-oracle",
        r"SpecDec at the draft length of least time, and the oracle of SpecDec++, Lemma 2.1; $\alpha$ is the share of tokens "
        "that are the draft model's first choice.",
        columns,
        {"alpha": ".1%", **dict.fromkeys(rates, ".2f")},
        # Times decide which length is best.
        timed=["best", "tokens_per_forward", "expected", "speedup", "oracle_speedup", "room"],
    )


def variants_chart(
    sweeps: Mapping[str, Mapping[int, Runs]], recordings: Sequence[Recording], groups: Mapping[str, Keep]
) -> Figure:
    """Draw tokens per pass of both versions of prompt lookup against the draft length, one panel a group of tasks."""
    labels = {"PLD, original": "original", "PLD, transformers' variant": "transformers"}
    curves = {
        group: {
            label: recorded_runs.over_lengths(sweeps[variant], recordings, "tokens_per_forward", keep)
            for label, variant in labels.items()
        }
        for group, keep in groups.items()
    }
    return charts.panels(curves, "draft length $K$", "tokens per forward pass", markers=False, integers=True)


def variants_table(
    runs_of: Mapping[tuple[str, int], Runs], recordings: Sequence[Recording], usual: tuple[str, int], length: int
) -> Table:
    """Both versions of prompt lookup with n-grams of two lengths.

    Parameters
    ----------
    runs_of : mapping
        By version and longest n-gram.
    recordings : sequence of Recording
    usual : (str, int)
        What the others are compared with.
    length : int
        Draft length K of all.
    """
    free = [recording for recording in recordings if unlooped(recording)]
    rows = []
    for (variant, ngram), runs in runs_of.items():
        found = metrics.pooled(runs)
        rows.append(
            {
                "variant": variant,
                "ngram": ngram,
                "drafting": found["calls_with_draft"] / max(found["calls"], 1),
                "accepted": recorded_runs.interval(runs, recordings, "acceptance_rate"),
                "rate": recorded_runs.interval(runs, recordings),
                "unlooped": recorded_runs.interval(recorded_runs.select(runs, recordings, unlooped), free),
                "ratio": recorded_runs.gain(runs, runs_of[usual], recordings),
            }
        )
    columns = {"variant": "Variant", "ngram": "Longest n-gram", "drafting": "Passes with a draft"}
    columns |= {"accepted": "Acceptance rate", "rate": "Tokens per pass", "unlooped": "without loops"}
    return Table(
        pd.DataFrame(rows),
        "tab-decoding-variants",
        f"Prompt lookup over all prompts at $K$ = {length}, by variant and longest n-gram.",
        columns | {"ratio": f"Ratio to the {usual[0]} with {usual[1]}"},
        {"drafting": ".0%", "accepted": ".1%", "rate": ".2f", "unlooped": ".2f", "ratio": ".3f"},
    )


def sampled_table(rows: Rows, settings: str) -> Table:
    """Tokens per pass and acceptance rates, greedy and sampled; ``settings`` says how was sampled."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    columns = {"group": "Group", "method": "Method", "greedy": "Tokens per pass, greedy", "sampled": "sampled"}
    columns |= {"ratio": "Sampled / greedy", "greedy_rate": "Acceptance rate, greedy", "sampled_rate": "sampled"}
    return Table(
        pd.DataFrame(rows),
        "tab-decoding-sampled",
        f"Tokens per pass and acceptance rate, greedy and sampled ({settings}). {methods.how_measured(names)}",
        columns,
        {"greedy": ".2f", "sampled": ".2f", "ratio": ".2f", "greedy_rate": ".1%", "sampled_rate": ".1%"},
    )
