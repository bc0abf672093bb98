"""The pictures and viewers of the method pages, made from what ``make examples`` kept of the library's own drafters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from specdec_lib import paths
from specdec_lib.decoding.acceptance import exact_match
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.report import plots
from specdec_lib.report.appearance import APPEARANCES
from specdec_lib.report.display.stepper import Stepper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, OWN, NEUTRAL = "#222222", "#8a8a8a", "#d9d9d9", "#44546a"
REJECTED: dict[str, Any] = {"facecolor": "white", "edgecolor": "#555555", "linestyle": ":", "linewidth": 1.6}
FOLDER = paths.DATA / "results" / "examples"
VERIFIER = "one-verifier"


@dataclass(frozen=True)
class VerifiedDraft:
    """A tree and what one verification made of it: ``parents`` (-1 for the root) and ``words`` of its nodes, the last emitted
    word ``root``, the ``path`` of accepted nodes, what the target adds (``own``), and how many drafted nodes are ``hidden``."""

    parents: tuple[int, ...]
    words: tuple[str, ...]
    root: str
    path: tuple[int, ...]
    own: str
    hidden: int = 0

    @property
    def tree(self) -> DraftTree:
        """The nodes, with their places as tokens."""
        return DraftTree(range(len(self.parents)), self.parents)


def verifier_tree() -> VerifiedDraft:
    """Three drafts of whole words in one tree after the word "the", where the target writes "mat while she"."""
    drafts = [draft.split() for draft in ("mat and slept", "mat while it", "sofa all day")]
    own = ["mat", "while", "she"]
    words = [*dict.fromkeys(word for draft in (*drafts, own) for word in draft)]
    tree = DraftTree.from_drafts([[words.index(word) for word in draft] for draft in drafts])
    path, token = exact_match(tree, lambda node, before: words.index(own[len(before)]), ())
    return VerifiedDraft(
        tuple(tree.parents), tuple(words[one] for one in tree.tokens), "the", tuple(path), words[token]
    )


def read(page: str) -> tuple[VerifiedDraft, Stepper]:
    """Read the stored picture and viewer of a method page; FileNotFoundError if there are none."""
    path = FOLDER / f"{page}.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; make it with: make examples ARGS={page}")
    kept = json.loads(path.read_text(encoding="utf-8"))
    picture = {name: tuple(value) if isinstance(value, list) else value for name, value in kept["picture"].items()}
    return VerifiedDraft(**picture), Stepper(kept["stepper"], kept["static"])


def accepted_look(color: str) -> dict[str, Any]:
    """A light tone of a colour, on which black text is read, framed by the colour."""
    from matplotlib.colors import to_rgb

    return {"facecolor": [0.35 * part + 0.65 for part in to_rgb(color)], "edgecolor": color, "linewidth": 2.0}


def _shown(word: str) -> str:
    """A token as a label: without the blank in front, line breaks as arrows."""
    return word.strip(" ").replace("\n", "↵") or "␣"


def description(page: str) -> str:
    """What the picture of a method's page shows, in words."""
    shown, _ = read(page)

    def words(nodes: Sequence[int]) -> str:
        return ", ".join(f"“{_shown(shown.words[node])}”" for node in nodes)

    lost = [node for node in range(len(shown.words)) if node not in shown.path]
    draft = "a chain" if shown.tree.is_chain else "a tree"
    size = len(shown.words) + shown.hidden
    said = f"After “{_shown(shown.root)}” the draft is {draft} of {size} tokens. Accepted: {words(shown.path)}. "
    more = f" and {shown.hidden} more" if shown.hidden else ""
    said += f"Rejected: {words(lost)}{more}. " if lost else ""
    return f"{said}Then the target writes “{_shown(shown.own)}” itself."


def _rows(parents: Sequence[int]) -> dict[int, int]:
    """The row of each node: leaves in order, a parent level with its first child."""
    row: dict[int, int] = {}

    def place(node: int, free: int) -> int:
        """Place a node and what is below it, from a free row on; gives the last row taken."""
        row[node] = free
        for number, child in enumerate(child for child, parent in enumerate(parents) if parent == node):
            free = place(child, free + (number > 0))
        return free

    place(-1, 0)
    return row


def _draw_tree(ax: Axes, shown: VerifiedDraft, color: str) -> int:
    """The tree from left to right, the target's own token after the last accepted node; gives the number of rows."""
    parents, words = [*shown.tree.parents, shown.path[-1]], [*shown.words, shown.own]
    row, depth, longest = _rows(parents), {-1: 0}, {0: len(shown.root)}
    for node, (parent, word) in enumerate(zip(parents, words, strict=True)):
        depth[node] = depth[parent] + 1
        longest[depth[node]] = max(longest.get(depth[node], 0), len(word))
    # By the length of words, so that long ones do not lie on each other.
    column = [0.0, *accumulate(2.5 + (one + other) / 2 for one, other in pairwise(longest.values()))]

    def chip(node: int, word: str, **style: Any) -> None:
        look = {"boxstyle": "round,pad=0.28", "facecolor": "white", "edgecolor": INK, "linewidth": 1.2} | style
        place = column[depth[node]], row[node]
        ax.text(*place, word, ha="center", va="center", fontsize=9.5, family="monospace", bbox=look, zorder=3)

    chip(-1, shown.root, linewidth=2.0)
    for node, (parent, word) in enumerate(zip(parents, words, strict=True)):
        line, look = {"color": FAINT, "linewidth": 1.2}, REJECTED
        if node == len(shown.tree):
            line, look = {"color": INK, "linewidth": 1.2, "linestyle": "--"}, {"facecolor": OWN}
        elif node in shown.path:
            line, look = {"color": color, "linewidth": 2.4}, accepted_look(color)
        left, right = column[depth[parent]], column[depth[node]]
        between = (left + right) / 2  # edges turn between the columns, so that none runs behind another node
        ax.plot([left, between, between, right], [row[parent]] * 2 + [row[node]] * 2, zorder=1, **line)
        chip(node, word, **look)
    last = max(row.values())
    ax.set(xlim=(-len(shown.root) / 2 - 2, column[-1] + 4), ylim=(last + 0.75, -0.75))
    ax.axis("off")
    return last + 1


def _legend(figure: Figure, color: str) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(**accepted_look(color), label="drafted and accepted"),
        Patch(**REJECTED, label="drafted and rejected"),
        Patch(facecolor=OWN, edgecolor=INK, label="the target's own token"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)


def verifier() -> Figure:
    """A draft tree and the mask under which one pass verifies it."""
    shown = verifier_tree()
    figure, (left, right) = plots.new(6.4, 3.5, 2, width_ratios=(1.12, 1))
    _draw_tree(left, shown, NEUTRAL)
    left.set_title("draft tree", fontsize=10)
    words = (shown.root, *shown.words)
    right.imshow(shown.tree.mask(), cmap="Greys", vmax=1.4)
    right.set_title("position, and what it attends to", fontsize=10)
    labels = [f"{word}  +{depth}" for word, depth in zip(words, [0, *shown.tree.depths], strict=True)]
    right.set_yticks(range(len(words)), labels, family="monospace", fontsize=9)
    right.set_xticks(range(len(words)), words, family="monospace", fontsize=9, rotation=90)
    right.grid(visible=False)
    _legend(figure, NEUTRAL)
    return figure


def pass_picture(name: str) -> Figure:
    """One pass of a method, on its page."""
    shown, _ = read(APPEARANCES[name].page)
    shown = replace(shown, words=tuple(map(_shown, shown.words)), root=_shown(shown.root), own=_shown(shown.own))
    figure, ax = plots.new()
    rows = _draw_tree(ax, shown, plots.color(name))
    figure.set_figheight(1.4 + 0.3 * rows)
    if shown.hidden:
        note = f"{shown.hidden} more\nrejected"
        ax.text(0, max(rows - 1, 1), note, fontsize=8, ha="center", va="center", color="#555555")
    _legend(figure, plots.color(name))
    return figure


PICTURES = {VERIFIER: verifier}
"""What draws the picture of each method page, by the page's name."""
for _name, _row in APPEARANCES.items():
    PICTURES.setdefault(_row.page, partial(pass_picture, _name))
