"""Weights of the probabilities that :class:`specdec_lib.drafters.one_tree.OneTree` gives to nodes, and how they are fitted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specdec_lib.drafters.merged_tree import FEATURES, width
from specdec_lib.files import named, replacing
from specdec_lib.lazy import former_names

__getattr__ = former_names(__name__, Judged="NodeOutcomes")

#: Of the file that :meth:`TreeProbabilities.save` writes.
FORMAT = 1
#: Weights of FEATURES where nothing was fitted: likelier right than wrong from two tokens on.
_UNFITTED = (-0.5, -1.0, 0.0, 0.7, 1.2, 2.0, 3.0, 4.0, 1.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass
class NodeOutcomes:
    """Features of each verified node's children, (children, :func:`width`), and the child that was emitted, -1 for none.

    Examples
    --------
    >>> from specdec_lib import record, replay
    >>> from specdec_lib.drafters import PromptLookup
    >>> from specdec_lib.drafters.one_tree import OneTree
    >>> from specdec_lib.drafters.pass_costs import CURVES
    >>> drafter = OneTree({"PLD": PromptLookup()}, CURVES["cpu"], observe=True)
    >>> run = replay(record(model, prompt, max_new_tokens=24), drafter)
    >>> len(drafter.observed.features) == len(drafter.observed.outcomes)
    True
    """

    features: list[np.ndarray] = field(default_factory=list)
    outcomes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class TreeProbabilities:
    """Weights of a conditional logit over the children of a node (:mod:`specdec_lib.drafters.merged_tree`).

    Parameters
    ----------
    sources : tuple of str
    weights : float64 array of shape (width(len(sources)),)
    fitted_on : str
        Says in words what they were fitted on, if they were.

    Examples
    --------
    >>> from specdec_lib import paths
    >>> from specdec_lib.drafters.tree_probabilities import TreeProbabilities
    >>> shipped = TreeProbabilities.load(paths.POCKET / "one_tree.safetensors")
    >>> len(shipped.of(["PLD"]).weights) == len(TreeProbabilities.unfitted(["PLD"]).weights)
    True
    """

    sources: tuple[str, ...]
    weights: np.ndarray
    fitted_on: str = ""

    @classmethod
    def unfitted(cls, sources: Sequence[str]) -> TreeProbabilities:
        """Rough weights that know the length of a match alone, for sources that nothing was fitted for."""
        weights = np.zeros(width(len(sources)))
        weights[: len(sources) * len(FEATURES)] = np.tile(_UNFITTED, len(sources))
        # Two sources that propose one token are no independent witnesses: together they count about once.
        weights[len(sources) * len(FEATURES) :] = -1.0
        return cls(tuple(sources), weights)

    def of(self, sources: Sequence[str]) -> TreeProbabilities:
        """The weights of some sources, in another order or fewer."""
        missing = [name for name in sources if name not in self.sources]
        if missing:
            raise ValueError(
                f"there are no weights for the source {missing[0]!r}, only for {', '.join(self.sources)}; fit them with "
                "`python -m specdec_lib fit-tree`, or begin with TreeProbabilities.unfitted"
            )
        count, per = len(self.sources), len(FEATURES)
        places = [self.sources.index(name) for name in sources]
        own = [self.weights[place * per : (place + 1) * per] for place in places]
        pairs = []
        for i, first in enumerate(places):
            for second in places[i + 1 :]:
                low, high = sorted((first, second))
                pairs.append(self.weights[count * per + low * count - low * (low + 1) // 2 + high - low - 1])
        return TreeProbabilities(tuple(sources), np.concatenate([*own, np.array(pairs)]), self.fitted_on)

    def fitted(self, judged: NodeOutcomes, fitted_on: str) -> TreeProbabilities:
        """The weights of largest likelihood, less half their squared distance from these.

        The likelihood is concave in the weights, so it has one maximum; L-BFGS finds it.

        Parameters
        ----------
        judged : Judged
        fitted_on : str

        Returns
        -------
        TreeProbabilities

        Raises
        ------
        ValueError
            If nothing was judged.

        Examples
        --------
        >>> from specdec_lib import record, replay
        >>> from specdec_lib.drafters import PromptLookup
        >>> from specdec_lib.drafters.one_tree import OneTree
        >>> from specdec_lib.drafters.pass_costs import CURVES
        >>> drafter = OneTree({"PLD": PromptLookup()}, CURVES["cpu"], observe=True)
        >>> run = replay(record(model, prompt, max_new_tokens=24), drafter)
        >>> drafter.probabilities.fitted(drafter.observed, "one answer").fitted_on
        'one answer'
        """
        if not judged.outcomes:
            raise ValueError("nothing was judged: replay recorded answers with OneTree(..., observe=True) first")
        features = torch.from_numpy(np.concatenate(judged.features))
        counts = torch.tensor([len(rows) for rows in judged.features])
        group = torch.repeat_interleave(torch.arange(len(counts)), counts)
        first = counts.cumsum(0) - counts
        outcomes = torch.tensor(judged.outcomes)
        hit = outcomes >= 0
        hits = (first + outcomes)[hit]
        start = torch.from_numpy(self.weights)
        weights = start.clone().requires_grad_(True)
        optimizer = torch.optim.LBFGS([weights], max_iter=300, line_search_fn="strong_wolfe", tolerance_change=1e-10)

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            scores = (features @ weights).clamp(-12.0, 12.0)
            # log(1 + sum exp): of the children of each node and the outside option.
            total = torch.ones(len(counts), dtype=torch.float64).index_add(0, group, scores.exp()).log()
            value = (total.sum() - scores[hits].sum() + 0.5 * (weights - start).square().sum()) / len(counts)
            value.backward()
            return value

        optimizer.step(loss)
        return TreeProbabilities(self.sources, weights.detach().numpy(), fitted_on)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, aside and renamed."""
        about = {"format": FORMAT, "sources": self.sources, "features": FEATURES, "fitted_on": self.fitted_on}
        with replacing(path) as aside:
            save_file({"weights": self.weights}, aside, metadata={"tree": json.dumps(about)})

    @classmethod
    def load(cls, path: str | Path) -> TreeProbabilities:
        """Read what :meth:`save` wrote."""
        try:
            with safe_open(named(path), "np") as file:
                about = json.loads((file.metadata() or {})["tree"])
                weights = file.get_tensor("weights")
            sources = tuple(about["sources"])
            if about["format"] != FORMAT:
                raise ValueError(f"format {about['format']}; this release reads format {FORMAT}")
            if tuple(about["features"]) != FEATURES:
                raise ValueError("it was written by a release with other features")
            fitted_on = about["fitted_on"]
            if not all(isinstance(one, str) for one in (*sources, fitted_on)):
                raise ValueError(f"sources {sources!r:.80}, fitted on {fitted_on!r:.80}")
            if weights.dtype != np.float64 or weights.shape != (width(len(sources)),) or not np.isfinite(weights).all():
                raise ValueError(f"weights of shape {weights.shape} for {len(sources)} sources")
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{path} holds no weights of a tree ({type(error).__name__}: {error}); make them with fit-tree"
            ) from None
        return cls(sources, weights, fitted_on)
