"""The table of methods on the pages."""

from __future__ import annotations

from specdec_lib.methods import METHODS
from specdec_lib.report.build.directives import method_lines


def test_the_table_of_all_methods_says_what_each_drafts_and_keeps():
    lines = method_lines()
    assert len(lines) == 4 * (1 + len(METHODS))
    for place, (name, row) in enumerate(METHODS.items(), start=1):
        shown = lines[4 * place : 4 * place + 4]
        assert shown[0] == f"* - [{name}](/methods/{row.page}.md)" and shown[1] == f"  - {row.about}"
        assert shown[3] == f"  - {{cite:t}}`{row.paper}`"
