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
from specdec_lib.report.claims import ledger, rules, second_run
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
    "ours": {"fast": "speed here", "slow": "speed of the other", "passes": "passes made"},
    "rule": "Holds if faster than both.",
    "published": ["rest-speed"],
    "why": "The machine is slow.",
    "exact": "Counted.",
}
ROWS = [
    ROW
    | {
        "id": "whole",
        "items": {"Table 1": "it is faster", "Table 1 (again)": "than <any> other"},
        "test": [["fast", ">", "slow"], ["fast", ">", 1]],
        "note": "Only one machine.",
    },
    ROW
    | {
        "id": "part",
        "paper": "dresd",
        "published": ["dresd-table"],
        "rule": "Holds if faster than both; in part if than one.",
        "partly": "some",
        "test": [["fast", ">", "slow"], ["slow", ">", [2, "fast"]]],
        "threshold": "2 is twice.",
    },
    ROW | {"id": "none", "paper": "pld_plus", "published": [], "test": [["slow", ">", "fast"]]},
    ROW
    | {
        "id": "sized",
        "ours": {"range": "speed, twice", "lost": "speed elsewhere"},
        "exact": "",
        "test": [["range", ">", 1]],
        "size": [["range", "rest-speed"], ["range", "1 / 1", "rest-time / 2"], ["lost", "rest-speed"]],
    },
    ROW
    | {"id": "open", "exact": "", "ours": {"range": "speed, twice"}, "threshold": "1.5", "test": [["range", ">", 1.5]]},
    ROW | {"id": "awaited", "ours": {"lost": "speed elsewhere"}, "test": [["lost", ">", 1]]},
    {
        "id": "never",
        "paper": "specdec_pp",
        "where": "Appendix",
        "claim": "It <costs> less.",
        "untestable": "No data & no code.",
    },
]
RECORDED = {"fast": 1.23456, "slow": 0.5, "passes": 12345, "range": {"value": 1.51234, "low": 1.4, "high": 1.6}}
VERDICT_OF = {
    "whole": rules.HOLDS,
    "sized": rules.HOLDS,
    "open": rules.UNRESOLVED,
    "awaited": rules.NO_NUMBER,
    "part": rules.PARTLY,
    "none": rules.FAILS,
    "never": rules.UNTESTABLE,
}


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
    (root / "claims.yml").write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")


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


PAGE = "Claims\n======\n\n.. made-from::\n\n.. claims-summary::\n\n.. claims-ledger::\n\n.. claims-items::\n"


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
    assert ours.startswith(
        "1.235 speed here 0.5 speed of the other 12,345 passes made How fast behaviour of pocket, other; shape its own (8"
    )
    assert ours.endswith("cpu, float32")
    assert decision == (  # no reason, which is one for what does not hold; the note stands with any verdict
        "holds Rule: Holds if faster than both. Found: 2 of 2 conditions true. No interval: Counted. "
        "Note: Only one machine."
    )


def test_what_was_not_true_is_named_with_its_values_and_the_reason(project):
    rows = table_rows(page_of(project))
    assert rows["part"][1][2] == "not available body"
    assert rows["part"][1][4] == (
        "holds in part Rule: Holds if faster than both; in part if than one. Found: 1 of 2 conditions true; false: speed of "
        "the other is above 2 × speed here. Why: The machine is slow. Thresholds: 2 is twice. No interval: Counted."
    )
    assert (
        "0 of 1 conditions true; false: speed of the other is above speed here. Why: The machine is slow."
        in rows["none"][1][4]
    )
    assert rows["none"][1][2] == "the paper gives no number"
    assert rows["never"][1][1:] == [
        "It <costs> less. never",
        "the paper gives no number",
        "–",
        "not testable here Why: No data & no code.",
    ]


def test_intervals_and_what_they_leave_open_are_shown(project):
    rows = table_rows(page_of(project))
    assert rows["open"][1][3].startswith("1.512 [1.4, 1.6] speed, twice How fast")
    assert "0 of 1 conditions true; not resolved: speed, twice is above 1.5." in rows["open"][1][4]
    assert rows["awaited"][1][3].startswith("no number yet speed elsewhere")
    assert "0 of 1 conditions true; no number: speed elsewhere is above 1." in rows["awaited"][1][4]
    assert "Why" in rows["open"][1][4] and "Why" not in rows["awaited"][1][4]


def test_a_value_without_a_number_is_said_to_be_out_of_reach(project):
    write(project, [ROWS[3] | {"size": []}])
    nbformat.write(executed(RECORDED | {"range": "not available"}), project / "book" / "notebooks" / "07_speed.ipynb")
    decision = table_rows(page_of(project))["sized"][1][4]
    assert decision.startswith("not testable here")
    assert "Why: The text or the data that decide are not at hand in this run." in decision


def test_a_published_size_is_compared_with_our_interval_apart_from_the_verdict(project):
    decision = table_rows(page_of(project))["sized"][1][4]
    assert decision.startswith("holds ")
    for said in (
        "Size: speed, twice: published 2.36, ours 1.512 [1.4, 1.6]; ours is 0.64 times that",
        "Size: speed, twice: published 1 to 5.9, ours 1.512 [1.4, 1.6]; in our interval",
        "Size: speed elsewhere: published 2.36, ours no number yet",
        "Why: The machine is slow.",  # the verdict holds, the size is off
    ):
        assert said in decision


def test_every_item_is_listed_with_its_row_and_verdict(project):
    page = page_of(project)
    table = page[page.index("claims-items") :]
    cells = [" ".join(re.sub(r"<[^>]+>", "", cell).split()) for cell in re.findall(r"(?s)<td>(.*?)</td>", table)]
    assert cells == [
        *("REST Table 1", "it is faster", "whole", "holds"),
        *("REST Table 1 (again)", "than &lt;any&gt; other", "whole", "holds"),
    ]
    assert 'href="#claim-whole"' in table and "the row that answers each: 2 sentences, tables and figures" in page


@pytest.fixture
def save(project, monkeypatch):
    """Saves the verdicts of the project, with other recorded values, as those of the first or the second run."""
    for name in ("FIRST", "SECOND"):
        monkeypatch.setattr(second_run, name, project / f"{name}.json")

    def save(which, recorded, profile="default", **parameters):
        notebook = project / "book" / "notebooks" / "07_speed.ipynb"
        own = notebook.read_text(encoding="utf-8")
        nbformat.write(executed(recorded, profile, **parameters), notebook)
        assert command.main(["--save", str(project / f"{which}.json"), "--note", "Its machine was busy."]) == 0
        notebook.write_text(own, encoding="utf-8")

    return save


def turned_cells(project):
    text, _, _ = build(project, "Claims\n======\n\n.. claims-turned::\n\n.. claims-ledger::\n")
    table = text[text.index("Claims with two verdicts") : text.index("claims-ledger")]
    cells = [re.findall(r"(?s)<td>(.*?)</td>", row) for row in re.findall(r"(?s)<tr.*?</tr>", table)]
    return text, [[" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in row] for row in cells if row]


TURNS = RECORDED | {"range": {"value": 1.7, "low": 1.6, "high": 1.8}, "slow": 2.0}


def test_claims_with_two_verdicts_stand_with_the_numbers_of_both_runs(project, save):
    save("FIRST", RECORDED)
    save("SECOND", TURNS)
    text, rows = turned_cells(project)
    assert "Its machine was busy." in text and "Claims with two verdicts: 4 of 7" in text
    assert "and yet other verdicts" not in text
    assert [row[1].split()[-1] for row in rows] == ["whole", "open", "part", "none"]
    by_id = {row[1].split()[-1]: row for row in rows}
    assert by_id["open"][2] == "not resolved 1.512 [1.4, 1.6] speed, twice"
    assert by_id["open"][3] == "holds 1.7 [1.6, 1.8] speed, twice"
    assert by_id["none"][2].startswith("does not hold here 1.235 speed here 0.5 speed of the other")
    assert by_id["none"][3].startswith("holds 1.235 speed here 2 speed of the other")


def test_a_run_of_this_page_that_is_not_the_first_run_is_named(project, save):
    save("FIRST", RECORDED | {"range": {"value": 1.7, "low": 1.6, "high": 1.8}})
    save("SECOND", RECORDED | {"range": {"value": 1.7, "low": 1.6, "high": 1.8}})
    text, rows = turned_cells(project)
    assert rows == [] and "Claims with two verdicts: 0 of 7" in text
    assert "seeds and yet other verdicts on: open." in text


@pytest.mark.parametrize(
    "which, profile, parameters, what",
    [
        ("SECOND", "smoke", {}, "second run differs from the run of this page in its profile"),
        ("FIRST", "smoke", {}, "first run differs from the run of this page in its profile"),
        ("SECOND", "default", {"target": "other"}, "second run differs from the run of this page in its models"),
    ],
)
def test_runs_that_differ_in_more_than_their_seeds_are_not_compared(project, save, which, profile, parameters, what):
    for name in ("FIRST", "SECOND"):
        save(name, RECORDED, *((profile,) if name == which else ()), **(parameters if name == which else {}))
    text, _, status = build(project, "Claims\n======\n\n.. claims-turned::\n")
    assert what in text and "They are not compared." in text and not status


def test_other_weights_are_not_compared(project, save, monkeypatch):
    save("FIRST", RECORDED)
    save("SECOND", RECORDED)
    monkeypatch.setattr(second_run, "weights", lambda: {"pocket": "0"})
    text, _, _ = build(project, "Claims\n======\n\n.. claims-turned::\n")
    assert "The first run differs from the run of this page in its models" in text


def test_a_saved_run_that_is_missing_is_named(project, save):
    text, _, status = build(project, "Claims\n======\n\n.. claims-turned::\n")
    assert "FIRST.json is missing. make first-run writes it." in text and not status
    save("FIRST", RECORDED)
    _, warnings, status = build(project, "Claims\n======\n\n.. claims-turned::\n")
    assert status and "SECOND.json cannot be read" in warnings and "specdec_lib claims --save" in warnings


@pytest.mark.parametrize("path", [second_run.FIRST, second_run.SECOND], ids=lambda path: path.stem)
def test_a_committed_run_is_of_the_shipped_pair_and_of_claims_that_there_are(path):
    if path == second_run.FIRST and not path.is_file():
        pytest.skip("the first run is not saved yet")
    run = second_run.load(path)
    assert run["profiles"] == ["default"] and run["weights"] == second_run.weights()
    assert {row["verdict"] for row in run["claims"].values()} <= {*ledger.VERDICTS}


def test_a_run_without_all_its_notebooks_is_not_saved(project, capsys):
    (project / "book" / "notebooks" / "07_speed.ipynb").unlink()
    assert command.main(["--save", str(project / "second_run.json")]) == 2
    assert (
        "6 claims wait for notebooks that have not been executed, whole first" in capsys.readouterr().err
        and not (project / "second_run.json").exists()
    )


def test_the_table_says_what_the_command_says(project, capsys):
    assert command.main(["--json"]) == 0
    told = json.loads(capsys.readouterr().out)["claims"]
    rows = table_rows(page_of(project))
    assert {row["id"]: row["verdict"] for row in told} == {n: VERDICT_OF[n] for n in rows}
    for row in told:
        _, (place, claim, published, ours, decision) = rows[row["id"]]
        assert place == f"{ledger.PAPERS[row['paper']]} {row['where']}" and claim.startswith(row["claim"])
        assert all(value in published for value in row["published"].values())
        assert all(ledger.shown(value) in ours for value in row["ours"].values())
        assert row["rule"] in decision and decision.startswith(row["verdict"])


def test_the_counts_are_those_of_the_rows_and_the_file_has_every_claim(project):
    page = page_of(project)
    table = page[page.index("claims-summary") : page.index("</table>")]
    rows = re.findall(r"(?s)<tr.*?</tr>", table[table.index("<tbody") :])
    cells = [re.findall(r"<p>(.*?)</p>", re.sub(r"</?span[^>]*>", "", row)) for row in rows]
    assert re.findall(r"<p>(.*?)</p>", table[: table.index("<tbody")]) == [
        *("Verdict", "all four", "REST", "DReSD", "PLD+", "SpecDec++")
    ]
    assert cells == [
        ["holds", "2", "2", "0", "0", "0"],
        ["holds in part", "1", "0", "1", "0", "0"],
        ["does not hold here", "1", "0", "0", "1", "0"],
        ["not resolved", "1", "1", "0", "0", "0"],
        ["not testable here", "1", "0", "0", "0", "1"],
        ["no number yet", "1", "1", "0", "0", "0"],
        ["claims", "7", "4", "1", "1", "1"],
        ["sizes as published", "1 of 2", "1 of 2", "0 of 0", "0 of 0", "0 of 0"],
    ]
    (file,) = (project / "html" / "_downloads").rglob("claims.csv")
    rows = list(csv.DictReader(file.open(encoding="utf-8")))
    assert {row["id"]: row["verdict"] for row in rows} == VERDICT_OF
    assert (
        next(row["ours"] for row in rows if row["id"] == "sized") == "range = 1.51234 [1.4, 1.6]; lost = no number yet"
    )
    assert rows[0]["ours"] == "fast = 1.23456; slow = 0.5; passes = 12345" and rows[0]["device"] == "cpu, float32"


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
            lambda root: write(root, [ROWS[3] | {"size": [["range", "rest-lost"]]}]),
            "there is no published number 'rest-lost'",
        ),
        (
            lambda root: write(root, [ROWS[0] | {"published": ["rest-lost"]}]),
            "claim 'whole': no published number 'rest-lost'",
        ),
        (
            lambda root: (root / "book" / "notebooks" / "07_speed.ipynb").unlink(),
            "claim 'whole' needs 07_speed, which has not been executed (and 5 more claims)",
        ),
        (lambda root: write(root, ROWS[:1] * 2), "two claims have the id 'whole'"),
    ],
    ids=["size", "number", "notebook", "ledger"],
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


def test_notebooks_that_were_not_run_again_keep_their_rows(project, capsys):
    file, notebook = project / "second_run.json", project / "book" / "notebooks" / "07_speed.ipynb"
    assert command.main(["--save", str(file), "--add"]) == 2 and "cannot be read" in capsys.readouterr().err
    assert command.main(["--save", str(file)]) == 0
    saved = json.loads(file.read_text(encoding="utf-8"))["claims"]
    notebook.unlink()
    assert command.main(["--save", str(file), "--add"]) == 0
    assert "6 kept as they were" in capsys.readouterr().out
    assert json.loads(file.read_text(encoding="utf-8"))["claims"] == saved
    del saved["whole"]
    file.write_text(json.dumps({"profiles": [], "models": [], "claims": saved}), encoding="utf-8")
    assert command.main(["--save", str(file), "--add"]) == 2 and "1 claims wait" in capsys.readouterr().err
