"""Figures and tables of the chapter on stopping: what is drawn is what was found."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from specdec_lib.chapters.ch05_specdec_pp import generation_costs, wide_study
from specdec_lib.chapters.ch05_specdec_pp.head_knowledge import Said
from specdec_lib.chapters.ch05_specdec_pp.theory import best_rules, mdp
from specdec_lib.chapters.ch05_specdec_pp.theory.chains import random_pair
from specdec_lib.chapters.ch05_specdec_pp.theory.rounds import Costs, Rounds
from specdec_lib.experiments.statistics import Interval, mean
from specdec_lib.report.display import stopping_charts, stopping_tables


def drawn(ax, label):
    """Points of the line of a label."""
    (line,) = [line for line in ax.get_lines() if line.get_label() == label]
    return list(line.get_xdata()), list(line.get_ydata())


def whiskers(ax):
    """Ends of the vertical lines of intervals."""
    segments = [segment for lines in ax.collections for segment in lines.get_segments()]
    return [tuple(segment[:, 1]) for segment in segments if segment[0, 0] == segment[1, 0]]


def test_the_first_figure_has_a_row_a_set_and_temperature_of_the_file():
    rows = wide_study.read()
    (ax,) = stopping_charts.answer(rows, "draft").axes
    labels = [text.get_text() for text in ax.get_yticklabels()]
    temperatures = {row.temperature for row in rows}
    assert len(labels) == 3 * len(temperatures) and labels[0] == "editing, greedy"
    x, _ = drawn(ax, "the best fixed $K$")
    assert x[0] == next(row.value for row in rows if row.quantity == "over fixed K" and row.set == "editing")


def test_the_first_figure_is_empty_without_a_file():
    (ax,) = stopping_charts.answer([], "draft").axes
    assert not ax.get_yticklabels()


def test_rounds_are_drawn_as_accepted_and_refused_tokens():
    steps = [SimpleNamespace(drafted=4, accepted=4), SimpleNamespace(drafted=4, accepted=1)]
    (ax,) = stopping_charts.rounds({"SpecDec, K = 4": SimpleNamespace(steps=steps)}).axes
    accepted, refused = ([bar.get_height() for bar in part] for part in ax.containers)
    assert accepted == [4, 1] and refused == [0, 3]


def test_gains_have_a_row_a_set_and_rival():
    rows = [
        {"set": name, "ours": ours, "theirs": "fixed K", "ratio": Interval(value, value - 0.1, value + 0.1)}
        for name in ("editing", "code")
        for ours, value in (("SpecDec++", 0.9), ("SpecDec++ with confidence", 1.1))
    ]
    (ax,) = stopping_charts.gains(rows).axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["editing: over fixed K", "code: over fixed K"]
    assert drawn(ax, "SpecDec++")[0] == [0.9, 0.9]


def test_bins_with_few_tokens_are_not_drawn():
    outputs = np.array([0, 1, 2] * 5)
    said = {"a": {"head": Said(np.array([0.05] * 12 + [0.95] * 3), np.array([0.0] * 6 + [1.0] * 9), outputs)}}
    ax = stopping_charts.reliability(said).axes[0]
    x, y = drawn(ax, "head")
    assert x == pytest.approx([0.05]) and y == pytest.approx([0.5])
    ((low, high),) = whiskers(ax)
    own = mean(np.array([0.0] * 6 + [1.0] * 6), outputs[:12].tolist())
    assert (low, high) == pytest.approx((own.low, own.high))


def test_rates_have_a_panel_a_set_and_the_oracle():
    curve = [(Interval(x, x - 0.1, x + 0.1), Interval(y, y - 0.05, y + 0.05)) for x, y in ((0.5, 0.1), (0.3, 0.6))]
    oracle = (Interval(0.2, np.nan, np.nan), Interval(0, np.nan, np.nan))
    axes = stopping_charts.rates({"a": {"fixed K": curve}, "b": {"fixed K": curve}}, dict.fromkeys("ab", oracle)).axes
    assert [ax.get_title() for ax in axes] == ["a", "b"]
    assert whiskers(axes[0]) == pytest.approx(np.array([(0.05, 0.15), (0.55, 0.65)]))
    assert drawn(axes[0], "fixed K") == ([0.5, 0.3], [0.1, 0.6]) and drawn(axes[1], "oracle") == ([0.2], [0])


def test_settings_stand_one_below_the_other():
    one, two, three = (Interval(value, value - 0.1, value + 0.1) for value in (1.2, 1.3, 1.1))
    varied = {"depth": {"D = 0": one, "D = 3": two}, "mixing": {"r = 0": three}}
    (ax,) = stopping_charts.settings(varied, Interval(1.0, 0.9, 1.1)).axes
    ends = [tuple(segment[:, 0]) for lines in ax.collections for segment in lines.get_segments()]
    assert ends == [tuple(value[1:]) for value in (one, two, three)]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["D = 0", "D = 3", "r = 0"]
    assert drawn(ax, "mixing") == ([1.1], [2])


def test_drafts_stand_at_their_size():
    rows = [row for row in wide_study.read() if (row.draft, row.temperature) == ("draft", 0)]
    both = rows + [row._replace(draft="larger", parameters=10 * row.parameters) for row in rows]
    (ax,) = stopping_charts.lead_by_size(both, "AUC, head less confidence", "AUC").axes
    x, y = drawn(ax, "code")
    assert len(x) == 2 and x[1] == pytest.approx(10 * x[0]) and y[0] == y[1]


def test_regions_and_survey_are_drawn():
    costs = Costs.of_times(0.2, 1.0)
    states = Rounds.of(random_pair(np.random.default_rng(0), 3), 6)
    solved = mdp.solve(states, costs)
    left, right = stopping_charts.regions(states, solved, best_rules.bound(states, costs, solved)).axes
    assert len(right.patches) == 6 and len(left.get_lines()) == 1 + 3
    found = pd.DataFrame(best_rules.survey(4, 4, [0.2, 0.6]))
    left, right = stopping_charts.survey(found).axes
    assert len(left.get_lines()) == len(stopping_charts.RULES)
    table = stopping_tables.survey(found).frame
    assert list(table["worst"])[0] == found.best_threshold.max()


def test_throughput_is_drawn_as_measured_and_predicted():
    found = generation_costs.Prediction(np.array([10.0, 20.0]), np.array([11.0, 19.0]))
    left, right = stopping_charts.throughput(found, {1: 5.0, 4: 7.0}).axes
    points = left.get_lines()[0]
    assert list(points.get_xdata()) == [10, 20] and list(points.get_ydata()) == [11, 19]
    assert list(right.get_lines()[0].get_ydata()) == [5, 7]


def test_a_column_without_a_number_is_left_out():
    ratio = Interval(1.5, 1.4, 1.6)
    rows = [{"family": "fixed K", "a": ratio, "a*": None, "b": ratio, "b*": ratio}]
    assert list(stopping_tables.speedups(rows).headings) == ["family", "a", "b", "b*"]


def test_the_table_of_the_long_study_has_the_numbers_of_its_file():
    rows = wide_study.read()
    frame = stopping_tables.sampled(rows, "draft").frame
    assert len(frame) == 3 * len({row.temperature for row in rows})
    hot = frame[(frame["set"] == "code") & (frame["temperature"] == 1.0)].iloc[0]
    wanted = ("draft", "code", 1.0, "speed-up, SpecDec++")
    (row,) = [r for r in rows if (r.draft, r.set, r.temperature, r.quantity) == wanted]
    assert hot["ours"] == row.interval
