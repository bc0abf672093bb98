"""What Sphinx has to know for the pages that are made of the ledger: three directives and a role.

``{claims-summary}`` and ``{claims-ledger}`` put the tables on the page, ``{made-from}`` the profile of the
runs, ``{published}`` a published number into prose. A value that is missing is an error of the page, and
errors end the build.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.docutils import SphinxDirective, SphinxRole

import specdec_lib
from specdec_lib import paths
from specdec_lib.files import write_atomic
from specdec_lib.report.build.method_tables import method_lines
from specdec_lib.report.claims import ledger
from specdec_lib.report.claims.ledger import Entry
from specdec_lib.report.claims.published_tables import published_text
from specdec_lib.report.claims.rules import ClaimError
from specdec_lib.report.display.notices import notice
from specdec_lib.report.display.record import RecordError

_HEADINGS = ("Paper", "Claim", "Published", "Ours", "Verdict")
_WIDTHS = (11, 25, 20, 21, 23)


def slug(verdict: str) -> str:
    """Return a verdict as a class of CSS: ``holds in part`` is ``holds-in-part``."""
    return verdict.replace(" ", "-")


def _inline(text: str, *classes: str) -> nodes.inline:
    return nodes.inline("", text, classes=list(classes))


def _labelled(label: str, text: str) -> nodes.paragraph:
    return nodes.paragraph("", "", _inline(f"{label}: ", "claim-label"), nodes.Text(text))


def _bullets(items: Iterable[Sequence[nodes.Node]]) -> nodes.bullet_list:
    parts = [nodes.list_item("", nodes.paragraph("", "", *item)) for item in items]
    return nodes.bullet_list("", *parts, classes=["simple"])


def _verdict(text: str) -> nodes.inline:
    """The words of a verdict; the mark before them is drawn by the style sheet."""
    return _inline(text, "claim-verdict", slug(text))


def _published(entry: Entry) -> list[nodes.Node]:
    if not entry.published:
        return [nodes.paragraph("", "the paper gives no number")]
    items = []
    for row in entry.published:
        value = f"{row['value']} {row['unit']}".strip() if row["value"][0] in "-0123456789" else row["value"]
        label = ", ".join(filter(None, (row["method"], row["quantity"], row["setting"])))
        items.append([nodes.strong("", value), nodes.Text(f" {label}")])
    return [_bullets(items)]


def _ours(entry: Entry) -> list[nodes.Node]:
    if entry.run is None:
        return [nodes.paragraph("", "–")]
    link = addnodes.pending_xref(
        "",
        nodes.inline("", entry.run.title),
        refdomain="std",
        reftype="doc",
        refexplicit=True,
        refwarn=True,
        reftarget=f"/notebooks/{entry.run.notebook}",
    )
    items = [
        [nodes.literal("", name), nodes.Text(" "), nodes.strong("", ledger.shown(value))]
        for name, value in entry.verdict.ours.items()
    ]
    return [
        _bullets(items),
        nodes.paragraph("", "", link, classes=["claim-chapter"]),
        nodes.paragraph("", str(entry.run), classes=["claim-run"]),
    ]


def _conditions(entry: Entry) -> str:
    """How many conditions were true, and which were not, with the values they compare."""
    total = len(entry.verdict.conditions)
    text = f"{total - len(entry.untrue)} of {total} conditions true"
    if not entry.untrue:
        return f"{text}."
    used = dict.fromkeys(name for condition in entry.untrue for name in condition.names)
    values = ", ".join(f"{name} = {ledger.shown(entry.values[name])}" for name in used)
    return f"{text}; not: {'; '.join(map(str, entry.untrue))} ({values})."


def _decision(entry: Entry) -> list[nodes.Node]:
    parts = [nodes.paragraph("", "", _verdict(entry.verdict.verdict))]
    if entry.claim.rule:
        parts.append(_labelled("Rule", entry.claim.rule))
    if entry.verdict.conditions:
        parts.append(_labelled("Found", _conditions(entry)))
    if entry.why:
        parts.append(_labelled("Why", entry.why))
    if entry.note:
        parts.append(_labelled("Note", entry.note))
    return parts


def _cells(entry: Entry) -> list[list[nodes.Node]]:
    claim = entry.claim
    place = nodes.paragraph(
        "", "", _inline(ledger.PAPERS[claim.paper], "claim-paper"), nodes.Text(" "), _inline(claim.where, "claim-where")
    )
    target = nodes.reference("", "", nodes.literal("", claim.id), internal=True, refid=f"claim-{claim.id}")
    said = [
        nodes.paragraph("", claim.claim, classes=["claim-text"]),
        nodes.paragraph("", "", target, classes=["claim-id"]),
    ]
    return [[place], said, _published(entry), _ours(entry), _decision(entry)]


def make_table(
    headings: Sequence[str],
    rows: Iterable[nodes.row],
    widths: Sequence[int],
    caption: str,
    classes: Sequence[str],
) -> nodes.table:
    """Return a table of docutils; ``widths`` are relative, ``classes`` those of CSS."""
    head = nodes.row("", *(nodes.entry("", nodes.paragraph("", text)) for text in headings))
    group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in widths), cols=len(widths))
    group += [nodes.thead("", head), nodes.tbody("", *rows)]
    return nodes.table("", nodes.title("", caption), group, classes=list(classes))


def ledger_table(entries: Sequence[Entry]) -> nodes.table:
    """Return the table of all claims; each row has the place ``claim-<id>``."""
    rows = []
    for entry in entries:
        cells = [nodes.entry("", *cell) for cell in _cells(entry)]
        row = nodes.row(
            "",
            *cells,
            ids=[f"claim-{entry.claim.id}"],
            classes=["claim", f"paper-{slug(entry.claim.paper)}", slug(entry.verdict.verdict)],
        )
        rows.append(row)
    caption = "The claims, what decides each, and what came out"
    return make_table(_HEADINGS, rows, _WIDTHS, caption, ["claims-ledger", "longtable"])


def summary_table(entries: Sequence[Entry]) -> nodes.table:
    """Return the numbers of claims by paper and verdict, with sums."""
    table = ledger.counts(entries)
    table["all four"] = {verdict: sum(row[verdict] for row in table.values()) for verdict in ledger.VERDICTS}
    rows = []
    for name, row in table.items():
        numbers = [*row.values(), sum(row.values())]
        texts = [str(text) for text in (name, *numbers)]
        rows.append(nodes.row("", *(nodes.entry("", nodes.paragraph("", text)) for text in texts)))
    headings = ["Paper", *ledger.VERDICTS, "claims"]
    made = make_table(headings, rows, [1] * 6, "Verdicts by paper", ["claims-summary"])
    for entry, verdict in zip(list(made.findall(nodes.entry))[1:5], ledger.VERDICTS, strict=True):
        entry[0].children = [_verdict(verdict)]
    return made


class _FromLedger(SphinxDirective):
    """A directive that reads the ledger; what is missing becomes an error of the page."""

    has_content = False

    @cached_property
    def notebooks(self) -> Path:
        return Path(self.env.srcdir) / "notebooks"

    def entries(self) -> list[Entry]:
        try:
            entries = ledger.whole_ledger(self.notebooks)
        except (ClaimError, RecordError, FileNotFoundError) as error:
            raise self.error(str(error)) from error
        for path in [paths.CLAIMS, *paths.PUBLISHED.glob("*.csv"), *self.notebooks.glob("*.ipynb")]:
            self.env.note_dependency(str(path))
        order = list(ledger.PAPERS)
        return sorted(entries, key=lambda entry: order.index(entry.claim.paper))

    def labelled(self, table: nodes.table, name: str) -> nodes.table:
        """The table with a name that pages refer to, and its place in the source."""
        self.set_source_info(table)
        table["names"].append(name)
        self.state.document.note_explicit_target(table, table)
        return table


class MadeFrom(_FromLedger):
    """``{made-from}``: the profile of the runs that the numbers come from, with the box of a smoke run."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        profiles = {entry.run.notebook: entry.run.profile for entry in self.entries() if entry.run}
        names = sorted(set(profiles.values()))
        boxes = [
            nodes.admonition("", nodes.title("", box.title), nodes.paragraph("", box.text), classes=[box.kind])
            for box in map(notice, names)
            if box is not None
        ]
        text = (
            f"Made from a run of the profile {names[0]}."
            if len(names) == 1
            else (
                "Made from runs of different profiles: "
                + ", ".join(f"{name} {profile}" for name, profile in sorted(profiles.items()))
                + "."
            )
        )
        return [*boxes, nodes.paragraph("", text, classes=["claims-profile"])]


class ClaimsSummary(_FromLedger):
    """``{claims-summary}``: counts by paper and verdict."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        return [self.labelled(summary_table(self.entries()), "tab-claims-summary")]


class ClaimsLedger(_FromLedger):
    """``{claims-ledger}``: every claim, and the same as CSV."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        entries = self.entries()
        file = Path(self.env.app.doctreedir) / "claims.csv"
        write_atomic(file, ledger.to_csv(entries))
        target = os.path.relpath(file, Path(self.env.doc2path(self.env.docname)).parent)
        link = addnodes.download_reference(
            "",
            "",
            nodes.literal("", "CSV"),
            reftarget=target,
            refdoc=self.env.docname,
            reftype="download",
            refdomain="",
            refexplicit=True,
            refwarn=True,
        )
        box = nodes.container("", nodes.paragraph("", "", link), classes=["table-download"])
        return [self.labelled(ledger_table(entries), "tab-claims"), box]


class Published(SphinxRole):
    """``{published}``: a published number, or what follows from several."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the text, or the error."""
        try:
            return [nodes.Text(published_text(self.text, ledger.numbers()))], []
        except (ClaimError, ZeroDivisionError) as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [nodes.problematic(self.rawtext, self.rawtext)], [message]


class Methods(SphinxDirective):
    """``{methods}``: every method with its page, what it drafts, and what it keeps of the text.

    ``{methods} 04`` with a line for each column, ``heading | cell``, is a table of the methods that a chapter compares;
    ``SLUG`` in a cell stands for the method's name in recorded values. The options are those of a list table.
    """

    has_content = True
    optional_arguments = 1
    option_spec = {"name": directives.unchanged, "caption": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        try:
            lines = method_lines(self.arguments[0] if self.arguments else "", list(self.content))
        except ValueError as error:
            raise self.error(str(error)) from error
        fence = [f":::{{list-table}} {self.options.get('caption', '')}", ":header-rows: 1"]
        fence += [f":name: {self.options['name']}"] if "name" in self.options else []
        text = StringList([*fence, "", *lines, ":::"], source=self.state.document.current_source)
        holder = nodes.Element()
        self.state.nested_parse(text, self.content_offset, holder)
        return holder.children


def _add_script(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Load the filter where the table is; the table is whole without it."""
    tables = doctree.findall(nodes.table) if doctree is not None else []
    if any("claims-ledger" in table["classes"] for table in tables):
        app.add_js_file("claims.js")


def _name_packages(app: Sphinx, config: Config) -> None:
    """Tell the template of the library's pages which modules are folders: those get a page of their own."""
    modules = pkgutil.walk_packages(specdec_lib.__path__, "specdec_lib.")
    config.autosummary_context = {"packages": [module.name for module in modules if module.ispkg]}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and the role with Sphinx."""
    app.add_directive("made-from", MadeFrom)
    app.add_directive("claims-summary", ClaimsSummary)
    app.add_directive("claims-ledger", ClaimsLedger)
    app.add_directive("methods", Methods)
    app.add_role("published", Published())
    app.connect("html-page-context", _add_script)
    app.connect("config-inited", _name_packages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
