"""Trees grown from the accuracies of heads: which choices to draft when each has a known chance to be right."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction

from specdec_lib.decoding.checks import whole_number
from specdec_lib.lazy import former_names

__getattr__ = former_names(__name__, grown="best_tree_shape")

#: A static tree: for each node its parent (-1: the root) and its rank among the parent's choices, from 0; parents first.
Shape = list[tuple[int, int]]


def best_tree_shape(accuracies: Sequence[Sequence[float]], nodes: int) -> Shape:
    """The tree with the most expected accepted tokens (Medusa, section 2.3.3 and appendix C).

    The node reached by ranks r_1, ..., r_m is right with probability a_1[r_1] ... a_m[r_m], as if depths were independent. No
    factor exceeds 1: taking the best node whose parent is in the tree, again and again, gives the largest sum.

    Parameters
    ----------
    accuracies : sequence of sequences of float
        ``accuracies[m][r]`` is the share of places where the choice of rank ``r`` at depth ``m + 1`` is right.
    nodes : int

    Returns
    -------
    list of (int, int)
        Each node's parent (-1: the root) and rank; level by level, by parent, then rank.

    Examples
    --------
    >>> from specdec_lib.heads.grown_tree import best_tree_shape
    >>> best_tree_shape([[0.6, 0.2], [0.5, 0.1]], nodes=3)
    [(-1, 0), (-1, 1), (0, 0)]
    """
    nodes = whole_number("nodes", nodes, 1)
    if not len(accuracies):
        raise ValueError("there are no accuracies; expected one row for each depth")
    for depth, row in enumerate(accuracies, start=1):
        wrong = [value for value in row if not 0.0 <= value <= 1.0]
        if wrong:
            raise ValueError(f"an accuracy of depth {depth} is {wrong[0]}; expected a share in [0, 1]")
    # Products are exact, so that equals are equal: of them the shallower comes first, then the more likely ranks.
    accuracies = [[Fraction(str(value)) for value in row] for row in accuracies]
    waiting = [(-value, 1, (rank,)) for rank, value in enumerate(accuracies[0])]
    heapq.heapify(waiting)
    paths = []
    while waiting and len(paths) < nodes:
        negative, depth, path = heapq.heappop(waiting)
        paths.append(path)
        if depth < len(accuracies):
            for rank, value in enumerate(accuracies[depth]):
                heapq.heappush(waiting, (negative * value, depth + 1, (*path, rank)))
    paths.sort(key=lambda path: (len(path), path))
    place = {(): -1} | {path: i for i, path in enumerate(paths)}
    return [(place[path[:-1]], path[-1]) for path in paths]
