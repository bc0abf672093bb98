"""What Sphinx has to know for "What reproduces" and for the figures of the claims.

``{what-reproduces}`` is the figure, with the rows that have no number named below it, ``{what-reproduces-table}`` the
table, ``{claims-forest}`` a figure for each paper. ``{holds-if}`` holds sentences that presume verdicts: it names them,
and where a run gives another verdict the page says so below the sentences.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives as options
from sphinx.application import Sphinx

from specdec_lib.report.build.directives import FromLedger, inline, make_table, verdict_words
from specdec_lib.report.claims import ledger, pictures, rules
from specdec_lib.report.claims.ledger import Entry, HeadlineRow, Mark
from specdec_lib.report.claims.rules import ClaimError
from specdec_lib.report.display import forest

_HEADINGS = ("Headline and its claim", "Published", "Ours", "Size", "Direction")
_WIDTHS = (30, 14, 26, 14, 16)
#: A headline's interval that reaches further than this to either side is named as wide.
WIDE = 0.02
CSV_COLUMNS = ("paper", "headline", "claim", "published_low", "published_high")
CSV_COLUMNS += ("price", "recorded", "value", "low", "high", "times_published", "direction")


def size_words(mark: Mark, row: HeadlineRow) -> str:
    """The verdict on a size: whether our interval holds the published number, else how many times as large ours is."""
    if row.published is None:
        return "not published"
    if mark.off is None:
        return rules.NO_NUMBER
    return "as published" if mark.off == 1 else f"{mark.off:.2f} times"


def spread(value: Any) -> float | None:
    """Half the width of a value's interval in relation to the value; None without an interval or of a value of 0."""
    ends = rules.bounds(value)
    return (ends[1] - ends[0]) / 2 / abs(rules.centre(value)) if ends and rules.centre(value) else None


def _ours(mark: Mark) -> nodes.paragraph:
    price = inline(f" {rules.PRICES[mark.price]}", "headline-price")
    made = nodes.paragraph("", "", nodes.strong("", ledger.shown(mark.value, ".2f")), price)
    wide = spread(mark.value)
    if wide is not None and wide > WIDE:
        made += inline(f", ± {wide:.0%}", "headline-wide")
    return made


def headlines_table(rows: Sequence[HeadlineRow], link: Callable[[str, str], nodes.reference]) -> nodes.table:
    """Return the table below the figure, with a line for each of our numbers.

    Parameters
    ----------
    rows : sequence of HeadlineRow
    link : callable
        Gives a reference to the row of a claim, of an id and words.
    """
    lines = []
    for row in rows:
        head = nodes.paragraph("", "", inline(ledger.PAPERS[row.paper], "claim-paper"), nodes.Text(" "))
        head += link(row.claim, row.label)
        published = nodes.paragraph("", forest.span(row.published) if row.published else "not published")
        first, last = [head, published], [nodes.paragraph("", "", verdict_words(row.verdict))]
        for place, mark in enumerate(row.marks):
            own = [nodes.entry("", cell) for cell in (_ours(mark), nodes.paragraph("", size_words(mark, row)))]
            if place == 0:
                # What is said once for the headline stands next to all of its numbers.
                before, after = (
                    [nodes.entry("", cell, morerows=len(row.marks) - 1) for cell in cells] for cells in (first, last)
                )
                own = [*before, *own, *after]
            lines.append(nodes.row("", *own))
    caption = "Published headlines and ours, with the two verdicts"
    return make_table(_HEADINGS, lines, _WIDTHS, caption, ["headlines"])


def to_csv(rows: Sequence[HeadlineRow]) -> str:
    """Return the table with a line for each of our numbers; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in rows:
        for mark in row.marks:
            ends = rules.bounds(mark.value)
            numbers = (rules.centre(mark.value), *ends) if ends else ("", "", "")
            known = ("" if mark.off is None else mark.off, row.verdict)
            about = (row.paper, row.label, row.claim, *(row.published or ("", "")))
            writer.writerow([*about, rules.PRICES[mark.price], mark.name, *numbers, *known])
    return out.getvalue()


def presumed(argument: str, entries: Sequence[Entry]) -> list[tuple[Entry, list[str]]]:
    """Return what ``claim: verdict or verdict; claim: verdict`` presumes: each claim with the verdicts it may have.

    Raises
    ------
    ClaimError
        There is no such claim or no such verdict.
    """
    by_id = {entry.claim.id: entry for entry in entries}
    made = []
    for part in argument.split(";"):
        name, _, words = (text.strip() for text in part.partition(":"))
        verdicts = re.split(r"\s+or\s+", words)
        if name not in by_id:
            raise ClaimError(f"holds-if: there is no claim {name!r} in data/claims.yml")
        unknown = [verdict for verdict in verdicts if verdict not in ledger.VERDICTS]
        if unknown:
            raise ClaimError(f"holds-if: {unknown[0]!r} is no verdict; expected one of {', '.join(ledger.VERDICTS)}")
        made.append((by_id[name], verdicts))
    return made


def contradicted(argument: str, entries: Sequence[Entry]) -> list[tuple[Entry, list[str]]]:
    """Return what :func:`presumed` gives without the claims that have a verdict that they may have."""
    return [
        (entry, verdicts) for entry, verdicts in presumed(argument, entries) if entry.verdict.verdict not in verdicts
    ]


class _Headlines(FromLedger):
    """A directive on another page than the ledger's."""

    def link(self, claim: str, words: str = "") -> nodes.reference:
        """A link to the row of a claim on the page of claims, by its id or by words."""
        page = self.env.app.builder.get_relative_uri(self.env.docname, "claims")
        text = nodes.Text(words) if words else nodes.literal("", claim)
        return nodes.reference("", "", text, internal=True, refuri=f"{page}#claim-{claim}")


class WhatReproduces(_Headlines):
    """``{what-reproduces}``: the figure, and the rows without a number by name."""

    option_spec = {"name": options.unchanged}
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        rows = ledger.headlines(self.entries())
        made: list[nodes.Node] = []
        drawing = pictures.reproduces(rows)
        if drawing:
            caption = nodes.caption("", "", *self.state.inline_text(" ".join(self.content), self.lineno)[0])
            figure = nodes.figure("", nodes.raw("", drawing, format="html"), caption, classes=["headlines"])
            made.append(self.labelled(figure, self.options["name"]) if "name" in self.options else figure)
        lacking = pictures.lacking(rows)
        if lacking:
            label = inline("No number yet: ", "claim-label")
            made.append(
                nodes.paragraph("", "", label, nodes.Text("; ".join(lacking) + "."), classes=["headlines-lacking"])
            )
        return made


class WhatReproducesTable(_Headlines):
    """``{what-reproduces-table}``: the same as a table and as CSV."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        rows = ledger.headlines(self.entries())
        table = self.labelled(headlines_table(rows, self.link), "tab-reproduces")
        return [table, self.download("reproduces.csv", to_csv(rows))]


class ClaimsForest(FromLedger):
    """``{claims-forest}``: for each paper its conditions with intervals, and the claims that have none by name."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        entries, made = self.entries(), []
        for key, paper in ledger.PAPERS.items():
            rows, rest = pictures.directions([entry for entry in entries if entry.claim.paper == key])
            if rows:
                drawing = nodes.raw("", pictures.direction_plot(paper, rows), format="html")
                caption = nodes.caption("", f"{paper}: how far the claimed side of each condition is ahead")
                made.append(self.labelled(nodes.figure("", drawing, caption), f"fig-claims-{key.replace('_', '-')}"))
            if rest:
                links = [
                    node
                    for entry in rest
                    for node in (
                        nodes.reference("", entry.claim.id, internal=True, refid=f"claim-{entry.claim.id}"),
                        nodes.Text(", "),
                    )
                ][:-1]
                label = inline(f"{paper}, decided without an interval or not decided: ", "claim-label")
                made.append(nodes.paragraph("", "", label, *links, nodes.Text("."), classes=["headlines-lacking"]))
        return made


class HoldsIf(_Headlines):
    """``{holds-if} claim: verdict``: sentences, and below them a note for each verdict that is another in this run."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        self.assert_has_content()
        try:
            failed = contradicted(self.arguments[0], self.entries())
        except ClaimError as error:
            raise self.error(str(error)) from error
        holder = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, holder)
        notes = []
        for entry, verdicts in failed:
            said = [nodes.Text("The text above presumes that "), self.link(entry.claim.id)]
            said.append(nodes.Text(f" {' or '.join(verdicts)}. In this run: "))
            said += [verdict_words(entry.verdict.verdict), nodes.Text(".")]
            notes.append(
                nodes.admonition("", nodes.title("", "This run does not show it"), nodes.paragraph("", "", *said))
            )
            notes[-1]["classes"] = ["warning", "holds-if"]
        return [*holder.children, *notes]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives with Sphinx."""
    app.add_directive("what-reproduces", WhatReproduces)
    app.add_directive("what-reproduces-table", WhatReproducesTable)
    app.add_directive("claims-forest", ClaimsForest)
    app.add_directive("holds-if", HoldsIf)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
