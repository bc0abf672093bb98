"""EAGLE-1 (Li et al. 2024): a single decoder layer that continues the target's states, and a static tree."""

from __future__ import annotations

from collections import Counter

import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.acceptance import draw_without_replacement
from specdec_lib.decoding.contract import Context
from specdec_lib.decoding.sampling import DRAFT, distribution
from specdec_lib.decoding.tree import DraftTree, path_to
from specdec_lib.drafters.head_drafter import HeadDrafter, StaticTreeDrafter
from specdec_lib.heads.drafting import EagleHead
from specdec_lib.heads.grown_tree import Shape

#: Nodes of the released tree at each depth, 25 in all, with ranks up to 4.
LEVELS, RANKS = (4, 8, 8, 3, 2), 4


class EagleState:
    """The cache of EAGLE's layer in a drafter: the text's pairs of state and next token, then those of the tree.

    Parameters
    ----------
    drafter : HeadDrafter
        Whose heads are an :class:`~specdec_lib.heads.drafting.EagleHead`.

    Examples
    --------
    The layer's prediction after the last token:

    >>> import torch
    >>> from specdec_lib import LAST, Context, Sampling, paths
    >>> from specdec_lib.drafters.eagle import Eagle, EagleState
    >>> from specdec_lib.heads.draft_training import states_of
    >>> from specdec_lib.heads.drafting import DraftHead
    >>> drafter = Eagle(model, DraftHead.load(paths.POCKET / "heads/eagle.safetensors", model))
    >>> states = states_of(model, prompt[:-1])
    >>> context = Context(list(prompt), len(prompt), 4096, Sampling(), hidden=lambda layer: states)
    >>> state = EagleState(drafter)
    >>> with torch.inference_mode():
    ...     state.read_on(context)
    ...     print(state.expand([-1], [], []).shape == (1, model.config.hidden_size))
    True
    """

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
        """Take in nodes of one depth, whose parents were expanded.

        Parameters
        ----------
        nodes : list of int
            -1 alone is the root.
        tokens, parents : list of int
            Of the whole draft so far.

        Returns
        -------
        float tensor of shape (len(nodes), d)
            The states predicted there.
        """
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
    the released code.

    Parameters
    ----------
    model, heads, shape
        As for :class:`~specdec_lib.drafters.head_drafter.StaticTreeDrafter`.
    drawn : bool
        Where the target samples, draw the children of a node from the layer's distribution without replacement and verify them
        by rejection sampling, as in the released code of version 1: the outputs are those of plain decoding in distribution.
        Without it they are the most likely tokens as in greedy decoding, and outputs are those of plain decoding token for token.

    Examples
    --------
    >>> from specdec_lib import generate, paths
    >>> from specdec_lib.drafters.eagle import Eagle
    >>> from specdec_lib.heads.drafting import DraftHead
    >>> heads = DraftHead.load(paths.POCKET / "heads/eagle.safetensors", model)
    >>> run = generate(model, prompt, Eagle.grown(model, heads, nodes=16), max_new_tokens=24)
    >>> round(run.stats["tokens_per_forward"], 2)
    3.83
    """

    kind, levels, ranks = EagleHead, LEVELS, RANKS

    def __init__(self, model: PreTrainedModel, heads: EagleHead, shape: Shape | None = None, drawn: bool = True):
        super().__init__(model, heads, shape)
        self.drawn, self.replays = drawn, "greedy" if drawn else "any"
        self._ranks, self._draws, count = self._choice, [], Counter()
        for parent, _ in self.shape:  # children that are drawn carry the draws in their order
            self._draws.append(count[parent])
            count[parent] += 1

    def finish(self) -> None:
        """Give the layer's cache back."""
        self._state = EagleState(self)

    def propose(self, context: Context, limit: int) -> DraftTree:
        sampled = self.drawn and not context.sampling.greedy
        self._choice, self._from = self._draws if sampled else self._ranks, {}
        with self._inference():
            self._state.read_on(context)
            tree = super().propose(context, limit)
            if sampled and len(tree):
                rows = torch.stack([self._from[parent] for parent in tree.parents])
                tree = DraftTree(tree.tokens, tree.parents, rows)
        self._from = {}
        return tree

    def _choices(self, context: Context, depth, above, tokens, parents, width) -> list[list[int]]:
        features = self._state.expand(above, tokens, parents)
        if self._choice is self._ranks:
            return self._best(depth, features, width)
        rows = distribution(self.heads.logits(self.ends, depth, features), context.sampling)
        self._from |= dict(zip(above, rows, strict=True))
        start, found = len(context.tokens), []
        for place, row in zip(above, rows, strict=True):
            # A salt of its own for each draw of each node of this pass: a later pass draws anew at the same position.
            salts = [(start << 40) + (place + 1 << 20) + rank for rank in range(width)]
            found.append(
                draw_without_replacement(
                    row, [context.sampling.uniform(start + depth - 1, DRAFT, salt) for salt in salts]
                )
            )
        return found
