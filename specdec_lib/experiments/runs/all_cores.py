"""Work on all cores of this machine, in copies of the process: models, recordings and datastores are in their memory."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import torch

from specdec_lib.processes import end_with_parent

#: Seconds of work before more processes are started: less is over before they are.
ALONE_SECONDS = 1.0
#: What the copies of this process work on; None where there are none.
_tasks: Sequence[Callable] | None = None


def on_all_cores(tasks: Sequence[Callable[[], Any]], jobs: int | None = None) -> list[Any]:
    """Results of some tasks, in their order, done in ``jobs`` processes: on all cores that this one may use without it.

    A task must not count on what it changes in memory: most are done in a copy of the process. Put long ones first: the copies
    begin there, and this process takes the last ones to see whether copies are worth their start. There is one process where a
    running one cannot be copied (on Windows and macOS, and once CUDA is in use), and in a copy.
    """
    global _tasks
    if jobs is None:
        copied = sys.platform == "linux" and not torch.cuda.is_initialized() and _tasks is None
        jobs = len(os.sched_getaffinity(0)) if copied else 1
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}; expected 1 or more processes")
    if jobs == 1:
        return [task() for task in tasks]
    left, own, began = len(tasks), [], time.perf_counter()
    with one_thread():  # as in the copies: another notebook may have the other cores
        while left and time.perf_counter() - began < ALONE_SECONDS:
            left -= 1
            own.append(tasks[left]())
    results = []
    if left:
        _tasks = tasks
        try:
            with ProcessPoolExecutor(jobs, get_context("fork"), end_with_parent, (os.getpid(),)) as pool:
                results += map(pickle.loads, pool.map(_packed, range(left)))
        finally:
            _tasks = None
    return results + own[::-1]


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _packed(place: int) -> bytes:
    torch.set_num_threads(1)
    # Packed here: torch would send each tensor of a result as a file of its own.
    return pickle.dumps(_tasks[place](), protocol=pickle.HIGHEST_PROTOCOL)
