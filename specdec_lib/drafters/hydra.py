"""Hydra (Ankner et al. 2024): Medusa's heads that also read the tokens drafted before."""

from __future__ import annotations

import torch

from specdec_lib.decoding.contract import Context
from specdec_lib.decoding.tree import DraftTree, path_to
from specdec_lib.drafters.head_drafter import StaticTreeDrafter
from specdec_lib.drafters.medusa import LEVELS, RANKS
from specdec_lib.heads.drafting import HydraHeads
from specdec_lib.heads.layer import Past


class Hydra(StaticTreeDrafter):
    """Draft a tree level by level: what is likely after a node depends on all tokens on the way to it.

    Heads with a prefix layer (Hydra++) keep a cache of it. ``shape`` is by default Medusa's; parameters are those of
    :class:`~specdec_lib.drafters.head_drafter.StaticTreeDrafter`.

    Examples
    --------
    >>> from specdec_lib import generate, paths
    >>> from specdec_lib.drafters.hydra import Hydra
    >>> from specdec_lib.heads.drafting import DraftHead
    >>> heads = DraftHead.load(paths.POCKET / "heads/hydra.safetensors", model)
    >>> run = generate(model, prompt, Hydra.grown(model, heads, nodes=16), max_new_tokens=24)
    >>> round(run.stats["tokens_per_forward"], 2)
    1.35
    """

    kind, levels, ranks = HydraHeads, LEVELS, RANKS

    def finish(self) -> None:
        """Give the prefix layer's cache back."""
        self._past: Past | None = None
        self._read, self._state = 0, torch.empty(0)

    def propose(self, context: Context, limit: int) -> DraftTree:
        with self._inference():
            self._read_on(context)
        return super().propose(context, limit)

    def _read_on(self, context: Context) -> None:
        """Take in the states of what was emitted since the last draft."""
        if self.heads.prefix is None:
            self._state = self._states(context, -1)
            return
        states = self._states(context, self._read)
        places = torch.arange(self._read, self._read + len(states), device=states.device)
        read, self._past = self.heads.prefix(states[None], places, self._past)
        self._read, self._state = self._read + len(states), read[0, -1:]

    def _choices(self, context: Context, depth, above, tokens, parents, width) -> list[list[int]]:
        paths = [[context.tokens[-1], *(tokens[node] for node in path_to(place, parents))] for place in above]
        embeddings = self.ends.embed(self._tokens(paths)).to(self._state)
        return self._best(depth, self.heads.feature(depth, self._state.expand(len(paths), -1), embeddings), width)
