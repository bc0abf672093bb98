"""DReSD (Gritta et al. 2025): draft what followed the stored hidden states nearest to the current one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.datastores.sharded import ShardedDenseIndex, open_dense_index
from specdec_lib.datastores.tokens import check_vocabulary
from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.contract import LAST, Capture, Context, Drafter, Evidence
from specdec_lib.decoding.tree import EMPTY, DraftTree


class Dresd(Drafter):
    r"""Draft the continuations of nearest neighbours that start with the target's own next token.

    Let x_t be the last emitted token. The state of x_{t-1}, from which the target chose x_t, is looked up among the states of a
    datastore (DReSD, Algorithm 1). Of its ``neighbours`` nearest, those whose continuation starts with x_t are kept (section
    3.1). The first ``drafts`` different ones are drafted: the ``length`` tokens after x_t, fewer at the end of a document.

    Parameters
    ----------
    index : DenseIndex, ShardedDenseIndex or path
        A dense index of the target's own states, or what has a dense index's ``store``, ``width``, ``path`` and ``search``.
    drafts : int
        Drafts kept (B); mostly 10 in the paper.
    length : int
        Tokens of each draft (N), without x_t.
    neighbours : int
        Neighbours looked up.

    Raises
    ------
    ValueError
        When a generation starts with a target of another tokenizer, or of states of another width, than the index.

    Notes
    -----
    The paper names no number of neighbours. The released code takes 50, counts x_t in N (its 20 is 19 here) and keeps equal drafts.
    We merge common prefixes; in the paper's dense batch (section 3.6) each draft is a branch, which verifies more for the same.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.datastores import build_dense_index, build_from_texts
    >>> from specdec_lib.drafters import Dresd
    >>> from specdec_lib.models.embedding import embed_store
    >>> texts = ["def multiply(x, y):\n    return x * y\n\ndef divide(x, y):\n    return x / y\n"]
    >>> store = build_from_texts(folder / "store", texts, tokenizer, progress=False)
    >>> states = embed_store(model, store, folder / "states", progress=False)
    >>> index = build_dense_index(folder / "store/dense", states, store, dims=16, progress=False)
    >>> run = generate(model, prompt, Dresd(index, length=6), max_new_tokens=24)
    >>> round(run.stats["tokens_per_forward"], 2)
    2.09
    """

    capture = Capture(layers=(LAST,))

    def __init__(
        self,
        index: DenseIndex | ShardedDenseIndex | str | Path,
        drafts: int = 10,
        length: int = 10,
        neighbours: int = 50,
    ):
        self.index = open_dense_index(index) if isinstance(index, (str, Path)) else index
        self.drafts, self.length = whole_number("drafts", drafts, 1), whole_number("length", length, 1)
        self.neighbours = whole_number("neighbours", neighbours, 1)
        #: Neighbours whose continuation started with the target's token at the last proposal.
        self.survivors = 0
        self._drafted: tuple[DraftTree, list[tuple[float, list[int]]]] = (EMPTY, [])

    def start(self, context: Context) -> None:
        check_vocabulary(self.index.store, context.vocabulary, context.tokenizer)
        width = context.hidden(LAST).shape[1]
        if width != self.index.width:
            raise ValueError(
                f"the target's states have width {width}, those of {self.index.path} {self.index.width}: index this model's states"
            )
        self.survivors, self._drafted = 0, (EMPTY, [])

    def propose(self, context: Context, limit: int) -> DraftTree:
        found = list(self._continuations(context, min(self.length, limit)))
        tree = DraftTree.from_drafts(draft for _, draft in found) if found else EMPTY
        self._drafted = tree, found
        return tree

    def evidence(self, context: Context) -> Evidence:
        return Evidence(0, self.survivors, similarity=self.similarities or (0.0,))

    @property
    def similarities(self) -> list[float]:
        """Of each node of the last proposal: the score of the nearest neighbour whose draft goes through it."""
        tree, found = self._drafted
        scores: list[float | None] = [None] * len(tree)
        for score, draft in found:
            node = -1
            for token in draft:
                node = tree.child(node, token)
                if scores[node] is None:
                    scores[node] = score
        return scores

    def _continuations(self, context: Context, length: int) -> Iterator[tuple[float, list[int]]]:
        """Scores and tokens of at most ``drafts`` continuations after the last token, nearest first."""
        # The last token's own state is not computed yet; the last row is that of the token before it.
        states, token = context.hidden(LAST)[-1:], context.tokens[-1]
        if isinstance(self.index, ShardedDenseIndex):
            nearest = self.index.nearest(states, self.neighbours, length + 1)
            survivors = [(score, tokens[1:]) for score, tokens in nearest if tokens[0] == token]
            self.survivors = len(survivors)
        else:
            scores, found = (rows[0] for rows in self.index.search(states, self.neighbours))
            score_at = dict(zip(found.tolist(), scores.tolist(), strict=True))
            positions = self._survivors(found, token).tolist()
            survivors = ((score_at[at], self.index.store.continuation(at + 1, length)) for at in positions)
            self.survivors = len(positions)
        seen: set[tuple[int, ...]] = set()
        for score, draft in survivors:
            if draft and tuple(draft) not in seen:
                seen.add(tuple(draft))
                yield score, draft
                if len(seen) == self.drafts:
                    return

    def _survivors(self, positions: np.ndarray, token: int) -> np.ndarray:
        """The positions whose continuation starts with the target's token."""
        # The store's first entry is a separator: what was not found (-1) survives no filter.
        return positions[self.index.store.tokens[np.maximum(positions, 0)] == token]
