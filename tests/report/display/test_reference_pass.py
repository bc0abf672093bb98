"""A chapter timed on a machine that does something else says so, on whatever day it was run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specdec_lib.report.display import reference_pass, run_context
from specdec_lib.report.display.reference_pass import Probe


@pytest.fixture
def clock(monkeypatch):
    """Times of the coming reference passes, in ms; a pair is the time and that of it on the processor."""
    times = []

    def probe():
        value = times.pop(0)
        return Probe(*(value if isinstance(value, tuple) else (value, value)))

    monkeypatch.setattr(reference_pass, "probe", probe)
    return times


def test_a_chapter_is_compared_with_the_least_time_of_all_chapters(tmp_path, clock):
    known = tmp_path / "least.json"
    clock += [0.010, 0.011]
    assert reference_pass.Reference(known).end() == (0.011, pytest.approx(1.1))
    clock += [0.030, 0.031, 0.032, 0.012]  # busy at its beginning alone, in all tries
    spent, multiple = reference_pass.Reference(known).end()
    assert (spent, multiple) == (0.030, pytest.approx(3.0))
    box = reference_pass.disturbed(spent, multiple)
    assert "30.0 ms" in box.text and "3.00 times" in box.text
    clock += [0.008, 0.010]  # a new least
    assert reference_pass.Reference(known).end()[1] == pytest.approx(1.25)
    assert reference_pass.disturbed(0.010, 1.25) is None
    assert reference_pass.disturbed(0.010, 1.26) is not None


def test_a_time_that_a_later_one_proves_long_counts(tmp_path, clock):
    clock += [0.010, 0.007]
    assert reference_pass.Reference(tmp_path / "least.json").end() == (0.010, pytest.approx(10 / 7))


def test_the_first_chapter_on_a_busy_machine_is_noticed(tmp_path, clock):
    clock += [(0.020, 0.010)] * 6
    spent, multiple = reference_pass.Reference(tmp_path / "least.json").end()
    assert (spent, multiple) == (0.020, 2.0) and reference_pass.disturbed(spent, multiple) is not None


def test_a_short_interruption_is_tried_again(tmp_path, clock):
    clock += [0.010, 0.030, 0.011]
    assert reference_pass.Reference(tmp_path / "least.json").end() == (0.011, pytest.approx(1.1))
    assert not clock


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of a notebook with one cell that takes times."""
    made = run_context.RunContext("01_x", "default", str(tmp_path), "0" * 64, (run_context.digest("time_it()"),))
    monkeypatch.setenv(run_context.VARIABLE, made.dumps())


def test_a_machine_that_is_busy_around_a_timed_cell_is_noticed(tmp_path, clock, run):
    hooks = {}
    reference = reference_pass.Reference(tmp_path / "least.json")
    reference.watch(SimpleNamespace(register=hooks.__setitem__))
    clock += [0.010, 0.020, 0.021, 0.022]
    for source, left in (("plot()", 4), ("time_it()", 0)):
        info = SimpleNamespace(raw_cell=source)
        hooks["pre_run_cell"](info)
        hooks["post_run_cell"](SimpleNamespace(info=info))
        assert len(clock) == left
    assert reference.end() == (0.020, 2.0)


def test_a_run_that_took_no_times_tells_nothing_of_the_machine(tmp_path, clock, run):
    assert reference_pass.Reference(tmp_path / "least.json").end() is None


def test_outside_of_a_run_no_cell_is_watched(tmp_path, clock, monkeypatch):
    monkeypatch.delenv(run_context.VARIABLE, raising=False)
    clock += [0.010]
    reference_pass.Reference(tmp_path / "least.json").watch(None)


def test_a_file_that_was_cut_off_is_begun_again(tmp_path, clock):
    (tmp_path / "least.json").write_text('{"a": 0.')
    clock += [0.010, 0.010]
    assert reference_pass.Reference(tmp_path / "least.json").end() == (0.010, 1.0)


def test_the_pass_leaves_the_number_of_threads_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = reference_pass.probe(1)
        assert found.seconds > 0 and found.computed > 0 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
