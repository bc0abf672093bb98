"""Rules of released codes: their trees are of the size that pages say, and both sides are counted."""

from __future__ import annotations

from collections import Counter

import pytest
import released_rules

from specdec_lib.drafters import eagle, medusa
from specdec_lib.report import numbers


@pytest.mark.parametrize(
    ("children", "levels"), [(released_rules.MEDUSA, medusa.LEVELS), (released_rules.EAGLE, eagle.LEVELS)]
)
def test_the_released_tree_has_as_many_nodes_on_each_level_as_ours(children, levels):
    shape, depths = released_rules.shape_of(children), {-1: 0}
    for node, (parent, _) in enumerate(shape):
        depths[node] = depths[parent] + 1
    counted = Counter(depths.values())
    assert [counted[depth] for depth in range(1, len(counted))] == list(levels)


def test_both_sides_are_counted_on_the_same_outputs(tmp_path):
    released_rules.main(["--target", "pocket", "--max-new-tokens", "12", "--out", str(tmp_path)])
    found = numbers.read(tmp_path / "released.csv")
    ratios = [found[f"{name}_over_released"].value for name in ("medusa", "eagle", "lookahead")]
    assert all(0.5 < ratio < 2 for ratio in ratios) and found["outputs"].value >= 5
    assert 1 < found["recycling_width"].value < found["recycling_full_width"].value
