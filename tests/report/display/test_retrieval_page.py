"""Figures and tables of chapter 3: what is drawn is what was counted."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pandas as pd
import pytest

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import findings
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import retrieval_page


def known(value):
    return Interval(value, value - 0.05, value + 0.05)


class Letters:
    """A tokenizer whose tokens are the letters a, b, c ..."""

    def decode(self, tokens):
        return "".join(chr(97 + token) for token in tokens)


def run(*steps):
    tokens = [token for step in steps for token in step.tokens]
    return Generation([0, *tokens], list(steps), "length", 1, 0.0)


def step(drafts, path=(), own=25):
    tree = DraftTree.from_drafts(drafts)
    return Step(tree, path, (*(tree.tokens[node] for node in path), own), 0.0, 0.0, 0.0)


def test_the_outline_has_a_line_for_each_branch_and_marks_what_was_accepted():
    # b c d, b c e and f: b c is accepted.
    shown = retrieval_page.outline([23], run(step([]), step([[1, 2, 3], [1, 2, 4], [5]], (0, 1))), Letters())
    head, *branches = shown.split("\n")
    assert head == "Step 2, after 'xaz': 5 tokens drafted, 2 accepted."
    assert branches == ["+ 'bc'", "      'd'", "      'e'", "  'f'"]


def test_a_long_outline_says_how_much_it_leaves_out():
    drafts = [[letter] for letter in range(20)]
    lines = retrieval_page.outline([23], run(step(drafts)), Letters(), lines=3).split("\n")
    assert len(lines) == 1 + 3 + 1 and lines[-1] == "  ... and 17 more tokens"
    assert retrieval_page.outline([23], run(step([]), step([])), Letters()) == "No draft in 2 steps."


def test_dots_have_a_place_for_each_series_and_the_known_intervals_their_lines():
    unknown = Interval(1.0, math.nan, math.nan)
    content = {
        "left": {"a": {"REST": Interval(1.2, 1.1, 1.3), "REST, n from 1": unknown}, "b": {"REST": unknown}},
        "right": {"a": {}, "b": {"DReSD": Interval(2.0, 1.5, 2.5)}},
    }
    figure = retrieval_page.dots(content, "ratio", 1.0)
    left, right = figure.axes
    lines = {line.get_label(): line for line in left.get_lines()}
    assert list(lines["REST"].get_xdata()) == [1.2, 1.0] and list(lines["REST, n from 1"].get_xdata()) == [1.0]
    assert lines["REST, n from 1"].get_markerfacecolor() == "white"
    drawn = [tuple(segment[:, 0]) for lines in right.collections for segment in lines.get_segments()]
    assert drawn == [(1.5, 2.5)]
    assert [text.get_text() for text in left.get_yticklabels()] == ["a", "b"]
    low, high = left.get_ylim()
    assert low > high, "the first row is the upper one"


def test_the_first_figure_puts_the_papers_gain_beside_ours():
    ratio = Interval(1.1, 1.0, 1.2)
    ratios = {words: {"REST": ratio} for words in ("acceptance rate", "accepted tokens a draft", "tokens per pass")}
    (ax,) = retrieval_page.answer(ratios, {"mar-gain": "87", "length-gain": "65"}).axes
    lines = {line.get_label(): list(line.get_xdata()) for line in ax.get_lines()}
    assert lines["DReSD's paper"] == pytest.approx([1.87, 1.65]) and lines["over REST"] == pytest.approx([1.1] * 3)


def test_alignment_goes_from_the_store_without_to_the_one_with():
    rows = pd.DataFrame(
        {
            "axis": axis,
            "way": way,
            "method": method,
            **{name: known(value) for name, value in (("before", 0.1), ("after", 0.3))},
            **{name: known(value) for name, value in (("before_tpf", 1.2), ("after_tpf", 1.8))},
            "gain": Interval(3.0, 3.0, 3.0),
            "gain_tpf": Interval(1.5, 1.5, 1.5),
        }
        for axis in ("response", "prompt")
        for way in ("greedy", "nucleus")
        for method in ("REST", "DReSD")
    )
    figure = retrieval_page.alignment(rows)
    above, below = figure.axes[0], figure.axes[2]
    for ax, ends in ((above, (0.1, 0.3)), (below, (1.2, 1.8))):
        joined = [tuple(line.get_xdata()) for line in ax.get_lines() if line.get_linestyle() == "-"]
        assert [each for each in joined if each[0] != each[1]] == [pytest.approx(ends)] * 4
        whiskers = [tuple(s[:, 0]) for lines in ax.collections for s in lines.get_segments()]
        assert sorted(whiskers) == sorted((end - 0.05, end + 0.05) for end in ends for _ in range(4))
        marks = {line.get_label(): line.get_markerfacecolor() for line in ax.get_lines()}
        assert marks["REST, before"] == "white" != marks["REST, after"]
    table = retrieval_page.alignment_table(rows)
    assert "10.0% (5.0%" in table.to_myst().replace("\u2060", "")
    assert set(table.frame.axis) == {"response, code: right answers → own", "prompt, code: prose → Python"}


def test_committed_counts_name_their_origin_and_missing_ones_have_a_box():
    about = {"command": "c", "commit": "0123456789abcdef", "date": "today", "machine": {"processor": "a processor"}}
    assert retrieval_page.dense_rows_notice(about) is None
    assert "retrieval dresd" in retrieval_page.dense_rows_notice(None).text
    rows = pd.DataFrame(
        {name: [1.0] for name in ("case", "prompts", "stored", "ours", "tokens", "here", "rest", "gpu")}
    )
    table = retrieval_page.price_table(rows, about)
    assert "commit 0123456789ab, today, a processor." in table.caption and table.timed == ["here"]


def test_times_say_what_was_decoded_and_that_a_clock_measured_them():
    columns = ("tokens_per_pass", "rate", "speedup", "draft_ms", "draft_share")
    rows = pd.DataFrame([{"method": "REST", **dict.fromkeys(columns, known(1.25))}])
    decoded = [SimpleNamespace(looped=looped) for looped in (True, False, True)]
    small, large = (SimpleNamespace(store=SimpleNamespace(count=count)) for count in (2_000, 30_000))
    table = retrieval_page.time_table(rows, decoded, large, small)
    assert "1.25 (1.20" in table.to_myst()
    assert "rate" in table.timed and "3 outputs, 2 of them in a loop" in table.caption


def test_every_axis_of_the_chapter_has_its_words():
    assert set(retrieval_page.AXES) == {"response", "response_editing", "prompt", "sampling"}
    assert set(findings.NAMES) >= {"as published", "released selection"}


def test_the_box_on_the_crossing_has_a_text_for_each_case():
    crossing = {"lead_sizes": 4, "lead_ends_tokens_rest": Interval(2e6, 1e6, 4e6)}
    said = retrieval_page.crossing_notice(crossing)
    assert "2,000,000 (1,000,000" in said.text and said.title == "Where the lead would end"
    unknown = retrieval_page.crossing_notice(crossing | {"lead_ends_tokens_rest": "not available"})
    assert "do not cross" in unknown.text and "not available" not in unknown.text
    assert "no line goes through a single size" in retrieval_page.crossing_notice({**crossing, "lead_sizes": 1}).text


def test_settings_say_how_many_prompts_count():
    rows = pd.DataFrame(
        {
            "group": "code",
            "way": "greedy",
            "store": "own",
            "method": method,
            "prompts": 28,
            "tokens_per_pass": known(2.0),
            "rate": known(0.5),
            "drafting": known(0.9),
        }
        for method in ("REST", "REST, n from 1", "REST, as DReSD ran it", "DReSD")
    )
    table = retrieval_page.matched_table(rows)
    assert list(table.frame.prompts) == ["code, greedy (28)"] and "second token" in table.caption
