"""The built book, as a reader's browser shows it.

The pages are served from this machine, because a browser treats pages of one folder opened as files as
strangers to each other; one test opens the first page as a file, as a reader does.
"""

from __future__ import annotations

import functools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

from specdec_lib import paths
from specdec_lib.report.build import book
from tests.report.browser import lacking, open_browser, served, visit

pytestmark = pytest.mark.browser
ROOT = paths.ROOT or Path()
HTML = ROOT / "_build" / "html"

# What a role, a directive or a value looks like when it was not replaced.
LEFTOVERS = re.compile(
    r"\{(?:glue|numref|cite|eq|ref|term|doc|download)[:}a-z]*|glue:|<Figure size|np\.\w+\(|\\\(|\\\[|\$\$|:::"
)
PHONE = 500


@pytest.fixture(scope="module")
def page():
    with open_browser() as browser:
        yield browser.new_page()


@pytest.fixture(scope="module")
def pages() -> list[str]:
    if not (HTML / "intro.html").is_file():
        lacking("the book is not built: make book")
    library = sorted(path.relative_to(HTML).as_posix() for path in (HTML / "api" / book.GENERATED).glob("*.html"))
    return [f"{name}.html" for name in book.toc_files(ROOT / "book" / "_toc.yml")] + library + ["genindex.html"]


@pytest.fixture(scope="module")
def site(pages):
    with served(HTML) as address:
        yield address


@pytest.fixture(scope="module")
def visits(page, site, pages) -> dict[str, dict[str, Any]]:
    """What each page showed, wide and as narrow as a phone."""
    found = {}
    for name in pages:
        found[name] = visit(page, f"{site}/{name}")
        found[name]["phone"] = visit(page, f"{site}/{name}", PHONE)["width"]
    return found


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    """The names in a page that a link can point at."""
    names: set[str] = set()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: names.update(v for k, v in attrs if k in ("id", "name") and v)
    parser.feed(path.read_text(encoding="utf-8"))
    return frozenset(names)


def dead_links(links: list[str], site: str, folder: Path) -> list[str]:
    """The links within the site whose page or place is not there."""
    dead = []
    for link in sorted(set(links)):
        address, place = urldefrag(link)
        if not address.startswith(site):
            continue
        path = folder / unquote(address.removeprefix(site).split("?")[0].lstrip("/"))
        if path.is_dir():
            path = path / "index.html"
        if not path.is_file():
            dead.append(link)
        elif place and path.suffix == ".html" and unquote(place) not in anchors(path):
            dead.append(link)
    return dead


def leftovers(texts: list[str]) -> list[str]:
    return [text.strip()[:120] for text in texts if LEFTOVERS.search(text)]


def by_page(visits: dict[str, dict[str, Any]], key: str) -> dict[str, Any]:
    return {page: facts[key] for page, facts in visits.items() if facts[key]}


def test_no_page_reports_an_error(visits):
    assert by_page(visits, "errors") == {}


def test_every_link_within_the_book_leads_somewhere(visits, site):
    dead = {page: dead_links(facts["links"], site, HTML) for page, facts in visits.items()}
    assert {page: links for page, links in dead.items() if links} == {}
    assert sum(len(facts["links"]) for facts in visits.values()) > 10 * len(visits)


def test_every_formula_is_drawn(visits):
    assert by_page(visits, "unrendered") == {} and by_page(visits, "broken") == {}
    assert sum(facts["formulas"] for facts in visits.values()) > 0


def test_every_glued_value_and_reference_is_replaced(visits):
    left = {page: leftovers(facts["texts"]) for page, facts in visits.items()}
    assert {page: texts for page, texts in left.items() if texts} == {}


def test_every_image_is_shown_and_described(visits):
    assert by_page(visits, "images") == {} and by_page(visits, "without_alt") == {}


def test_nothing_is_fetched_from_elsewhere(visits, site):
    foreign = {
        page: [r for r in facts["requests"] if not r.startswith((site, "data:"))] for page, facts in visits.items()
    }
    assert {page: requests for page, requests in foreign.items() if requests} == {}


def test_no_page_is_wider_than_a_phone(visits):
    assert {page: facts["phone"] for page, facts in visits.items() if facts["phone"][0] > facts["phone"][1]} == {}


def test_no_page_names_a_folder_of_the_machine_that_built_it(pages):
    naming = [page.name for page in HTML.rglob("*.html") if str(ROOT) in page.read_text(encoding="utf-8")]
    assert naming == []


def test_the_search_finds_a_page(page, site):
    visit(page, f"{site}/search.html?q=speculative")
    count = "new Promise(done => { let left = 100; const look = () => { const n = document.querySelectorAll("
    count += "'#search-results li').length; n || !left-- ? done(n) : setTimeout(look, 100); }; look(); })"
    assert page.evaluate(count) > 0


def test_the_first_page_works_when_opened_as_a_file(page, pages):
    facts = visit(page, (HTML / "intro.html").as_uri())
    assert facts["errors"] == [] and facts["title"]


def test_the_faults_are_found_where_there_are_some(page, tmp_path):
    (tmp_path / "other.html").write_text("<p id='here'></p>")
    (tmp_path / "index.html").write_text(
        """<!doctype html><title>t</title><body><article>
        <a href="other.html#here">good</a><a href="other.html#there">x</a><a href="missing.html">x</a>
        <span class="math">\\(x\\)</span><p>rate {glue:text}`rate:.2f` and <code>{glue:text}`a`</code></p>
        <img src="missing.svg"><div style="width:900px">wide</div>
        <script>console.error("trouble"); undefined_function()</script></article>"""
    )
    with served(tmp_path) as site:
        facts = visit(page, f"{site}/index.html", PHONE)
        assert dead_links(facts["links"], site, tmp_path) == [
            f"{site}/missing.html",
            f"{site}/other.html#there",
        ]
    assert any("trouble" in error for error in facts["errors"])
    assert any("undefined_function" in error for error in facts["errors"])
    assert any("missing.svg" in error for error in facts["errors"]) and facts["images"] and facts["without_alt"]
    assert facts["unrendered"] == ["\\(x\\)"]
    assert len(leftovers(facts["texts"])) == 2, "the formula and the key outside of code"
    assert facts["width"][0] > facts["width"][1]
