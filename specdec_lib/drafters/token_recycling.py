"""Token Recycling (Luo et al. 2024): draft what the target last found likely after each token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.outputs import Outputs
from specdec_lib.decoding.tree import DraftTree

#: Nodes of the published tree at each depth: the template "2.2.2" of the released code, 80 in all.
LEVELS = (8, 21, 25, 15, 8, 3)


def template(levels: Sequence[int] = LEVELS, width: int = 8) -> list[tuple[int, int]]:
    """A static tree that has so many nodes at each depth and prefers likely tokens.

    If the ``r``-th most likely choice, ``r`` from 1, is right with a probability proportional to ``1 / r``, as Zipf's law has
    it, a node is right with a probability that falls with the product of the ranks on its path. Each depth takes the nodes of
    the smallest products; among equals those of the earlier parent, then the more likely ones. The released tree has as many
    nodes at each depth; which ones is not copied here.

    Parameters
    ----------
    levels : sequence of int
        Nodes at each depth.
    width : int
        Children of a node at most.

    Returns
    -------
    list of (int, int)
        Each node's parent (-1: the root) and its rank among the parent's children, from 0; parents come first.

    Examples
    --------
    >>> from specdec_lib.drafters.token_recycling import template
    >>> template((2, 3), width=2)
    [(-1, 0), (-1, 1), (0, 0), (0, 1), (1, 0)]
    """
    nodes: list[tuple[int, int]] = []
    above, products = [-1], [1]
    for depth, count in enumerate(levels, start=1):
        if not 1 <= count <= len(above) * width:
            raise ValueError(f"level {depth} has {count} nodes; expected 1 to {len(above) * width}, {width} a parent")
        children = [
            (product * (rank + 1), place, rank) for place, product in enumerate(products) for rank in range(width)
        ]
        best = sorted(sorted(children)[:count], key=lambda child: child[1:])
        first = len(nodes)
        nodes += [(above[place], rank) for _, place, rank in best]
        above, products = list(range(first, len(nodes))), [product for product, _, _ in best]
    return nodes


def levels_for(nodes: int, levels: Sequence[int] = LEVELS) -> tuple[int, ...]:
    """Levels of a tree scaled to about so many nodes.

    Parameters
    ----------
    nodes : int
    levels : sequence of int
        Nodes at each depth, by default the published ones.

    Returns
    -------
    tuple of int
        Those that would have no node are left out.

    Examples
    --------
    >>> from specdec_lib.drafters.token_recycling import levels_for
    >>> levels_for(16)
    (2, 4, 5, 3, 2, 1)
    """
    return tuple(count for level in levels if (count := round(level * nodes / sum(levels)))) or (1,)


class TokenRecycling(Drafter):
    """Draft a static tree: the children of a node are the tokens that the target last found likely after the node's token.

    A table holds, for each token, the ``width`` tokens that the target found most likely the last time it read that token: in
    the text, or at any node of a draft, rejected ones included (Algorithm 1). The ``j``-th child of a node is the ``j``-th entry
    of its token's row. A token that was never read has no row, and its nodes no children. The table is kept from one prompt to
    the next; :meth:`reset` empties it.

    Where a token stands at several nodes of one pass, its row is that of the last of them; the released code leaves that to the
    GPU. It also starts with a table of zeros, so that tokens never read propose token 0.

    Parameters
    ----------
    levels : sequence of int
        Nodes of the tree at each depth (:func:`template`).
    width : int
        Entries of a row (k).
    prompt : bool
        Learn from the pass over the prompt too, as within SAM-Decoding; the released code of Token Recycling does not.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import TokenRecycling
    >>> drafter = TokenRecycling()
    >>> run = generate(model, prompt, drafter, max_new_tokens=12)
    >>> run.tokens == generate(model, prompt, max_new_tokens=12).tokens, run.tokens[0] in drafter.table
    (True, True)
    """

    replays = "never"

    def __init__(self, levels: Sequence[int] = LEVELS, width: int = 8, prompt: bool = False):
        self.levels, self.width, self.prompt = tuple(levels), whole_number("width", width, 1), prompt
        self._nodes = template(self.levels, self.width)
        self.capture = Capture(topk=self.width, prompt=prompt)
        self.reset()

    def start(self, context: Context) -> None:
        if self.prompt:
            self._learn(context.tokens[: context.prompt_length], context.prompt_outputs[:, : self.width])

    def reset(self) -> None:
        self.table: dict[int, np.ndarray] = {}

    def propose(self, context: Context, limit: int) -> DraftTree:
        """Fill the template from the table, level by level."""
        tokens: list[int] = []
        parents: list[int] = []
        # Of each node of the template: its place in the draft, or None where the table had nothing for it.
        places: list[int | None] = []
        depths: list[int] = []
        for parent, rank in self._nodes:
            depth = 1 if parent < 0 else depths[parent] + 1
            depths.append(depth)
            place = -1 if parent < 0 else places[parent]
            row = None if place is None else self.table.get(context.tokens[-1] if place < 0 else tokens[place])
            if row is None or depth > limit or rank >= len(row):
                places.append(None)
                continue
            places.append(len(tokens))
            tokens.append(int(row[rank]))
            parents.append(place)
        return DraftTree(tokens, parents)

    def verified(self, tree: DraftTree, path: tuple[int, ...], outputs: Outputs) -> None:
        """Keep what the target found likely after the root and after every node, accepted or not."""
        self._learn([outputs.root, *tree.tokens], outputs.tokens)

    def _learn(self, tokens: Sequence[int], likely: np.ndarray) -> None:
        # Copies row by row: a row must not keep the others of its pass alive.
        self.table.update((token, row.copy()) for token, row in zip(tokens, likely, strict=True))
