"""Calibration measures against counting."""

import numpy as np
import pytest

from specdec_lib.experiments.calibration import expected_calibration_error, ranking_accuracy, ranking_lead, reliability


def test_reliability_by_hand():
    found = reliability(np.array([0.05, 0.15, 0.19, 1.0]), np.array([0, 1, 0, 1]))
    assert found["predicted"].tolist() == pytest.approx([0.05, 0.17, 1.0])
    assert found["outcome"].tolist() == [0, 0.5, 1] and found["count"].tolist() == [1, 2, 1]
    assert expected_calibration_error([0.05, 0.15, 0.19, 1.0], [0, 1, 0, 1]) == pytest.approx((0.05 + 2 * 0.33) / 4)


def test_predictions_that_are_the_probabilities_have_no_error():
    rng = np.random.default_rng(0)
    p = rng.random(200_000)
    outcome = rng.random(len(p)) < p
    assert expected_calibration_error(p, outcome) < 0.01 < expected_calibration_error(p**3, outcome)


@pytest.mark.parametrize("seed", range(4))
def test_ranking_accuracy_counts_pairs(seed):
    rng = np.random.default_rng(seed)
    predicted, outcome = rng.integers(0, 6, 40) / 5, rng.random(40).round() if seed else rng.random(40)
    pairs = [
        (a * (1 - b), (x > y) + (x == y) / 2)
        for x, a in zip(predicted, outcome, strict=True)
        for y, b in zip(predicted, outcome, strict=True)
    ]
    expected = sum(w * v for w, v in pairs) / sum(w for w, _ in pairs)
    assert ranking_accuracy(predicted, outcome) == pytest.approx(expected)
    assert np.isnan(ranking_accuracy([0.1, 0.2], [1, 1])), "outcomes all alike"


@pytest.mark.parametrize(("predicted", "outcome"), [([0.1], [1, 0]), ([], []), ([1.1], [1]), ([0.5], [float("nan")])])
def test_bad_values_are_refused(predicted, outcome):
    with pytest.raises(ValueError, match="expected"):
        reliability(np.array(predicted), np.array(outcome))


def test_the_lead_of_a_prediction_is_the_difference_of_the_areas():
    rng = np.random.default_rng(1)
    outcome = rng.integers(0, 2, 200).astype(float)
    good, poor = np.clip(outcome * 0.4 + rng.random(200) * 0.6, 0, 1), rng.random(200)
    names = np.repeat(np.arange(20), 10).tolist()
    lead = ranking_lead(good, poor, outcome, names)
    assert lead.value == pytest.approx(ranking_accuracy(good, outcome) - ranking_accuracy(poor, outcome))
    assert 0 < lead.low < lead.value < lead.high
    assert ranking_lead(good, good, outcome, names) == (0.0, 0.0, 0.0)
