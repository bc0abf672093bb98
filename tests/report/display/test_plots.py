"""What the figures draw, not how they look."""

import html
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_lib import methods
from specdec_lib.chapters.ch04_pld_plus import Choice
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.experiments.other_engines import ENGINE_OPTIONS, PROGRAMS
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.methods import METHODS
from specdec_lib.report import appearance, plots
from specdec_lib.report.appearance import APPEARANCES
from specdec_lib.report.display import method_picker, occurrences
from tests.experiments.made import made_up
from tests.report.display.test_stepper_data import Letters

GAINS = [Interval(1.25, 1.125, 1.5), Interval(1.5, math.nan, math.nan), Interval(0.75, 0.5, 0.875)]


def test_every_method_has_a_colour_and_a_marker_of_its_own():
    names = [methods.PLAIN, *methods.METHODS]
    assert len({plots.color(name) for name in names}) == len({plots.marker(name) for name in names}) == len(names)
    assert list(APPEARANCES) == list(methods.METHODS), "in the book's order"
    assert all(re.fullmatch("#[0-9a-f]{6}", row.color) for row in APPEARANCES.values())
    assert all(set(row.chapters) <= set(appearance.COMPARISONS) for row in APPEARANCES.values())
    assert plots.color("a method of tomorrow") in plots.PALETTE
    assert len({*plots.shades(["PLD", *"abcdefg"]).values()}) == 8, "others share no colour until the palette ends"


def test_bars_and_lines_have_their_heights_and_whiskers_at_the_known_ends():
    for figure in (
        plots.bars(["a", "b", "c"], {"PLD": GAINS}, "gain", reference=1.0),
        plots.panels({"": {"PLD": ([1, 2, 3], GAINS)}}, "K", "gain"),
    ):
        (ax,) = figure.axes
        assert ([bar.get_height() for bar in ax.patches] or list(ax.get_lines()[0].get_ydata())) == [1.25, 1.5, 0.75]
        segments = [segment for lines in ax.collections for segment in lines.get_segments()]
        upright = sorted((low, high) for (x, low), (other, high) in segments if x == other)
        assert upright == [(0.5, 0.875), (1.125, 1.5)]


def test_lines_of_one_method_differ_in_colour_and_mark_and_those_of_several_have_their_methods_colour():
    labels = [f"REST, {number}" for number in range(7)]
    (ax,) = plots.panels({"": {label: ([1, 2], GAINS[:2]) for label in labels}}, "K", "gain").axes
    lines = ax.get_lines()
    assert len({line.get_color() for line in lines}) == len({line.get_marker() for line in lines}) == len(labels)
    assert lines[0].get_color() == plots.color("REST")
    (ax,) = plots.panels({"": {label: ([1, 2], GAINS[:2]) for label in (*labels, "PLD")}}, "K", "gain").axes
    assert {line.get_color() for line in ax.get_lines()} == {plots.color("REST"), plots.color("PLD")}


def test_each_series_of_ratios_has_its_points_and_the_known_intervals_their_lines():
    cases = {
        "a": {"x": Interval(1.2, 1.1, 1.3), "y": Interval(0.9, math.nan, math.nan)},
        "b": {"x": None, "y": Interval(2.0, 1.5, 2.5)},
        "c": {"x": Interval(math.nan, math.nan, math.nan)},
    }
    (ax,) = plots.ratios(cases, "ratio", logarithmic=True).axes
    points = {line.get_label(): list(line.get_xdata()) for line in ax.get_lines() if line.get_label() in ("x", "y")}
    assert points == {"x": [1.2], "y": [0.9, 2.0]}
    segments = sorted(tuple(s[:, 0].tolist()) for lines in ax.collections for s in lines.get_segments())
    assert segments == [(1.1, 1.3), (1.5, 2.5)]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b", "c"] and ax.get_xscale() == "log"


def test_the_parts_of_the_time_add_up_to_the_time_of_a_token():
    def run(*drafts):
        steps = [Step(DraftTree.chain(d), tuple(range(len(d))), (*d, 1), 0.001, 0.01, 0.0005) for d in drafts]
        return Generation([1, *(token for step in steps for token in step.tokens)], steps, "length", 3, 0.1)

    timings = {"plain": [[run([], [])]], "PLD": [[run([2, 3])]]}
    (ax,) = plots.time_parts(timings).axes
    totals = [0.0, 0.0]
    for bar in ax.patches:
        totals[round(bar.get_y() + bar.get_height() / 2)] += bar.get_width()
    assert totals == pytest.approx([repeats[0][0].stats["ms_per_token"] for repeats in timings.values()])


def test_head_maps_have_a_panel_a_map_and_frame_the_heads_named():
    values = np.arange(6.0).reshape(3, 2)
    figure = plots.head_maps({"a": values, "b": -values}, {"a": (0, 5), "b": (-5, 0)}, [(2, 1), (0, 0)])
    panels = [ax for ax in figure.axes if ax.get_title()]
    for ax, expected in zip(panels, (values, -values), strict=True):
        assert np.array_equal(ax.images[0].get_array(), expected)
        # Each frame is black within white, so that it is seen on every colour.
        assert [patch.get_xy() for patch in ax.patches] == [(0.5, 1.5)] * 2 + [(-0.5, -0.5)] * 2


def test_every_method_says_where_it_is_had_and_is_shown_to_those_who_have_what_it_needs():
    text = method_picker.figure()
    rows = dict(re.findall(r'<details class="(\w+)"><summary><b>(.*?)</b>', text))
    assert set(rows) == set(method_picker.HAVE) == {method.needs for method in METHODS.values()}
    folded = re.findall(r"<summary><b>(.*?)</b>.*?<dl>(.*?)</dl>", text)
    assert [name for name, _ in folded] == list(METHODS)
    for name, places in folded:
        told = [html.unescape(line) for line in re.findall(r"<dd>(?:<code>)?(.*?)(?:</code>)?</dd>", places)]
        # Any drafter goes through transformers' generate, if transformers has no such method itself.
        known = {"transformers": method_picker.OURS} | ENGINE_OPTIONS.get(name, {})
        assert told[:-1] == [known.get(program, "not available") for program in PROGRAMS]
        assert f'href="methods/{APPEARANCES[name].page}.html"' in told[-1]
    # Whoever has nothing but the model is shown no other method; whoever has several things, all.
    assert "value=nothing]:checked) details:not(.nothing):not(.nothing){display:none}" in text
    assert "value=several]:checked)" not in text


def test_the_map_of_methods_stars_the_best_of_each_task_and_only_what_is_above_one_as_a_whole():
    ends = {"a": Interval(1.25, 1.125, 1.5), "b": Interval(1.25, 0.875, 1.5)}
    rows = [{"task": task, "method": "PLD", "speedup": interval} for task, interval in ends.items()]
    figure = plots.which_method(rows, ["PLD"], ["a", "b"])
    assert [text.get_text() for text in figure.axes[0].texts] == ["1.25 ★\n1.12–1.50", "1.25\n0.88–1.50"]
    wins = {("edit", "PLD"): 3.0, ("edit", "REST"): 2.0, ("code", "PLD"): 1.2, ("code", "REST"): 1.5}
    ends = {where: Interval(value, value - 0.1, value + 0.1) for where, value in wins.items()}
    rows = [{"task": task, "method": method, "speedup": each} for (task, method), each in ends.items()]
    (ax,) = plots.which_method(rows, ["PLD", "REST"], ["edit", "code"], upright=True).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["PLD", "REST"]
    assert [text.get_position() for text in ax.texts if "★" in text.get_text()] == [(0, 0), (1, 1)]


@given(st.lists(st.text("ab \n", max_size=12), max_size=8), st.integers(1, 10))
def test_the_cells_hold_the_characters_of_their_piece(pieces, width):
    lines, cells = occurrences.layout(pieces, width)
    assert all(len(line) <= width for line in lines)
    for piece, own in zip(pieces, cells, strict=True):
        assert "".join(lines[row][column] for row, column in own) == piece.replace("\n", "")
    assert sum(map(len, lines)) == sum(map(len, cells))


def test_the_legend_says_what_was_accepted_and_the_text_is_drawn():
    recording = made_up(list(b"abc\nade\n"), list(b"adef"))
    choice = Choice(recording, 8, (1, 5), (list(b"bc"), list(b"de")), (0, 2))
    figure = occurrences.picture(choice, Letters(), ("PLD", "PLD+ (h)"))
    told = "{}: {} of 2 drafted tokens accepted".format
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [told("PLD", 0), told("PLD+ (h)", 2), "last token written"]
    drawn = [text.get_text() for text in figure.axes[0].texts]
    assert "".join(t for t in drawn if len(t) == 1) == "abcadeadef"
    assert len(figure.axes[0].patches) == 2 + 1 + 1 + 1 + 0
