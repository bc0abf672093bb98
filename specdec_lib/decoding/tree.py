"""Drafts as trees: what a drafter proposes and the target verifies in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from operator import index
from typing import Any

import numpy as np
import torch

from specdec_lib.lazy import former_attribute, former_keywords, former_names

__getattr__ = former_names(__name__, Passengers="AuxiliaryTokens")


class AuxiliaryTokens:
    """Tokens that ride along in a pass: the drafter is shown their outputs, and they are never committed.

    No node attends to them, so the nodes' logits do not depend on them. Lookahead's window is of this kind.

    Parameters
    ----------
    tokens : sequence of int, length p
    depths : sequence of int, length p
        Positions relative to the root; those after the model's last one count as the last.
    visible : bool array of shape (p, 1 + n + p)
        Which of the root, the n nodes and the p auxiliary tokens each attends to. All attend to every committed token.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib import AuxiliaryTokens, DraftTree
    >>> riding = AuxiliaryTokens([9], depths=[2], visible=np.array([[True, True, False, True]]))
    >>> tree = DraftTree([5, 6], [-1, 0]).annotated(auxiliary=riding)
    >>> tree.mask().astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 0, 1]])
    """

    __slots__ = ("tokens", "depths", "visible")

    def __init__(self, tokens: Sequence[int], depths: Sequence[int], visible: np.ndarray):
        self.tokens, self.depths = list(map(index, tokens)), list(map(index, depths))
        self.visible = np.asarray(visible, dtype=bool)
        count = len(self.tokens)
        if len(self.depths) != count:
            raise ValueError(f"{count} auxiliary tokens but {len(self.depths)} depths; expected one depth for each")
        if self.visible.ndim != 2 or len(self.visible) != count:
            raise ValueError(
                f"visible has shape {self.visible.shape}; expected one row for each of {count} auxiliary tokens"
            )
        for name, values in (("tokens", self.tokens), ("depths", self.depths)):
            if values and min(values) < 0:
                raise ValueError(f"{name} of auxiliary tokens hold {min(values)}; expected numbers of 0 or more")

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, AuxiliaryTokens)
            and (self.tokens, self.depths) == (other.tokens, other.depths)
            and np.array_equal(self.visible, other.visible)
        )

    __hash__ = None


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """Nodes on the way from the root to a node.

    Parameters
    ----------
    node : int
        -1 is the root.
    parents : sequence of int
        The parent of each node.

    Returns
    -------
    list of int
        From the root's child down to ``node``; empty for the root.

    Examples
    --------
    >>> from specdec_lib.decoding.tree import path_to
    >>> path_to(3, [-1, 0, 0, 2])
    [0, 2, 3]
    """
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


class DraftTree:
    """Candidate continuations of the last emitted token, merged on common prefixes.

    The root is the last emitted token and is not part of the tree. A chain (PLD, PLD+, SpecDec), a batch of drafts
    (DReSD, section 3.6) and a trie (REST, section 3.2) are all of this kind.

    Parameters
    ----------
    tokens : sequence of int, length n
        The token of each node.
    parents : sequence of int, length n
        The node that each continues, -1 for the root; a parent comes before its children.
    probabilities : float tensor of shape (n, vocabulary), optional
        Distributions that a draft model drew the tokens from; verification is then by rejection sampling
        (:mod:`specdec_lib.decoding.acceptance`). Children of one node are drawn from one distribution, their common row, in
        their order and without replacement.

    Raises
    ------
    ValueError
        If a parent does not come before its child, two children of one node have one token, or a token is negative.

    Examples
    --------
    >>> from specdec_lib import DraftTree
    >>> tree = DraftTree.from_drafts([[5, 6, 7], [5, 8]])
    >>> tree
    DraftTree(tokens=[5, 6, 7, 8], parents=[-1, 0, 1, 0])
    >>> tree.depth, tree.width
    (3, 5)
    >>> tree.child(0, 8)
    3
    >>> tree.path(3)
    [0, 3]
    >>> tree.mask().astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0],
           [1, 1, 1, 1, 0],
           [1, 1, 0, 0, 1]])
    """

    __slots__ = (
        *("tokens", "parents", "probabilities", "is_chain", "copied_from", "_depths", "_children"),
        *("scores", "sources", "auxiliary", "_levels"),
    )
    passengers = former_attribute("auxiliary")

    def __init__(self, tokens: Sequence[int], parents: Sequence[int], probabilities: torch.Tensor | None = None):
        self._fill(list(map(index, tokens)), list(map(index, parents)), probabilities)
        if len(self.tokens) != len(self.parents):
            raise ValueError(
                f"{len(self.tokens)} tokens but {len(self.parents)} parents; expected one parent per token"
            )
        for i, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if not -1 <= parent < i:
                raise ValueError(f"parents[{i}] is {parent}; expected -1 (the root) or the index of an earlier node")
            if token < 0:
                raise ValueError(f"tokens[{i}] is {token}; expected a token id, 0 or more")
        if len(self.children()) != len(self.tokens):
            raise ValueError("two children of one node carry the same token; merge them (DraftTree.from_drafts does)")
        self.is_chain = all(parent == i - 1 for i, parent in enumerate(self.parents))
        if probabilities is not None:
            if probabilities.ndim != 2 or len(probabilities) != len(self.tokens):
                raise ValueError(f"probabilities have shape {tuple(probabilities.shape)}; expected one row per token")

    def _fill(self, tokens: list[int], parents: list[int], probabilities: torch.Tensor | None = None) -> None:
        self.tokens, self.parents, self.probabilities = tokens, parents, probabilities
        #: The drafter's notes (:meth:`annotated`), None without.
        self.scores: list[float] | None = None
        self.sources: list[str] | None = None
        self.auxiliary: AuxiliaryTokens | None = None
        #: Position in prompt and output of the token that the first node is a copy of; those after it are copies of those after
        #: it (:meth:`chain`). It is no part of equality.
        self.copied_from: int | None = None
        self._depths: list[int] | None = None
        self._children: dict[tuple[int, int], int] | None = None
        self._levels: int | None = None

    def _annotate(self, scores, sources, auxiliary) -> None:
        count = len(self.tokens)
        for name, values in (("scores", scores), ("sources", sources)):
            if values is not None and len(values) != count:
                raise ValueError(f"{len(values)} {name} but {count} tokens; expected one per node")
        if auxiliary is not None and auxiliary.visible.shape[1] != 1 + count + len(auxiliary):
            raise ValueError(
                f"visible has shape {auxiliary.visible.shape}; expected {1 + count + len(auxiliary)} columns"
            )
        self.scores = None if scores is None else [float(score) for score in scores]
        self.sources = None if sources is None else list(sources)
        self.auxiliary = auxiliary if auxiliary is not None and len(auxiliary) else None

    @former_keywords(passengers="auxiliary")
    def annotated(
        self,
        *,
        scores: Sequence[float] | None = None,
        sources: Sequence[str] | None = None,
        auxiliary: AuxiliaryTokens | None = None,
        levels: int | None = None,
    ) -> DraftTree:
        """The same tree with the drafter's notes instead of those it has.

        Parameters
        ----------
        scores : sequence of float, length n, optional
            The drafter's own estimate for each node.
        sources : sequence of str, length n, optional
            Where each node comes from.
        auxiliary : AuxiliaryTokens, optional
        levels : int, optional
            Passes of a network that drafted it, where they are not its depth.

        Returns
        -------
        DraftTree

        Examples
        --------
        >>> from specdec_lib import DraftTree
        >>> DraftTree.chain([5, 6]).annotated(scores=[0.9, 0.5]).scores
        [0.9, 0.5]
        """
        tree = copy(self)
        tree._annotate(scores, sources, auxiliary)
        tree._levels = levels
        return tree

    def without_probabilities(self) -> DraftTree:
        """The same tree and notes without the distributions that its tokens were drawn from."""
        tree = copy(self)
        tree.probabilities = None
        return tree

    @classmethod
    def chain(
        cls, tokens: Sequence[int], probabilities: torch.Tensor | None = None, copied_from: int | None = None
    ) -> DraftTree:
        """One draft: each token continues the one before it.

        Parameters
        ----------
        tokens : sequence of int, length n
        probabilities : float tensor of shape (n, vocabulary), optional
            Those that a draft model drew the tokens from.
        copied_from : int, optional
            Position in prompt and output of the token that the first one is a copy of.

        Returns
        -------
        DraftTree

        Examples
        --------
        >>> from specdec_lib import DraftTree
        >>> DraftTree.chain([5, 6, 7])
        DraftTree(tokens=[5, 6, 7], parents=[-1, 0, 1])
        """
        if probabilities is not None:
            return cls(tokens, range(-1, len(tokens) - 1), probabilities)
        # Drafters call this at each step: what a chain has by construction is not checked again.
        tokens = list(map(index, tokens))
        if tokens and min(tokens) < 0:
            raise ValueError(f"tokens hold {min(tokens)}; expected token ids, 0 or more")
        tree = cls.unchecked(tokens, list(range(-1, len(tokens) - 1)), True)
        tree.copied_from = copied_from
        return tree

    @classmethod
    def unchecked(cls, tokens: list[int], parents: list[int], is_chain: bool | None = None) -> DraftTree:
        """A tree by construction: for drafters whose compiled loops give its lists as the class itself wants them."""
        tree = cls.__new__(cls)
        tree._fill(tokens, parents)
        tree.is_chain = parents == list(range(-1, len(parents) - 1)) if is_chain is None else is_chain
        return tree

    @classmethod
    def from_drafts(cls, drafts: Iterable[Sequence[int]], merge: bool = True) -> DraftTree:
        """A batch of drafts as one tree; nodes in order of first appearance.

        Parameters
        ----------
        drafts : iterable of sequences of int
        merge : bool
            Whether drafts share the nodes of a common prefix. Without it each draft is a branch of its own, as a dense batch is
            verified. Equal prefixes are then nodes several times; following the tokens leads to the first of them, so the longest
            match is found.

        Returns
        -------
        DraftTree

        Examples
        --------
        >>> from specdec_lib import DraftTree
        >>> DraftTree.from_drafts([[5, 6], [5, 8]])
        DraftTree(tokens=[5, 6, 8], parents=[-1, 0, 0])
        >>> DraftTree.from_drafts([[5, 6], [5, 8]], merge=False)
        DraftTree(tokens=[5, 6, 5, 8], parents=[-1, 0, -1, 2])
        """
        tokens: list[int] = []
        parents: list[int] = []
        children: dict[tuple[int, int], int] = {}
        for draft in drafts:
            node, first = -1, -1
            for token in map(index, draft):
                known = children.get((first, token)) if merge else None
                if known is None:
                    parents.append(node)
                    known = len(tokens)
                    tokens.append(token)
                node = known
                first = children.setdefault((first, token), node)
        if tokens and min(tokens) < 0:
            raise ValueError(f"tokens hold {min(tokens)}; expected token ids, 0 or more")
        tree = cls.unchecked(tokens, parents)
        tree._children = children
        return tree

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        # Hundreds of thousands of results travel between processes, so what follows from the parents is left out. The children
        # of a batch with equal prefixes, fewer than its nodes, do not follow from them.
        state = {name: getattr(self, name) for name in self.__slots__}
        state["_depths"] = None
        if self._children is not None and len(self._children) == len(self.tokens):
            state["_children"] = None
        return None, state

    def __len__(self) -> int:
        """Number of draft tokens, root excluded."""
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"DraftTree(tokens={self.tokens}, parents={self.parents})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DraftTree) and (
            (self.tokens, self.parents, self.scores, self.sources, self.auxiliary)
            == (other.tokens, other.parents, other.scores, other.sources, other.auxiliary)
        )

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

    @property
    def levels(self) -> int:
        """Passes of a network that drafts a tree level by level: as many as it is deep, unless its drafter noted others."""
        return self.depth if self._levels is None else self._levels

    @property
    def width(self) -> int:
        """Tokens of the pass that verifies it: the root, the nodes and the auxiliary tokens."""
        return 1 + len(self.tokens) + (0 if self.auxiliary is None else len(self.auxiliary))

    def block(self, root: int) -> list[int]:
        """Tokens of that pass: ``root``, the nodes', the auxiliary tokens'."""
        return [root, *self.tokens, *([] if self.auxiliary is None else self.auxiliary.tokens)]

    @property
    def block_depths(self) -> list[int]:
        """Positions of those relative to the root."""
        return [0, *self.depths, *([] if self.auxiliary is None else self.auxiliary.depths)]

    @property
    def is_causal(self) -> bool:
        """Whether each token of that pass attends to all before it, as a chain's without auxiliary tokens do."""
        return self.is_chain and self.auxiliary is None

    def children(self) -> dict[tuple[int, int], int]:
        """Map from (parent index, token id) to the child's index; where drafts were not merged, the first such child's."""
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
        """The nodes no deeper than ``depth``, and all auxiliary tokens, which no longer attend to nodes that are cut.

        Examples
        --------
        >>> from specdec_lib import DraftTree
        >>> DraftTree.from_drafts([[5, 6, 7], [5, 8]]).truncated(1)
        DraftTree(tokens=[5], parents=[-1])
        """
        if self.depth <= depth:
            return self
        if self.is_chain:
            rows = None if self.probabilities is None else self.probabilities[:depth]
            return self._notes_of(DraftTree.chain(self.tokens[:depth], rows), range(depth))
        kept: dict[int, int] = {-1: -1}
        tokens, parents = [], []
        for i, (token, parent, level) in enumerate(zip(self.tokens, self.parents, self.depths, strict=True)):
            if level <= depth:
                kept[i] = len(tokens)
                tokens.append(token)
                parents.append(kept[parent])
        tree = DraftTree.unchecked(tokens, parents)
        # Of a batch these are not what the parents tell.
        tree._children = {(kept[p], t): kept[c] for (p, t), c in self.children().items() if c in kept}
        nodes = [node for node in kept if node >= 0]
        if self.probabilities is not None:
            tree.probabilities = self.probabilities[nodes]
        return self._notes_of(tree, nodes)

    def _notes_of(self, cut: DraftTree, nodes: Sequence[int]) -> DraftTree:
        """``cut``, which has ``nodes`` of this tree, with what is noted of them."""
        cut._levels = self._levels
        if self.scores is None and self.sources is None and self.auxiliary is None:
            return cut
        riding = self.auxiliary
        if riding is not None:
            columns = [0, *(node + 1 for node in nodes), *range(1 + len(self.tokens), self.width)]
            riding = AuxiliaryTokens(riding.tokens, riding.depths, riding.visible[:, columns])
        notes = (None if values is None else [values[node] for node in nodes] for values in (self.scores, self.sources))
        cut._annotate(*notes, riding)
        return cut

    def path(self, node: int) -> list[int]:
        """Indices from the root's child down to ``node``; empty for the root (-1)."""
        return path_to(node, self.parents)

    def mask(self) -> np.ndarray:
        """Which entries of the block (root, n nodes, p auxiliary tokens) each attends to, bool, shape (n + 1 + p, n + 1 + p).

        A node attends to the root, its ancestors and itself; the auxiliary tokens' rows are as they were given.
        """
        if self.is_causal:
            return np.tri(self.width, dtype=bool)
        mask = np.zeros((self.width, self.width), dtype=bool)
        mask[0, 0] = True
        for i, parent in enumerate(self.parents, start=1):
            mask[i] = mask[parent + 1]
            mask[i, i] = True
        if self.auxiliary is not None:
            mask[1 + len(self.tokens) :] = self.auxiliary.visible
        return mask


EMPTY = DraftTree((), ())
