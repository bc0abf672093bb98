"""The built page of claims in a browser: whole without a script, filtered and ordered with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdec_lib import paths
from specdec_lib.commands import claims as command
from specdec_lib.report.claims import ledger
from tests.report.browser import lacking, open_browser, visit
from tests.report.claims.test_claims_page import table_rows

pytestmark = pytest.mark.browser
PAGE = (paths.ROOT or Path()) / "_build" / "html" / "claims.html"
PLAIN = str.maketrans("’‘“”", "''\"\"")  # Sphinx bends the quotes of prose
VISIBLE = (
    "[...document.querySelectorAll('tr.claim')].filter(row => row.checkVisibility())"
    ".map(row => row.id.slice('claim-'.length))"
)


@pytest.fixture(scope="module")
def told():
    """What the command says, with the built page beside it."""
    if not PAGE.is_file():
        lacking("the book is not built: make book")
    entries = ledger.whole_ledger()
    return {entry.claim.id: entry for entry in entries}


@pytest.fixture(scope="module")
def page(told):
    with open_browser() as browser:
        page = browser.new_page()
        assert visit(page, PAGE.as_uri())["errors"] == []
        yield page


@pytest.fixture(autouse=True)
def nothing_filtered(page):
    page.evaluate(
        "document.querySelector('.claims-filter').reset(); "
        "document.querySelector('.claims-filter').dispatchEvent(new Event('input'))"
    )


def choose(page, **values):
    """Set the controls as a reader would, and return the ids of the rows that are then seen, in order."""
    for name, value in values.items():
        page.evaluate(f"document.querySelector('.claims-filter [name={name}]').value = {json.dumps(value)}")
    page.evaluate("document.querySelector('.claims-filter').dispatchEvent(new Event('input'))")
    return page.evaluate(VISIBLE)


def test_without_a_script_the_table_is_whole_and_says_what_the_command_says(told, capsys):
    source = PAGE.read_text(encoding="utf-8")
    rows = table_rows(source.translate(PLAIN))
    assert command.main(["--json"]) == 0
    claims = json.loads(capsys.readouterr().out)["claims"]
    assert sorted(rows) == sorted(row["id"] for row in claims) and len(claims) == len(told)
    for row in claims:
        _, (place, claim, published, ours, decision) = rows[row["id"]]
        headline = " headline" if told[row["id"]].claim.headline else ""
        assert place == f"{ledger.PAPERS[row['paper']]} {row['where']}{headline}"
        assert claim == f"{row['claim']} {row['id']}"
        assert decision.startswith(row["verdict"]) and row["rule"] in decision
        assert all(value in published for value in row["published"].values())
        assert all(ledger.shown(value) in ours for value in row["ours"].values())
        assert row["run"] is None or f"shape {row['run']['shape']}; {row['run']['device']}" in ours
    assert "<form" not in source[source.index("<article") : source.index("</article>")]


@pytest.mark.parametrize("paper", list(ledger.PAPERS))
def test_a_paper_leaves_its_own_claims(page, told, paper):
    expected = [name for name, entry in told.items() if entry.claim.paper == paper]
    assert choose(page, paper=ledger.PAPERS[paper]) == expected and expected
    assert page.evaluate("document.querySelector('.claims-filter output').textContent") == (
        f"{len(expected)} of {len(told)} claims"
    )


def test_a_verdict_and_words_narrow_it_further(page, told):
    for verdict in {entry.verdict.verdict for entry in told.values()}:
        expected = {name for name, entry in told.items() if entry.verdict.verdict == verdict}
        assert set(choose(page, verdict=verdict)) == expected
    assert "pld-plus-table-1-eagle" in choose(page, verdict="", words="eagle TABLE")
    assert choose(page, words="no claim says this") == []


def test_headlines_are_the_claims_of_the_figure(page, told):
    page.evaluate("document.querySelector('.claims-filter [name=headlines]').checked = true")
    assert choose(page) == [name for name, entry in told.items() if entry.claim.headline]


def test_the_order_is_by_verdict_or_by_name_and_back(page, told):
    place = [ledger.VERDICTS.index(told[name].verdict.verdict) for name in choose(page, order="verdict")]
    assert place == sorted(place) and len(place) == len(told)
    assert choose(page, order="id") == sorted(told)
    papers = [list(ledger.PAPERS).index(told[name].claim.paper) for name in choose(page, order="place")]
    assert papers == sorted(papers)


def test_the_filter_is_used_with_the_keyboard_alone(page, told):
    page.evaluate("document.querySelector('.claims-filter [name=paper]').focus()")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "words"
    page.keyboard.insert_text("oracle")
    seen = page.evaluate(VISIBLE)
    assert 0 < len(seen) < len(told) and "specdec-pp-lemma-oracle" in seen


def test_a_link_to_a_claim_shows_it_although_it_was_filtered_away(page):
    assert "rest-table-2" not in choose(page, paper="DReSD")
    page.evaluate(
        "new Promise(done => { addEventListener('hashchange', () => setTimeout(done, 50)); "
        "location.hash = '#claim-rest-table-2'; })"
    )
    assert "rest-table-2" in page.evaluate(VISIBLE)


SEEN = "[...document.querySelectorAll('#claim-rest-table-2 td:last-child > p')].map(p => p.checkVisibility())"


def test_a_row_shows_one_line_of_each_cell_until_its_button_is_pressed(page, told):
    visit(page, PAGE.as_uri())
    closed = page.evaluate(f"[document.querySelector('table.claims-ledger').offsetHeight, ...({SEEN})]")
    assert closed[1:] == [True, *[False] * (len(closed) - 2)] and len(closed) > 3
    button = "document.querySelector('#claim-rest-table-2 .claim-more')"
    page.evaluate(f"{button}.focus()")
    page.keyboard.press("Enter")
    assert all(page.evaluate(SEEN)) and page.evaluate(f"{button}.getAttribute('aria-expanded')") == "true"
    assert page.evaluate(f"{button}.textContent") == "less about rest-table-2"
    page.keyboard.press("Enter")
    assert page.evaluate(SEEN) == closed[1:]
    page.evaluate("document.querySelector('.claims-filter [name=details]').click()")
    assert all(page.evaluate(SEEN))
    assert page.evaluate("document.querySelector('table.claims-ledger').offsetHeight") > 3 * closed[0]
    page.evaluate("document.querySelector('.claims-filter [name=details]').click()")


def test_a_link_opens_its_row_and_print_shows_all(page):
    page.goto("about:blank")
    visit(page, PAGE.as_uri() + "#claim-rest-table-2")
    assert all(page.evaluate(SEEN))
    visit(page, PAGE.as_uri())
    page.emulate_media(media="print")
    assert all(page.evaluate(SEEN))
    page.emulate_media(media="screen")


def test_on_a_phone_every_cell_is_below_the_one_before(page):
    facts = visit(page, PAGE.as_uri(), 500)
    assert facts["width"][0] <= facts["width"][1]
    edges = page.evaluate(
        "[...document.querySelectorAll('tr.claim')].map(r => [...r.cells].map(c => "
        "[c.getBoundingClientRect().top, c.getBoundingClientRect().bottom]))"
    )
    assert all(above[1] <= below[0] + 1 for row in edges for above, below in zip(row, row[1:], strict=False))
