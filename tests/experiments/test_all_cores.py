"""Work in copies of the process is the work of one."""

import os
import time
from functools import partial

import pytest
import torch

from specdec_lib.experiments.runs import all_cores
from specdec_lib.experiments.runs.all_cores import on_all_cores


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(all_cores, "ALONE_SECONDS", 0.0)


@pytest.mark.parametrize("jobs", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_results_come_in_the_order_of_the_tasks(count, jobs):
    held = torch.arange(count)  # in the memory of the copies
    results = on_all_cores([lambda i=i: (i, held[i] * 2, os.getpid()) for i in range(count)], jobs)
    assert [(i, int(value)) for i, value, _ in results] == [(i, 2 * i) for i in range(count)]
    own = os.getpid() in {process for *_, process in results}
    assert own == (count > 0 and jobs == 1)


def test_short_tasks_are_done_here_and_no_processes_are_refused(monkeypatch):
    monkeypatch.setattr(all_cores, "ALONE_SECONDS", 60.0)
    assert set(on_all_cores([os.getpid] * 20)) == {os.getpid()}
    for jobs in (0, -1):
        with pytest.raises(ValueError, match=f"jobs is {jobs}; expected 1 or more"):
            on_all_cores([], jobs)


def test_each_task_has_one_thread_here_as_in_a_copy(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for alone in (60.0, 0.0):
            monkeypatch.setattr(all_cores, "ALONE_SECONDS", alone)
            assert set(on_all_cores([torch.get_num_threads] * 3, 2)) == {1}
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_no_core_waits_for_a_long_first_task(monkeypatch):
    """The last tasks show that the work is long; the first are left to the copies."""
    monkeypatch.setattr(all_cores, "ALONE_SECONDS", 0.05)

    def slow(i):
        time.sleep(0.1)
        return i, os.getpid()

    results = on_all_cores([partial(slow, i) for i in range(4)], 2)
    assert [i for i, _ in results] == [0, 1, 2, 3]
    assert [process == os.getpid() for _, process in results] == [False, False, False, True]


def test_a_task_in_a_copy_starts_no_more_processes():
    def inner():
        return os.getpid(), set(on_all_cores([os.getpid] * 5))

    for process, others in on_all_cores([inner] * 4, 2):
        assert others == {process} != {os.getpid()}


def test_an_error_of_a_task_is_raised_and_leaves_nothing(monkeypatch):
    def divide(by):
        return 1 / by

    with pytest.raises(ZeroDivisionError):
        on_all_cores([partial(divide, by) for by in (1, 2, 0, 4)], 2)
    assert on_all_cores([partial(divide, 2)] * 3, 2) == [0.5] * 3
