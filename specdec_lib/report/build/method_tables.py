"""Tables of methods on the pages, made from the one table of methods (:data:`specdec_lib.methods.METHODS`)."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_lib import methods


def method_lines(chapter: str, columns: Sequence[str]) -> list[str]:
    """Lines of a list table of methods: all of them, or those that a chapter compares.

    Parameters
    ----------
    chapter : str
        Its number, such as ``"04"``; empty for all methods and columns of their own.
    columns : sequence of str
        ``heading | cell`` each.

    Raises
    ------
    ValueError
        If the chapter compares no methods, or a column has no cell.
    """
    names = methods.compared_in(chapter) if chapter else tuple(methods.METHODS)
    columns = [line for line in columns if line.strip()] if chapter else list(_EVERY)
    parts = [[part.strip() for part in line.split(" | ")] for line in columns]
    odd = [line for line, part in zip(columns, parts, strict=True) if len(part) != 2]
    if odd:
        raise ValueError(f"the column {odd[0]!r} is not of the form: heading | cell")
    lines = ["* - Method", *(f"  - {heading}" for heading, _ in parts)]
    for name in names:
        row = methods.METHODS[name]
        told = {"SLUG": row.slug, "ABOUT": row.about, "EXACT": _EXACT[row.exact], "PAPER": row.paper}
        cells = [cell for _, cell in parts]
        for word, text in told.items():
            cells = [cell.replace(word, text) for cell in cells]
        lines += [f"* - [{name}](/methods/{row.page}.md)", *(f"  - {cell}" for cell in cells)]
    return lines


#: Columns of the table of all methods, and its words for what is kept of the text.
_EVERY = ("What it drafts | ABOUT", "Sampled output | EXACT", "Paper | {cite:t}`PAPER`")
_EXACT = {"exact": "that of plain decoding", "in distribution": "of the same distribution", "lossy": "another"}
