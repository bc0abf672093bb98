"""The page of claims: what is read, what a reader sees of each verdict, and what ends the build."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import nbformat
import pytest
import yaml

from specdec_lib import paths
from specdec_lib.commands import claims as command
from specdec_lib.report.claims import ledger, rules
from specdec_lib.report.claims.published_tables import published_text
from specdec_lib.report.claims.rules import ClaimError

HEADER = "id,where,setting,method,quantity,value,spread,unit,note"
NUMBERS = {
    "rest": ['rest-speed,Table 1,"7B, greedy",REST,speed-up,2.36,,x,', "rest-time,Table 1,7B,REST,time,11.8,,ms,"],
    "dresd": ["dresd-table,Table 1,,,body,not available,,,"],
    "pld_plus": [],
    "specdec_pp": [],
}
ROW = {
    "paper": "rest",
    "where": "Table 1",
    "claim": "It is faster.",
    "notebook": "07_speed",
    "ours": ["fast", "passes"],
    "rule": "Holds if faster than both.",
    "published": ["rest-speed"],
    "why": "The machine is slow.",
}
ROWS = [
    ROW | {"id": "whole", "test": [["fast", ">", "slow"], ["fast", ">", 1]], "note": "Only one machine."},
    ROW
    | {
        "id": "part",
        "paper": "dresd",
        "published": ["dresd-table"],
        "rule": "Holds if faster than both; in part if than one.",
        "partly": "some",
        "test": [["fast", ">", "slow"], ["slow", ">", [2, "fast"]]],
    },
    ROW | {"id": "none", "paper": "pld_plus", "published": [], "test": [["slow", ">", "fast"]]},
    {
        "id": "never",
        "paper": "specdec_pp",
        "where": "Appendix",
        "claim": "It <costs> less.",
        "untestable": "No data & no code.",
    },
]
RECORDED = {"fast": 1.23456, "slow": 0.5, "passes": 12345}
VERDICT_OF = {"whole": rules.HOLDS, "part": rules.PARTLY, "none": rules.FAILS, "never": rules.UNTESTABLE}


def executed(recorded, profile="default", **parameters):
    """An executed copy as the runner leaves it."""
    declared = {"profile": "default", "target": "pocket", "draft": "other", "shape": ""}
    source = "\n".join(f"{name}: str = {value!r}  # said here" for name, value in declared.items())
    cells = [
        nbformat.v4.new_markdown_cell("# How fast\n\nText."),
        nbformat.v4.new_code_cell(source, metadata={"tags": ["parameters"]}),
    ]
    prefix = "application/papermill.record/"
    outputs = [
        nbformat.v4.new_output(
            "display_data",
            {prefix + "text/plain": repr(value)},
            metadata={"scrapbook": {"name": name, "mime_prefix": prefix}},
        )
        for name, value in recorded.items()
    ]
    cells.append(nbformat.v4.new_code_cell("", outputs=outputs))
    facts = {"parameters": {"profile": profile, **parameters}, "machine": {"device": "cpu"}}
    about = {"profile": profile, "provenance": facts}
    return nbformat.v4.new_notebook(cells=cells, metadata={"specdec": about})


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with a ledger, numbers and one executed notebook; gives its root."""
    notebooks = tmp_path / "book" / "notebooks"
    notebooks.mkdir(parents=True)
    nbformat.write(executed(RECORDED), notebooks / "07_speed.ipynb")
    (tmp_path / "published").mkdir()
    for paper, lines in NUMBERS.items():
        text = "\n".join([HEADER, *lines]) + "\n"
        (tmp_path / "published" / f"{paper}.csv").write_text(text, encoding="utf-8")
    write(tmp_path, ROWS)
    monkeypatch.setattr(paths, "CLAIMS", tmp_path / "claims.yml")
    monkeypatch.setattr(paths, "PUBLISHED", tmp_path / "published")
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    return tmp_path


def write(root, rows):
    (root / "claims.yml").write_text(yaml.safe_dump(rows), encoding="utf-8")


class Rows(HTMLParser):
    """Texts of the rows of the table of class ``claims-ledger``: for each its id, classes and cells."""

    def __init__(self):
        super().__init__()
        self.rows, self._depth, self._cell = [], 0, None

    def handle_starttag(self, tag, attrs):
        at = dict(attrs)
        if tag == "table":
            self._depth = int("claims-ledger" in at.get("class", "").split())
        if self._depth and tag == "tr":
            self.rows.append((at.get("id", ""), at.get("class", "").split(), []))
        if self._depth and tag == "td":
            self.rows[-1][2].append("")
            self._cell = self.rows[-1][2]

    def handle_endtag(self, tag):
        if tag == "table":
            self._depth = 0
        if tag == "td":
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell[-1] += data


def table_rows(page):
    """The rows of a page by the id of their claim: classes, and the texts of the cells."""
    parser = Rows()
    parser.feed(page)
    return {
        name.removeprefix("claim-"): (classes, [" ".join(cell.split()) for cell in cells])
        for name, classes, cells in parser.rows
        if cells
    }


def build(root, text):
    """Render one page with Sphinx alone; returns it, the warnings and whether the build failed."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    (root / "book" / "index.rst").write_text(text, encoding="utf-8")
    warnings = io.StringIO()
    settings = {
        "extensions": ["specdec_lib.report.build.directives"],
        "numfig": True,
        "root_doc": "index",
        "exclude_patterns": ["notebooks"],
    }
    with patch_docutils(), docutils_namespace():
        app = Sphinx(
            str(root / "book"),
            None,
            str(root / "html"),
            str(root / "trees"),
            "html",
            status=None,
            warning=warnings,
            confoverrides=settings,
            warningiserror=True,
            keep_going=True,
            freshenv=True,
        )
        app.build()
    page = root / "html" / "index.html"
    return page.read_text(encoding="utf-8") if page.is_file() else "", warnings.getvalue(), app.statuscode


PAGE = "Claims\n======\n\n.. made-from::\n\n.. claims-summary::\n\n.. claims-ledger::\n"


def page_of(root):
    text, warnings, _ = build(root, PAGE)
    # Chapters are no pages of this small site.
    assert not [line for line in warnings.splitlines() if line and "unknown document" not in line], warnings
    return text


def test_a_row_shows_claim_numbers_rule_and_verdict_in_words(project):
    rows = table_rows(page_of(project))
    assert list(rows) == list(VERDICT_OF)
    for name, verdict in VERDICT_OF.items():
        classes, cells = rows[name]
        assert verdict.replace(" ", "-") in classes and cells[4].startswith(verdict)
    place, claim, published, ours, decision = rows["whole"][1]
    assert place == "REST Table 1" and claim == "It is faster. whole"
    assert published == "2.36 x REST, speed-up, 7B, greedy"
    assert ours.startswith("fast 1.235 passes 12,345 How fast behaviour of pocket, other; shape its own (8")
    assert ours.endswith("cpu, float32")
    assert decision == (  # no reason, which is one for what does not hold; the note stands with any verdict
        "holds Rule: Holds if faster than both. Found: 2 of 2 conditions true. Note: Only one machine."
    )


def test_what_was_not_true_is_named_with_its_values_and_the_reason(project):
    rows = table_rows(page_of(project))
    assert rows["part"][1][2] == "not available body"
    assert rows["part"][1][4] == (
        "holds in part Rule: Holds if faster than both; in part if than one. Found: 1 of 2 conditions true; not: slow > 2 × fast "
        "(slow = 0.5, fast = 1.235). Why: The machine is slow."
    )
    assert rows["none"][1][4].endswith(
        "0 of 1 conditions true; not: slow > fast (slow = 0.5, fast = 1.235). Why: The machine is slow."
    )
    assert rows["none"][1][2] == "the paper gives no number"
    assert rows["never"][1][1:] == [
        "It <costs> less. never",
        "the paper gives no number",
        "–",
        "not testable here Why: No data & no code.",
    ]


def test_the_table_says_what_the_command_says(project, capsys):
    assert command.main(["--json"]) == 0
    told = json.loads(capsys.readouterr().out)["claims"]
    rows = table_rows(page_of(project))
    assert {row["id"]: row["verdict"] for row in told} == {n: VERDICT_OF[n] for n in rows}
    for row in told:
        _, (place, claim, published, ours, decision) = rows[row["id"]]
        assert place == f"{ledger.PAPERS[row['paper']]} {row['where']}" and claim.startswith(row["claim"])
        assert all(value in published for value in row["published"].values())
        assert all(f"{name} {ledger.shown(value)}" in ours for name, value in row["ours"].items())
        assert row["rule"] in decision and decision.startswith(row["verdict"])


def test_the_counts_are_those_of_the_rows_and_the_file_has_every_claim(project):
    page = page_of(project)
    table = page[page.index("claims-summary") : page.index("</table>")]
    assert [int(n) for n in re.findall(r"<p>(\d+)</p>", table)] == [
        1,
        0,
        0,
        0,
        1,
        0,
        1,
        0,
        0,
        1,
        0,
        0,
        1,
        0,
        1,
        0,
        0,
        0,
        1,
        1,
        1,
        1,
        1,
        1,
        4,
    ]
    (file,) = (project / "html" / "_downloads").rglob("claims.csv")
    rows = list(csv.DictReader(file.open(encoding="utf-8")))
    assert {row["id"]: row["verdict"] for row in rows} == VERDICT_OF
    assert rows[0]["ours"] == "fast = 1.23456; passes = 12345" and rows[0]["device"] == "cpu, float32"


@pytest.mark.parametrize("profile, box", [("smoke", True), ("default", False)])
def test_the_page_says_which_profile_it_was_made_from(project, profile, box):
    nbformat.write(executed(RECORDED, profile), project / "book" / "notebooks" / "07_speed.ipynb")
    page = page_of(project)
    assert f"Made from a run of the profile {profile}." in page
    assert ("Its numbers are not results" in page) is box


def test_a_widened_shape_is_told_apart_from_the_behaviour(project):
    notebook = executed(RECORDED, shape="llama-1b", target="pocket", draft="")
    nbformat.write(notebook, project / "book" / "notebooks" / "07_speed.ipynb")
    assert "behaviour of pocket; shape llama-1b; cpu" in table_rows(page_of(project))["whole"][1][3]


def test_a_claim_decided_by_other_text_or_other_times_says_so(project):
    write(project, [ROWS[0] | {"behaviour": "recorded outputs", "shape": "the paper's times"}])
    told = str(ledger.whole_ledger()[0].run)
    assert told == "behaviour of recorded outputs; shape the paper's times; cpu, float32"


@pytest.mark.parametrize(
    "spoil, message",
    [
        (
            lambda root: write(root, [ROWS[0] | {"ours": ["lost"]}]),
            "claim 'whole' needs lost, which 07_speed did not record",
        ),
        (
            lambda root: write(root, [ROWS[0] | {"published": ["rest-lost"]}]),
            "claim 'whole': no published number 'rest-lost'",
        ),
        (
            lambda root: (root / "book" / "notebooks" / "07_speed.ipynb").unlink(),
            "claim 'whole' needs 07_speed, which has not been executed (and 2 more claims)",
        ),
        (lambda root: write(root, ROWS[:1] * 2), "two claims have the id 'whole'"),
    ],
    ids=["record", "number", "notebook", "ledger"],
)
def test_what_is_missing_ends_the_build_with_its_name(project, spoil, message):
    spoil(project)
    _, warnings, failed = build(project, PAGE)
    assert failed and message in warnings


def test_a_notebook_that_was_not_run_by_the_runner_is_refused(project):
    notebook = executed(RECORDED)
    del notebook.metadata["specdec"]
    nbformat.write(notebook, project / "book" / "notebooks" / "07_speed.ipynb")
    with pytest.raises(ClaimError, match="does not say how it was made"):
        ledger.read_ledger()


def test_a_published_number_in_prose_is_the_one_of_the_file(project):
    text = "Page\n====\n\nSays :published:`rest-speed` and :published:`rest-speed * rest-time / 2 : .1f`.\n"
    page, _, failed = build(project, text)
    assert "Says 2.36 and 13.9." in page and not failed


@pytest.mark.parametrize(
    "expression, message",
    [
        ("rest-lost", "no published number 'rest-lost'"),
        ("dresd-table / 2 : .1f", "is 'not available'"),
        ("rest-speed / rest-time", "and a format"),
        ("rest-speed rest-time : .1f", "joined by"),
        ("2 / rest-lost : .1f", "rest-lost"),
    ],
)
def test_an_expression_that_names_nothing_ends_the_build(project, expression, message):
    with pytest.raises(ClaimError, match=message):
        published_text(expression, ledger.numbers())
    _, warnings, failed = build(project, f"Page\n====\n\nSays :published:`{expression}`.\n")
    assert failed and message in warnings


def test_an_id_in_two_files_is_refused(project):
    (project / "published" / "dresd.csv").write_text(f"{HEADER}\n{NUMBERS['rest'][0]}\n", encoding="utf-8")
    with pytest.raises(ClaimError, match="'rest-speed' is in dresd.csv and in another file"):
        ledger.numbers()
