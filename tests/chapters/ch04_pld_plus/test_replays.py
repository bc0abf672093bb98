"""What chapter 4 correlates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from specdec_lib.chapters.ch04_pld_plus import replays
from tests.experiments.made import made_up


def test_the_rank_correlation_is_spearmans():
    x, y = pd.Series([3, 1, 4, 1, 5, 9]), pd.Series([2, 7, 1, 8, 2, 8])
    ranks = [np.array([3, 1.5, 4, 1.5, 5, 6]), np.array([2.5, 4, 1, 5.5, 2.5, 5.5])]
    found = replays.rank_correlation(x, y, range(6))
    assert found.value == pytest.approx(np.corrcoef(*ranks)[0, 1]) and found.low < found.value < found.high
    assert replays.rank_correlation(x, 2 * x, range(6)).value == pytest.approx(1)


def test_states_that_are_all_alike_are_no_more_alike_to_their_neighbours():
    made = [replace(one, prompt=replace(one.prompt, id=str(i))) for i, one in enumerate([made_up([1, 2], [3, 4])] * 3)]
    known = [replace(one, trace=replace(one.trace, hidden={1: torch.ones(8, 4)})) for one in made]
    assert replays.neighbour_lead(known, 1) == pytest.approx((0, 0, 0), abs=1e-6)
    turning = torch.eye(8).cumsum(0)  # neighbours share most of their ones
    known = [replace(one, trace=replace(one.trace, hidden={1: turning})) for one in made]
    assert replays.neighbour_lead(known, 1).low > 0
