"""The built book, the table of claims and the viewer of a generation, as a reader's browser shows them.

The pages have addresses of one site: opened as files they are strangers to each other. The first is opened as a file too.
"""

import functools
import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from specdec_lib import DraftTree, paths
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.report.build import book
from specdec_lib.report.claims import rules, table
from specdec_lib.report.display import stepper
from tests.report.display.test_stepper_data import Letters, points, run_of

pytestmark = pytest.mark.browser
ROOT = paths.ROOT or Path()
HTML = ROOT / "_build" / "html"
SITE, LAPTOP, PHONE = "http://book.test", 1280, 390

# What a role, a directive or a value looks like when it was not replaced.
LEFTOVERS = re.compile(
    r"\{(?:num|glue|numref|cite|eq|ref|term|doc|download)[:}a-z]*|glue:|<Figure size|np\.\w+\(|\\\(|\\\[|\$\$|:::"
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = "--headless=new --no-sandbox --disable-gpu --disable-sync --disable-background-networking".split()
OPTIONS.append("--disable-component-update")

# Everything a test wants to know of a page, in one evaluation. Text in code is the reader's business, not the
# book's.
INSPECTION = r"""
(async () => {
  if (window.MathJax && MathJax.startup) { await MathJax.startup.promise; }
  const texts = [];
  const skip = "pre, code, script, style, mjx-container, .notranslate:not(.math)";
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.textContent.trim() && !node.parentElement.closest(skip)) texts.push(node.textContent);
  }
  const math = [...document.querySelectorAll(".math")];
  return {
    title: document.title,
    // A link of a drawing keeps its address as written.
    links: [...document.querySelectorAll("a[href]")].map(link => new URL(link.href.baseVal ?? link.href, document.baseURI).href),
    texts: texts,
    unrendered: math.filter(e => !e.querySelector("mjx-container")).map(e => e.textContent.slice(0, 80)),
    broken: [...document.querySelectorAll("mjx-merror, [data-mjx-error]")].map(e => e.textContent),
    images: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
    without_alt: [...document.querySelectorAll("article img:not([alt])")].map(i => i.src),
  };
})()
"""
WIDTHS = "[document.scrollingElement.scrollWidth, document.scrollingElement.clientWidth]"
#: Equations that are wider than their boxes; the slant of a last letter may stand out of a box.
CUT = """[...document.querySelectorAll("article mjx-container > svg")].filter(e => e.getBoundingClientRect().width > 0
  && e.getBoundingClientRect().right > e.closest(".math").getBoundingClientRect().right + 12).map(e => e.closest(".math").textContent.slice(0, 80))"""


def serve(page: Page, folder: Path) -> None:
    """Answer a page's requests for :data:`SITE` with the files of a folder."""

    def answer(route: Route) -> None:
        path = folder / unquote(urlsplit(route.request.url).path.lstrip("/"))
        if path.is_file():
            route.fulfill(path=path)
        else:
            route.fulfill(status=404)

    page.route(f"{SITE}/**", answer)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a browser and end it afterwards; without one the test is skipped.

    The plugin pytest-playwright keeps its loop running until the last test, and notebooks need a thread without one.
    """
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        lacking("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def visit(page: Page, address: str) -> dict[str, Any]:
    """Load a page; returns what :data:`INSPECTION` says, with ``errors`` and ``requests``."""
    errors: list[str] = []
    requests: list[str] = []

    def heard(message):
        if message.type in ("error", "assert"):
            errors.append(f"{message.text} {message.location['url']}")

    def not_loaded(request):
        if request.failure != "net::ERR_ABORTED":  # a page that is left takes its requests back
            errors.append(f"not loaded: {request.url} {request.failure}")

    listeners = {"pageerror": lambda error: errors.append(str(error)), "console": heard, "requestfailed": not_loaded}
    listeners["request"] = lambda request: requests.append(request.url)
    page.set_viewport_size({"width": 1400, "height": 900})
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(address, timeout=120_000)  # a busy machine takes long
    facts = page.evaluate(INSPECTION)
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    return facts | {"errors": errors, "requests": requests}


def lacking(reason: str) -> None:
    """Skip a test for want of a browser or of pages; fail it where both must be there."""
    if os.environ.get("SPECDEC_REQUIRE_BROWSER"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def page(browser):
    page = browser.new_page()
    page.set_default_timeout(60_000)  # a busy machine
    yield page
    page.close()


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    """The names in a page that a link can point at."""
    names: set[str] = set()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: names.update(v for k, v in attrs if k in ("id", "name") and v)
    parser.feed(path.read_text(encoding="utf-8"))
    return frozenset(names)


def leads_nowhere(link: str) -> bool:
    """Whether a link goes to a page or a place of the site that is not there."""
    address, place = urldefrag(link)
    if not address.startswith(SITE):
        return False
    path = HTML / unquote(address.removeprefix(SITE).split("?")[0].lstrip("/"))
    path = path / "index.html" if path.is_dir() else path
    return not path.is_file() or bool(place and path.suffix == ".html" and unquote(place) not in anchors(path))


def faults(page, name: str) -> dict[str, list]:
    """What is wrong with a page of the site, wide and as narrow as a phone, by kind."""
    facts = visit(page, f"{SITE}/{name}")
    cut = []
    for wide in (LAPTOP, PHONE):
        page.set_viewport_size({"width": wide, "height": 900})
        cut += [f"{wide}: {equation}" for equation in page.evaluate(CUT)]
    width, room = page.evaluate(WIDTHS)
    found = {key: facts[key] for key in ("errors", "unrendered", "broken", "images", "without_alt")} | {
        "links": [link for link in sorted(set(facts["links"])) if leads_nowhere(link)],
        "left over": [text.strip()[:120] for text in facts["texts"] if LEFTOVERS.search(text)],
        "fetched from elsewhere": [r for r in facts["requests"] if not r.startswith((SITE, "data:"))],
        "wider than a phone": [width] if width > room else [],
        "equations cut": cut,
    }
    return {kind: cases for kind, cases in found.items() if cases}


def test_no_page_has_a_fault_and_the_search_and_the_first_page_work(page):
    if not (HTML / "intro.html").is_file():
        lacking("the book is not built: make book")
    library = sorted(path.relative_to(HTML).as_posix() for path in (HTML / "api" / book.GENERATED).glob("*.html"))
    names = [*(f"{name}.html" for name in book.toc_files(ROOT / "book" / "_toc.yml")), *library, "genindex.html"]
    serve(page, HTML)
    found = {name: faults(page, name) for name in names}
    assert {name: kinds for name, kinds in found.items() if kinds} == {}
    page.goto(f"{SITE}/search.html?q=speculative")
    page.wait_for_selector("#search-results li")
    page.wait_for_load_state("networkidle")  # it fetches a summary of each page that it found
    facts = visit(page, (HTML / "intro.html").as_uri())
    assert facts["errors"] == [] and facts["title"]
    assert [name for name in HTML.rglob("*.html") if str(ROOT) in name.read_text(encoding="utf-8")] == []


SEEN = "[...document.querySelectorAll('div.claims > details')].filter(row => row.checkVisibility()).map(row => row.id)"


def test_words_and_choices_filter_the_claims_and_a_link_unfolds_its_own(page, tmp_path):
    claims = rules.load_claims()
    html = table.to_html(rules.judge(claims, {}), {}, {"rest-table-2"})
    script = (paths.root() / "book" / "assets" / "claims.js").as_uri()
    address = tmp_path / "claims.html"
    address.write_text(f"<!doctype html><meta charset=utf-8><title>t</title>{html}<script src={script}></script>")
    everything = [f"claim-{claim.id}" for claim in claims]
    assert visit(page, address.as_uri())["errors"] == [] and page.evaluate(SEEN) == everything
    page.locator(".claims-filter input").fill("DReSD normalisation")
    few = page.evaluate(SEEN)
    assert "claim-dresd-normalisation" in few and 0 < len(few) < 10
    assert page.locator(".claims-filter output").inner_text() == f"{len(few)} of {len(claims)}"
    page.locator(".claims-filter input").fill("")
    page.get_by_label("Paper").select_option("DReSD")
    assert page.evaluate(SEEN) == [f"claim-{claim.id}" for claim in claims if claim.paper.startswith("DReSD")]
    page.get_by_label("Paper").select_option("")
    page.get_by_label("How sure").select_option(table.SURE["turned"])
    assert page.evaluate(SEEN) == ["claim-rest-table-2"]
    page.evaluate("location.hash = 'claim-dresd-normalisation'")
    page.wait_for_function("document.querySelector('#claim-dresd-normalisation').open")
    assert page.evaluate(SEEN) == everything


FORK = DraftTree(points("ydz"), [-1, -1, 1]).annotated(scores=[0.25, 0.5, 0.12], sources=["store", "prompt", "store"])
DRAFTED = run_of((DraftTree.chain(points("bxx")), [0], "bc"), (FORK, [1, 2], "dze"), (DraftTree.chain([]), [], "f"))
PLAIN = run_of(*((DraftTree.chain([]), [], letter) for letter in "bcdzef"))
COSTS = [PassCosts({1: 1.0, 4: 2.0}, step=0.5, name="this machine"), PassCosts({1: 1.0, 4: 1.0}, name="a free pass")]


@pytest.fixture
def viewer(page, tmp_path):
    """The page holds a viewer."""
    runs = {"PLD": [DRAFTED, DRAFTED], "plain": [PLAIN, PLAIN]}
    viewer = stepper.stepper(runs, Letters(), {"first": points("</script> $x$"), "second": points("other\n")}, COSTS)
    html = f"<!doctype html><meta charset=utf-8><title>t</title><article>{viewer.to_html()}</article>"
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    address = (tmp_path / "index.html").as_uri()
    facts = visit(page, address)
    assert facts["errors"] == [] and facts["requests"] == [address]


def summary(page):
    return page.get_by_role("status").text_content()


def step(page):
    return page.get_by_role("slider").input_value()


def choose(page, label, option):
    page.get_by_role("combobox", name=label).select_option(label=option)


def facts(page):
    return dict(zip(page.locator("dt").all_text_contents(), page.locator("dd").all_text_contents(), strict=True))


@pytest.mark.usefixtures("viewer")
def test_the_first_step_says_what_was_drafted_accepted_and_paid(page):
    # 2 tokens for a pass over 4 at 2.0 and a look-up at 0.5: 2 / 2.5.
    assert summary(page) == (
        "Step 1 of 3. PLD drafted 3 tokens; the target accepted 1 and wrote “c” itself. 2 tokens from a pass over 4. "
        "So far 2.00 tokens per pass, and 0.80 times as fast as plain decoding on this machine."
    )
    assert facts(page) == {
        "Width of the pass": "4 tokens", "Cost of the pass (one token = 1)": "2.00", "Cost of drafting": "0.50",
        "Tokens per pass so far": "2.00", "Speed-up so far": "0.80",
    }  # fmt: skip


@pytest.mark.usefixtures("viewer")
def test_keys_buttons_and_the_slider_step_through(page):
    page.get_by_role("button", name="one step on").focus()
    for key, at in zip("ArrowRight ArrowRight ArrowRight Home End ArrowLeft".split(), "233032", strict=True):
        page.keyboard.press(key)
        assert step(page) == at
    # 5 tokens for two passes over 4 with their look-ups: 5 / 5.
    assert summary(page).endswith("2.50 tokens per pass, and 1.00 times as fast as plain decoding on this machine.")
    page.get_by_role("slider").fill("3")
    assert "the target wrote “f” itself" in summary(page) and "drafted nothing" in summary(page)
    page.get_by_role("button", name="one step back").click()
    assert step(page) == "2" and page.get_by_role("slider").get_attribute("aria-valuetext") == "step 2 of 3"
    page.get_by_role("button", name="first step").click()
    assert summary(page).startswith("Step 0. The pass over the prompt")


@pytest.mark.usefixtures("viewer")
def test_the_draft_is_a_list_that_says_each_nodes_fate_and_what_is_chosen_is_shown_at_the_same_place(page):
    page.get_by_role("slider").fill("2")
    draft = page.get_by_role("region", name="Draft of this step")
    nodes = [" ".join(text.split()) for text in draft.locator(".node").all_inner_texts()]
    assert nodes == [
        "last token: c", "accepted: d 0.50 prompt", "accepted: z 0.12 store", "the target's own: e", "rejected: y 0.25 store",
    ]  # fmt: skip
    choose(page, "Method", "plain")
    assert step(page) == "5" and summary(page).startswith("Step 5 of 6. The target wrote “e” itself.")
    assert facts(page)["Speed-up so far"] == "1.00" and facts(page)["Cost of drafting"] == "0.00"
    choose(page, "Method", "PLD")
    choose(page, "Cost of a pass on", "a free pass")
    assert step(page) == "2" and facts(page)["Tokens per pass so far"] == facts(page)["Speed-up so far"] == "2.50"
    page.get_by_role("slider").fill("3")
    text = page.get_by_role("region", name="Text so far")
    assert text.text_content() == "</script> $x$abcdzef"
    choose(page, "Prompt", "second")
    assert step(page) == "1" and text.text_content() == "other\nabc"


def test_it_starts_where_a_notebook_puts_it_into_the_page_and_of_two_one_moves(page):
    """JupyterLab sets the HTML of a detached element, replaces its scripts by copies, and attaches it."""
    insert = """html => {
      const host = document.createElement("div");
      host.innerHTML = html;
      for (const script of host.querySelectorAll("script")) {
        const copy = document.createElement("script");
        for (const { name, value } of script.attributes) copy.setAttribute(name, value);
        copy.textContent = script.textContent;
        script.replaceWith(copy);
      }
      document.body.append(host);
    }"""
    for _ in range(2):
        page.evaluate(insert, stepper.stepper({"PLD": [DRAFTED]}, Letters(), {"one": points("hi")}, COSTS).to_html())
    sliders = page.get_by_role("slider")
    sliders.last.fill("3")
    assert [slider.input_value() for slider in sliders.all()] == ["1", "3"]
