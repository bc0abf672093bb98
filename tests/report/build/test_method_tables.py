"""Tables of methods on the pages."""

from __future__ import annotations

import pytest

from specdec_lib import methods
from specdec_lib.report.build.method_tables import method_lines


def test_a_table_of_a_chapter_has_a_row_for_each_of_its_methods_and_their_slugs_in_its_cells():
    lines = method_lines("04", ["Greedy, $K$ | `t0_SLUG_all`", "", "Speed-up | `speedup_SLUG`"])
    assert lines[:3] == ["* - Method", "  - Greedy, $K$", "  - Speed-up"]
    for place, name in enumerate(methods.compared_in("04")):
        row = methods.METHODS[name]
        assert lines[3 + 3 * place :][:3] == [
            f"* - [{name}](/methods/{row.page}.md)", f"  - `t0_{row.slug}_all`", f"  - `speedup_{row.slug}`"
        ]  # fmt: skip
    assert len(lines) == 3 + 3 * len(methods.compared_in("04"))


def test_the_table_of_all_methods_says_what_each_drafts_and_keeps():
    text = "\n".join(method_lines("", []))
    for row in methods.METHODS.values():
        assert row.about in text and f"{{cite:t}}`{row.paper}`" in text


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="chapter is '09'; expected one of 01, 04, 06, 07"):
        method_lines("09", [])
    with pytest.raises(ValueError, match="the column 'no cell' is not of the form"):
        method_lines("04", ["no cell"])
