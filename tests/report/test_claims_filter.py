"""The field above the table of claims, as a reader's browser runs it."""

from __future__ import annotations

import pytest

from specdec_lib import paths
from specdec_lib.report.claims import rules, table
from tests.report.browser import open_browser, visit

pytestmark = pytest.mark.browser
SEEN = "[...document.querySelectorAll('table.claims tbody tr')].filter(row => row.checkVisibility()).map(row => row.id)"


def test_words_filter_the_rows_and_a_link_shows_its_own(tmp_path):
    claims = rules.load_claims()
    html = table.to_html(rules.judge(claims, {}), {})
    script = (paths.root() / "book" / "assets" / "claims.js").as_uri()
    address = tmp_path / "claims.html"
    address.write_text(
        f"<!doctype html><meta charset=utf-8><title>t</title>{html}<script src={script}></script>", encoding="utf-8"
    )
    everything = [f"claim-{claim.id}" for claim in claims]
    with open_browser() as browser:
        page = browser.new_page()
        assert visit(page, address.as_uri())["errors"] == [] and page.evaluate(SEEN) == everything
        page.locator(".claims-filter input").fill("DReSD normalisation")
        few = page.evaluate(SEEN)
        assert "claim-dresd-normalisation" in few and 0 < len(few) < 10
        assert page.locator(".claims-filter output").inner_text() == f"{len(few)} of {len(claims)}"
        page.evaluate("location.hash = 'claim-rest-table-2'")
        page.wait_for_function("document.querySelector('.claims-filter input').value === ''")
        assert page.evaluate(SEEN) == everything
