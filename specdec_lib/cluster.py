"""Processes of this machine that execute notebooks for :mod:`specdec_lib.report.build.runner`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any


@dataclass(frozen=True)
class Processes:
    """``count`` processes that work at once."""

    count: int

    def tasks(self, function: Callable, jobs: Sequence[Any], gpu: bool = False) -> Iterator[tuple[int, Any]]:
        """The number and result of each job as it ends."""
        # A process that is forked from one with threads, such as torch's, can stand still.
        with ProcessPoolExecutor(self.count, mp_context=get_context("spawn")) as pool:
            running = {pool.submit(function, job): number for number, job in enumerate(jobs)}
            for ended in as_completed(running):
                yield running[ended], ended.result()


Place = Processes
