"""What kinds of evidence add to the probabilities of one tree, on answers that the fit has not seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from specdec_lib.drafters.merged_tree import FEATURES
from specdec_lib.drafters.tree_probabilities import Judged, TreeProbabilities
from specdec_lib.experiments.calibration import expected_calibration_error
from specdec_lib.experiments.statistics import Counts, pooled_rate

#: Features that a source may know of its candidates; the others every source has.
EVIDENCE = ("log candidates", "margin", "log rank", "similarity", "log attention")


def without(judged: Judged, sources: int, names: Sequence[str]) -> Judged:
    """The same judgements, told nothing of some features."""
    columns = [source * len(FEATURES) + FEATURES.index(name) for source in range(sources) for name in names]
    blind = []
    for features in judged.features:
        features = features.copy()
        features[:, columns] = 0.0
        blind.append(features)
    return Judged(blind, judged.outcomes)


def predicted(judged: Judged, weights: TreeProbabilities) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-likelihood of what was emitted after each judged node; of all their children the probability, and whether it was."""
    likelihood, chances, hits = [], [], []
    for features, outcome in zip(judged.features, judged.outcomes, strict=True):
        scores = np.clip(features @ weights.weights, -12.0, 12.0)
        total = np.log1p(np.exp(scores).sum())
        likelihood.append((scores[outcome] if outcome >= 0 else 0.0) - total)
        chances.append(np.exp(scores - total))
        hits.append(np.arange(len(scores)) == outcome)
    return np.array(likelihood), np.concatenate(chances), np.concatenate(hits)


def gains(
    fitted_on: Judged, unseen: Sequence[Judged], prompts: Sequence[Hashable], sources: Sequence[str]
) -> list[dict[str, Any]]:
    """What each kind of evidence adds, and all of them together: a row for each that is left out.

    Parameters
    ----------
    fitted_on : Judged
    unseen : sequence of Judged
        Of answers that are not among those.
    prompts : sequence of hashable, of the same length
        Which answers are to one prompt, for the intervals.
    sources : sequence of str

    Returns
    -------
    list of dict
        ``left_out``; ``gain``, ``low`` and ``high``: the log-likelihood in nats for each judged node with all features less that
        without these; ``error`` and ``error_without``, the expected calibration errors.
    """
    start = TreeProbabilities.unfitted(sources)
    rest = Judged([row for one in unseen for row in one.features], [row for one in unseen for row in one.outcomes])
    ends = np.cumsum([len(one.outcomes) for one in unseen])

    def fit_and_predict(names: Sequence[str]) -> tuple[np.ndarray, float]:
        blind = [without(each, len(sources), names) for each in (fitted_on, rest)]
        likelihood, chances, hits = predicted(blind[1], start.fitted(blind[0], "some answers"))
        return likelihood, expected_calibration_error(chances, hits)

    whole, error = fit_and_predict(())
    rows = []
    for label, names in (*((name, (name,)) for name in EVIDENCE), ("all of these", EVIDENCE)):
        less, error_without = fit_and_predict(names)
        sums = [float(part.sum()) for part in np.split(whole - less, ends[:-1])]
        gain = pooled_rate(Counts(sums, [len(one.outcomes) for one in unseen]), prompts)
        rows.append(
            {"left_out": label, "gain": gain.value, "low": gain.low, "high": gain.high}
            | {"error": error, "error_without": error_without}
        )
    return [{name: round(v, 5) if isinstance(v, float) else v for name, v in row.items()} for row in rows]
