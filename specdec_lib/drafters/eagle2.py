"""EAGLE-2 (Li et al. 2024b): the weights of EAGLE-1, and a tree that follows the layer's confidence."""

from __future__ import annotations

import math
from typing import Self

from transformers import PreTrainedModel

from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.contract import Context
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters.eagle import EagleState
from specdec_lib.drafters.head_drafter import HeadDrafter
from specdec_lib.heads.drafting import EagleHead
from specdec_lib.lazy import former_names

__getattr__ = former_names(__name__, reranked="rerank")


def rerank(tokens: list[int], parents: list[int], values: list[float], count: int) -> DraftTree:
    """Keep the candidates of the largest values as a tree (EAGLE-2, section 4.2).

    Of equal ones the earlier candidate comes first. No node is left without its parent, which comes before it and is worth no
    less.

    Parameters
    ----------
    tokens, parents : list of int
        The candidates.
    values : list of float
        Logarithms of the probabilities of their paths.
    count : int
        Candidates kept.

    Returns
    -------
    DraftTree
        With probabilities as scores.

    Examples
    --------
    >>> from math import log
    >>> from specdec_lib.drafters.eagle2 import rerank
    >>> tree = rerank([5, 8, 6], [-1, -1, 0], [log(0.5), log(0.25), log(0.375)], count=2)
    >>> tree, [round(score, 3) for score in tree.scores]
    (DraftTree(tokens=[5, 6], parents=[-1, 0]), [0.5, 0.375])
    """
    best = sorted(sorted(range(len(tokens)), key=lambda node: (-values[node], node))[:count])
    place = {-1: -1} | {node: i for i, node in enumerate(best)}
    tree = DraftTree([tokens[node] for node in best], [place[parents[node]] for node in best])
    return tree.annotated(scores=[math.exp(values[node]) for node in best])


class Eagle2(HeadDrafter):
    """Draft with EAGLE's layer, on the tree whose nodes it finds most likely to be accepted.

    The value of a node is the product of the layer's probabilities on the way to it. On each level the most valuable nodes are
    expanded, each into its most likely tokens; of all candidates the most valuable are drafted (section 4). All levels are
    computed for each draft, even if the drafted tree has fewer (:attr:`DraftTree.levels`).

    Parameters
    ----------
    model : PreTrainedModel
        The target.
    heads : EagleHead
        EAGLE-1's.
    nodes : int
        Nodes of the draft; published are 60 tokens a pass with the root.
    depth : int
        Levels.
    branches : int
        Nodes expanded on a level, and candidates of each.

    Examples
    --------
    >>> from specdec_lib import generate, paths
    >>> from specdec_lib.drafters.eagle2 import Eagle2
    >>> from specdec_lib.heads.drafting import DraftHead
    >>> heads = DraftHead.load(paths.POCKET / "heads/eagle.safetensors", model)
    >>> run = generate(model, prompt, Eagle2.of_size(model, heads, nodes=16), max_new_tokens=24)
    >>> round(run.stats["tokens_per_forward"], 2)
    3.83
    """

    kind = EagleHead

    def __init__(self, model: PreTrainedModel, heads: EagleHead, nodes: int = 59, depth: int = 6, branches: int = 10):
        super().__init__(model, heads)
        self.nodes, self.depth = whole_number("nodes", nodes, 1), whole_number("depth", depth, 1)
        self.branches = whole_number("branches", branches, 1)

    @classmethod
    def of_size(cls, model: PreTrainedModel, heads: EagleHead, nodes: int) -> Self:
        """Make one with as many levels and branches as a tree of so many nodes can use; for the published size the published ones.

        Parameters
        ----------
        model, heads
            As for the class.
        nodes : int

        Returns
        -------
        Eagle2
        """
        depth = max(1, min(6, round(math.log2(nodes + 1))))
        return cls(model, heads, nodes, depth, max(1, min(10, math.ceil(nodes / depth))))

    def finish(self) -> None:
        """Give the layer's cache back."""
        self._state = EagleState(self)

    def propose(self, context: Context, limit: int) -> DraftTree:
        """Expand the most valuable nodes of each level, then keep the most valuable candidates of all levels."""
        tokens: list[int] = []
        parents: list[int] = []
        values: list[float] = []
        with self._inference():
            self._state.read_on(context)
            level, levels = [-1], min(self.depth, limit)
            for depth in range(1, levels + 1):
                states = self._state.expand(level, tokens, parents)
                rows = self.heads.logits(self.ends, depth, states).log_softmax(-1)
                best = rows.topk(min(self.branches, rows.shape[-1]), dim=-1)
                first = len(tokens)
                for parent, choices, chances in zip(level, best.indices.tolist(), best.values.tolist(), strict=True):
                    above = 0.0 if parent < 0 else values[parent]
                    tokens += choices
                    parents += [parent] * len(choices)
                    values += [above + min(chance, 0.0) for chance in chances]
                new = range(first, len(tokens))
                level = sorted(sorted(new, key=lambda node: (-values[node], node))[: self.branches])
        tree = rerank(tokens, parents, values, self.nodes)
        return tree.annotated(scores=tree.scores, levels=levels)
