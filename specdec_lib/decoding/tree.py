"""Drafts as trees: what a drafter proposes and the target verifies in one pass."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch


class DraftTree:
    """Candidate continuations of the last emitted token, merged on common prefixes.

    The root is the last emitted token and is not part of the tree. Node ``i`` continues node ``parents[i]``, or the
    root where that is -1; a parent comes before its children. A chain (PLD, PLD+, SpecDec), a batch of drafts
    (DReSD, section 4.2) and a trie (REST, section 3.2) are all of this kind.

    Parameters
    ----------
    tokens : sequence of int, length n
        Token id of each node.
    parents : sequence of int, length n
        Index of each node's parent, -1 for the root; ``parents[i] < i``.
    probabilities : float tensor, shape (n, vocabulary), optional
        The distribution each node's token was drawn from. Given by drafters that sample from a draft model;
        verification is then by rejection sampling (:mod:`specdec_lib.decoding.acceptance`), and the tree a chain.

    Raises
    ------
    ValueError
        If lengths differ, a parent does not come before its child, a token id is negative, two children of one
        node carry the same token, or ``probabilities`` come with a tree that is not a chain.
    """

    __slots__ = ("tokens", "parents", "probabilities", "is_chain", "_depths", "_children")

    def __init__(self, tokens: Sequence[int], parents: Sequence[int], probabilities: torch.Tensor | None = None):
        self.tokens = [int(t) for t in tokens]
        self.parents = [int(p) for p in parents]
        self.probabilities = probabilities
        self._depths: list[int] | None = None
        self._children: dict[tuple[int, int], int] | None = None
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents; expected one parent a token")
        for i, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if not -1 <= parent < i:
                raise ValueError(f"parents[{i}] is {parent}; expected -1 (the root) or the index of an earlier node")
            if token < 0:
                raise ValueError(f"tokens[{i}] is {token}; expected a token id, 0 or more")
        if len(self.children()) != len(self.tokens):
            raise ValueError("two children of one node carry the same token; merge them (DraftTree.from_drafts does)")
        self.is_chain = all(parent == i - 1 for i, parent in enumerate(self.parents))
        if probabilities is not None:
            if not self.is_chain:
                raise ValueError("probabilities are given for a tree that is not a chain; rejection sampling needs a chain")
            if probabilities.ndim != 2 or len(probabilities) != len(self.tokens):
                raise ValueError(f"probabilities have shape {tuple(probabilities.shape)}; expected one row for each of the "
                                 f"{len(self.tokens)} tokens")

    @classmethod
    def chain(cls, tokens: Sequence[int], probabilities: torch.Tensor | None = None) -> DraftTree:
        """One draft: each token continues the one before it."""
        if probabilities is not None:
            return cls(tokens, range(-1, len(tokens) - 1), probabilities)
        # Drafters call this at each step: what a chain has by construction is not checked again.
        tree = cls.__new__(cls)
        tree.tokens = list(tokens)
        if tree.tokens and min(tree.tokens) < 0:
            raise ValueError(f"tokens hold {min(tree.tokens)}; expected token ids, 0 or more")
        tree.parents = list(range(-1, len(tree.tokens) - 1))
        tree.probabilities = tree._depths = tree._children = None
        tree.is_chain = True
        return tree

    @classmethod
    def unchecked(cls, tokens: list[int], parents: list[int]) -> DraftTree:
        """A tree by construction: for drafters whose compiled loops give its lists as the class itself wants them."""
        tree = cls.__new__(cls)
        tree.tokens, tree.parents = tokens, parents
        tree.probabilities = tree._depths = tree._children = None
        tree.is_chain = parents == list(range(-1, len(parents) - 1))
        return tree

    @classmethod
    def from_drafts(cls, drafts: Iterable[Sequence[int]]) -> DraftTree:
        """A batch of drafts, common prefixes merged; nodes in order of first appearance."""
        tokens: list[int] = []
        parents: list[int] = []
        known: dict[tuple[int, int], int] = {}
        for draft in drafts:
            node = -1
            for token in draft:
                child = known.get((node, token))
                if child is None:
                    child = known[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = child
        return cls(tokens, parents)

    @classmethod
    def batch(cls, drafts: Iterable[Sequence[int]]) -> DraftTree:
        """A batch of drafts, each a branch of its own, as a dense batch is verified: for comparison.

        Equal prefixes are nodes several times. Following the tokens leads to the first of them, whose state
        and keys are those of the others, so the longest match over all drafts is found.
        """
        tokens: list[int] = []
        parents: list[int] = []
        children: dict[tuple[int, int], int] = {}
        for draft in drafts:
            node, first = -1, -1
            for token in draft:
                parents.append(node)
                node = len(tokens)
                tokens.append(token)
                first = children.setdefault((first, token), node)
        tree = cls.unchecked(tokens, parents)
        tree._children = children
        return tree

    def __len__(self) -> int:
        """Number of draft tokens, root excluded."""
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"DraftTree(tokens={self.tokens}, parents={self.parents})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DraftTree) and (self.tokens, self.parents) == (other.tokens, other.parents)

    __hash__ = None

    @property
    def depths(self) -> list[int]:
        """Depth of each node: 1 for children of the root."""
        if self._depths is None:
            depths: list[int] = []
            for parent in self.parents:
                depths.append(1 if parent < 0 else depths[parent] + 1)
            self._depths = depths
        return self._depths

    @property
    def depth(self) -> int:
        """Length of the longest path, 0 for an empty tree."""
        return (len(self.tokens) if self.is_chain else max(self.depths)) if self.tokens else 0

    def children(self) -> dict[tuple[int, int], int]:
        """Map from (parent index, token id) to the child's index; of a :meth:`batch`, the first
        such child's."""
        if self._children is None:
            self._children = {(p, t): i for i, (p, t) in enumerate(zip(self.parents, self.tokens, strict=True))}
        return self._children

    def child(self, node: int, token: int) -> int | None:
        """Index of the child of ``node`` (-1 for the root) that carries ``token``, None where there is none."""
        if self.is_chain:
            follows = node + 1
            return follows if follows < len(self.tokens) and self.tokens[follows] == token else None
        return self.children().get((node, token))

    def truncated(self, depth: int) -> DraftTree:
        """The nodes no deeper than ``depth``; the tree itself where nothing is cut."""
        if self.depth <= depth:
            return self
        if self.is_chain:
            rows = None if self.probabilities is None else self.probabilities[:depth]
            return DraftTree.chain(self.tokens[:depth], rows)
        index: dict[int, int] = {-1: -1}
        tokens, parents = [], []
        for i, (token, parent, level) in enumerate(zip(self.tokens, self.parents, self.depths, strict=True)):
            if level <= depth:
                index[i] = len(tokens)
                tokens.append(token)
                parents.append(index[parent])
        tree = DraftTree.unchecked(tokens, parents)
        # Of a batch these are not what the parents tell.
        tree._children = {(index[p], t): index[c] for (p, t), c in self.children().items() if c in index}
        return tree

    def path(self, node: int) -> list[int]:
        """Indices from the root's child down to ``node``; empty for the root (-1)."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def mask(self) -> np.ndarray:
        """Which block entries each block entry attends to, the root first.

        Returns
        -------
        bool array, shape (n + 1, n + 1)
            Entry ``[i, j]`` is true iff ``j`` is the root, ``i`` itself or an ancestor of ``i``.
        """
        size = len(self.tokens) + 1
        if self.is_chain:
            return np.tri(size, dtype=bool)
        mask = np.zeros((size, size), dtype=bool)
        mask[:, 0] = True
        for i, parent in enumerate(self.parents, start=1):
            mask[i] = mask[parent + 1]
            mask[i, i] = True
        return mask


EMPTY = DraftTree((), ())
