"""The table of methods on the pages, made from the one table of methods (:data:`specdec_lib.methods.METHODS`)."""

from __future__ import annotations

from specdec_lib.methods import METHODS

_EXACT = {"exact": "that of plain decoding", "in distribution": "of the same distribution", "lossy": "another"}


def method_lines() -> list[str]:
    """Lines of a list table: every method with its page, what it drafts, and what it keeps of the text."""
    lines = ["* - Method", "  - What it drafts", "  - Sampled output", "  - Paper"]
    for name, row in METHODS.items():
        lines += [f"* - [{name}](/methods/{row.page}.md)", f"  - {row.about}"]
        lines += [f"  - {_EXACT[row.exact]}", f"  - {{cite:t}}`{row.paper}`"]
    return lines
