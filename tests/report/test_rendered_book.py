"""The built book, as a reader's browser shows it.

The pages are served from this machine, because a browser treats pages of one folder opened as files as strangers to each
other; the first page is opened as a file as well, as a reader does.
"""

import functools
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from specdec_lib import paths
from specdec_lib.report.build import book
from specdec_lib.report.claims import rules, table
from tests.report.browser import lacking, open_browser, served, visit

pytestmark = pytest.mark.browser
ROOT = paths.ROOT or Path()
HTML = ROOT / "_build" / "html"
PHONE = 500

# What a role, a directive or a value looks like when it was not replaced.
LEFTOVERS = re.compile(
    r"\{(?:num|glue|numref|cite|eq|ref|term|doc|download)[:}a-z]*|glue:|<Figure size|np\.\w+\(|\\\(|\\\[|\$\$|:::"
)


@pytest.fixture(scope="module")
def page():
    with open_browser() as browser:
        yield browser.new_page()


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    """The names in a page that a link can point at."""
    names: set[str] = set()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: names.update(v for k, v in attrs if k in ("id", "name") and v)
    parser.feed(path.read_text(encoding="utf-8"))
    return frozenset(names)


def leads_nowhere(link: str, site: str, folder: Path) -> bool:
    """Whether a link goes to a page or a place of the site that is not there."""
    address, place = urldefrag(link)
    if not address.startswith(site):
        return False
    path = folder / unquote(address.removeprefix(site).split("?")[0].lstrip("/"))
    path = path / "index.html" if path.is_dir() else path
    return not path.is_file() or bool(place and path.suffix == ".html" and unquote(place) not in anchors(path))


def faults(page, site: str, folder: Path, name: str) -> dict[str, list]:
    """What is wrong with a page of the site, wide and as narrow as a phone, by kind."""
    facts = visit(page, f"{site}/{name}")
    width, room = visit(page, f"{site}/{name}", PHONE)["width"]
    found = {key: facts[key] for key in ("errors", "unrendered", "broken", "images", "without_alt")} | {
        "links": [link for link in sorted(set(facts["links"])) if leads_nowhere(link, site, folder)],
        "left over": [text.strip()[:120] for text in facts["texts"] if LEFTOVERS.search(text)],
        "fetched from elsewhere": [r for r in facts["requests"] if not r.startswith((site, "data:"))],
        "wider than a phone": [width] if width > room else [],
    }
    return {kind: cases for kind, cases in found.items() if cases}


def test_no_page_has_a_fault_and_the_search_and_the_first_page_work(page):
    if not (HTML / "intro.html").is_file():
        lacking("the book is not built: make book")
    library = sorted(path.relative_to(HTML).as_posix() for path in (HTML / "api" / book.GENERATED).glob("*.html"))
    names = [*(f"{name}.html" for name in book.toc_files(ROOT / "book" / "_toc.yml")), *library, "genindex.html"]
    with served(HTML) as site:
        found = {name: faults(page, site, HTML, name) for name in names}
        assert {name: kinds for name, kinds in found.items() if kinds} == {}
        page.goto(f"{site}/search.html?q=speculative")
        page.wait_for_selector("#search-results li")
        page.wait_for_load_state("networkidle")  # it fetches a summary of each page that it found
    facts = visit(page, (HTML / "intro.html").as_uri())
    assert facts["errors"] == [] and facts["title"]
    assert [name for name in HTML.rglob("*.html") if str(ROOT) in name.read_text(encoding="utf-8")] == []


SEEN = "[...document.querySelectorAll('table.claims tbody tr')].filter(row => row.checkVisibility()).map(row => row.id)"


def test_words_filter_the_claims_and_a_link_shows_its_own(page, tmp_path):
    claims = rules.load_claims()
    html = table.to_html(rules.judge(claims, {}), {})
    script = (paths.root() / "book" / "assets" / "claims.js").as_uri()
    address = tmp_path / "claims.html"
    address.write_text(f"<!doctype html><meta charset=utf-8><title>t</title>{html}<script src={script}></script>")
    everything = [f"claim-{claim.id}" for claim in claims]
    assert visit(page, address.as_uri())["errors"] == [] and page.evaluate(SEEN) == everything
    page.locator(".claims-filter input").fill("DReSD normalisation")
    few = page.evaluate(SEEN)
    assert "claim-dresd-normalisation" in few and 0 < len(few) < 10
    assert page.locator(".claims-filter output").inner_text() == f"{len(few)} of {len(claims)}"
    page.evaluate("location.hash = 'claim-rest-table-2'")
    page.wait_for_function("document.querySelector('.claims-filter input').value === ''")
    assert page.evaluate(SEEN) == everything
