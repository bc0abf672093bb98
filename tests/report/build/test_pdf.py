"""The book as one PDF: what is made of the page before it is printed, and what the browser writes."""

from __future__ import annotations

import re

import pytest

from specdec_lib.__main__ import main
from specdec_lib.report.build import pdf
from specdec_lib.report.build.params import UsageError
from tests.report.browser import find_browser


def pages(document: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", document))


def test_links_stay_within_the_document_or_lead_to_the_network():
    page = (
        '<a class="x" href="intro.html#fig-1">in</a><a href="#a">in</a><a href="https://example.org">out</a>'
        '<a class="y" href="_downloads/x.csv" id="z">file</a>'
    )
    assert pdf.printable(page) == (
        '<a class="x" href="#fig-1">in</a><a href="#a">in</a><a href="https://example.org">out</a>'
        '<a class="y" id="z">file</a>'
    )


def test_boxes_are_unfolded_and_hidden_code_is_left_out():
    hidden = '<details class="admonition hide above-input"><summary>Show</summary><div>code</div></details>'
    box = '<details class="sd-card sd-dropdown"><summary>How</summary>table</details>'
    assert pdf.printable(f"{hidden}<p>text</p>{box}") == f"<p>text</p>{box.replace('<details', '<details open')}"
    opened = box.replace("<details", "<details open")
    assert pdf.printable(opened) == opened


def test_a_missing_browser_is_told_before_the_book_is_rendered(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(pdf, "BROWSERS", ("no-such-browser",))
    monkeypatch.setattr(pdf.book, "render", lambda *_: pytest.fail("rendered"))
    assert main(["pdf"]) == 2
    assert "install Chromium" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no-such-browser"):
        pdf.print_page(tmp_path, "x.html", tmp_path / "x.pdf")
    assert not list(tmp_path.iterdir())


@pytest.mark.browser
@pytest.mark.skipif(find_browser() is None, reason="no Chromium on this machine")
def test_a_page_is_printed_whole_without_a_network(tmp_path):
    (tmp_path / "page.html").write_text(
        "<!doctype html><title>Three</title>" + "<h1 style='break-after: page'>Part</h1>" * 2 + "<p>end</p>",
        encoding="utf-8",
    )
    pdf.print_page(tmp_path, "page.html", tmp_path / "out" / "three.pdf")
    assert pages((tmp_path / "out" / "three.pdf").read_bytes()) == 3
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["three.pdf"]
