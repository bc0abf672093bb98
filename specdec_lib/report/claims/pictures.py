"""The two figures of the ledger: "What reproduces", and for each paper which conditions of its claims are true."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_lib.report.claims import ledger, rules
from specdec_lib.report.claims.ledger import Entry, HeadlineRow
from specdec_lib.report.claims.rules import Truth
from specdec_lib.report.display import forest

VERDICT_MARKS = {
    rules.HOLDS: "●",
    rules.PARTLY: "◐",
    rules.FAILS: "○",
    rules.UNRESOLVED: "?",
    rules.UNTESTABLE: "–",
    rules.NO_NUMBER: "…",
}
"""The signs before a verdict, as the style sheet of the pages has them."""

PRICE_KINDS = {
    "here": forest.Kind(rules.PRICES["here"], "square", "orange"),
    "gpu": forest.Kind(rules.PRICES["gpu"], "circle", "blue"),
    "rest": forest.Kind(rules.PRICES["rest"], "up", "green"),
    "rest-carried": forest.Kind(rules.PRICES["rest-carried"], "up", "green", filled=False),
    "specdec-pp": forest.Kind(rules.PRICES["specdec-pp"], "diamond", "pink"),
    "counts": forest.Kind(rules.PRICES["counts"], "cross", "ink"),
}
TRUTH_KINDS = {
    "true": forest.Kind("true", "circle", "blue"),
    "false": forest.Kind("false", "square", "orange"),
    "open": forest.Kind("not resolved: the interval holds the line", "diamond", "quiet", filled=False),
}
_TRUTHS = {Truth.TRUE: "true", Truth.FALSE: "false", Truth.OPEN: "open"}
TIMES = forest.Scale(0.35, 8, (0.5, 1, 2, 4, 8), "worse", "better")
LEAD = forest.Scale(0.4, 4, (0.5, 1, 2, 4), "against", "as claimed")


def _mark(mark: ledger.Mark) -> forest.Mark:
    low, high = rules.bounds(mark.value)
    return forest.Mark(rules.centre(mark.value), low, high, mark.price, rules.PRICES[mark.price])


def _verdict(words: str) -> str:
    return f"{VERDICT_MARKS[words]} {words}"


def headline_groups(rows: Sequence[HeadlineRow]) -> dict[str, list[forest.Row]]:
    """The rows of "What reproduces" that have a number of ours, by paper."""
    groups: dict[str, list[forest.Row]] = {name: [] for name in ledger.PAPERS.values()}
    for row in rows:
        if row.drawn:
            marks = tuple(map(_mark, row.drawn))
            drawn = forest.Row(row.label, marks, row.published, _verdict(row.verdict))
            groups[ledger.PAPERS[row.paper]].append(drawn)
    return {name: group for name, group in groups.items() if group}


def lacking(rows: Sequence[HeadlineRow]) -> list[str]:
    """The rows, or the prices of a row, that have no number yet, by name."""
    names = []
    for row in rows:
        prices = [rules.PRICES[mark.price] for mark in row.marks if mark not in row.drawn]
        if prices:
            names.append(f"{ledger.PAPERS[row.paper]}: {row.label}" + (f" ({'; '.join(prices)})" if row.drawn else ""))
    return names


def in_words(rows: Sequence[HeadlineRow]) -> str:
    """What "What reproduces" shows, row by row."""
    said = []
    for row in rows:
        if row.drawn:
            paper = f"published {forest.span(row.published)}" if row.published else "not published"
            ours = ", ".join(f"here {_mark(mark)} at {rules.PRICES[mark.price]}" for mark in row.drawn)
            said.append(f"{ledger.PAPERS[row.paper]}, {row.label}: {paper}, {ours}, {row.verdict}")
    return "Published numbers and ours with 95 % intervals, on one axis of ratios. " + ". ".join(said) + "."


def reproduces(rows: Sequence[HeadlineRow]) -> str:
    """The figure "What reproduces" for a page; empty while no row has a number."""
    if not any(row.drawn for row in rows):
        return ""
    return forest.for_page({"wide": _reproduces(rows, forest.WIDE), "phone": _reproduces(rows, forest.PHONE)})


def _reproduces(rows: Sequence[HeadlineRow], layout: forest.Layout, alone: bool = False) -> str:
    groups = headline_groups(rows) or {"No headline has a number yet": []}
    return forest.draw(groups, PRICE_KINDS, TIMES, in_words(rows), layout, alone)


def reproduces_alone(rows: Sequence[HeadlineRow]) -> dict[str, str]:
    """The same as files of their own for the README: wide, and for a phone."""
    layouts = {"wide": forest.WIDE, "phone": forest.PHONE}
    return {name: _reproduces(rows, layout, alone=True) for name, layout in layouts.items()}


def _label(entry: Entry) -> str:
    item = next(iter(entry.claim.items.items()), None)
    return f"{item[0]}: {item[1]}" if item else f"{entry.claim.where}: {entry.claim.claim}"


def directions(entries: Sequence[Entry]) -> tuple[list[forest.Row], list[Entry]]:
    """The rows of a paper's figure, and the claims that it cannot show: no condition of theirs compares an interval.

    A condition is drawn as how far its claimed side is ahead, so 1 is the threshold and the right is as claimed.
    """
    rows, rest = [], []
    for entry in entries:
        marks = []
        for condition, truth in entry.verdict.conditions:
            lead = condition.lead(entry.verdict.ours)
            if lead is not None and truth in _TRUTHS:
                words = f"{truth.value}: {condition.words(entry.claim.ours)}; the claimed side is ahead by a factor of"
                marks.append(forest.Mark(*lead, _TRUTHS[truth], words))
        if marks:
            href, verdict = f"#claim-{entry.claim.id}", _verdict(entry.verdict.verdict)
            rows.append(forest.Row(_label(entry), tuple(marks), None, verdict, href))
        else:
            rest.append(entry)
    return rows, rest


def direction_plot(paper: str, rows: Sequence[forest.Row]) -> str:
    """The figure of one paper for a page."""
    said = ". ".join(f"{row.label}: {row.verdict[2:]}" for row in rows)
    words = f"{paper}: how far the claimed side of each condition is ahead, with 95 % intervals. {said}."
    layouts = {"wide": forest.WIDE_WITHOUT_NUMBERS, "phone": forest.PHONE_WITHOUT_NUMBERS}
    return forest.for_page(
        {name: forest.draw({"": rows}, TRUTH_KINDS, LEAD, words, layout) for name, layout in layouts.items()}
    )
