"""Rows of chapter 1's tables against counts by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from specdec_lib import DraftTree
from specdec_lib.chapters.ch01_speculative_decoding import rates
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.report.display import speculation_page


def run(*steps: tuple[int, int]) -> Generation:
    """A run of steps that drafted and accepted so many tokens."""
    told = [
        Step(DraftTree.chain([3] * drafted), tuple(range(kept)), (3,) * (kept + 1), 0.1, 0.1, 0.1, 0.1)
        for drafted, kept in steps
    ]
    return Generation([3] * (1 + sum(kept + 1 for _, kept in steps)), told, "length", 1, 0.5)


def recording(task: str, number: int, looped: bool = False) -> SimpleNamespace:
    return SimpleNamespace(task=task, prompt=SimpleNamespace(id=str(number)), looped=looped)


RECORDINGS = [recording("edit", 0), recording("edit", 1, looped=True), recording("write", 2)]
RUNS = {
    "PLD": [run((3, 1), (3, 1)), run((3, 3), (3, 3)), run((0, 0), (0, 0))],
    "SpecDec": [run((1, 1), (1, 1)), run((1, 1), (1, 1)), run((1, 0), (1, 1))],
}


def test_a_row_has_each_method_with_and_without_loops_and_their_ratio():
    row = rates.tokens_per_pass("edit", RECORDINGS, RUNS, lambda r: r.task == "edit")
    assert (row["task"], row["outputs"], row["looped"]) == ("edit", 2, 1)
    assert row["PLD"].value == pytest.approx(12 / 4) and row["PLD*"].value == pytest.approx(4 / 2)
    assert row["SpecDec"].value == row["SpecDec*"].value == pytest.approx(2)
    assert row["ratio"].value == pytest.approx(1.5) and row["ratio*"].value == pytest.approx(1)


def test_outputs_that_all_loop_leave_no_rate():
    row = rates.tokens_per_pass("looped", RECORDINGS, RUNS, lambda r: r.looped)
    assert (row["outputs"], row["looped"]) == (1, 1)
    assert row["PLD"].value == pytest.approx(4) and math.isnan(row["PLD*"].value) and math.isnan(row["ratio*"].value)


def test_sampled_rates_stand_next_to_greedy_ones_of_the_same_prompts():
    groups = {"editing": lambda r: r.task == "edit", "code": lambda r: r.task == "write"}
    hot = {name: list(reversed(runs)) for name, runs in RUNS.items()}
    rows = list(rates.greedy_and_sampled(groups, RUNS, RECORDINGS, hot, RECORDINGS))
    assert [(row["group"], row["method"]) for row in rows] == [
        ("editing", "PLD"), ("editing", "SpecDec"), ("code", "PLD"), ("code", "SpecDec")
    ]  # fmt: skip
    first = rows[0]
    assert first["greedy"].value == pytest.approx(12 / 4) and first["sampled"].value == pytest.approx(10 / 4)
    assert first["ratio"].value == pytest.approx(10 / 12)
    assert first["greedy_rate"].value == pytest.approx(8 / 12) and first["sampled_rate"].value == pytest.approx(1)


def test_the_chart_and_the_tables_hold_the_rows_they_are_given():
    row = rates.tokens_per_pass("edit", RECORDINGS, RUNS, lambda r: r.task == "edit")
    (ax,) = speculation_page.tokens_chart([row], ["PLD", "SpecDec"]).axes
    assert sorted(bar.get_height() for bar in ax.patches) == pytest.approx([2, 3])
    table = speculation_page.unlooped_table([row], ["PLD", "SpecDec"])
    assert table.frame.iloc[0]["PLD*"].value == pytest.approx(2) and table.headings["PLD*"] == "PLD"
    compared = [{"method": "PLD", "how": "greedy", "outputs": 2, "tokens": 9, "differ": 0, "rounding": 0}]
    assert "warm" not in speculation_page.lossless_table(compared).caption
