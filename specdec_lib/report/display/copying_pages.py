"""Tables and figures of chapter 4, PLD+: what its cells computed, as a reader sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from specdec_lib import methods
from specdec_lib.chapters.ch04_pld_plus import attribution, copying_heads, known_answers
from specdec_lib.decoding.served_models import UnsupportedModel
from specdec_lib.experiments import input_guided as guided
from specdec_lib.experiments import statistics
from specdec_lib.experiments.metrics import pooled, speedups
from specdec_lib.experiments.recorded_runs import Recording, Runs, describe, gain, interval
from specdec_lib.experiments.statistics import Interval
from specdec_lib.heads.induction import InductionHeads
from specdec_lib.report.display import charts, figures, ratio_charts
from specdec_lib.report.display.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel

PER_PASS = "tokens per forward pass"
OVER_PLD = "tokens per pass of PLD+ divided by those of PLD"
Compared = Mapping[str, Mapping[str | None, Interval]]

#: What a recorded ratio compares.
RATIOS = {
    "t0_h_over_pld": "PLD+ (h), K = 70, over PLD as released, K = 10",
    "t0_a_over_pld": "PLD+ (a), K = 70, over PLD as released, K = 10",
    "t0_h_over_pldt": "PLD+ (h), K = 70, over partial drafts, K = 10",
    "k70_h_over_pldt": "PLD+ (h) over partial drafts, both K = 70",
    "k70_a_over_pldt": "PLD+ (a) over partial drafts, both K = 70",
    "equal0_h_over_pldt": "PLD+ (h) over partial drafts, both K = 10",
    "equal0_a_over_pldt": "PLD+ (a) over partial drafts, both K = 10",
    "t1_h_over_pld": "PLD+ (h), K = 70, over PLD as released, K = 10",
    "t1_h_over_pldt": "PLD+ (h), K = 70, over partial drafts, K = 10",
    "equal1_h_over_pldt": "PLD+ (h) over partial drafts, both K = 10",
}


def with_lengths(label: str, lengths: Mapping[str, int]) -> str:
    """A label of :data:`RATIOS` with the draft lengths of this run."""
    return label.replace("70", str(lengths["PLD+"])).replace("10", str(lengths["PLD"]))


def ratios(compared: Compared, names: Sequence[str], lengths: Mapping[str, int]) -> Figure:
    """Draw ratios of tokens per pass, one row a task and one mark a comparison."""
    labels = {name: with_lengths(RATIOS[name], lengths) for name in names}
    rows = {task or "all": {labels[name]: compared[name][task] for name in names} for task in compared[names[0]]}
    figure = ratio_charts.ratios(rows, OVER_PLD, logarithmic=True)
    figure.legends[0].remove()
    figure.legend(loc="outside lower center", ncols=1)
    return figure


def ratios_table(compared: Compared, priced: Compared, lengths: Mapping[str, int]) -> Table:
    """The comparisons over all tasks: by tokens per pass and by speed at the card's prices of passes."""
    rows = [
        {"compared": with_lengths(label, lengths), "tokens": compared[name][None], "speed": priced[name][None]}
        for name, label in RATIOS.items()
        if name in compared
    ]
    return Table(
        pd.DataFrame(rows),
        "tab-plus-ratios",
        "PLD+ over PLD on many prompts, greedy, all tasks: ratio of tokens per pass, and of speeds at the published prices of "
        "passes on an A100.",
        {"compared": "What is compared", "tokens": "Tokens per pass", "speed": "Speed on an A100"},
        {"tokens": ".2f", "speed": ".2f"},
    )


def prompts_table(recordings: Sequence[Recording]) -> Table:
    """What plain decoding makes of each task's prompts."""
    rows = [{"task": task, **describe(guided.of_task(recordings, task))} for task in guided.TASKS]
    return Table(
        pd.DataFrame(rows),
        "tab-plus-prompts",
        "The prompts that every method gets, and what plain greedy decoding makes of them.",
        {
            "task": "Task",
            "outputs": "Outputs",
            "prompt_tokens": "Prompt tokens, mean",
            "new_tokens": "New tokens, mean",
            "ended": "Ended by itself",
            "looped": "Ends in a loop",
        },
        {"prompt_tokens": ".0f", "new_tokens": ".0f", "ended": ".0%", "looped": ".0%"},
    )


def head_maps(model: PreTrainedModel, found: InductionHeads, chosen: Sequence[tuple[int, int]]) -> Figure:
    """Draw how often each head looks at the origin of what is copied, how much, and its copying score.

    A model whose value and query projections are one matrix has no copying scores, and two maps.
    """
    maps = {"credited": found.peaks, "prefix matching": found.attention}
    try:
        maps["copying score"] = copying_heads.copying_scores(model)
    except UnsupportedModel:
        pass
    limits = {"credited": (0.0, 1.0), "prefix matching": (0.0, 1.0), "copying score": (-1.0, 1.0)}
    return charts.head_maps(maps, limits, chosen)


def over_lengths(recordings: Sequence[Recording], swept: Mapping[str, Mapping[int, Runs]]) -> Figure:
    """Draw tokens per pass against the draft length, over all tasks and for summarisation."""
    content = {}
    for title, task in {"all five tasks": None, "summarisation": "summarisation"}.items():
        content[title] = {name: (list(each), _rates(recordings, each, task)) for name, each in swept.items()}
    return charts.panels(content, "draft length $K$", PER_PASS)


def _rates(recordings: Sequence[Recording], each: Mapping[Any, Runs], task: str | None = None) -> list[Interval]:
    own = guided.of_task(recordings, task)
    chosen = [i for i, r in enumerate(recordings) if task in (None, r.task)]
    return [interval([runs[i] for i in chosen], own) for runs in each.values()]


def task_bars(recordings: Sequence[Recording], runs: Mapping[str, Runs]) -> Figure:
    """Draw tokens per pass of each method on each task."""
    rows = guided.intervals_by_task(recordings, runs)[:-1]
    heights = {name: [row[name] for row in rows] for name in runs}
    return charts.task_bars([row["task"] for row in rows], heights, PER_PASS, reference=1.0)


def methods_table(
    greedy: Sequence[Recording],
    cold: Mapping[str, Mapping[str, Runs]],
    sampled: Sequence[Recording],
    hot: Mapping[str, Mapping[str, Runs]],
    lengths: Mapping[str, int],
) -> Table:
    """Tokens per pass of every method over all tasks, greedily and sampled, at its own draft length and at an equal one."""
    names = list(cold["paper"])
    rows = [
        {
            "method": name,
            "cold_paper": interval(cold["paper"][name], greedy),
            "cold_equal": interval(cold["equal"][name], greedy),
            "hot_paper": interval(hot["paper"][name], sampled),
            "hot_equal": interval(hot["equal"][name], sampled),
        }
        for name in names
    ]
    own = ", ".join(f"{name} $K$ = {lengths[name]}" for name in ("PLD", "PLD+", "SpecDec"))
    equal = lengths["equal"]
    return Table(
        pd.DataFrame(rows),
        "tab-plus-methods",
        f"Tokens per forward pass over all tasks. Own: {own}, the others as published. Equal: $K$ = {equal}"
        f"{methods.without_length(names)}. {methods.how_measured(names)}",
        {
            "method": "Method",
            "cold_paper": "Greedy, own",
            "cold_equal": "Greedy, equal",
            "hot_paper": "Sampled, own",
            "hot_equal": "Sampled, equal",
        },
        dict.fromkeys(("cold_paper", "cold_equal", "hot_paper", "hot_equal"), ".2f"),
    )


def head_counts(recordings: Sequence[Recording], by_set: Mapping[str, Runs], drawn: Mapping[Any, Runs]) -> Figure:
    """Draw tokens per pass against the number of best heads, with every head and random sets of heads."""
    names = [*by_set, *(f"random {i + 1}" for i in range(len(drawn)))]
    found = _rates(recordings, by_set) + _rates(recordings, drawn)
    figure, ax = figures.new(6.4, 3.2)
    ax.plot(range(len(names)), figures.points(found), "o", color=figures.color("PLD+ (a)"))
    figures.whiskers(ax, range(len(names)), found, figures.color("PLD+ (a)"))
    ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
    ax.set(xlabel="heads of PLD+ (a): so many of the best, every head, or drawn at random", ylabel=PER_PASS)
    return figure


def aggregations(
    recordings: Sequence[Recording],
    by_block: Mapping[tuple[int, str], Runs],
    by_set: Mapping[tuple[str, str], Runs],
) -> Figure:
    """Draw PLD+ (a) by block, with level lines for the chosen heads and for the whole model; each has one whisker."""
    blocks = sorted({block for block, _ in by_block})
    curves = {
        f"one block, {fold}": (blocks, _rates(recordings, {b: by_block[b, fold] for b in blocks}))
        for fold in ("max", "sum")
    }
    titles = {"chosen": "chosen heads", "every": "whole model"}
    for place, ((what, fold), runs) in enumerate(by_set.items()):
        curves[f"{titles[what]}, {fold}"] = _level(blocks, interval(runs, recordings), place)
    return charts.panels({"": curves}, "block", PER_PASS, markers=False, integers=True)


def layers(recordings: Sequence[Recording], by_layer: Mapping[int, Runs], partial: Runs) -> Figure:
    """Draw PLD+ (h) against the layer whose states it compares, with PLD with partial drafts as a level line."""
    content = {}
    for title, task in {"all five tasks": None, "summarisation": "summarisation"}.items():
        (level,) = _rates(recordings, {"": partial}, task)
        content[title] = {
            "PLD+ (h)": (list(by_layer), _rates(recordings, by_layer, task)),
            "PLD, partial drafts": _level(list(by_layer), level),
        }
    return charts.panels(content, "layer", PER_PASS, markers=False, integers=True)


def _level(x: Sequence[int], level: Interval, place: int = 0) -> charts.Curve:
    """A level line, with its interval half-way between two points of the other curves: between the first two, or later."""
    between = min(x[0] + place + 0.5, x[-1])
    return [x[0], between, x[-1]], [level.value, level, level.value]


def averages_table(recordings: Sequence[Recording], averaged: Mapping[str, Runs]) -> Table:
    """Means of several states instead of single ones."""
    titles = {"printed": "3, as printed"}
    rows = [
        {
            "m": titles.get(name, name),
            "all": interval(runs, recordings),
            "ratio": gain(runs, averaged["1"], recordings),
        }
        for name, runs in averaged.items()
    ]
    return Table(
        pd.DataFrame(rows),
        "tab-plus-average",
        "PLD+ (h) with means of $m$ states: tokens per forward pass at equal draft length, greedy, all tasks.",
        {"m": "$m$", "all": "Tokens per pass", "ratio": "over single states"},
        {"all": ".2f", "ratio": ".3f"},
    )


def thresholds_table(recordings: Sequence[Recording], refused: Mapping[float | None, Runs]) -> Table:
    """Thresholds below which a candidate is refused."""
    rows = []
    for theta, runs in refused.items():
        if theta is not None and theta < 0:  # nearly all candidates are nearer
            continue
        stats = pooled(runs)
        rows.append(
            {
                "theta": "none" if theta is None else str(theta),
                "all": interval(runs, recordings),
                "ratio": gain(runs, refused[None], recordings),
                "drafting": stats["calls_with_draft"] / max(stats["calls"], 1),
                "accepted": stats["acceptance_rate"],
            }
        )
    return Table(
        pd.DataFrame(rows),
        "tab-plus-threshold",
        r"PLD+ (h) with a threshold $\theta$ on the cosine, at the paper's draft length, greedy, all tasks.",
        {
            "theta": r"$\theta$",
            "all": "Tokens per pass",
            "ratio": "over none",
            "drafting": "Passes with a draft",
            "accepted": "Acceptance rate",
        },
        {"all": ".2f", "ratio": ".3f", "drafting": ".0%", "accepted": ".1%"},
    )


def by_task_table(recordings: Sequence[Recording], runs: Mapping[str, Runs], name: str, caption: str) -> Table:
    """Tokens per pass of each method on each task."""
    rows = pd.DataFrame(guided.intervals_by_task(recordings, runs))
    columns = {"task": "Task", "outputs": "Outputs", **{method: method for method in runs}}
    return Table(rows, name, f"{caption} {methods.how_measured(runs)}", columns, dict.fromkeys(runs, ".2f"))


def time_table(timings: Mapping[str, Sequence[Runs]]) -> Table:
    """Speed-ups over plain decoding, and the two parts of a step."""
    rows = []
    for name, repeated in timings.items():
        stats = [pooled(runs) for runs in repeated]
        each = zip(repeated, timings["plain"], strict=True)
        rows.append(
            {
                "method": name,
                "gain": charts.spread([speedups(a, b)["speedup_ratio_of_mean_rates"] for a, b in each]),
                "draft": charts.spread([one["draft_ms_per_step"] for one in stats], ".3f"),
                "verify": charts.spread([1e3 * one["verify_seconds"] / one["calls"] for one in stats]),
            }
        )
    return Table(
        pd.DataFrame(rows),
        "tab-plus-time",
        "Greedy decoding, batch of one, each method at its own settings: speed-up over plain decoding (ratio of mean rates, "
        f"prefill included), and time of the two parts of a step. {methods.how_measured(timings)}",
        {"method": "Method", "gain": "Speed-up", "draft": "Drafting, ms a step", "verify": "Target's pass, ms a step"},
        timed=["gain", "draft", "verify"],
    )


def costs(spent: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the time of a proposal, and of the target's pass by what is kept of it, against the context."""

    def curves(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, charts.Curve]:
        found = {}
        for name in dict.fromkeys(row[key] for row in rows):
            own = [row for row in rows if row[key] == name]
            found[name] = ([row["tokens"] for row in own], [row["median_ms"] for row in own])
        return found

    content = {"one proposal": curves(spent, "method"), "one pass of the target": curves(kept, "capture")}
    return charts.panels(content, "context, tokens", ["median, ms"] * 2)


def attribution_table(counted: Mapping[str, Mapping[tuple[str, int], list[attribution.Counts]]]) -> Table:
    """How well the accepted spans of PLD+ (h) tell copied tokens from others."""
    rows = []
    for name, each in counted.items():
        answers = len(next(iter(each.values())))
        found = [row for row in attribution.score(each) if row["method"] == "PLD+ (h)"]
        rows += [{"set": name, "answers": answers, **row} for row in found]
    intervals = ("precision_interval", "recall_interval", "f1_interval")
    return Table(
        pd.DataFrame(rows),
        "tab-plus-attribution",
        "Attribution of the right answers by accepted spans of PLD+ (h) of at least so many tokens.",
        {
            "set": "Set",
            "answers": "Answers",
            "least": "Least span",
            **dict(zip(intervals, ("Precision", "Recall", "F1"), strict=True)),
            "exact": "Right place, of those found",
        },
        dict.fromkeys((*intervals, "exact"), ".3f"),
    )


#: Comparisons on known answers: a rule over PLD with partial drafts at the same draft length.
_HINDSIGHT = {
    "best occurrence in hindsight, K = 70": ("best_70", "partial_70"),
    "best occurrence in hindsight, K = 10": ("best_10", "partial_10"),
    "pocket states, K = 70": ("h_70", "partial_70"),
    "pocket states, K = 10": ("h_10", "partial_10"),
}
_AGAINST_OVERLAP = {
    "PLD, partial drafts": "partial_70",
    "PLD+ (h), pocket states": "h_70",
    "best occurrence": "best_70",
}


def known_ratios(by_set: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw what the best occurrence in hindsight and the pocket states give on each set of answers."""
    cases = {
        name: {label: known_answers.gain(rows, *rules) for label, rules in _HINDSIGHT.items()}
        for name, rows in by_set.items()
    }
    return ratio_charts.ratios(cases, "tokens per pass divided by those of PLD with partial drafts")


def overlaps(by_set: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw tokens per pass against the overlap of prompt and answer, one point a set."""
    mean = {
        name: statistics.mean([row["overlap"] for row in rows], [row["prompt"] for row in rows]).value
        for name, rows in by_set.items()
        if name != "all"
    }
    order = sorted(mean, key=lambda name: mean[name])
    series = {
        label: ([mean[name] for name in order], [known_answers.tokens_per_pass(by_set[name], rule) for name in order])
        for label, rule in _AGAINST_OVERLAP.items()
    }
    xlabel = "overlap of prompt and answer (BLEU-4 without the length penalty)"
    shades = (figures.color("PLD"), figures.color("PLD+ (h)"), figures.PALETTE[1])
    figure, ax = figures.new()
    for (label, (x, y)), shade, mark in zip(series.items(), shades, "sD^", strict=True):
        ax.plot(x, figures.points(y), linestyle="", marker=mark, color=shade, label=label)
        figures.whiskers(ax, x, y, shade)
    ax.set(xlabel=xlabel, ylabel=f"{PER_PASS}, K = 70")
    ax.legend()
    return figure
