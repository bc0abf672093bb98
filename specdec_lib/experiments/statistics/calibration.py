"""How far predicted probabilities can be believed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from specdec_lib.experiments.statistics.intervals import Interval, bootstrap_counts, interval_ends


def _checked(predicted: np.ndarray, outcome: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    predicted, outcome = np.asarray(predicted, float), np.asarray(outcome, float)
    if predicted.shape != outcome.shape or predicted.ndim != 1 or not len(predicted):
        raise ValueError(f"shapes are {predicted.shape} and {outcome.shape}; expected one outcome for each prediction")
    for name, values in (("predicted", predicted), ("outcome", outcome)):
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError(f"{name} holds values outside [0, 1]; expected probabilities")
    return predicted, outcome


def roc_auc(predicted: np.ndarray, outcome: np.ndarray) -> float:
    """Area under the ROC curve: how often an accepted token is predicted higher than a rejected one, ties by half; NaN
    where all outcomes are alike.

    An outcome that is a probability counts as accepted and rejected in these shares.
    """
    predicted, outcome = _checked(predicted, outcome)
    _, place = np.unique(predicted, return_inverse=True)
    return _area(place, outcome, 1 - outcome)


def _area(place: np.ndarray, accepted: np.ndarray, rejected: np.ndarray) -> float:
    """Area under the ROC curve of tokens whose predictions have these ranks."""
    accepted, rejected = np.bincount(place, accepted), np.bincount(place, rejected)
    if not accepted.sum() or not rejected.sum():
        return float("nan")
    below = np.cumsum(rejected) - rejected
    return float((accepted * (below + rejected / 2)).sum() / (accepted.sum() * rejected.sum()))


def roc_auc_difference(
    ours: np.ndarray, theirs: np.ndarray, outcome: np.ndarray, prompts: Sequence[Hashable]
) -> Interval:
    """Difference of the :func:`roc_auc` of two predictions of the same tokens, with its interval over their
    ``prompts``."""
    _checked(ours, outcome)
    _checked(theirs, outcome)
    number = {name: i for i, name in enumerate(dict.fromkeys(prompts))}
    own = np.array([number[name] for name in prompts])
    places = [np.unique(predicted, return_inverse=True)[1] for predicted in (ours, theirs)]

    def lead(weights: np.ndarray) -> float:
        first, second = (_area(place, outcome * weights, (1 - outcome) * weights) for place in places)
        return first - second

    drawn = np.array([lead(row[own].astype(float)) for row in bootstrap_counts(len(number))])
    return Interval(lead(np.ones(len(own))), *interval_ends(drawn, len(number)), len(number))
