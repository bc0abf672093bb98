"""Tables, coloured tokens, figures and notices: what they put on a page."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from specdec_lib import methods, paths
from specdec_lib.report.display import figures, notices, record, run_context, session
from specdec_lib.report.display.tables import MISSING, Markup, Table, format_cell
from specdec_lib.report.display.token_views import Token, TokenView

FRAME = pd.DataFrame({"task": ["a|b", "<i>"], "rate": [0.123456, np.nan], "n": [12345, 2]})


class Text(HTMLParser):
    """Collects tags and text, to compare what a browser would show."""

    def __init__(self, source: str):
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (0.123456, None, "0.123"),
        (12345, None, "12,345"),
        (0.5, ".1%", "50.0%"),
        (3.0, ",d", "3"),
        (np.nan, ".2f", MISSING),
        (None, None, MISSING),
        (True, None, "True"),
        ("x", ".2f", "x"),
        (2, lambda value: f"{value}×", "2×"),
    ],
)
def test_a_cell_is_formatted_as_asked(value, spec, text):
    assert format_cell(value, spec) == text


def test_a_table_is_a_numbered_myst_table_with_numbers_to_the_right():
    lines = Table(FRAME, "tab-x", "A caption.", formats={"rate": ".2f"}).to_myst().splitlines()
    assert lines[:2] == [":::{table} A caption.", ":name: tab-x"]
    assert "| task | rate | n |" in lines and "|:--|--:|--:|" in lines
    assert r"| a\|b | 0.12 | 12,345 |" in lines and rf"| \<i\> | {MISSING} | 2 |" in lines


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- a",
    "&lt;b&gt; &amp; &#60;",
    "[a](javascript:alert(1))",
    "![a](http://example.com/a.png)",
    "<http://example.com>",
    "https://example.com/a?b=1",
    "www.example.com",
    "a@example.com",
    "{raw}`<b>`",
    "{download}`a <../../x>`",
    "{ref}`x`",
    "{{ version }}",
    "$x^2$",
    "$$x$$",
    "\\(x\\)",
    "`code`",
    "**bold** _a_ ~~b~~",
    "[^1]",
    "[a]{.class}",
    "# heading",
    "- item",
    "a|b",
    "a \\| b",
    "back\\",
    "\\<i>",
    "::: ends",
    "two\nlines",
    "a\u2028:::\u2028b",
    "a\x85|b|",
    "0.12",
    "12,345",
    "v1.5 of i.e. this",
    "!",
    "a: b",
    "–",
]


def rendered(text: str):
    """Tokens of the book's own Markdown parser with its extensions."""
    import yaml
    from markdown_it.renderer import RendererHTML
    from myst_parser.config.main import MdParserConfig
    from myst_parser.parsers.mdit import create_md_parser

    extensions = yaml.safe_load((paths.root() / "_config.yml").read_text())["parse"]["myst_enable_extensions"]
    parser = create_md_parser(MdParserConfig(enable_extensions=set(extensions)), RendererHTML)
    return parser.parse(text, {})


def test_a_cell_shows_its_text_and_nothing_in_it_comes_to_life():
    frame = pd.DataFrame({"text": HOSTILE, "n": range(len(HOSTILE))})
    myst = Table(frame, "tab-x", "c", columns={"text": "T", "n": "N"}).to_myst()
    (fence,) = rendered(myst)
    assert fence.type == "colon_fence" and len(fence.content.splitlines()) == 5 + len(HOSTILE)
    cells = [token for token in rendered("\n".join(fence.content.splitlines()[3:])) if token.type == "inline"][2:]
    assert {child.type for cell in cells for child in cell.children} <= {"text", "text_special"}
    shown = ["".join(child.content for child in cell.children) for cell in cells[::2]]
    assert shown == [re.sub(r"[\n\u2028\x85]", " ", text) for text in HOSTILE]
    assert [cell.content for cell in cells[1::2]] == [str(i) for i in range(len(HOSTILE))]


def test_a_column_of_markup_and_named_headings_stay_what_they_are_and_names_of_columns_are_shown():
    frame = pd.DataFrame({"rule": ["best $K$ | {ref}`x`"], "a_b": [1]})
    table = Table(frame, "tab-x", "c", columns={"rule": r"$\alpha$", "a_b": "N"}, formats={"rule": Markup})
    assert r"| $\alpha$ | N |" in table.to_myst() and r"| best $K$ \| {ref}`x` | 1 |" in table.to_myst()
    assert "best $K$ | {ref}`x`" in table.to_html()
    assert r"| rule | a\_b |" in Table(frame, "tab-x", "c").to_myst()


def test_columns_choose_order_and_headings():
    table = Table(FRAME, "tab-x", "c", columns={"n": "Prompts", "task": "Task"})
    assert "| Prompts | Task |" in table.to_myst()


@pytest.mark.parametrize("arguments", [{"columns": {"nope": "x"}}, {"formats": {"nope": "d"}}, {"timed": ["nope"]}])
def test_a_column_that_is_not_there_is_refused(arguments):
    with pytest.raises(ValueError, match="'nope'"):
        Table(FRAME, "tab-x", "c", **arguments)


@pytest.mark.parametrize(
    ("timed", "columns"),
    [(False, []), (True, ["task", "rate", "n"]), (["rate"], ["rate"]), ("rate", ["rate"])],
)
def test_a_table_says_which_columns_come_from_a_clock(timed, columns):
    shown, marks = Table(FRAME, "tab-x", "c", timed=timed)._repr_mimebundle_()
    output = {"output_type": "execute_result", "data": shown, "metadata": marks}
    assert record.timed_columns({"cells": [{"outputs": [output]}]}) == {"tab-x": set(columns)}


@pytest.mark.parametrize("name", ["speed", "tab-Speed", "tab-", "tab-a b"])
def test_a_name_that_no_page_could_refer_to_is_refused(name):
    with pytest.raises(ValueError, match="table name"):
        Table(FRAME, name, "c")


def test_html_of_a_table_shows_the_texts_and_no_markup_of_theirs():
    page = Text(Table(FRAME, "tab-x", "c").to_html())
    assert "<i>" in page.text and "i" not in page.tags


def test_inside_a_run_the_csv_is_written_unformatted_and_linked(tmp_path, monkeypatch):
    run = run_context.RunContext("01_small", "smoke", str(tmp_path / "files"), "0" * 64)
    monkeypatch.setenv(run_context.VARIABLE, run.dumps())
    bundle, _ = Table(FRAME, "tab-x", "c", formats={"rate": ".1f"})._repr_mimebundle_()
    assert "{download}`CSV <files/01_small/tab-x.csv>`" in bundle["text/markdown"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "files" / "tab-x.csv").read_text())))
    assert rows[0] == {"task": "a|b", "rate": "0.123456", "n": "12345"}


def test_outside_of_a_run_nothing_is_written_or_linked(monkeypatch, tmp_path):
    monkeypatch.delenv(run_context.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert "download" not in Table(FRAME, "tab-x", "c")._repr_mimebundle_()[0]["text/markdown"]
    assert list(tmp_path.iterdir()) == []


TOKENS = [
    Token("if a<b:", "target", 0),
    Token("\n  <b>", "accepted", 1, "PLD", note="found at 3 & 4"),
    Token(" oops", "rejected", 1, "PLD"),
    Token(' "x"', "target", 1),
]


def test_the_text_of_a_generation_is_kept_and_escaped():
    view = TokenView(TOKENS, caption="a & b")
    page = Text(
        re.sub(r"<style>.*?</style>|<div class=\"specdec-legend\">.*?</div>", "", view.to_html(), flags=re.DOTALL)
    )
    shown = page.text.replace("↵", "").replace("\u2009", "").replace("▏", "")
    assert shown == 'if a<b:\n  <b> oops "x"a & b'
    assert "b" not in page.tags
    assert view._repr_mimebundle_()["text/plain"] == 'if a<b:\n  <b> "x"'


def test_a_rejected_token_takes_no_line_and_little_room():
    text = TokenView([Token("\n        x", "rejected", 0, "PLD")]).to_html()
    assert text.split("specdec-tokens notranslate")[1].count("\n") == 0 and ">↵⇥x</span>" in text


def test_every_token_says_who_proposed_it_and_what_became_of_it():
    text = TokenView(TOKENS).to_html()
    titles = re.findall(r'title="([^"]*)"', text)
    assert len(titles) == len(TOKENS)
    assert "step 1" in titles[1] and "PLD" in titles[1] and "accepted" in titles[1] and "&amp;" in titles[1]
    assert "rejected" in titles[2] and "target" in titles[3]
    assert f"--specdec-color:{figures.color('PLD')}" in text
    assert text.count('class="specdec-step"') == 1


def test_what_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match="fate"):
        Token("x", "bonus", 0)
    with pytest.raises(ValueError, match="proposer"):
        Token("x", "accepted", 0)
    with pytest.raises(ValueError, match="proposer"):
        Token("x", "target", 0, "PLD")
    with pytest.raises(ValueError, match="backwards"):
        TokenView([Token("x", "target", 1), Token("y", "target", 0)])


def test_only_a_smoke_page_carries_a_warning():
    assert "{admonition}" in notices.notice("smoke")._repr_mimebundle_()["text/markdown"]
    assert notices.notice("default") is None and notices.notice("full") is None


def test_every_method_has_a_colour_and_a_marker_of_its_own():
    names = [methods.PLAIN, *methods.METHODS]
    assert len({figures.color(name) for name in names}) == len({figures.marker(name) for name in names}) == len(names)
    assert figures.color("a method of tomorrow") in figures.PALETTE


def test_figures_draw_what_they_are_given():
    figure = figures.bars(["a", "b"], {"plain": [1, 1], "PLD": [2, 3]}, "tokens", reference=1.0)
    assert [bar.get_height() for bar in figure.axes[0].patches] == [1, 1, 2, 3]


def test_provenance_names_versions_machine_and_parameters():
    rows = dict(session.provenance_table({"alpha": 0.5}).rows())
    assert rows["parameter alpha"] == "0.5"
    assert rows["torch"] and rows["device"] and rows["commit"]
