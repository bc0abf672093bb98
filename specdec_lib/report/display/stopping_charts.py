"""Figures of the chapter on when a draft should stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.wide_study import SETS
from specdec_lib.experiments.statistics import mean
from specdec_lib.report.display import figures
from specdec_lib.report.display.ratio_charts import ratios

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from specdec_lib.chapters.ch05_specdec_pp.contest import Rates
    from specdec_lib.chapters.ch05_specdec_pp.generation_costs import Prediction
    from specdec_lib.chapters.ch05_specdec_pp.head_knowledge import Said
    from specdec_lib.chapters.ch05_specdec_pp.theory.best_rules import Bound
    from specdec_lib.chapters.ch05_specdec_pp.theory.mdp import Solution
    from specdec_lib.chapters.ch05_specdec_pp.theory.rounds import Rounds
    from specdec_lib.chapters.ch05_specdec_pp.wide_study import Row
    from specdec_lib.decoding.results import Generation
    from specdec_lib.experiments.statistics import Interval

_LINE = "#444444"
_MARKS = "osD^vPX"

#: What SpecDec++ is compared with in the first figure: the quantity of the study, and words for it.
_RIVALS = {
    "over fixed K": "the best fixed $K$",
    "over confidence": "the best confidence threshold",
    "over cumulative confidence": "cumulative confidence",
}
#: Rules on random pairs, by the column that has their cost.
RULES = {
    "best_threshold": "best threshold $h$",
    "best_fixed": "best fixed $K$",
    "theorem_rule": "threshold of the theorem",
    "no_delta_rule": r"threshold with $\Delta = 0$",
}


def answer(rows: Sequence[Row], draft: str) -> Figure:
    """Draw SpecDec++ over what it competes with, by set and temperature, from the file of the long study.

    Parameters
    ----------
    rows : sequence of Row
    draft : str
        Whose rows are shown.
    """
    known = {(row.set, row.temperature, row.quantity): row.interval for row in rows if row.draft == draft}
    temperatures = list(dict.fromkeys(row.temperature for row in rows if row.draft == draft))
    cases = {
        f"{name}, {f'T = {temperature:g}' if temperature else 'greedy'}": {
            words: known.get((name, temperature, quantity)) for quantity, words in _RIVALS.items()
        }
        for name in SETS
        for temperature in temperatures
    }
    return ratios(cases, "throughput of SpecDec++ divided by that of")


def rounds(runs: Mapping[str, Generation]) -> Figure:
    """Draw the drafts of a generation round by round, one panel a method: accepted tokens filled, refused ones hollow.

    Parameters
    ----------
    runs : mapping
        By method.
    """
    figure, axes = figures.new(7.0, 0.9 + 1.5 * len(runs), 1, len(runs), sharex=True, sharey=True, squeeze=False)
    for ax, (method, run) in zip(axes[:, 0], runs.items(), strict=True):
        color, at = figures.color(method.split(",")[0]), range(1, len(run.steps) + 1)
        accepted, drafted = [step.accepted for step in run.steps], [step.drafted for step in run.steps]
        refused = [a - b for a, b in zip(drafted, accepted, strict=True)]
        ax.bar(at, accepted, color=color, edgecolor=color, label="accepted")
        ax.bar(at, refused, bottom=accepted, color="white", edgecolor=color, hatch="////", label="refused")
        ax.set(title=method, ylabel="tokens drafted")
        ax.grid(axis="x", visible=False)
    axes[-1, 0].set_xlabel("round")
    axes[0, 0].legend(loc="upper right", ncols=2)
    return figure


def gains(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the throughput of each kind of SpecDec++ over that of other policies, on each set.

    Parameters
    ----------
    rows : sequence of mapping
        Of :func:`specdec_lib.chapters.ch05_specdec_pp.contest.gains`.
    """
    cases: dict[str, dict[str, Any]] = {}
    for row in rows:
        cases.setdefault(f"{row['set']}: over {row['theirs']}", {})[row["ours"]] = row["ratio"]
    return ratios(cases, "throughput divided by that of the other policy")


def reliability(said: Mapping[str, Mapping[str, Said]], bins: int = 10, fewest: int = 10) -> Figure:
    """Draw the share of accepted tokens against the predicted probability, one panel a set.

    Parameters
    ----------
    said : mapping
        By set and kind of prediction.
    bins, fewest : int
        A bin with fewer tokens is left out.
    """
    from specdec_lib.experiments import calibration

    columns = min(2, len(said))
    count = -(-len(said) // columns)
    figure, axes = figures.new(7.0, 2.6 * count + 0.4, columns, count, sharex=True, sharey=True, squeeze=False)
    for ax, (name, kinds) in zip(axes.flat, said.items(), strict=False):
        ax.plot([0, 1], [0, 1], color=_LINE, linestyle="--", linewidth=1)
        for place, (kind, one) in enumerate(kinds.items()):
            found = calibration.reliability(one.predicted, one.accepted, bins)
            many = found["count"] >= fewest
            shown = {"marker": _MARKS[place], "color": figures.PALETTE[place], "label": kind}
            ax.plot(found["predicted"][many], found["outcome"][many], **shown)
            shares = [share for _, share in sorted(_shares(one, bins, fewest).items())]
            figures.whiskers(ax, found["predicted"][many], shares, figures.PALETTE[place])
        ax.set_title(name)
    for ax in axes[-1]:
        ax.set_xlabel("predicted")
    for ax in axes[:, 0]:
        ax.set_ylabel("accepted")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _shares(said: Said, bins: int, fewest: int) -> dict[int, Interval]:
    """Share of accepted tokens by bin, with its interval over outputs; of bins that have enough tokens."""
    place = np.minimum((said.predicted * bins).astype(int), bins - 1)
    kept = {bin: place == bin for bin in np.unique(place).tolist() if np.sum(place == bin) >= fewest}
    return {bin: mean(said.accepted[own], said.outputs[own].tolist()) for bin, own in kept.items()}


def rates(points: Mapping[str, Mapping[str, Sequence[Rates]]], oracle: Mapping[str, Rates]) -> Figure:
    """Draw the discard rate against the verification rate, one panel a set and one line a family: the paper's Figure 4.

    Parameters
    ----------
    points : mapping
        By set and family the two rates of each setting, with their intervals.
    oracle : mapping
        The two rates by set.
    """
    figure, axes = figures.new(8.4, 3.9, len(points), sharey=True, squeeze=False)
    for ax, (name, curves) in zip(axes[0], points.items(), strict=True):
        for place, (family, curve) in enumerate(curves.items()):
            color = figures.PALETTE[place % len(figures.PALETTE)]
            x, y = ([rate.value for rate in both] for both in zip(*curve, strict=True))
            ax.plot(x, y, label=family, markersize=4, marker=_MARKS[place % len(_MARKS)], color=color)
            known = [both for both in curve if both[0].known and both[1].known]
            thin = {"color": color, "linewidth": 0.7, "alpha": 0.6}
            ax.hlines([d.value for _, d in known], [v.low for v, _ in known], [v.high for v, _ in known], **thin)
            ax.vlines([v.value for v, _ in known], [d.low for _, d in known], [d.high for _, d in known], **thin)
        ax.plot(*(rate.value for rate in oracle[name]), "k*", label="oracle", markersize=9)
        if oracle[name][0].known:
            ax.hlines(oracle[name][1].value, oracle[name][0].low, oracle[name][0].high, color="k", linewidth=0.7)
        ax.set(title=name, xlabel="verification rate", ylim=(-0.04, 1.25))
    axes[0, 0].set_ylabel("discard rate")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def settings(best: Mapping[str, Mapping[str, Interval]], fixed: Interval) -> Figure:
    """Draw the speed-up of SpecDec++ with each setting of its head, at the threshold that is best for it.

    Parameters
    ----------
    best : mapping
        By what is varied and by setting.
    fixed : Interval
        Speed-up of the best fixed length, whose interval is shaded.
    """
    labels = [label for some in best.values() for label in some]
    figure, ax = figures.new(7.0, 1.2 + 0.27 * len(labels))
    ax.axvline(fixed.value, color=_LINE, linestyle="--", linewidth=1, label="best fixed $K$")
    if fixed.known:
        ax.axvspan(fixed.low, fixed.high, color=_LINE, alpha=0.1, linewidth=0)
    row = 0
    for place, (title, some) in enumerate(best.items()):
        shown = {"linestyle": "", "marker": _MARKS[place], "color": figures.PALETTE[place]}
        ax.plot(figures.points(list(some.values())), range(row, row + len(some)), label=title, **shown)
        for y, speed in enumerate(some.values(), row):
            if speed.known:
                ax.hlines(y, speed.low, speed.high, color=figures.PALETTE[place], linewidth=1.2)
        row += len(some)
    ax.set_yticks(range(len(labels)), labels)
    ax.set(xlabel="speed-up over plain decoding")
    ax.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def lead_by_size(rows: Sequence[Row], quantity: str, ylabel: str) -> Figure:
    """Draw a quantity of the long study, greedy, against the size of the draft model, one line a set."""
    figure, ax = figures.new(6.4, 3.4)
    for place, name in enumerate(SETS):
        some = sorted(
            (row for row in rows if (row.set, row.quantity, row.temperature) == (name, quantity, 0.0)),
            key=lambda row: row.parameters,
        )
        at = [row.parameters / 1e6 * (1 + 0.02 * (place - 1)) for row in some]
        values, color = [row.interval for row in some], figures.PALETTE[place]
        ax.plot(at, figures.points(values), marker=_MARKS[place], color=color, label=name)
        figures.whiskers(ax, at, values, color)
    ax.axhline(0, color=_LINE, linestyle="--", linewidth=1)
    ax.set(xscale="log", xlabel="parameters of the draft model, millions", ylabel=ylabel)
    sizes = sorted({row.parameters / 1e6 for row in rows})
    ax.set_xticks(sizes, [f"{size:.1f}" for size in sizes])
    ax.set_xticks([], minor=True)
    ax.legend()
    return figure


def regions(states: Rounds, best: Solution, bound: Bound, level: int = 3) -> Figure:
    """Draw what continuing costs compared with stopping in the states of one level, and where each is cheaper.

    Parameters
    ----------
    states : Rounds
        Of a pair whose contexts are its last tokens.
    best : Solution
    bound : Bound
    level : int
        Candidates drafted so far.
    """
    from specdec_lib.chapters.ch05_specdec_pp.theory import threshold

    edge = threshold.frontier(states, best.decision, states.longest // 2)
    names = [f"after token {context + 1}" for context in range(states.pair.contexts)]
    figure, (left, right) = figures.new(8.4, 3.9, 2)
    left.axhline(0, color=_LINE, linewidth=1)
    for context, name in enumerate(names):
        here = states.contexts[level] == context
        saved = 1e3 * (best.decision.proceed[level][here] - best.decision.stop[level][here])
        shown = {"linestyle": "", "marker": _MARKS[context], "color": figures.PALETTE[context]}
        left.plot(1 - states.alive[level][here], saved, label=name, **shown)
        first = None if context else True
        right.barh(context, max(edge.continues_to[context], 0), color="#56b4e9", label=first and "continue is cheaper")
        right.barh(context, 2, left=edge.stops_from[context], color="#d55e00", label=first and "stop is cheaper")
    left.set(xlabel=f"$P$, one of {level} candidates refused", ylabel="continue less stop (ms)")
    right.axvline(bound.threshold, color="black", linestyle="--", label="threshold of the theorem")
    right.set(xlabel="$P$", xlim=(0, 1), yticks=range(len(names)), yticklabels=names)
    left.legend()
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=3, fontsize=9)
    return figure


def survey(found: pd.DataFrame) -> Figure:
    """Draw what each rule costs above the best policy on random pairs, and the theorem's threshold beside the needed one.

    Parameters
    ----------
    found : DataFrame
        Of :func:`specdec_lib.chapters.ch05_specdec_pp.theory.best_rules.survey`.
    """
    figure, (left, right) = figures.new(8.4, 3.9, 2)
    for place, (name, label) in enumerate(RULES.items()):
        excess = np.sort(found[name].clip(lower=1e-5))
        left.plot(excess, np.arange(1, len(excess) + 1) / len(excess), ("-", "--", "-.", ":")[place], label=label)
    left.set(xscale="log", xlabel="cost above the best policy (share)", ylabel="share of pairs", ylim=(0, 1.02))
    right.plot([0, 1], [0, 1], color=_LINE, linestyle="--", linewidth=1)
    right.plot(found.needed, found.threshold, "o", alpha=0.5, markersize=4, color=figures.PALETTE[0])
    words = ("threshold from which stop is right", "threshold of the theorem")
    right.set(xlabel=words[0], ylabel=words[1], xlim=(-0.02, 1), ylim=(0, 1.02))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    return figure


def throughput(found: Prediction, widths: Mapping[int, float]) -> Figure:
    """Draw predicted against measured throughput, and the time of a pass of the target against its width.

    Parameters
    ----------
    found : Prediction
    widths : mapping
        Milliseconds by width.
    """
    figure, (left, right) = figures.new(8.4, 3.5, 2)
    left.plot(found.measured, found.predicted, "o", color=figures.color("SpecDec"), alpha=0.6)
    both = np.concatenate(found)
    ends = [0.9 * both.min(), 1.05 * both.max()]
    left.plot(ends, ends, color=_LINE, linestyle="--", linewidth=1)
    left.set(xlabel="measured tokens per second", ylabel="predicted from passes and drafts")
    right.plot(list(widths), list(widths.values()), "s-", color=figures.color("SpecDec"))
    right.set(xlabel="tokens in the pass", ylabel="ms of a target pass")
    right.set_ylim(bottom=0)
    return figure
