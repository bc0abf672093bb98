"""What the figures draw and the words say, not how they look."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdec_lib.decoding.results import Generation, Step
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import charts, figures


class Letters:
    """A tokenizer whose token ids are code points."""

    def decode(self, tokens):
        return "".join(map(chr, tokens))


def step(draft: str, accepted: int, own: str, seconds=(0.001, 0.01, 0.0005)) -> Step:
    tree = DraftTree.chain([ord(c) for c in draft])
    return Step(tree, tuple(range(accepted)), tuple(ord(c) for c in draft[:accepted] + own), *seconds)


def run(*steps: Step) -> Generation:
    tokens = [ord("a"), *(token for s in steps for token in s.tokens)]
    return Generation(tokens, list(steps), "length", 3, 0.1)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_value_that_is_no_number_is_said_in_words(value):
    assert charts.text(value, ".2f") == "not available"


def test_a_number_is_formatted():
    assert charts.text(0.126, ".1%") == "12.6%"


def test_a_spread_is_median_smallest_and_largest():
    assert charts.spread([3.0, 1.0, 2.0], ".0f").replace("\u2060", "") == "2 (1–3)"


def test_wrapped_text_keeps_its_words_and_its_indentation():
    text = "def f():\n    return 1\n\n" + "word " * 40
    wrapped = charts.wrapped(text, 40)
    assert wrapped.split() == text.split()
    assert max(map(len, wrapped.splitlines())) <= 40
    assert wrapped.startswith("def f():\n    return 1\n\n")


def test_a_token_view_holds_the_output_and_what_was_refused():
    shown = charts.token_view(
        run(step("bcd", 2, "x"), step("", 0, "y"), step("zzzzz", 0, "!")), Letters(), "PLD", rejected=3
    )
    fates = [(t.text, t.fate, t.step) for t in shown.tokens]
    assert fates == [
        ("a", "target", 0),
        *[("b", "accepted", 1), ("c", "accepted", 1), ("d", "rejected", 1), ("x", "target", 1)],
        ("y", "target", 2),
        *[("z", "rejected", 3)] * 3,
        ("!", "target", 3),
    ]


def test_of_a_draft_that_branches_the_accepted_path_is_shown():
    tree = DraftTree([ord(c) for c in "xbyc"], [-1, -1, 1, 1])
    forked = Generation(list(b"abcd"), [Step(tree, (1, 3), tuple(b"bcd"), 0, 0, 0)], "length", 1, 0)
    shown = charts.token_view(forked, Letters(), "REST").tokens
    assert [(t.text, t.fate) for t in shown] == [
        ("a", "target"), ("b", "accepted"), ("c", "accepted"), ("d", "target")
    ]  # fmt: skip
    assert shown[1].note == "2 of 4 accepted"


def test_panels_draw_what_they_are_given():
    content = {"left": {"PLD": ([1, 2], [0.5, math.nan]), "PLD, dashed": ([1, 2], [0.1, 0.2])}, "right": {}}
    left, right = charts.panels(content, "x", "y", ylim=(0, 1)).axes
    assert [line.get_ydata()[0] for line in left.get_lines()] == [0.5, 0.1]
    assert {line.get_color() for line in left.get_lines()} == {figures.color("PLD")}
    assert len({line.get_linestyle() for line in left.get_lines()}) == 2
    assert [text.get_text() for text in right.texts] == ["no data"]
    assert left.get_ylim() == (0, 1)


def test_bars_carry_their_second_value_across_them():
    heights = {"PLD": [2.0, 3.0], "SpecDec": [1.0, 4.0]}
    ticks = {"PLD": [1.5, math.nan], "SpecDec": [1.2, 3.5]}
    (ax,) = charts.task_bars(["a", "b"], heights, "rate", ticks, "without").axes
    bars = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_height()) for bar in ax.patches]
    assert sorted(height for *_, height in bars) == [1, 2, 3, 4]
    lines = [segment for lines in ax.collections for segment in lines.get_segments() if len(segment)]
    for (start, level), (end, _) in lines:
        if not math.isnan(level):
            assert any(a == pytest.approx(start) and b == pytest.approx(end) for a, b, _ in bars)
    assert sorted(level for (_, level), _ in lines if not math.isnan(level)) == [1.2, 1.5, 3.5]


def test_both_values_of_a_bar_have_their_interval_at_places_apart():
    heights, ticks = {"PLD": [Interval(2.0, 1.8, 2.3)]}, {"PLD": [Interval(1.5, 1.2, 1.7)]}
    (ax,) = charts.task_bars(["a"], heights, "rate", ticks, "without").axes
    lines = [segment for lines in ax.collections for segment in lines.get_segments() if len(segment)]
    upright = {(round(x, 3), low, high) for (x, low), (end, high) in lines if x == end}
    assert {ends[1:] for ends in upright} == {(1.8, 2.3), (1.2, 1.7)} and len({x for x, *_ in upright}) == 2


def test_the_parts_of_the_time_add_up_to_the_time_of_a_token():
    timings = {"plain": [[run(step("", 0, "b"), step("", 0, "c"))]], "PLD": [[run(step("bc", 2, "d"))]]}
    (ax,) = charts.time_parts(timings).axes
    totals: dict[float, float] = {}
    for bar in ax.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        totals[row] = totals.get(row, 0) + bar.get_width()
    expected = [repeats[0][0].stats["ms_per_token"] for repeats in timings.values()]
    assert list(totals.values()) == pytest.approx(expected)


def test_head_maps_have_a_panel_a_map_and_frame_the_heads_named():
    values = np.arange(6.0).reshape(3, 2)
    figure = charts.head_maps({"a": values, "b": -values}, {"a": (0, 5), "b": (-5, 0)}, [(2, 1), (0, 0)])
    panels = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in panels] == ["a", "b"]
    for ax, expected in zip(panels, (values, -values), strict=True):
        assert np.array_equal(ax.images[0].get_array(), expected)
        # Each frame is black within white, so that it is seen on every colour.
        assert [patch.get_xy() for patch in ax.patches] == [(0.5, 1.5)] * 2 + [(-0.5, -0.5)] * 2
        assert [patch.get_edgecolor()[:3] for patch in ax.patches] == [(1.0, 1.0, 1.0), (0.0, 0.0, 0.0)] * 2
    assert [ax.images[0].get_cmap().name for ax in panels] == ["cividis", "PuOr"]
