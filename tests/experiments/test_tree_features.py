"""What kinds of evidence add: much where the outcome depends on them, nothing where it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdec_lib import paths
from specdec_lib.drafters.merged_tree import FEATURES, width
from specdec_lib.drafters.tree_probabilities import Judged, TreeProbabilities
from specdec_lib.experiments import result_files
from specdec_lib.experiments.tree_features import EVIDENCE, gains, predicted, without


def _drawn(rng: np.random.Generator, count: int) -> Judged:
    """Nodes with one child of one source, which is right with a chance that its similarity alone decides."""
    found = Judged.none()
    for _ in range(count):
        features = np.zeros((1, width(1)))
        features[0, FEATURES.index("match 1")] = 1.0
        for name in EVIDENCE:
            features[0, FEATURES.index(name)] = rng.normal()
        score = 2.0 * features[0, FEATURES.index("similarity")]
        found.features.append(features)
        found.outcomes.append(0 if rng.random() < 1 / (1 + math.exp(-score)) else -1)
    return found


def test_a_feature_that_decides_has_a_gain_and_others_have_none():
    rng = np.random.default_rng(0)
    unseen = [_drawn(rng, 40) for _ in range(30)]
    rows = {row["left_out"]: row for row in gains(_drawn(rng, 1500), unseen, range(30), ["a"])}
    assert list(rows) == [*EVIDENCE, "all of these"]
    for name in ("similarity", "all of these"):
        assert 0.1 < rows[name]["low"] < rows[name]["gain"] < rows[name]["high"]
        assert rows[name]["error"] < 0.05
    for name in set(EVIDENCE) - {"similarity"}:
        assert abs(rows[name]["gain"]) < 0.01


def test_likelihoods_by_hand_and_without_a_feature():
    weights = TreeProbabilities(("a",), np.zeros(width(1)))
    weights.weights[FEATURES.index("margin")] = 1.0
    features = np.zeros((2, width(1)))
    features[:, FEATURES.index("margin")] = math.log(3), math.log(2)
    judged = Judged([features, features[:1]], [1, -1])
    likelihood, chances, hits = predicted(judged, weights)
    assert likelihood == pytest.approx([math.log(2 / 6), math.log(1 / 4)])
    assert chances == pytest.approx([3 / 6, 2 / 6, 3 / 4]) and hits.tolist() == [False, True, False]
    blind = predicted(without(judged, 1, ["margin"]), weights)
    assert blind[0] == pytest.approx([math.log(1 / 3), math.log(1 / 2)])
    assert features[0, FEATURES.index("margin")] == math.log(3)


@pytest.mark.skipif(paths.ROOT is None, reason="an installed package has no pages")
def test_the_page_on_one_tree_shows_the_shipped_file_which_has_all_kinds_of_evidence():
    path = paths.DATA / "results" / "cpu" / "tree_features.csv"
    _, rows = result_files.read(path)
    page = (paths.root() / "book" / "methods" / "one-tree.md").read_text(encoding="utf-8")
    assert path.relative_to(paths.root()).as_posix() in page
    assert [row["left_out"] for row in rows] == [*EVIDENCE, "all of these"]
    assert all(row["low"] <= row["gain"] <= row["high"] for row in rows)
