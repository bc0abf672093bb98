"""Figures and tables of the chapter on dense and sparse retrieval, and the outline of a draft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import findings, measures, same_stores
from specdec_lib.experiments.published_numbers import GPU
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import charts, figures, ratio_charts
from specdec_lib.report.display.notices import Notice
from specdec_lib.report.display.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

    from specdec_lib import Generation
    from specdec_lib.datastores import SuffixIndex
    from specdec_lib.decoding.results import Step
    from specdec_lib.experiments.recorded_runs import Recording
    from specdec_lib.experiments.retrieval import Bias

#: What each store holds, by its name in the chapter.
HOLDS = {
    "packages": "other people's Python",
    "stdlib": "Python like the training text",
    "prose": "prose of docstrings",
    "right answers": "prompts with the right answers",
    "own": "prompts with the target's own greedy answers",
    "own, first task": "the same, code prompts only",
    "own, sampled": "code prompts with one sampled answer each",
}
#: The axes of alignment in words, with the stores that lack it and have it.
AXES = {
    "response": "response, code:\nright answers → own",
    "response_editing": "response, editing:\nright answers → own",
    "prompt": "prompt, code:\nprose → Python",
    "sampling": "sampling, code:\ngreedy answers → sampled",
}
_VERSIONS = {"rest": "REST", "one": "REST, n from 1", "run": "REST, as DReSD ran it", "dresd": "DReSD"}
_HEADINGS = {"rest": "REST", "one": "n from 1", "run": "as DReSD ran it", "dresd": "DReSD"}
_SETTING = {"prompts": "Prompts (number that count)", "store": "Store"}
#: Why fewer prompts count than were decoded.
COUNTED = "A prompt counts if its output has a second token; the first comes from the pass over the prompt."
#: Markers of the series of one panel; a hollow one of the same colour is another version of the same method.
_MARKS = ("o", "D", "s", "^")


# The outline of a draft ------------------------------------------------------------------------------------------


def outline(prompt: Sequence[int], run: Generation, tokenizer: PreTrainedTokenizerBase, lines: int = 12) -> str:
    """The first draft of a run as an indented text: one line a branch, ``+`` before tokens that the target accepted.

    Parameters
    ----------
    prompt : sequence of int
    run : Generation
        A run on this prompt.
    tokenizer : PreTrainedTokenizerBase
    lines : int
        At most so many branches are written; the last line says how many tokens are left out.
    """
    emitted = 1
    for number, step in enumerate(run.steps, start=1):
        if step.drafted:
            text = tokenizer.decode([*prompt, *run.tokens[:emitted]])[-40:]
            head = f"Step {number}, after {text!r}: {step.drafted} tokens drafted, {step.accepted} accepted."
            return "\n".join([head, *_branches(step, tokenizer, lines)])
        emitted += len(step.tokens)
    return f"No draft in {len(run.steps)} steps."


def _branches(step: Step, tokenizer: PreTrainedTokenizerBase, lines: int) -> Iterator[str]:
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(step.tree.parents):
        below.setdefault(parent, []).append(node)
    waiting = [(node, 0) for node in reversed(below.get(-1, []))]
    written = shown = 0
    while waiting and written < lines:
        node, depth = waiting.pop()
        accepted, chain = node in step.path, [node]
        # A token with a single successor of the same fate shares its line.
        while len(below.get(chain[-1], [])) == 1 and (below[chain[-1]][0] in step.path) == accepted:
            chain.append(below[chain[-1]][0])
        waiting += [(child, depth + 1) for child in reversed(below.get(chain[-1], []))]
        text = tokenizer.decode([step.tree.tokens[each] for each in chain])
        yield f"{'+' if accepted else ' '} {'    ' * depth}{text!r}"
        written, shown = written + 1, shown + len(chain)
    if shown < len(step.tree):
        yield f"  ... and {len(step.tree) - shown} more tokens"


# Figures ---------------------------------------------------------------------------------------------------------


def answer(ratios: Mapping[str, Mapping[str, Interval]], published: Mapping[str, str]) -> Figure:
    """Draw DReSD over each version of REST in every quantity, and what DReSD's paper reports.

    Parameters
    ----------
    ratios : mapping
        Of :func:`specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.same_stores.ratios`.
    published : mapping
        Values of DReSD's numbers by their names.
    """
    paper = {"acceptance rate": published["mar-gain"], "accepted tokens a draft": published["length-gain"]}
    cases = {}
    for words, by_version in ratios.items():
        shown = {f"over {version}": ratio for version, ratio in by_version.items()}
        gain = float(paper[words]) / 100 + 1 if words in paper else float("nan")
        cases[words] = {"DReSD's paper": Interval(gain, float("nan"), float("nan")), **shown}
    figure = ratio_charts.ratios(cases, "DReSD over REST (1: no difference)")
    figure.legends[0].remove()  # its four entries are wider than the figure
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def dots(
    content: Mapping[str, Mapping[str, Mapping[str, Interval]]],
    xlabel: str,
    reference: float | None = None,
    percent: bool = False,
) -> Figure:
    """Draw panels of dots with whiskers in two columns, one line a row and one mark a series.

    Parameters
    ----------
    content : mapping
        By title of the panel and by row, the same in all panels: by series the value. A series is a method, which gives
        the colour, or ``"method, variant"``.
    xlabel : str
    reference : float, optional
        Where an upright line stands.
    percent : bool
        Whether the values are shares.
    """
    rows = list(next(iter(content.values())))
    series = list(dict.fromkeys(name for panel in content.values() for row in panel.values() for name in row))
    figure, axes = _panels(len(content), 1.0 + 0.5 * len(rows))
    for ax, (title, panel) in zip(axes, content.items(), strict=False):
        for place, name in enumerate(series):
            shift = (place - (len(series) - 1) / 2) * 0.7 / len(series)
            drawn = [(i + shift, panel[row][name]) for i, row in enumerate(rows) if name in panel.get(row, {})]
            _marks(ax, drawn, name, _MARKS[place % len(_MARKS)])
        _finish(ax, title, rows, xlabel, reference, percent)
    figures.legend_below(figure, *axes[0].get_legend_handles_labels())
    return figure


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Axes in two columns with one scale; those that stay empty are not seen."""
    columns = min(2, count)
    figure, axes = figures.new(
        7.6, height * -(-count // columns) + 0.5, columns, -(-count // columns), sharey=True, squeeze=False
    )
    for ax in axes.flat[count:]:
        ax.set_visible(False)
    return figure, list(axes.flat)


def _marks(
    ax: Axes, drawn: Sequence[tuple[float, Interval]], label: str, mark: str, hollow: bool | None = None
) -> None:
    """Marks with whiskers; those of a ``"method, variant"`` are hollow unless ``hollow`` says otherwise."""
    method, _, variant = label.partition(", ")
    color = figures.color(method)
    ax.plot(
        [value.value for _, value in drawn],
        [y for y, _ in drawn],
        linestyle="",
        marker=mark,
        color=color,
        markerfacecolor="white" if (bool(variant) if hollow is None else hollow) else color,
        label=label,
        zorder=3,
    )
    for y, value in drawn:
        if value.known:
            ax.hlines(y, value.low, value.high, color=color, linewidth=1.3)


def _finish(
    ax: Axes, title: str, rows: Sequence[str], xlabel: str, reference: float | None, percent: bool = False
) -> None:
    from matplotlib.ticker import PercentFormatter

    ax.set_yticks(range(len(rows)), rows)
    if ax.get_ylim()[0] < ax.get_ylim()[1]:  # panels share their scale, which is turned round once
        ax.invert_yaxis()
    ax.set(title=title, xlabel=xlabel)
    ax.grid(axis="y", visible=False)
    if reference is not None:
        ax.axvline(reference, color="#444444", linestyle="--", linewidth=1)
    if percent:
        ax.xaxis.set_major_formatter(PercentFormatter(1.0))


def tokens_per_pass(rates: pd.DataFrame) -> Figure:
    """Draw the tokens per pass of DReSD and three versions of REST, one panel a kind of prompts and way of decoding.

    Parameters
    ----------
    rates : DataFrame
        Of :func:`specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.same_stores.rates`.
    """
    shown = rates[rates.method.isin(_VERSIONS.values())]
    content: dict[str, dict[str, dict[str, Interval]]] = {}
    for (group, way, store, method), value in _by(shown, "tokens_per_pass"):
        content.setdefault(f"{group}, {way}", {}).setdefault(store, {})[method] = value
    return dots(content, "tokens per pass (plain decoding: 1)", 1.0)


def _by(rates: pd.DataFrame, what: str) -> Iterator[tuple[tuple[str, str, str, str], Any]]:
    keys = rates[["group", "way", "store", "method"]].itertuples(index=False, name=None)
    return zip(keys, rates[what], strict=True)


def against_size(
    curves: Mapping[str, Mapping[str, charts.Curve]],
    ylabel: str,
    reference: float | None = None,
    height: float = 4.0,
) -> Figure:
    """Draw panels of lines against the size of the store, on a logarithmic scale.

    Parameters
    ----------
    curves : mapping
        As for :func:`specdec_lib.report.display.charts.panels`.
    ylabel : str
    reference : float, optional
        Height of a dashed line.
    height : float
        In inches.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = charts.panels(curves, "tokens stored", ylabel, height=height)
    for ax in figure.axes:
        ax.set_xscale("log")
        low, high = ax.get_xlim()
        if high < 10 * low:  # powers of ten are too far apart, and the labels between them run into each other
            ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
            ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            ax.xaxis.set_minor_formatter(NullFormatter())
        if reference is not None:
            ax.axhline(reference, color="#444444", linestyle="--", linewidth=1)
    return figure


def leads(counts: pd.DataFrame) -> Figure:
    """Draw DReSD's tokens per pass over those of REST by size of the store, one panel a way of decoding."""
    curves = {
        way: {f"DReSD, {store}": same_stores.lead_by_size(rows) for store, rows in of_way.groupby("store", sort=False)}
        for way, of_way in counts.groupby("way", sort=False)
    }
    return against_size(curves, "tokens per pass, DReSD over REST", 1.0, 4.2)


def alignment(rows: pd.DataFrame) -> Figure:
    """Draw rates before (hollow) and after (filled) the alignment of the store, acceptance above tokens per pass.

    Parameters
    ----------
    rows : DataFrame
        Of :func:`specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.findings.alignment`.
    """
    axes_shown, ways = list(dict.fromkeys(rows.axis)), list(dict.fromkeys(rows.way))
    figure, axes = _panels(2 * len(ways), 1.2 + 0.7 * len(axes_shown))
    quantities = (("before", "after", "acceptance rate", True), ("before_tpf", "after_tpf", "tokens per pass", False))
    panels = [(quantity, way) for quantity in quantities for way in ways]
    for ax, ((before, after, words, share), way) in zip(axes, panels, strict=False):
        of_way = rows[rows.way == way]
        for shift, method, mark in ((-0.2, "REST", "o"), (0.2, "DReSD", "s")):
            own = of_way[of_way.method == method].set_index("axis").loc[axes_shown]
            # One above the other: both intervals are seen where they overlap.
            upper, lower = ([i + shift + step for i in range(len(own))] for step in (-0.08, 0.08))
            for y, old, z, new in zip(upper, own[before], lower, own[after], strict=True):
                ax.plot([old.value, new.value], [y, z], color=figures.color(method), linewidth=0.8, alpha=0.6)
            _marks(ax, list(zip(upper, own[before], strict=True)), f"{method}, before", mark)
            _marks(ax, list(zip(lower, own[after], strict=True)), f"{method}, after", mark, hollow=False)
        _finish(ax, f"{words}, {way}", [AXES[axis] for axis in axes_shown], words, None if share else 1.0, share)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def design(effects: Mapping[tuple[str, str], Mapping[str, Interval]]) -> Figure:
    """Draw what each alignment multiplies tokens per pass by, and all three over their product.

    Parameters
    ----------
    effects : mapping
        Of :func:`specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.findings.effects`.
    """
    words = {
        "prompt": "prompt",
        "response": "response",
        "sampling": "sampling",
        "product": "all three over\ntheir product",
    }
    content: dict[str, dict[str, dict[str, Interval]]] = {}
    for (way, method), found in effects.items():
        for key, label in words.items():
            content.setdefault(way, {}).setdefault(label, {})[method] = found[key]
    return dots(content, "ratio of tokens per pass", 1.0)


def shapes(swept: Mapping[tuple[str, str], Mapping[int, pd.DataFrame]]) -> Figure:
    """Draw DReSD's tokens per pass by the length of ten drafts, and by the number of drafts of ten tokens."""
    titles = {"length": "10 drafts, by length", "number": "drafts of 10 tokens, by number"}
    curves: dict[str, dict[str, charts.Curve]] = {}
    for (what, way), counts in swept.items():
        curves.setdefault(titles[what], {})[f"DReSD, {way}"] = _curve(counts)
    return charts.panels(curves, "draft length, or number of drafts", "tokens per pass", integers=True)


def _curve(counts: Mapping[int, pd.DataFrame]) -> charts.Curve:
    return list(counts), [measures.rate(rows) for rows in counts.values()]


def sizes(stored: Sequence[int], grown: Mapping[tuple[str, str], Mapping[int, pd.DataFrame]]) -> Figure:
    """Draw REST's tokens per pass by size of the store, one panel a kind of prompts."""
    curves: dict[str, dict[str, charts.Curve]] = {}
    for (way, kind), counts in grown.items():
        curves.setdefault(kind, {})[f"REST, {way}"] = stored, _curve(counts)[1]
    return against_size(curves, "tokens per pass")


def ablations(
    by_ngram: Mapping[tuple[str, str], Mapping[int, pd.DataFrame]],
    by_nodes: Mapping[str, Mapping[int, pd.DataFrame]],
) -> Figure:
    """Draw REST's tokens per pass by the longest suffix that is looked up and by the number of nodes."""
    curves = {
        "longest suffix looked up, $n_{max}$": {f"REST, {way}, {how}": _curve(c) for (way, how), c in by_ngram.items()},
        "nodes drafted, $c$": {f"REST, {way}, lexicographic": _curve(counts) for way, counts in by_nodes.items()},
    }
    figure = charts.panels(curves, "tokens", "tokens per pass", integers=True)
    figure.axes[1].set_xticks([0, 64, 128, 192, 256])
    return figure


def at_scale(counts: pd.DataFrame) -> Figure:
    """Draw REST's tokens per pass on recorded outputs by size of the store, chat and code."""
    return against_size(findings.scale_curves(counts), "tokens per pass, our tokens", height=4.6)


# Tables and boxes ------------------------------------------------------------------------------------------------


def stores_table(held: Mapping[str, Any]) -> Table:
    """The stores that both methods search, with their sizes."""
    rows = [
        {"store": name, "holds": HOLDS[name], "documents": len(index.store), "tokens": index.store.count}
        for name, index in held.items()
    ]
    return Table(
        pd.DataFrame(rows),
        name="tab-retrieval-stores",
        caption="Stores that both methods search.",
        columns={"store": "Store", "holds": "Holds", "documents": "Documents", "tokens": "Tokens"},
        formats={"documents": ",d", "tokens": ",d"},
    )


def _side_by_side(rates: pd.DataFrame, what: str, methods: Mapping[str, str]) -> pd.DataFrame:
    """One row a setting, each column a rate of one method."""
    columns = {
        name: rates[rates.method == method].set_index(["group", "way", "store"])[what]
        for name, method in methods.items()
    }
    rows = pd.DataFrame(columns).reset_index()
    counted = rates.groupby(["group", "way", "store"]).prompts.max()
    places = zip(rows.group, rows.way, rows.store, strict=True)
    return rows.assign(prompts=[f"{group}, {way} ({counted[group, way, store]})" for group, way, store in places])


def matched_table(rates: pd.DataFrame) -> Table:
    """Tokens per pass by setting and method."""
    return Table(
        _side_by_side(rates, "tokens_per_pass", _VERSIONS),
        name="tab-retrieval-matched",
        caption="Tokens per pass of REST (64 nodes) and DReSD (10 drafts of 6 tokens) on the largest of the shared stores. "
        f"{COUNTED}",
        columns={**_SETTING, **_HEADINGS},
        formats=dict.fromkeys(_VERSIONS, ".2f"),
    )


def acceptance_table(rates: pd.DataFrame) -> Table:
    """Acceptance rates at equal depth by setting and method."""
    equal = {name: method if name == "dresd" else f"{method}, 6 deep" for name, method in _VERSIONS.items()}
    return Table(
        _side_by_side(rates, "rate", equal),
        name="tab-retrieval-acceptance",
        caption="Acceptance rate with drafts of at most 6 tokens: accepted tokens over the depth of the draft. "
        f"{COUNTED}",
        columns={**_SETTING, **_HEADINGS},
        formats=dict.fromkeys(equal, ".1%"),
    )


def drafting_table(rates: pd.DataFrame) -> Table:
    """Share of the passes that verify a draft, by setting and method."""
    methods = {name: _VERSIONS[name] for name in ("rest", "one", "dresd")}
    return Table(
        _side_by_side(rates, "drafting", methods),
        name="tab-retrieval-length",
        caption=f"Share of the passes that verify a draft. {COUNTED}",
        columns={**_SETTING, **{name: _HEADINGS[name] for name in methods}},
        formats=dict.fromkeys(methods, ".0%"),
    )


def lead_table(counts: pd.DataFrame, about: Mapping[str, Any] | None) -> Table:
    """The lead by size of the store; ``about`` says where committed counts come from."""
    columns = {"store": "Store", "way": "Decoding", "size": "Tokens", "prompts": "Prompts that count"}
    return Table(
        same_stores.lead_rows(counts),
        name="tab-retrieval-lead",
        caption=f"Tokens per pass of DReSD over those of REST, by size of the store. {COUNTED}{_origin(about)}",
        columns={**columns, "rest": "over REST", "one": "over REST, n from 1"},
        formats={"size": ",d", "rest": ".2f", "one": ".2f"},
    )


def _origin(about: Mapping[str, Any] | None) -> str:
    if about is None:
        return ""
    return (
        f" Committed rows: `{about['command']}`, commit {about['commit'][:12]}, {about['date']}, "
        f"{about['machine']['processor']}."
    )


def dense_rows_notice(about: Mapping[str, Any] | None) -> Notice | None:
    """A box that says how far the sizes go where no rows of larger dense stores are committed."""
    if about is not None:
        return None
    return Notice(
        "Not recorded at scale",
        "Larger dense stores are measured for the pocket target alone. The figure shows the stores of this run; larger "
        "`dense_sizes` measure more. For the pocket target, `python -m specdec_lib retrieval dresd` makes the rows again "
        "in about an hour.",
        "note",
    )


def crossing_notice(lines: Mapping[str, Any]) -> Notice:
    """A box that says at which size of the store the lines through both methods' rates cross, or why there is none.

    Parameters
    ----------
    lines : mapping
        Of :func:`specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.same_stores.recorded_lines`.
    """
    crossing = lines["lead_ends_tokens_rest"]
    if lines["lead_sizes"] < 2:
        said = (
            "This run has one size of that store, and no line goes through a single size. So it gives no ratio either."
        )
        return Notice("No line to carry on", said, "note")
    if isinstance(crossing, Interval):
        said = (
            "In ordinary text, DReSD's line and that of REST with matches from two tokens on cross at "
            f"{crossing:,.0f} tokens."
        )
        return Notice("Where the lead would end", said, "note")
    return Notice(
        "These lines do not say where the lead ends",
        "Either the two lines do not cross at a size that a store could have, or the interval of that size has no end.",
        "note",
    )


def alignment_table(rows: pd.DataFrame) -> Table:
    """Rates before and after each alignment."""
    words = {axis: label.replace("\n", " ") for axis, label in AXES.items()}
    return Table(
        rows.assign(axis=rows.axis.map(words)),
        name="tab-retrieval-alignment",
        caption="Acceptance rate and tokens per pass with stores that differ along one axis. REST's drafts are not cut to the "
        "depth of DReSD's here, so its rates are lower than at equal depth.",
        columns={
            "axis": "Alignment",
            "way": "Decoding",
            "method": "Method",
            "before": "Rate",
            "after": "after",
            "gain": "Ratio",
            "gain_tpf": "Ratio of tokens per pass",
        },
        formats={"before": ".1%", "after": ".1%", "gain": ".2f", "gain_tpf": ".2f"},
    )


def design_table(
    effects: Mapping[tuple[str, str], Mapping[str, Interval]], about: Mapping[str, Any] | None = None
) -> Table:
    """What each alignment multiplies tokens per pass by; ``about`` says where committed counts come from."""
    names = {"prompt": "Prompt", "response": "Response", "sampling": "Sampling", "product": "All over product"}
    return Table(
        pd.DataFrame([{"way": way, "method": method, **found} for (way, method), found in effects.items()]),
        name="tab-retrieval-design",
        caption="What each alignment multiplies tokens per pass by, the mean over the other two; and the gain of all three "
        f"over the product of each alone, which is 1 where they multiply.{_origin(about)}",
        columns={"way": "Decoding", "method": "Method", **names},
        formats=dict.fromkeys(names, ".2f"),
    )


def shape_table(rows: pd.DataFrame) -> Table:
    """DReSD's shapes and REST on code."""
    return Table(
        rows,
        name="tab-retrieval-shape",
        caption="DReSD's shapes on code with the target's own greedy answers stored; nodes are those of the merged tree. "
        f"{COUNTED}",
        columns={
            "way": "Decoding",
            "shape": "Shape",
            "prompts": "Prompts that count",
            "nodes": "Nodes a draft",
            "prompt_rate": "Acceptance rate",
            "accepted": "Accepted a draft",
            "tokens_per_pass": "Tokens per pass",
        },
        formats={"prompts": ",d", "nodes": ".1f", "prompt_rate": ".1%", "accepted": ".2f", "tokens_per_pass": ".2f"},
    )


def variant_table(rows: pd.DataFrame, stored: int) -> Table:
    """Variants of REST on code."""
    return Table(
        rows,
        name="tab-retrieval-selection",
        caption=f"Variants of REST on code, {stored:,} tokens stored. {rows.greedy_prompts.max():,d} prompts count greedily, "
        f"{rows.nucleus_prompts.max():,d} sampled. {COUNTED}",
        columns={
            "variant": "Variant",
            "greedy": "Tokens per pass, greedy",
            "greedy_nodes": "nodes a draft",
            "microseconds": "µs of drafting a token",
            "nucleus": "Tokens per pass, nucleus",
            "nucleus_nodes": "nodes a draft",
        },
        formats={
            "greedy": ".2f",
            "nucleus": ".2f",
            "greedy_nodes": ".1f",
            "nucleus_nodes": ".1f",
            "microseconds": ".0f",
        },
        timed=["microseconds"],
    )


def bias_table(by_rule: Mapping[str, Bias]) -> Table:
    """How far the released sampling rules move the next token's distribution."""
    names = {"rest": "REST", "dresd": "DReSD, 10 x 10"}
    return Table(
        pd.DataFrame([{"rule": names[rule], **bias._asdict()} for rule, bias in by_rule.items()]),
        name="tab-retrieval-bias",
        caption="Total variation distance of the next token's distribution under the released sampling rules from the "
        "target's, over steps with a draft.",
        columns={
            "rule": "Rule",
            "steps": "Steps",
            "mean": "Mean distance",
            "largest": "Largest",
            "accepted": "Accepted a step, this rule",
            "accepted_exactly": "one draw a node",
        },
        formats=dict.fromkeys(("mean", "largest", "accepted", "accepted_exactly"), ".3f"),
    )


def lossless_table(compared: pd.DataFrame) -> Table:
    """Outputs compared with plain decoding."""
    return Table(
        compared,
        name="tab-retrieval-lossless",
        caption="Outputs compared with plain decoding, token for token.",
        columns={
            "method": "Method",
            "way": "Decoding",
            "outputs": "Outputs",
            "tokens": "Tokens compared",
            "differ": "Outputs that differ",
            "rounding": "of these by rounding",
        },
    )


def time_table(rows: pd.DataFrame, decoded: Sequence[Recording], rest: SuffixIndex, dresd: SuffixIndex) -> Table:
    """Speed-ups on this machine with intervals over the outputs.

    Parameters
    ----------
    rows : DataFrame
        Of :func:`specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.findings.times`.
    decoded : sequence of Recording
        What was decoded.
    rest, dresd : SuffixIndex
        The stores of both methods.
    """
    return Table(
        rows,
        name="tab-retrieval-time",
        caption=f"Greedy code completion on this machine: {len(decoded)} outputs, {sum(r.looped for r in decoded)} of them in a "
        f"loop. REST has {rest.store.count:,} tokens stored, DReSD {dresd.store.count:,} (3 drafts of 20). "
        "Intervals are over outputs.",
        columns={
            "method": "Method",
            "tokens_per_pass": "Tokens per pass",
            "rate": "Tokens a second",
            "speedup": "Speed-up",
            "draft_ms": "Drafting, ms a token",
            "draft_share": "Share of time drafting",
        },
        formats={"tokens_per_pass": ".2f", "rate": ".0f", "speedup": ".2f", "draft_ms": ".3f", "draft_share": ".1%"},
        timed=["rate", "speedup", "draft_ms", "draft_share"],
    )


def price_table(rows: pd.DataFrame, about: Mapping[str, Any]) -> Table:
    """Tokens per pass on recorded outputs, and the speed-ups at three prices of a pass.

    Parameters
    ----------
    rows : DataFrame
        Of :func:`specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.rest_at_scale.price_rows`.
    about : mapping
        Where the counts come from.
    """
    return Table(
        rows,
        name="tab-retrieval-prices",
        timed=["here"],
        caption="REST from the largest store: tokens per pass (chat: in ours and in Llama's), and the speed-up at the prices "
        "of passes of this machine's pocket target, at REST's own price of a step, and at a GPU's "
        f"({', '.join(GPU)}).{_origin(about)}",
        columns={
            "case": "Outputs",
            "prompts": "Prompts",
            "stored": "Tokens stored",
            "ours": "Tokens per pass, in our tokens",
            "tokens": "in Llama's (chat)",
            "here": "Speed-up here",
            "rest": "REST's price",
            "gpu": "GPU",
        },
        formats={"stored": ",d", **dict.fromkeys(("ours", "tokens", "here", "rest", "gpu"), ".2f")},
    )
