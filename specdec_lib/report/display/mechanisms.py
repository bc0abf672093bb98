"""A sketch of the mechanism of each of the four papers, for its method page; the numbers in them are made up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any

from specdec_lib.report import plots
from specdec_lib.report.display.method_pictures import FAINT, INK, REJECTED, accepted_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WORD: dict[str, Any] = {"family": "monospace", "fontsize": 9, "ha": "center", "va": "center"}
_CHIP: dict[str, Any] = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": INK, "linewidth": 1.0}


def _sheet(height: float) -> tuple[Figure, Axes]:
    """A figure whose units are tenths of an inch."""
    figure, ax = plots.new(6.2, height)
    ax.set(xlim=(0, 62), ylim=(0, 10 * height))
    ax.axis("off")
    return figure, ax


def _chip(ax: Axes, x: float, y: float, word: str, **look: Any) -> None:
    ax.text(x, y, word, bbox=_CHIP | look, zorder=3, **_WORD)


def _say(ax: Axes, x: float, y: float, words: str, **look: Any) -> None:
    ax.text(x, y, words, **{"fontsize": 9, "va": "center", "color": INK} | look)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], bend: float = 0.0, **look: Any) -> None:
    line = {"arrowstyle": "-|>", "color": FAINT, "linewidth": 1.3, "connectionstyle": f"arc3,rad={bend}"} | look
    ax.annotate("", end, start, arrowprops=line)


def _branches(ax: Axes, x: float, y: float, color: str, first: str, rows: Sequence[tuple[str, ...]]) -> None:
    """A token and up to two rows that follow it, the first one level with it."""
    _chip(ax, x, y, first, **accepted_look(color))
    for row, words in enumerate(rows):
        below = y - 4.2 * row
        for place, word in enumerate(words):
            at = x + 7.2 * (place + 1)
            ax.plot(
                [at - 7.2 if place or not row else x, at],
                [below if place or not row else y, below],
                color=color,
                linewidth=1.4,
                zorder=1,
            )
            _chip(ax, at, below, word, **accepted_look(color))


def rest() -> Figure:
    """REST: the longest suffix is looked up in a sorted datastore, and what followed is merged into a trie."""
    color = plots.color("REST")
    figure, ax = _sheet(2.5)
    _say(ax, 0, 23.5, "1. The text so far ends with")
    for place, word in enumerate(("with", "open(", "path")):
        _chip(ax, 3 + 7 * place, 20, word, **(accepted_look(color) if place else {}))
    _say(ax, 0, 15.5, "2. The longest suffix that occurs\n    in the datastore, 3 times")
    for place, tail in enumerate((', "r") as', ', "r")', ', "w")')):
        ax.text(1, 11.3 - 3.6 * place, "open(path", color=color, fontweight="bold", **_WORD | {"ha": "left"})
        ax.text(8.2, 11.3 - 3.6 * place, tail, color=INK, **_WORD | {"ha": "left"})
    _arrow(ax, (19, 7.5), (29, 13))
    _say(ax, 30, 23.5, "3. What followed, as a trie;\n    the most frequent branches are the draft")
    _branches(ax, 33, 14.5, color, ",", (('"r"', ")", "as"), ('"w"', ")")))
    for x, y, times in (
        (33, 17.2, 3),
        (40.2, 17.2, 2),
        (47.4, 17.2, 2),
        (54.6, 17.2, 1),
        (40.2, 7.2, 1),
        (47.4, 7.2, 1),
    ):
        _say(ax, x, y, f"{times}×", fontsize=8, ha="center")
    return figure


def dresd() -> Figure:
    """DReSD: the nearest stored states, of which those with the same next token give the draft."""
    color = plots.color("DReSD")
    figure, ax = _sheet(2.6)
    _say(ax, 0, 24.5, "1. The model's state is a point\n    among the stored states")
    stored = ((4, 7), (7, 15), (9, 4), (22, 17), (24, 6), (27, 12), (20, 3), (3, 18))
    ax.scatter(*zip(*stored, strict=True), s=18, color=FAINT)
    ax.scatter([15], [11], marker="*", s=150, color=INK, zorder=3)
    near = {(12.5, 14): "path", (18, 12.5): "path", (15.5, 7.5): "name"}
    for (x, y), word in near.items():
        same = word == "path"
        ax.scatter([x], [y], s=42, facecolor=color if same else "white", edgecolor=color, zorder=3)
        _say(
            ax,
            x + (1.2 if same else 1.4),
            y + 1.2,
            word,
            family="monospace",
            fontsize=8,
            color=INK if same else "#555555",
        )
    _arrow(ax, (23.5, 15), (33.5, 18))
    _say(ax, 32, 24.5, "2. Of the nearest keep those followed\n    by the model's own next token")
    _chip(ax, 36, 18, "path", **accepted_look(color))
    _chip(ax, 46, 18, "name", **REJECTED)
    _say(ax, 32, 12.5, "3. What came after them is the draft")
    _branches(ax, 36, 8, color, "path", ((")", "as", "f"), (",", '"r"')))
    return figure


def pld_plus() -> Figure:
    """PLD+: earlier occurrences of the last token, ranked by the model's states."""
    color = plots.color("PLD+ (h)")
    figure, ax = _sheet(2.5)
    words = ("total", "=", "total", "+", "price", "print(", "total")
    at = [3.5, 10, 16.5, 22.5, 29, 36.5, 46]
    likeness = {0: 0.41, 2: 0.87}
    for place, (x, word) in enumerate(zip(at, words, strict=True)):
        look = accepted_look(color) if place in (3, 4) else {"linewidth": 2.2} if place in (*likeness, 6) else {}
        _chip(ax, x, 11, word, **look)
    _say(ax, 0, 23.5, "1. Where did the last token occur before?   2. Which state is most like the current one?")
    for place, value in likeness.items():
        best = value == max(likeness.values())
        _arrow(
            ax,
            (46, 13),
            (at[place], 13),
            bend=0.22,
            color=color if best else FAINT,
            linewidth=2.2 if best else 1.2,
            linestyle="-" if best else ":",
        )
        _say(ax, at[place] + 1.5, 16.5, f"cosine {value}", fontsize=8.5, fontweight="bold" if best else "normal")
    _say(ax, 46, 7.6, "last token", ha="center", fontsize=8.5)
    _say(ax, 0, 2.5, "3. The tokens after the best one are the draft")
    _arrow(ax, (29, 8.8), (44, 3.2), bend=0.15)
    _chip(ax, 47.5, 2.5, "+", **accepted_look(color))
    _chip(ax, 54, 2.5, "price", **accepted_look(color))
    return figure


def specdec_pp() -> Figure:
    """SpecDec++: a head predicts acceptance, and drafting stops when a rejection has become likely."""
    color = plots.color("SpecDec++")
    figure, ax = _sheet(3.0)
    words, chances, limit = ("return", "amount", "+", "price"), (0.95, 0.9, 0.8, 0.55), 0.5
    rejected = [1 - product for product in accumulate(chances, mul)]
    _say(ax, 0, 28.5, "1. The draft model writes on")
    _say(ax, 0, 20.5, "2. A head predicts that\n    each is accepted")
    _say(ax, 0, 9, "3. Chance that one is\n    rejected so far")
    for place, (word, chance, lost) in enumerate(zip(words, chances, rejected, strict=True)):
        x = 22 + 8 * place
        _chip(ax, x, 25.5, word, **accepted_look(color))
        _say(ax, x, 20.5, f"{chance:.2f}", ha="center")
        ax.bar(
            x, 14 * lost, 4, bottom=2, color=color, edgecolor=INK, linewidth=0.8, hatch="////" if lost > limit else ""
        )
        _say(ax, x, 3.3 + 14 * lost, f"{lost:.2f}", ha="center", fontsize=8.5)
        if place:
            _arrow(ax, (x - 5.2, 25.5), (x - 3.4, 25.5))
    _chip(ax, 54, 25.5, "…", **REJECTED)
    ax.plot([18, 57], [2 + 14 * limit] * 2, color=INK, linestyle="--", linewidth=1.1)
    _say(ax, 57.5, 2 + 14 * limit, "limit")
    _say(ax, 54, 20.5, "above the\nlimit: stop", ha="center")
    return figure


#: What draws the mechanism of each paper, by its method page.
MECHANISMS = {"rest": rest, "dresd": dresd, "pld-plus": pld_plus, "specdec-pp": specdec_pp}
