"""A picture of one choice between occurrences: what two methods copy from one text (PLD+, figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdec_lib.chapters.ch04_pld_plus import Choice
from specdec_lib.report import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

WIDTH = 84
"""Characters of a line; longer ones are wrapped."""


def layout(pieces: Sequence[str], width: int = WIDTH) -> tuple[list[str], list[list[tuple[int, int]]]]:
    """Lay out pieces of a text in lines of ``width`` characters: the lines, and by piece the (row, column) of its characters."""
    lines, cells = [""], []
    for piece in pieces:
        own = []
        for character in piece:
            if character == "\n" or len(lines[-1]) == width:
                lines.append("")
            if character != "\n":
                own.append((len(lines) - 1, len(lines[-1])))
                lines[-1] += character
        cells.append(own)
    return lines, cells


def _boxes(ax: Axes, pieces: Sequence[Sequence[tuple[int, int]]], color: str, **style: Any) -> None:
    """One rectangle a row around the characters of some pieces, which :func:`layout` gave; ``style`` as for a patch."""
    from matplotlib.patches import Rectangle

    rows: dict[int, list[int]] = {}
    for row, column in (cell for piece in pieces for cell in piece):
        rows.setdefault(row, []).append(column)
    look = {"facecolor": "none", "edgecolor": color, "linewidth": 1.6} | style
    for row, columns in rows.items():
        width = max(columns) - min(columns) + 1
        ax.add_patch(Rectangle((min(columns) - 0.5, row - 0.48), width, 0.96, **look))


def picture(choice: Choice, tokenizer: PreTrainedTokenizerBase, names: tuple[str, str]) -> Figure:
    """Draw prompt and output, with the 12 tokens that the target wrote next, and where two named methods copied from.

    Filled: copied and accepted. Dotted: copied and rejected. Framed: the matched token before each. Grey: the output that followed.
    """
    from matplotlib.patches import Patch

    trace = choice.recording.trace
    tokens = [*trace.prompt, *trace.tokens][: choice.position + 13]
    lines, cells = layout([tokenizer.decode([token]) for token in tokens])
    figure, ax = plots.new(8.2, 0.9 + 0.22 * len(lines))
    ax.set(xlim=(-9, WIDTH + 1), ylim=(len(lines) + 0.2, -1))
    ax.axis("off")
    grey = {cell for piece in cells[choice.position + 1 :] for cell in piece}
    look = {"family": "monospace", "fontsize": 9, "ha": "center", "va": "center"}
    for row, line in enumerate(lines):
        for column, character in enumerate(line):  # one by one, so that boxes fit them
            if character != " ":
                ax.text(column, row, character, color="#757575" if (row, column) in grey else "black", **look)
    handles = []
    for name, source, draft, accepted in zip(names, choice.sources, choice.drafts, choice.accepted, strict=True):
        shade = plots.color(name)
        _boxes(ax, cells[source : source + accepted], shade, facecolor=shade, alpha=0.35, linewidth=0)
        _boxes(ax, cells[source + accepted : source + len(draft)], shade, linewidth=0.9, linestyle=":")
        _boxes(ax, cells[source - 1 : source], shade)
        (row, _), *_ = cells[source - 1] or cells[source]
        ax.text(-1, row, name, fontsize=9, ha="right", va="center", fontweight="bold")
        handles.append(Patch(color=shade, label=f"{name}: {accepted} of {len(draft)} drafted tokens accepted"))
    _boxes(ax, cells[choice.position : choice.position + 1], "black")
    handles.append(Patch(facecolor="none", edgecolor="black", label="last token written"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    return figure
