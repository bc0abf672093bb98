"""Ratios with whiskers: what is drawn, and what is left out."""

from __future__ import annotations

import math

import pytest

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import ratio_charts


def test_each_series_has_its_points_and_the_known_intervals_their_lines():
    cases = {
        "a": {"x": Interval(1.2, 1.1, 1.3), "y": Interval(0.9, math.nan, math.nan)},
        "b": {"x": None, "y": Interval(2.0, 1.5, 2.5)},
        "c": {"x": Interval(math.nan, math.nan, math.nan)},
    }
    (ax,) = ratio_charts.ratios(cases, "ratio", logarithmic=True).axes
    points = {line.get_label(): list(line.get_xdata()) for line in ax.get_lines() if line.get_label() in ("x", "y")}
    assert points == {"x": [1.2], "y": [0.9, 2.0]}
    segments = sorted(tuple(s[:, 0].tolist()) for lines in ax.collections for s in lines.get_segments())
    assert segments == [(1.1, 1.3), (1.5, 2.5)]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b", "c"] and ax.get_xscale() == "log"


@pytest.mark.parametrize(
    ("ends", "ticks"),
    [((0.45, 6), ["0.5", "1", "2", "4"]), ((0.7, 1.5), ["0.7", "1", "1.4"]), ((0.85, 1.2), ["0.9", "1", "1.1"])],
)
def test_a_logarithmic_axis_has_plain_numbers_at_its_ticks(ends, ticks):
    cases = {"a": {"x": Interval(1.0, *ends)}}
    (ax,) = ratio_charts.ratios(cases, "ratio", logarithmic=True).axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ticks
