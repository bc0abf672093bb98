"""Figures of the chapter on one tree: what is written into a bar and how long it is."""

from __future__ import annotations

from specdec_lib.chapters.ch08_one_tree import study
from specdec_lib.report.display import tree_charts
from tests.chapters.ch08_one_tree.test_tree_study import PRICES, _ladder, _recordings


def test_each_bar_has_its_speed_up_and_its_share_of_the_bound():
    ladder = _ladder(_recordings())
    figure = tree_charts.ladders({"made": ladder}, ("PLD", study.TREE), PRICES)
    (ax,) = figure.axes
    order = [(rung, each) for rung in ("PLD", study.TREE) for each in PRICES]
    bars = [bar for drawn in ax.containers for bar in drawn]
    assert [bar.get_height() for bar in bars] == [ladder.rate(rung, each).value for rung, each in order]
    written = {text.get_position()[0]: text.get_text() for text in ax.texts}
    for bar, (rung, each) in zip(bars, order, strict=True):
        middle = bar.get_x() + bar.get_width() / 2
        assert written[middle] == f"{ladder.share(rung, each).value:.0%}"


def test_no_sets_are_drawn_as_no_data():
    (ax,) = tree_charts.ladders({}, ("PLD",), PRICES).axes
    assert [text.get_text() for text in ax.texts] == ["no data"]


def test_every_set_has_a_panel_and_one_without_nodes_says_so():
    lines = {"a": {"PLD": ([0.1, 0.9], [0.0, 1.0]), "SpecDec": ([0.5], [0.4])}, "b": {}, "c": {"PLD": ([0.2], [0.2])}}
    figure = tree_charts.reliability(lines)
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_title() for ax in shown] == list(lines)
    assert [len(ax.lines) - 1 for ax in shown] == [2, 0, 1]
    assert [text.get_text() for text in shown[1].texts] == ["no data"]
