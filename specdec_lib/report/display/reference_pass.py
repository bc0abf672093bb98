"""One fixed piece of work, timed in every chapter: whether the machine was free when the chapter was timed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from specdec_lib import paths
from specdec_lib.experiments.all_cores import one_thread
from specdec_lib.files import write_atomic
from specdec_lib.report.display import provenance, run_context
from specdec_lib.report.display.notices import Notice

#: Above this multiple of what the work takes on a free machine, a chapter's timings are called disturbed; on a free machine
#: of two cores the multiple stays below 1.2.
LIMIT = 1.25
#: How often the work is timed where it took longer than that: a machine that is busy still is, a short interruption is over.
_TRIES = 3
#: Square matrices of the work, and how often one is multiplied: some milliseconds.
_SIDE, _PRODUCTS = 256, 12


class Probe(NamedTuple):
    """Median seconds of the work, and those that it had the processor for."""

    seconds: float
    computed: float

    @property
    def waited(self) -> float:
        """The time as a multiple of the time on the processor: above 1 where the work waited for other programs."""
        return self.seconds / self.computed


def probe(repeats: int = 15) -> Probe:
    """Time the work, which is the same everywhere: products of float32 matrices on one thread of the processor."""
    matrix = torch.linspace(-1, 1, _SIDE * _SIDE).reshape(_SIDE, _SIDE) / _SIDE
    spent = []
    with one_thread(), torch.inference_mode():
        for _ in range(repeats + 2):
            began, computing, state = time.perf_counter(), time.thread_time(), matrix
            for _ in range(_PRODUCTS):
                state = torch.mm(state, matrix)
            spent.append((time.perf_counter() - began, time.thread_time() - computing))
    seconds, computed = zip(*spent[2:], strict=True)
    return Probe(median(seconds), median(computed))


class Reference:
    """The reference pass of one chapter: timed before and after each cell that takes times; in Jupyter, where nobody knows
    which cells those are, when it is made and by :meth:`end`. In a run other cells share the machine with another notebook, so
    the pass is timed around no others.

    Parameters
    ----------
    known : Path, optional
        File with the least time of this machine, which all chapters share.
    """

    def __init__(self, known: Path | None = None):
        self.known = paths.cache() / "reference_pass.json" if known is None else known
        self._machine = f"{provenance.cpu_model()}, {os.cpu_count()} cores"
        self._all = self._read()
        self.least = self._all.get(self._machine, float("inf"))
        self._longest: list[tuple[float, Probe]] = []
        run = run_context.current()
        self._alone = None if run is None else run.alone
        if self._alone is None:
            self.again()

    def again(self) -> None:
        """Time the pass once more; what took too long is tried again, and the best try counts."""
        tries = []
        while len(tries) < _TRIES and (not tries or min(tries)[0] > LIMIT):
            found = probe()
            self.least = min(self.least, found.seconds)
            tries.append((max(found.seconds / self.least, found.waited), found))
        self._longest.append(min(tries))

    def watch(self, events: Any) -> None:
        """Time the pass before and after each cell that the runner executes alone.

        Parameters
        ----------
        events : IPython.core.events.EventManager
        """

        def timed(source: str) -> None:
            if run_context.digest(source) in self._alone:
                self.again()

        if self._alone:
            events.register("pre_run_cell", lambda info: timed(info.raw_cell))
            events.register("post_run_cell", lambda result: timed(result.info.raw_cell))

    def end(self) -> tuple[float, float] | None:
        """Give the longest of all times, s, and the multiple of what the pass takes on a free machine; None where no cell took
        times.

        That is the larger of two: the time over this machine's least, which is kept for each processor, so that chapters
        run on different days are compared with the same number; and the time over what the work had the processor for,
        which also tells a machine that was busy in every chapter.
        """
        if self._alone is None:
            self.again()
        if not self._longest:
            return None
        known = self._read()
        known[self._machine] = min(self.least, known.get(self._machine, float("inf")))
        write_atomic(self.known, json.dumps(known, indent=1) + "\n")
        multiples = [max(found.seconds / self.least, found.waited) for _, found in self._longest]
        return max(found.seconds for _, found in self._longest), max(multiples)

    def _read(self) -> dict[str, float]:
        try:
            return json.loads(self.known.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}  # no chapter before, or a file cut off: this one begins


def disturbed(spent: float, multiple: float) -> Notice | None:
    """The box of a page whose chapter was timed on a machine that did something else; None where it was free."""
    if multiple <= LIMIT:
        return None
    return Notice(
        "Disturbed timing",
        f"A reference pass took {1e3 * spent:.1f} ms in this chapter, up to {multiple:.2f} times as long as it takes when this "
        "machine is free. Something else used the machine. Do not compare times of this page with those of other chapters; "
        "run the chapter again on a free machine.",
    )
