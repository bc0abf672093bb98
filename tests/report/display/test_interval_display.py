"""Intervals in tables, in their files and in figures: all three numbers, where they belong."""

from __future__ import annotations

import csv
import io
import math

import pandas as pd
import pytest

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import charts, figures, speedup_charts
from specdec_lib.report.display.tables import Table

UNKNOWN = Interval(1.5, math.nan, math.nan)
GAINS = [Interval(1.25, 1.125, 1.5), UNKNOWN, Interval(0.75, 0.5, 0.875)]
FRAME = pd.DataFrame({"task": ["a", "b", "c"], "gain": GAINS})


def ends(ax):
    """Lower and upper end of every vertical line of the axes."""
    segments = [segment for lines in ax.collections for segment in lines.get_segments()]
    return sorted((low, high) for (x, low), (other, high) in segments if x == other)


def test_a_table_shows_an_interval_in_brackets_to_the_right():
    lines = Table(FRAME, "tab-x", "A caption.", formats={"gain": ".2f"}).to_myst().splitlines()
    assert "|:--|--:|" in lines
    assert "| a | 1.25 (1.12\u2060–\u20601.50) |" in lines and "| b | 1.50 (–) |" in lines


def test_the_file_of_a_table_has_the_ends_in_columns_of_their_own():
    frame = FRAME.assign(gain=[*GAINS[:2], None])
    rows = list(csv.DictReader(io.StringIO(Table(frame, "tab-x", "A caption.").to_csv())))
    assert rows == [
        {"task": "a", "gain": "1.25", "gain_low": "1.125", "gain_high": "1.5"},
        {"task": "b", "gain": "1.5", "gain_low": "", "gain_high": ""},
        {"task": "c", "gain": "", "gain_low": "", "gain_high": ""},
    ]


def test_ends_of_an_interval_from_a_clock_come_from_it_too():
    _, metadata = Table(FRAME, "tab-x", "A caption.", timed="gain")._repr_mimebundle_()
    assert metadata["specdec"]["timed"] == ["gain", "gain_low", "gain_high"]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.bars(["a", "b", "c"], {"PLD": GAINS}, "gain"),
        lambda: charts.panels({"": {"PLD": ([1, 2, 3], GAINS)}}, "K", "gain"),
        lambda: charts.task_bars(["a", "b", "c"], {"PLD": GAINS}, "gain"),
    ],
)
def test_bars_and_lines_have_whiskers_at_the_ends(draw):
    (ax,) = draw().axes
    heights = [bar.get_height() for bar in ax.patches] or list(ax.get_lines()[0].get_ydata())
    assert heights == [1.25, 1.5, 0.75]
    assert ends(ax) == [(0.5, 0.875), (1.125, 1.5)]


def test_the_map_of_methods_stars_only_what_is_above_one_as_a_whole():
    rows = [
        {"task": task, "method": "PLD", "speedup": interval}
        for task, interval in zip("ab", (Interval(1.25, 1.125, 1.5), Interval(1.25, 0.875, 1.5)), strict=True)
    ]
    figure = speedup_charts.which_method(rows, ["PLD"], ["a", "b"])
    assert [text.get_text() for text in figure.axes[0].texts] == ["1.25 ★\n1.12–1.50", "1.25\n0.88–1.50"]


def test_an_upright_map_has_methods_as_rows_and_stars_the_best_of_each_task():
    wins = {("edit", "PLD"): 3.0, ("edit", "REST"): 2.0, ("code", "PLD"): 1.2, ("code", "REST"): 1.5}
    rows = [
        {"task": task, "method": method, "speedup": Interval(value, value - 0.1, value + 0.1)}
        for (task, method), value in wins.items()
    ]
    (ax,) = speedup_charts.which_method(rows, ["PLD", "REST"], ["edit", "code"], upright=True).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["PLD", "REST"]
    assert [text.get_position() for text in ax.texts if "★" in text.get_text()] == [(0, 0), (1, 1)]
