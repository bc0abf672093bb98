"""The map of methods and tasks."""

from __future__ import annotations

from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import speedup_charts


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
