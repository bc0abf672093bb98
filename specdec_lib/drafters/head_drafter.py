"""What the drafters with heads on the target's states share: a static tree that is filled level by level."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby
from typing import Self

import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.contract import LAST, Capture, Context, Drafter
from specdec_lib.decoding.small_batch import SmallBatchLinear, product_is_faster
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters.token_recycling import template
from specdec_lib.heads.drafting import DraftHead, Ends
from specdec_lib.heads.grown_tree import Shape, best_tree_shape


class HeadDrafter(Drafter):
    """Draft with heads that were trained for the target.

    The draft depends on the context alone, so that a recording with the last layer's states can be replayed. It comes without
    probabilities unless a subclass says otherwise, so that sampled outputs are those of plain decoding.

    Parameters
    ----------
    model : PreTrainedModel
        The target.
    heads : DraftHead
        Copied to the device and type of the target's output layer.

    Raises
    ------
    TypeError
        If the heads are of another kind than the drafter's.
    ValueError
        If they were trained for another target.

    Examples
    --------
    >>> from specdec_lib import paths
    >>> from specdec_lib.drafters.hydra import Hydra
    >>> from specdec_lib.drafters.medusa import Medusa
    >>> from specdec_lib.heads.drafting import DraftHead
    >>> heads = DraftHead.load(paths.POCKET / "heads/medusa.safetensors", model)
    >>> Medusa(model, heads).capture.layers
    (-1,)
    >>> Hydra(model, heads)
    Traceback (most recent call last):
        ...
    TypeError: heads are MedusaHeads; expected HydraHeads, as its load() gives
    """

    capture = Capture(layers=(LAST,))
    #: The class of its heads.
    kind: type[DraftHead]

    def __init__(self, model: PreTrainedModel, heads: DraftHead):
        if not isinstance(heads, self.kind):
            raise TypeError(f"heads are {type(heads).__name__}; expected {self.kind.__name__}, as its load() gives")
        heads.check(model)
        self.ends = Ends(model)
        # A copy: another drafter may have the same heads on another device or in another type.
        self.heads = copy.deepcopy(heads).to(self.ends.device, self.ends.dtype).eval()
        # The heads are in float32 also beside a model of packed weights, whose own passes need no such products.
        few = self.ends.device.type == "cpu" and self.ends.dtype == torch.float32
        self._within = SmallBatchLinear if few and product_is_faster(torch.get_num_threads()) else nullcontext
        self.finish()

    def start(self, context: Context) -> None:
        """Reject a target with other token ids or other states than the one that the heads were made for."""
        width = context.hidden(LAST).shape[1]
        if (context.vocabulary, width) != (self.ends.vocabulary, self.ends.width):
            raise ValueError(
                f"the heads were made for a target of {self.ends.vocabulary} token ids and states of width {self.ends.width}; the "
                f"one that decodes has {context.vocabulary} and {width}: give both the same model"
            )
        self.finish()

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Where the heads are run: without gradients, and with products for a few rows where these are the faster ones."""
        with torch.inference_mode(), self._within():
            yield

    def _states(self, context: Context, first: int = 0) -> torch.Tensor:
        """The target's states from position ``first`` on, of shape (n, d), as the heads take them."""
        return context.hidden(LAST)[first:].to(self.ends.device, self.ends.dtype)

    def _tokens(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor(tokens, dtype=torch.long, device=self.ends.device)

    def _best(self, depth: int, features: torch.Tensor, count: int) -> list[list[int]]:
        """The ``count`` most likely tokens for each row of features, most likely first."""
        logits = self.heads.logits(self.ends, depth, features)
        return logits.topk(min(count, logits.shape[-1]), dim=-1).indices.tolist()


class StaticTreeDrafter(HeadDrafter):
    """Draft a tree whose shape is given.

    Parameters
    ----------
    model, heads
        As for :class:`HeadDrafter`.
    shape : list of (int, int), optional
        For each node its parent (-1: the root) and its rank among the parent's choices, from 0; parents first. By default it
        has as many nodes at each depth as the published one (:func:`~specdec_lib.drafters.token_recycling.template`), as deep as
        the heads predict; :meth:`grown` takes one that suits them.

    Raises
    ------
    ValueError
        If the shape is empty, or deeper than the heads predict.

    Examples
    --------
    >>> from specdec_lib import generate, paths
    >>> from specdec_lib.drafters.medusa import Medusa
    >>> from specdec_lib.heads.drafting import DraftHead
    >>> heads = DraftHead.load(paths.POCKET / "heads/medusa.safetensors", model)
    >>> drafter = Medusa(model, heads, shape=[(-1, 0), (-1, 1), (0, 0)])
    >>> run = generate(model, prompt, drafter, max_new_tokens=24)
    >>> max(step.drafted for step in run.steps)
    3
    """

    #: Nodes of the published tree at each depth, and how many ranks it uses.
    levels: tuple[int, ...]
    ranks: int

    def __init__(self, model: PreTrainedModel, heads: DraftHead, shape: Shape | None = None):
        super().__init__(model, heads)
        if shape is None:
            shape = template(self.levels[: heads.depth or None], self.ranks)
        depths: list[int] = []
        for i, (parent, rank) in enumerate(shape):
            if not -1 <= parent < i or rank < 0:
                raise ValueError(f"node {i} is {(parent, rank)}; expected an earlier node, or -1, and a rank from 0 up")
            depths.append(1 if parent < 0 else depths[parent] + 1)
        if not depths:
            raise ValueError("the shape has no node; expected at least one")
        if heads.depth and max(depths) > heads.depth:
            raise ValueError(f"the shape has {max(depths)} levels, the heads predict {heads.depth}; give a flatter one")
        self.shape = list(shape)
        # For each level its nodes, and how many choices they need of a parent.
        by_depth = sorted(range(len(depths)), key=lambda node: (depths[node], shape[node][0], node))
        self._levels = [list(nodes) for _, nodes in groupby(by_depth, key=lambda node: depths[node])]
        self._widths = [max(shape[node][1] for node in nodes) + 1 for nodes in self._levels]
        #: Of each node which of its parent's choices it carries.
        self._choice = [rank for _, rank in shape]

    @classmethod
    def grown(cls, model: PreTrainedModel, heads: DraftHead, nodes: int | None = None) -> Self:
        """Make one with the tree that these heads' accuracies on held-out answers favour.

        :func:`~specdec_lib.heads.grown_tree.best_tree_shape` grows it.

        Parameters
        ----------
        model, heads
            As for :class:`HeadDrafter`.
        nodes : int, optional
            By default as many as the published tree has.

        Returns
        -------
        StaticTreeDrafter

        Examples
        --------
        >>> from specdec_lib import paths
        >>> from specdec_lib.drafters.medusa import Medusa
        >>> from specdec_lib.heads.drafting import DraftHead
        >>> heads = DraftHead.load(paths.POCKET / "heads/medusa.safetensors", model)
        >>> Medusa.grown(model, heads, nodes=4).shape
        [(-1, 0), (-1, 1), (-1, 2), (0, 0)]
        """
        return cls(model, heads, best_tree_shape(heads.accuracies, sum(cls.levels) if nodes is None else nodes))

    def propose(self, context: Context, limit: int) -> DraftTree:
        """Fill the shape, level by level, with the most likely tokens after each parent."""
        tokens: list[int] = []
        parents: list[int] = []
        # Of each node of the shape: its place in the draft, or None where the vocabulary has no such rank.
        places: dict[int, int | None] = {-1: -1}
        with self._inference():
            for depth, (nodes, width) in enumerate(zip(self._levels[:limit], self._widths, strict=False), start=1):
                above = list(dict.fromkeys(places[self.shape[node][0]] for node in nodes))
                above = [place for place in above if place is not None]
                if not above:
                    break
                choices = dict(zip(above, self._choices(context, depth, above, tokens, parents, width), strict=True))
                for node in nodes:
                    parent, rank = places[self.shape[node][0]], self._choice[node]
                    if parent is None or rank >= len(choices[parent]):
                        places[node] = None
                        continue
                    places[node] = len(tokens)
                    tokens.append(choices[parent][rank])
                    parents.append(parent)
        return DraftTree(tokens, parents)

    @abstractmethod
    def _choices(
        self, context: Context, depth: int, above: list[int], tokens: list[int], parents: list[int], width: int
    ) -> list[list[int]]:
        """After each of the nodes ``above`` of the draft so far, all of depth ``depth - 1``: the ``width`` most likely tokens."""
