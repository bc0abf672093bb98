"""The method pages: one for each method, its code where the page says, its picture described."""

import inspect
import random
import re
from importlib import import_module
from pathlib import Path

import pytest

from specdec_lib import Sampling, paths
from specdec_lib.decoding.contract import Context
from specdec_lib.drafters import PromptLookup, Rest
from specdec_lib.methods import METHODS
from specdec_lib.report.appearance import APPEARANCES
from specdec_lib.report.build import book
from specdec_lib.report.build.directives import method_lines
from specdec_lib.report.display import method_pictures
from tests.datastores.stores import build, tree_paths

ROOT = paths.ROOT or Path()
FOLDER = ROOT / "book" / "methods"
PAGES = sorted(FOLDER.glob("*.md"))
pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_page_that_links_to_its_class_and_shows_code_of_its_module(method):
    drafter = METHODS[method].drafter
    link = f"{{py:class}}`{drafter.__module__}.{drafter.__qualname__}`"
    home = [page for page in PAGES if link in text(page)]
    assert [page.stem for page in home] == [APPEARANCES[method].page], f"{method}: write its page with {link}"
    assert f"`{APPEARANCES[method].paper}`" in text(home[0])
    bases = [base for base in inspect.getmro(drafter) if base.__module__.startswith("specdec_lib.drafters")]
    sources = {base.__module__.replace(".", "/") + ".py" for base in bases}
    shown = re.findall(r"\{literalinclude\} \.\./\.\./(\S+)", text(home[0]))
    assert sources & set(shown), f"{home[0].name} shows none of {', '.join(sorted(sources))}"


@each_page
def test_the_code_that_a_page_includes_is_there(page):
    blocks = re.findall(r"```\{literalinclude\} (\S+\.py)\n(.*?)```", text(page), re.DOTALL)
    assert blocks
    for target, options in blocks:
        path = (page.parent / target).resolve()
        found = dict(re.findall(r"^:([a-z-]+): *(.*)$", options, re.MULTILINE))
        place = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name in found["pyobject"].split("."):
            place = vars(place)[name]  # written in this file: what is inherited cannot be shown from it
        source = inspect.getsource(getattr(place, "py_func", place))
        assert found.get("start-at", "").strip('"') in source
        assert found["caption"] == f"{found['pyobject']} ({path.relative_to(ROOT).as_posix()})"
        assert source.count("\n") < 70, "a page shows the method that does the work, not a file"


def test_every_page_is_that_of_a_method_and_in_the_tables_of_contents_and_of_methods():
    pages = ["one-verifier", *dict.fromkeys(row.page for row in APPEARANCES.values())]
    assert {page.stem for page in PAGES} == set(pages) == set(method_pictures.PICTURES)
    listed = [Path(page).name for page in book.toc_files(ROOT / "book" / "_toc.yml") if page.startswith("methods/")]
    assert listed == pages, "in the table's order"
    keys = re.findall(r"^@\w+\{(\w+),", (ROOT / "book" / "references.bib").read_text(encoding="utf-8"), re.MULTILINE)
    assert {row.paper for row in APPEARANCES.values()} <= set(keys)
    lines = method_lines()  # the table of all methods
    assert len(lines) == 4 * (1 + len(METHODS))
    for place, (name, row) in enumerate(APPEARANCES.items(), start=1):
        shown = lines[4 * place : 4 * place + 4]
        assert shown[0] == f"* - [{name}](/methods/{row.page}.md)" and shown[1] == f"  - {METHODS[name].about}"
        assert shown[3] == f"  - {{cite:t}}`{row.paper}`"


def listings(page):
    """The page's blocks of Python."""
    return re.findall(r"```python\n(.*?)```", text(page), re.DOTALL)


@pytest.mark.parametrize("model", ["pocket", pytest.param("smollm2", marks=pytest.mark.realmodel)])
@each_page
def test_the_code_of_a_page_runs_and_prints_what_it_saved(page, model, tmp_path, monkeypatch, capsys):
    """With the fixture instead of the book's model, and with the model itself where everything may be fetched."""
    monkeypatch.chdir(tmp_path)
    for listing in listings(page):
        exec(compile(listing.replace("smollm2", model), page.name, "exec"), {})
    printed = capsys.readouterr().out
    rates = [float(rate) for rate in re.findall(r"([\d.]+) tokens per pass", printed)]
    assert (rates and min(rates) >= 1) or page.stem == "one-verifier"  # which has no method's code


def listed(page, name):
    """A function that a page lists in plain Python."""
    (listing,) = [block for block in listings(FOLDER / f"{page}.md") if f"def {name}(" in block]
    scope: dict = {}
    exec(compile(listing, f"{page}.md", "exec"), scope)
    return scope[name]


def proposed(drafter, tokens, vocabulary):
    """The draft after these tokens, of any size."""
    context = Context(tokens, len(tokens), vocabulary, Sampling())
    drafter.start(context)
    return drafter.propose(context, 10**9)


def test_the_plain_listing_of_pld_drafts_what_the_library_drafts():
    prompt_lookup = listed("pld", "prompt_lookup")
    draw, drafted = random.Random(0), 0
    for _ in range(500):
        tokens = draw.choices(range(draw.randint(1, 6)), k=draw.randint(1, 40))
        most, length = draw.randint(1, 4), draw.randint(1, 6)
        plain = prompt_lookup(tokens, most, length)
        drafter = PromptLookup(max_ngram=most, num_tokens=length)
        assert plain == proposed(drafter, tokens, 6).tokens, (tokens, most, length)
        drafted += bool(plain)
    assert 100 < drafted < 480


def test_the_plain_listing_of_rest_drafts_what_the_library_drafts():
    rest_draft = listed("rest", "rest_draft")
    draw, drafted = random.Random(0), 0
    for _ in range(200):
        ids = range(1, draw.randint(2, 7))
        store, tokens = (draw.choices(ids, k=draw.randint(2, most)) for most in (60, 12))
        sizes = {"min_ngram": draw.randint(1, 3), "length": draw.randint(1, 5), "choices": draw.randint(1, 20)}
        sizes |= {"max_ngram": draw.randint(3, 6), "max_matches": draw.choice([1, 3, 5000])}
        plain = rest_draft(store, tokens, **sizes)
        with build([store], 10) as index:
            tree = proposed(Rest(index, **sizes), tokens, 10)
        assert plain == tree_paths(tree.tokens, tree.parents), (store, tokens, sizes)
        drafted += bool(plain)
    assert 50 < drafted < 195
