"""Fit the probabilities of one tree on replays of recorded answers, and compare them with what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.replay import Trace, replay
from specdec_lib.drafters.merged_tree import FEATURES
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.drafters.tree_probabilities import Judged, TreeProbabilities

#: With passes of any width at one price the whole merged draft is verified, so that steps go where all sources lead.
_FLAT = PassPrices({1: 1.0}, name="flat")


def judged_on(traces: Sequence[Trace], sources: Mapping[str, Drafter]) -> Judged:
    """What the target emitted after the nodes that the sources proposed, each graded wherever it proposed something."""
    drafter = OneTree(sources, _FLAT, rate=0.0, observe=True)
    for trace in traces:
        replay(trace, drafter)
    return drafter.observed


def fit(traces: Sequence[Trace], sources: Mapping[str, Drafter], fitted_on: str) -> TreeProbabilities:
    """Weights for the sources, fitted to recorded answers; ValueError if there are none, or no source proposed anything."""
    observed = judged_on(traces, sources)
    return TreeProbabilities.unfitted(list(sources)).fitted(observed, fitted_on)


def predictions(judged: Judged, probabilities: TreeProbabilities) -> tuple[np.ndarray, np.ndarray]:
    """Of every judged node: its probability given its parent, and whether it was emitted."""
    chances, hits = [], []
    for features, outcome in zip(judged.features, judged.outcomes, strict=True):
        scores = np.exp(np.clip(features @ probabilities.weights, -12.0, 12.0))
        chances.append(scores / (1.0 + scores.sum()))
        hits.append(np.arange(len(scores)) == outcome)
    return np.concatenate(chances), np.concatenate(hits)


def by_source(judged: Judged, probabilities: TreeProbabilities) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """:func:`predictions` of the nodes that each source proposed, by its name."""
    if not judged.features:
        return {}
    chance, hit = predictions(judged, probabilities)
    features = np.concatenate(judged.features)
    per = len(FEATURES)
    # Of the features of a source one bucket of match lengths is 1 where it proposed the node.
    own = {
        name: features[:, place * per : (place + 1) * per].any(1) for place, name in enumerate(probabilities.sources)
    }
    return {name: (chance[rows], hit[rows]) for name, rows in own.items()}
