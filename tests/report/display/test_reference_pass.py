"""A chapter timed on a machine that does something else says so, on whatever day it was run."""

from __future__ import annotations

import pytest
import torch

from specdec_lib.report.display import reference_pass


@pytest.fixture
def clock(monkeypatch):
    """Times of the coming reference passes."""
    times = []
    monkeypatch.setattr(reference_pass, "seconds", lambda: times.pop(0))
    return times


def test_a_chapter_is_compared_with_the_least_time_of_all_chapters(tmp_path, clock):
    known = tmp_path / "least.json"
    clock += [0.010, 0.011]
    assert reference_pass.Reference(known).end() == (0.011, pytest.approx(1.1))
    clock += [0.030, 0.012]  # busy at its beginning alone
    spent, multiple = reference_pass.Reference(known).end()
    assert (spent, multiple) == (0.030, pytest.approx(3.0))
    box = reference_pass.disturbed(spent, multiple)
    assert "30.0 ms" in box.text and "3.0 times" in box.text
    clock += [0.008, 0.010]
    assert reference_pass.Reference(known).end()[1] == pytest.approx(1.25)
    assert reference_pass.disturbed(0.010, 1.25) is None


def test_a_file_that_was_cut_off_is_begun_again(tmp_path, clock):
    (tmp_path / "least.json").write_text('{"a": 0.')
    clock += [0.010, 0.010]
    assert reference_pass.Reference(tmp_path / "least.json").end() == (0.010, 1.0)


def test_the_pass_leaves_the_number_of_threads_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert reference_pass.seconds(1) > 0 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
