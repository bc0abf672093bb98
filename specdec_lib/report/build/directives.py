"""What Sphinx has to know for the pages that are made of the ledger: directives and a role.

``{claims-summary}``, ``{claims-counted}``, ``{claims-ledger}``, ``{claims-turned}`` and ``{claims-items}`` put the tables and
a sentence on the page, ``{made-from}`` the profile of the runs, ``{published}`` a published number into prose,
``{price-slider}`` what a chapter recorded of its passes. A value that is missing is an error of the page, and errors end the
build.
"""

from __future__ import annotations

import os
import pkgutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
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
from specdec_lib.report import numbers
from specdec_lib.report.build.method_tables import method_lines
from specdec_lib.report.build.price_slider import slider_html
from specdec_lib.report.claims import ledger, second_run
from specdec_lib.report.claims.ledger import Entry
from specdec_lib.report.claims.published_tables import published_text
from specdec_lib.report.claims.rules import Claim, ClaimError
from specdec_lib.report.display.notices import notice
from specdec_lib.report.display.record import RecordError, recorded

_HEADINGS = ("Paper", "Claim", "Published", "Ours", "Verdict")
_WIDTHS = (11, 25, 20, 21, 23)


def slug(verdict: str) -> str:
    """Return a verdict as a class of CSS: ``holds in part`` is ``holds-in-part``."""
    return verdict.replace(" ", "-")


def inline(text: str, *classes: str) -> nodes.inline:
    """A text with classes of CSS."""
    return nodes.inline("", text, classes=list(classes))


def _labelled(label: str, text: str) -> nodes.paragraph:
    return nodes.paragraph("", "", inline(f"{label}: ", "claim-label"), nodes.Text(text))


def _bullets(items: Iterable[Sequence[nodes.Node]]) -> nodes.bullet_list:
    parts = [nodes.list_item("", nodes.paragraph("", "", *item)) for item in items]
    return nodes.bullet_list("", *parts, classes=["simple"])


def verdict_words(text: str) -> nodes.inline:
    """The words of a verdict; the mark before them is drawn by the style sheet."""
    return inline(text, "claim-verdict", slug(text))


def _published(entry: Entry) -> list[nodes.Node]:
    if not entry.published:
        return [nodes.paragraph("", "the paper gives no number")]
    items = []
    for row in entry.published:
        value = f"{row['value']} {row['unit']}".strip() if row["value"][0] in "-0123456789" else row["value"]
        label = ", ".join(filter(None, (row["method"], row["quantity"], row["setting"])))
        items.append([nodes.strong("", value), nodes.Text(f" {label}")])
    return [_bullets(items)]


def _values(claim: Claim, ours: Mapping[str, Any]) -> nodes.bullet_list:
    """What decides a claim: the values of a run, in the words of the claim; none that the claim no longer has."""
    return _bullets(
        [nodes.strong("", ledger.shown(value)), nodes.Text(f" {claim.ours[name]}")]
        for name, value in ours.items()
        if name in claim.ours
    )


def _page(target: str, words: str) -> addnodes.pending_xref:
    """A link to a page of the book, from its root; Sphinx makes the words' node anew, so a class would be lost."""
    facts = {"refdomain": "std", "reftype": "doc", "refexplicit": True, "refwarn": True, "reftarget": target}
    return addnodes.pending_xref("", inline(words), **facts)


def _ours(entry: Entry) -> list[nodes.Node]:
    if entry.run is None:
        return [nodes.paragraph("", "–")]
    link = _page(f"/notebooks/{entry.run.notebook}", entry.run.title)
    return [
        _values(entry.claim, entry.verdict.ours),
        nodes.paragraph("", "", link, classes=["claim-chapter"]),
        nodes.paragraph("", str(entry.run), classes=["claim-run"]),
    ]


def _conditions(entry: Entry) -> str:
    """How many conditions were true, and which were not, in the words of the values they compare."""
    total, undecided = len(entry.verdict.conditions), entry.undecided
    text = f"{total - len(undecided)} of {total} conditions true"
    if not undecided:
        return f"{text}."
    words = (f"{truth.value}: {condition.words(entry.claim.ours)}" for condition, truth in undecided)
    return f"{text}; {'; '.join(words)}."


def _decision(entry: Entry) -> list[nodes.Node]:
    claim = entry.claim
    parts = [nodes.paragraph("", "", verdict_words(entry.verdict.verdict))]
    said = [("Rule", claim.rule), ("Found", _conditions(entry) if entry.verdict.conditions else "")]
    said += [("Size", str(size)) for size in entry.sizes]
    said += [("Why", entry.why), ("Thresholds", claim.threshold), ("No interval", claim.exact), ("Note", entry.note)]
    return parts + [_labelled(label, text) for label, text in said if text]


def _link(claim: Claim) -> nodes.reference:
    """A link to the row of a claim on the same page."""
    return nodes.reference("", "", nodes.literal("", claim.id), internal=True, refid=f"claim-{claim.id}")


def _place(claim: Claim, where: str) -> nodes.paragraph:
    return nodes.paragraph(
        "", "", inline(ledger.PAPERS[claim.paper], "claim-paper"), nodes.Text(" "), inline(where, "claim-where")
    )


def _cells(entry: Entry) -> list[list[nodes.Node]]:
    claim = entry.claim
    place, target = _place(claim, claim.where), _link(claim)
    if claim.headline:
        mark = nodes.inline("", "", _page("/what-reproduces", "headline"), classes=["claim-headline"])
        place += [nodes.Text(" "), mark]
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


def items_table(entries: Sequence[Entry]) -> nodes.table:
    """Return the table of what the papers say, sentence by sentence: each item with the row that answers it."""
    rows = []
    for claim, verdict in ((entry.claim, entry.verdict.verdict) for entry in entries):
        for where, text in claim.items.items():
            cells = (
                _place(claim, where),
                nodes.paragraph("", text),
                nodes.paragraph("", "", _link(claim)),
                nodes.paragraph("", "", verdict_words(verdict)),
            )
            rows.append(nodes.row("", *(nodes.entry("", cell) for cell in cells)))
    headings = ("Paper", "What it says, in a line", "Row", "Verdict")
    # Two claims may answer one item.
    total = len({(entry.claim.paper, where) for entry in entries for where in entry.claim.items})
    caption = f"What the papers say, and the row that answers each: {total} sentences, tables and figures"
    return make_table(headings, rows, (22, 40, 20, 18), caption, ["claims-items"])


def summary_table(entries: Sequence[Entry]) -> nodes.table:
    """Return the numbers of claims by verdict and paper, with sums, and how many published sizes meet our intervals."""
    counts, sizes = ledger.counts(entries), ledger.sizes(entries)
    papers = list(counts)
    rows = []
    for verdict in ledger.VERDICTS:
        numbers = [counts[paper][verdict] for paper in papers]
        rows.append((verdict_words(verdict), [sum(numbers), *numbers]))
    totals = [sum(counts[paper].values()) for paper in papers]
    rows.append((nodes.Text("claims"), [sum(totals), *totals]))
    rows.append((nodes.Text("sizes as published"), [sizes["all four"], *(sizes[paper] for paper in papers)]))
    made = []
    for label, numbers in rows:
        cells = [nodes.paragraph("", "", label), *(nodes.paragraph("", str(number)) for number in numbers)]
        made.append(nodes.row("", *(nodes.entry("", cell) for cell in cells)))
    headings = ("Verdict", "all four", *papers)
    return make_table(headings, made, [1] * len(headings), "How many claims have which verdict", ["claims-summary"])


def turned_table(entries: Sequence[Entry], first: Mapping[str, Any], second: Mapping[str, Any]) -> nodes.table:
    """Return the table of the claims that have two verdicts in two saved runs, with what decides them in both."""
    claims = {entry.claim.id: entry.claim for entry in entries}
    shared = sum(name in second["claims"] for name in first["claims"])
    # A claim that has left the ledger since the runs has no words.
    found = {row.claim: row for row in second_run.turned(first, second) if row.claim in claims}
    rows = []
    for row in sorted(found.values(), key=lambda row: list(claims).index(row.claim)):
        claim = claims[row.claim]
        cells = [
            [_place(claim, claim.where)],
            [nodes.paragraph("", claim.claim), nodes.paragraph("", "", _link(claim))],
            *(
                [nodes.paragraph("", "", verdict_words(verdict)), _values(claim, ours)]
                for verdict, ours in zip(row.verdicts, row.ours, strict=True)
            ),
        ]
        rows.append(nodes.row("", *(nodes.entry("", *cell) for cell in cells)))
    caption = f"Claims with two verdicts: {len(found)} of {shared}"
    headings = ("Paper", "Claim", "In the first run", "In the second run")
    return make_table(headings, rows, (14, 30, 28, 28), caption, ["claims-turned"])


@lru_cache(maxsize=1)
def _judged(notebooks: Path, read: tuple[tuple[str, int], ...]) -> tuple[Entry, ...]:
    """The ledger by executed notebooks: dozens of directives ask for it. ``read`` names the files and when they were
    written, so that a change is seen."""
    return tuple(ledger.whole_ledger(notebooks))


class FromLedger(SphinxDirective):
    """A directive that reads the ledger; what is missing becomes an error of the page."""

    has_content = False

    @cached_property
    def notebooks(self) -> Path:
        return Path(self.env.srcdir) / "notebooks"

    def entries(self) -> list[Entry]:
        read = [paths.CLAIMS, *paths.PUBLISHED.glob("*.csv"), *self.notebooks.glob("*.ipynb")]
        for path in read:
            self.env.note_dependency(str(path))
        try:
            entries = _judged(self.notebooks, tuple((str(path), path.stat().st_mtime_ns) for path in sorted(read)))
        except (ClaimError, RecordError, FileNotFoundError) as error:
            raise self.error(str(error)) from error
        order = list(ledger.PAPERS)
        return sorted(entries, key=lambda entry: order.index(entry.claim.paper))

    def labelled(self, node: nodes.Element, name: str) -> nodes.Element:
        """The table or figure with a name that pages refer to, and its place in the source."""
        self.set_source_info(node)
        node["names"].append(name)
        self.state.document.note_explicit_target(node, node)
        return node

    def download(self, name: str, text: str) -> nodes.container:
        """A link to a CSV file that the page offers."""
        file = Path(self.env.app.doctreedir) / name
        write_atomic(file, text)
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
        return nodes.container("", nodes.paragraph("", "", link), classes=["table-download"])


class MadeFrom(FromLedger):
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


class ClaimsSummary(FromLedger):
    """``{claims-summary}``: counts by paper and verdict."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        return [self.labelled(summary_table(self.entries()), "tab-claims-summary")]


class ClaimsLedger(FromLedger):
    """``{claims-ledger}``: every claim, and the same as CSV."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        entries = self.entries()
        return [self.labelled(ledger_table(entries), "tab-claims"), self.download("claims.csv", ledger.to_csv(entries))]


class ClaimsItems(FromLedger):
    """``{claims-items}``: every sentence, table and figure that a row answers."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        return [self.labelled(items_table(self.entries()), "tab-claims-items")]


class ClaimsTurned(FromLedger):
    """``{claims-turned}``: the claims that have two verdicts in the two saved runs, and where this run differs from the first."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        for path in (second_run.FIRST, second_run.SECOND):
            self.env.note_dependency(str(path))
        if not second_run.FIRST.is_file():
            text = f"The verdicts of the first run are not saved: {second_run.FIRST.name} is missing. make first-run writes it."
            return [nodes.paragraph("", text)]
        try:
            first, second = map(second_run.load, (second_run.FIRST, second_run.SECOND))
        except ClaimError as error:
            raise self.error(str(error)) from error
        entries = self.entries()
        other = {name: second_run.differs(entries, run) for name, run in (("first", first), ("second", second))}
        for name, what in other.items():
            if what:
                text = f"The {name} run differs from the run of this page in its {what}. They are not compared."
                return [nodes.paragraph("", text)]
        note = [nodes.paragraph("", second["note"])] if second["note"] else []
        now = {entry.claim.id: {"verdict": entry.verdict.verdict, "ours": entry.verdict.ours} for entry in entries}
        moved = [row.claim for row in second_run.turned(first, {"claims": now})]
        if moved:
            text = "The run of this page has the first run's seeds and yet other verdicts on: " + ", ".join(moved) + "."
            note.append(nodes.paragraph("", text))
        return [*note, self.labelled(turned_table(entries, first, second), "tab-claims-turned")]


class Published(SphinxRole):
    """``{published}``: a published number, or what follows from several."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the text, or the error."""
        try:
            return [nodes.Text(published_text(self.text, ledger.numbers()))], []
        except (ClaimError, ZeroDivisionError) as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [nodes.problematic(self.rawtext, self.rawtext)], [message]


class Num(SphinxRole):
    """``{num}`04/h10_over_pld10:.2f```: a number of a chapter's table, with its interval, which ``.value`` leaves out."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the text, or the error."""
        key, _, spec = self.text.partition(":")
        alone = key.endswith(".value")
        try:
            number = numbers.look_up(key.removesuffix(".value"), numbers.tables())
            return [nodes.Text(format(number._replace(low=None) if alone else number, spec))], []
        except ValueError as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [nodes.problematic(self.rawtext, self.rawtext)], [message]


class ClaimsCounted(FromLedger):
    """``{claims-counted}``: how many claims have which verdict, in one sentence."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        verdicts = Counter(entry.verdict.verdict for entry in self.entries())
        return [nodes.paragraph("", ledger.counted(verdicts))]


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


class PriceSlider(SphinxDirective):
    """``{price-slider} 06_gpu_benchmarks``: speed-ups at a price curve that the reader drags, from the passes that a chapter
    recorded. Without a script the page shows nothing in its place."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the node."""
        path = Path(self.env.srcdir) / "notebooks" / f"{self.arguments[0]}.ipynb"
        self.env.note_dependency(str(path))
        try:
            return [nodes.raw("", slider_html(recorded(path)), format="html")]
        except (RecordError, FileNotFoundError) as error:
            raise self.error(str(error)) from error


def _add_scripts(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load a script where what it works on is; the page is whole without it."""
    if doctree is None:
        return
    if any("claims-ledger" in table["classes"] for table in doctree.findall(nodes.table)):
        app.add_js_file("claims.js")
    if any('class="price-slider"' in raw.astext() for raw in doctree.findall(nodes.raw)):
        app.add_js_file("price-slider.js")


def _name_packages(app: Sphinx, config: Config) -> None:
    """Tell the template of the library's pages which modules are folders: those get a page of their own."""
    modules = pkgutil.walk_packages(specdec_lib.__path__, "specdec_lib.")
    config.autosummary_context = {"packages": [module.name for module in modules if module.ispkg]}


def _share_among_processes(app: Sphinx, config: Config) -> None:
    """Let Sphinx read pages in several processes: two extensions do not say whether they can be shared, for which it warns.
    They work before the first page is read and after the last.
    """
    for name in {"sphinx_jupyterbook_latex", "sphinx_multitoc_numbering"} & app.extensions.keys():
        app.extensions[name].parallel_read_safe = True


def _skip_undescribed_field(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave a field of a named tuple out whose only description is the one that Python gives it; the signature has it."""
    return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and the role with Sphinx."""
    app.add_directive("made-from", MadeFrom)
    app.add_directive("claims-summary", ClaimsSummary)
    app.add_directive("claims-counted", ClaimsCounted)
    app.add_directive("claims-ledger", ClaimsLedger)
    app.add_directive("claims-items", ClaimsItems)
    app.add_directive("claims-turned", ClaimsTurned)
    app.add_directive("methods", Methods)
    app.add_directive("price-slider", PriceSlider)
    app.setup_extension("specdec_lib.report.build.headlines")
    app.setup_extension("specdec_lib.report.build.one_token_times")
    app.setup_extension("specdec_lib.report.build.opening")
    app.add_role("published", Published())
    app.add_role("num", Num())
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-skip-member", _skip_undescribed_field)
    app.connect("html-page-context", _add_scripts)
    app.connect("config-inited", _name_packages)
    app.connect("config-inited", _share_among_processes)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
