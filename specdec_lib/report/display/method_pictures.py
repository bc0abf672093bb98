"""The pictures of the method pages, drawn from :mod:`specdec_lib.report.display.method_examples` while the book is built."""

from __future__ import annotations

from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from specdec_lib.methods import METHODS, PLAIN
from specdec_lib.report.display import figures, method_examples, occurrences
from specdec_lib.report.display.stepper import Stepper, stepper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, OWN, NEUTRAL = "#222222", "#8a8a8a", "#d9d9d9", "#44546a"
WIDTH = 64
"""Characters across a text; the method that a mark belongs to stands at the right."""
EVEN_COLUMNS = 8
"""Depths of a tree that have room for a long word each."""


def _shown(word: str) -> str:
    """A token as a label: without the blank in front, line breaks as arrows."""
    return word.strip(" ").replace("\n", "↵") or "␣"


def _chip(ax: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """A word in a box around (x, y)."""
    look = {"boxstyle": "round,pad=0.28", "facecolor": "white", "edgecolor": INK, "linewidth": 1.2} | style
    ax.text(x, y, text, ha="center", va="center", fontsize=9.5, family="monospace", bbox=look, zorder=3)


def _accepted(color: str) -> dict[str, Any]:
    return {"facecolor": _tint(color), "edgecolor": color, "linewidth": 2.0}


REFUSED: dict[str, Any] = {"facecolor": "white", "edgecolor": "#555555", "linestyle": ":", "linewidth": 1.6}
LEFT: dict[str, Any] = {"facecolor": "white", "edgecolor": "none"}


def _tint(color: str) -> tuple[float, float, float]:
    """A light tone of a colour, on which black text is read."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(color)
    return 0.35 * red + 0.65, 0.35 * green + 0.65, 0.35 * blue + 0.65


def _rows(tree: method_examples.DraftTree) -> dict[int, float]:
    """The height of each node: leaves in order, a parent beside its first child."""
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        below.setdefault(parent, []).append(node)
    height: dict[int, float] = {}
    free = 0

    def place(node: int) -> float:
        nonlocal free
        if node not in below:
            height[node] = free
            free += 1
        else:
            height[node] = [place(child) for child in below[node]][0]
        return height[node]

    place(-1)
    return height


def _columns(shown: method_examples.Verified, gap: float) -> list[float]:
    """Where each depth stands, the target's own token included: evenly, but in a deep tree by the length of its words, so
    that long ones do not lie on each other."""
    depths = [0, *shown.tree.depths]
    own = depths[shown.path[-1] + 1] + 1
    last = max(own, *depths)
    if last <= EVEN_COLUMNS:
        return [gap * depth for depth in range(last + 1)]
    longest = [0] * (last + 1)
    words = [shown.root, *shown.words]
    for word, depth in [*zip(words, depths, strict=False), (shown.own, own)]:
        longest[depth] = max(longest[depth], len(word))
    steps = [2.5 + (one + other) / 2 for one, other in pairwise(longest)]
    scale = gap * last / sum(steps)
    return [0.0, *(scale * step for step in accumulate(steps))]


def _draw_tree(ax: Axes, shown: method_examples.Verified, color: str, gap: float) -> None:
    """The tree from left to right; the target's own token behind the last accepted node."""
    tree, height = shown.tree, _rows(shown.tree)
    depths, places = [0, *tree.depths], _columns(shown, gap)
    drafted = len(tree) if shown.drafted is None else shown.drafted
    for node, parent in enumerate(tree.parents):
        kept = node in shown.path
        left, right = places[depths[parent + 1]], places[depths[node + 1]]
        between = (left + right) / 2  # edges turn between the columns, so that none runs behind another node
        ax.plot(
            [left, between, between, right],
            [height[parent], height[parent], height[node], height[node]],
            zorder=1,
            color=color if kept else FAINT,
            linewidth=2.4 if kept else 1.2,
        )
        look = _accepted(color) if kept else REFUSED if node < drafted else LEFT
        _chip(ax, places[depths[node + 1]], height[node], shown.words[node], **look)
        if shown.weights:
            ax.text(
                places[depths[node + 1]],
                height[node] + 0.45,
                f"weight {shown.weights[node]}",
                ha="center",
                va="center",
                fontsize=8,
                color="#555555",
            )
    _chip(ax, 0, height[-1], shown.root, linewidth=2.0)
    last = shown.path[-1]
    beside = {height[node] for node, parent in enumerate(tree.parents) if parent == last}
    row = height[last] + (0.5 if height[last] in beside else 0)
    x = places[depths[last + 1] + 1]
    ax.plot([places[depths[last + 1]], x], [height[last], row], color=INK, linewidth=1.2, linestyle="--", zorder=1)
    _chip(ax, x, row, shown.own, facecolor=OWN)
    ax.set(xlim=(-0.7, places[-1] + 0.8), ylim=(max(height.values()) + 0.75, -0.75))
    ax.axis("off")


def _legend(figure: Figure, color: str, columns: int = 3) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(**_accepted(color), label="drafted and accepted"),
        Patch(**REFUSED, label="drafted and refused"),
        Patch(facecolor=OWN, edgecolor=INK, label="the target's own token"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=9)


def verifier() -> Figure:
    """A draft tree and the mask under which one pass verifies it."""
    from matplotlib.patches import Rectangle

    shown = method_examples.verifier()
    figure, (left, right) = figures.new(6.4, 3.5, 2, width_ratios=(1.12, 1))
    _draw_tree(left, shown, NEUTRAL, 1.35)
    left.set_title("draft tree", fontsize=10)
    mask, words, depths = shown.tree.mask(), (shown.root, *shown.words), [0, *shown.tree.depths]
    for row, column in zip(*mask.nonzero(), strict=True):
        dark = row == 0 or row - 1 in shown.path
        right.add_patch(
            Rectangle(
                (column - 0.5, row - 0.5),
                1,
                1,
                facecolor=NEUTRAL if dark else "#9aa5b5",
                edgecolor="white",
                linewidth=1.2,
            )
        )
    right.add_patch(Rectangle((-2.6, -0.5), 1.9, len(words), facecolor="#9aa5b5", edgecolor="none"))
    right.text(-1.65, (len(words) - 1) / 2, "cached text", rotation=90, ha="center", va="center", fontsize=9)
    right.set(xlim=(-2.8, len(words) - 0.3), ylim=(len(words) - 0.3, -0.7))
    right.set_title("position, and what it attends to", fontsize=10)
    right.set_yticks(
        range(len(words)),
        [f"{word}  +{depth}" for word, depth in zip(words, depths, strict=True)],
        family="monospace",
        fontsize=9,
    )
    right.set_xticks(range(len(words)), words, family="monospace", fontsize=9, rotation=90)
    right.grid(visible=False)
    right.tick_params(length=0)
    for spine in right.spines.values():
        spine.set_visible(False)
    _legend(figure, NEUTRAL)
    return figure


def _text(ax: Axes, shown: method_examples.Copied) -> list[list[tuple[int, int]]]:
    lines, cells = occurrences.layout(shown.pieces)
    occurrences.write(ax, lines, {cell for piece in cells[shown.end :] for cell in piece}, size=11)
    last = max(row for row, line in enumerate(lines) if line)
    ax.set(xlim=(-1, WIDTH), ylim=(last + 0.8, -0.8))
    return cells


def _copy(ax: Axes, cells: list, shown: method_examples.Copied, method: str, label: str, row_of: int) -> None:
    """Mark what a method copied: filled what was accepted, dotted the rest."""
    color, source = figures.color(method), shown.sources[method]
    kept, end = source + shown.accepted[method], source + shown.lengths[method]
    occurrences.boxes(ax, cells[source:kept], color, facecolor=_tint(color), linewidth=1.2, zorder=0)
    occurrences.boxes(ax, cells[kept:end], color, linestyle=":", linewidth=1.4)
    ax.text(WIDTH - 1, cells[row_of][0][0], label, color=INK, fontsize=10, ha="right", va="center")


def prompt_lookup() -> Figure:
    """The last 3-gram, its first occurrence, and what is copied from there."""
    shown = method_examples.prompt_lookup()
    figure, ax = figures.new(6.4, 2.2)
    cells = _text(ax, shown)
    source, color = shown.sources["PLD"], figures.color("PLD")
    _copy(ax, cells, shown, "PLD", "1. the same 3 tokens: copy what follows", source)
    for end in (source, shown.end):
        occurrences.boxes(ax, [sum(cells[end - 3 : end], [])], INK, linewidth=1.8)
    new = range(shown.end, shown.end + shown.accepted["PLD"])
    occurrences.boxes(ax, [cells[place] for place in new], color, facecolor=_tint(color), linewidth=1.2, zorder=0)
    ax.text(WIDTH - 1, cells[shown.end - 1][0][0], "2. the target writes", fontsize=10, ha="right", va="center")
    return figure


def prompt_lookup_plus() -> Figure:
    """Both earlier occurrences of the last token, and how near the model finds each."""
    shown = method_examples.prompt_lookup_plus()
    figure, (top, bottom) = figures.new(6.4, 4.0, rows=2, height_ratios=(2.1, 1))
    cells = _text(top, shown)
    for place, name in zip(shown.candidates, "AB", strict=False):
        occurrences.boxes(top, cells[place : place + 1], INK, linewidth=1.8)
        methods = [method for method, source in shown.sources.items() if source == place + 1]
        _copy(top, cells, shown, methods[-1], f"{name}: {', '.join(methods)}", place)
    occurrences.boxes(top, cells[shown.end - 1 : shown.end], INK, linewidth=1.8, linestyle="--")
    top.text(WIDTH - 1, cells[shown.end - 1][0][0], "last token", fontsize=10, ha="right", va="center")
    labels = {"PLD+ (h)": "PLD+ (h): cosine of states", "PLD+ (a)": "PLD+ (a): attention"}
    for number, (method, scores) in enumerate(shown.scores.items()):
        for place, score in enumerate(scores):
            y = place * 2.6 + number
            bottom.barh(
                y,
                score,
                height=0.85,
                color=figures.color(method),
                hatch="" if number else "////",
                edgecolor="white",
                label=None if place else labels[method],
            )
            bottom.text(score + 0.01, y, f"{score:.3f}", va="center", fontsize=9)
    bottom.set_yticks([0.5, 3.1], ["A", "B"])
    bottom.set(xlim=(0, 1.12), ylim=(4.2, -0.7), xlabel="how near the candidate is")
    bottom.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    return figure


def rest() -> Figure:
    """The trie of continuations in a small store, and the nodes drafted."""
    shown = method_examples.rest()
    figure, ax = figures.new(6.4, 3.6)
    _draw_tree(ax, shown, figures.color("REST"), 1.5)
    ax.text(0, -0.6, f"{shown.matched} tokens matched", fontsize=8, ha="center", va="center", color="#555555")
    ax.set_ylim(ax.get_ylim()[0], -0.85)
    _legend(figure, figures.color("REST"))
    return figure


def dresd() -> Figure:
    """Keys of stored states on the unit circle, and the neighbours of the target's state by angle."""
    import numpy as np

    shown = method_examples.dresd()
    figure, (ax, near) = figures.new(6.4, 3.7, 2, width_ratios=(1.1, 1))
    color = figures.color("DReSD")
    ax.plot(*shown.keys.T, "o", color="#a0a0a0", markersize=4, label="stored states")
    ax.plot(*shown.query, "*", color=INK, markersize=14, label="the target's state")
    ax.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal", xlabel="first component", ylabel="second component")
    angles = np.degrees(np.arccos(np.clip(shown.keys[list(shown.nearest)] @ shown.query, -1, 1)))
    for kept, face in ((False, "white"), (True, color)):
        rank = [n for n, row in enumerate(shown.nearest) if (row in shown.kept) == kept]
        near.plot(
            angles[rank],
            rank,
            "D" if kept else "o",
            color=face,
            markeredgecolor=INK,
            markersize=8,
            label="kept" if kept else "filtered out",
        )
    drafts = dict(zip(shown.kept, map("".join, shown.drafts), strict=False))
    for n, row in enumerate(shown.nearest):
        label = _shown(shown.following[row] + (f" {drafts[row]}" if row in drafts else ""))
        near.text(
            angles[n] + 0.06 * angles.max(),
            n,
            label,
            family="monospace",
            fontsize=9,
            va="center",
            fontweight="bold" if row in shown.kept else "normal",
        )
    near.set(
        xlabel="angle to the target's state (degrees)",
        xlim=(-0.06 * angles.max(), 2.2 * angles.max()),
        ylim=(len(angles) - 0.4, -0.6),
        yticks=range(len(angles)),
        yticklabels=range(1, len(angles) + 1),
        ylabel="neighbour",
        title=f"next token; last token: {_shown(shown.last)}",
    )
    near.title.set_fontsize(10)
    near.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return figure


def rejection() -> Figure:
    """Probabilities of drafted tokens under both models, and the residual where one was refused."""
    shown = method_examples.rejection()
    figure, (left, right) = figures.new(6.4, 3.5, 2)
    colors = {"target": "#7f7f7f", "draft model": figures.color("SpecDec"), "residual": "white"}
    count = len(shown.words)
    fates = []
    for place, (word, p, q) in enumerate(zip(shown.words, shown.p, shown.q, strict=True)):
        fate = "kept" if place < shown.accepted else "refused" if place == shown.accepted else "unseen"
        fates.append(f"{_shown(word)}\n{fate}")
        left.bar(place - 0.2, p, 0.38, color=colors["target"])
        left.bar(place + 0.2, q, 0.38, color=colors["draft model"], hatch="////", edgecolor="white")
        left.text(place, max(p, q) + 0.02, f"{min(1.0, p / q):.2f}", ha="center", fontsize=9)
    left.set_xticks(range(count), fates, fontsize=9)
    left.set(ylim=(0, 1.12), ylabel="probability of the drafted token", title="chance to be kept, above the bars")
    names = {"target": "target, $p$", "draft model": "draft model, $q$", "residual": "residual, $p'$"}
    for number, (name, values) in enumerate(shown.rows.items()):
        look = {"hatch": ("", "////", "....")[number], "edgecolor": INK if name == "residual" else "white"}
        right.barh(
            [row + 0.28 * (number - 1) for row in range(len(values))],
            values,
            0.26,
            color=colors[name],
            label=names[name],
            **look,
        )
    right.set_yticks(range(len(shown.shown)), [_shown(word) for word in shown.shown], family="monospace", fontsize=9)
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    right.set(xlabel="probability", title=f"at the refused token; drawn: {_shown(shown.own)}")
    for ax in (left, right):
        ax.title.set_fontsize(10)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure


def stopping() -> Figure:
    """Predicted acceptance of each drafted token, and the probability of a refusal against the threshold."""
    import math

    shown = method_examples.stopping()
    figure, ax = figures.new(6.4, 3.3)
    color, count = figures.color("SpecDec++"), len(shown.words)
    refusal = [1 - math.prod(shown.acceptance[: number + 1]) for number in range(count - 1)]
    ax.bar(range(count - 1), shown.acceptance, 0.6, color=color, label=r"predicted acceptance $\hat P_i$")
    ax.plot(range(count - 1), refusal, color=INK, marker="*", markersize=9, label="chance of a refusal so far")
    ax.axhline(shown.threshold, color="#444444", linestyle="--", label="threshold $h$")
    ax.text(count - 1, 0.06, "drafted,\nnot judged", ha="center", fontsize=8, color="#555555")
    fates = ["accepted" if n < shown.accepted else "refused" if n == shown.accepted else "" for n in range(count)]
    ax.set_xticks(range(count), [f"{_shown(w)}\n{fate}" for w, fate in zip(shown.words, fates, strict=True)])
    ax.set(ylim=(0, 1.05), xlim=(-0.6, count - 0.4), ylabel="probability")
    ax.grid(axis="x", visible=False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure


def drafted(name: str) -> Figure:
    """One pass of a method on a piece of code: the picture of a page that none is drawn for by hand."""
    from dataclasses import replace

    shown = method_examples.drafted(name)
    shown = replace(shown, words=tuple(map(_shown, shown.words)), root=_shown(shown.root), own=_shown(shown.own))
    rows = 1 + max(_rows(shown.tree).values())
    figure, ax = figures.new(6.4, 1.4 + 0.3 * rows)
    color = figures.color(name)
    _draw_tree(ax, shown, color, 1.5)
    if shown.hidden:
        ax.text(
            0,
            max(_rows(shown.tree).values()),
            f"{shown.hidden} more\nrefused",
            fontsize=8,
            ha="center",
            va="center",
            color="#555555",
        )
    _legend(figure, color)
    return figure


PICTURES = {
    "one-verifier": verifier,
    "pld": prompt_lookup,
    "pld-plus": prompt_lookup_plus,
    "rest": rest,
    "dresd": dresd,
    "specdec": rejection,
    "specdec-pp": stopping,
}
"""What draws the picture of each method page, by the page's name; :func:`drafted` for all that are not drawn by hand."""
for _method in METHODS.values():
    PICTURES.setdefault(_method.page, partial(drafted, _method.name))


STEPPED_ON_ONE_VERIFIER = ("PLD", "REST", "SpecDec")
"""Methods of the page on the verifier: a copied chain, a tree, a chain of a draft model."""


def stepped(page: str) -> Stepper:
    """The viewer of a method page: its methods and plain decoding on the same texts."""
    names = [method.name for method in METHODS.values() if method.page == page] or list(STEPPED_ON_ONE_VERIFIER)
    runs, prompts = method_examples.generations([*names, PLAIN])
    return stepper(runs, method_examples.pocket().tokenizer, prompts)
