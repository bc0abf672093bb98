"""EAGLE-1 (Li et al. 2024): a single decoder layer that continues the target's states, and a static tree."""

from __future__ import annotations

import torch

from specdec_lib.decoding.contract import Context
from specdec_lib.decoding.tree import DraftTree, path_to
from specdec_lib.drafters.head_drafter import HeadDrafter, StaticTreeDrafter
from specdec_lib.heads.drafting import EagleHead

#: Nodes of the released tree at each depth, 25 in all, with ranks up to 4.
LEVELS, RANKS = (4, 8, 8, 3, 2), 4


class EagleState:
    """The cache of EAGLE's layer in a drafter: the text's pairs of state and next token, then those of the tree."""

    def __init__(self, drafter: HeadDrafter):
        self._drafter, self._past, self.length = drafter, None, 0
        #: Of the root, then of each expanded node in the order of expansion: the state predicted there, of shape (n, d).
        self.states = torch.empty(0)
        self._rows: dict[int, int] = {}

    def read_on(self, context: Context) -> None:
        """Drop the last tree and take in what was emitted, with the target's own states; the root is expanded then."""
        drafter, new = self._drafter, context.tokens[self.length + 1 :]
        past = None if self._past is None else tuple(part[:, :, : self.length] for part in self._past)
        states = drafter._states(context, self.length)
        places = torch.arange(self.length, self.length + len(new), device=states.device)
        read, self._past = drafter.heads(drafter.ends.embed(drafter._tokens(new))[None], states[None], places, past)
        self.length += len(new)
        self.states, self._rows = read[0, -1:], {-1: 0}

    def expand(self, nodes: list[int], tokens: list[int], parents: list[int]) -> torch.Tensor:
        """Take in nodes of one depth, whose parents were expanded; the states predicted there, of shape (n, d)."""
        drafter = self._drafter
        if nodes == [-1]:
            return self.states[:1]
        above = self.states[[self._rows[parents[node]] for node in nodes]]
        first = len(self.states)
        self._rows |= {node: first + i for i, node in enumerate(nodes)}
        # The pairs of the text, then those of the expanded nodes; the root's pair is the last of the text.
        visible = torch.zeros((len(nodes), self.length + first - 1 + len(nodes)), dtype=torch.bool)
        visible[:, : self.length] = True
        for row, node in enumerate(nodes):
            path = path_to(node, parents)
            visible[row, [self.length - 1 + self._rows[step] for step in path]] = True
        place = self.length - 1 + len(path_to(nodes[0], parents))
        places = torch.full((len(nodes),), place, device=above.device)
        embeddings = drafter.ends.embed(drafter._tokens([tokens[node] for node in nodes]))
        read, self._past = drafter.heads(embeddings[None], above[None], places, self._past, visible.to(above.device))
        self.states = torch.cat([self.states, read[0]])
        return read[0]


class Eagle(StaticTreeDrafter):
    """Draft with a decoder layer on the target's states and the tokens after them, on a static tree.

    The layer predicts the state of each token it reads; the target's own output layer tells which tokens are likely after it.
    What it read of a draft is dropped after each pass, and the accepted tokens are read again with the target's states, as in
    the released code. Parameters are those of :class:`~specdec_lib.drafters.head_drafter.StaticTreeDrafter`.
    """

    kind, levels, ranks = EagleHead, LEVELS, RANKS

    def finish(self) -> None:
        """Give the layer's cache back."""
        self._state = EagleState(self)

    def propose(self, context: Context, limit: int) -> DraftTree:
        with self._inference():
            self._state.read_on(context)
        return super().propose(context, limit)

    def _choices(self, context: Context, depth, above, tokens, parents, width) -> list[list[int]]:
        return self._best(depth, self._state.expand(above, tokens, parents), width)
