"""One fixed piece of work, timed in every chapter: whether the machine was free when the chapter was timed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median

import torch

from specdec_lib import paths
from specdec_lib.files import write_atomic
from specdec_lib.report.display import provenance
from specdec_lib.report.display.notices import Notice

#: Above this multiple of the machine's own best time a chapter's timings are called disturbed; between chapters on a free
#: machine of two cores the multiple stays below 1.2.
LIMIT = 1.5
#: Square matrices of the work, and how often one is multiplied: some milliseconds.
_SIDE, _PRODUCTS = 256, 12


def seconds(repeats: int = 15) -> float:
    """Median time of the work, which is the same everywhere: products of float32 matrices on one thread of the processor."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    matrix = torch.linspace(-1, 1, _SIDE * _SIDE).reshape(_SIDE, _SIDE) / _SIDE
    spent = []
    with torch.inference_mode():
        for _ in range(repeats + 2):
            began, state = time.perf_counter(), matrix
            for _ in range(_PRODUCTS):
                state = torch.mm(state, matrix)
            spent.append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    return median(spent[2:])


class Reference:
    """The reference pass of one chapter: timed when it is made and again by :meth:`end`.

    Parameters
    ----------
    known : Path, optional
        File with the least time of this machine, which all chapters share.
    """

    def __init__(self, known: Path | None = None):
        self.known = paths.cache() / "reference_pass.json" if known is None else known
        self.spent = [seconds()]

    def end(self) -> tuple[float, float]:
        """Time the pass again; give the longer of the two times, s, and its multiple of this machine's least.

        The least time is kept for each processor, so that chapters run on different days, or one of them while something
        else ran, are compared with the same number.
        """
        self.spent.append(seconds())
        machine = f"{provenance.cpu_model()}, {os.cpu_count()} cores"
        try:
            least = json.loads(self.known.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            least = {}  # no chapter before, or a file cut off: this one begins
        least[machine] = min(*self.spent, least.get(machine, float("inf")))
        write_atomic(self.known, json.dumps(least, indent=1) + "\n")
        return max(self.spent), max(self.spent) / least[machine]


def disturbed(spent: float, multiple: float) -> Notice | None:
    """The box of a page whose chapter was timed on a machine that did something else; None where it was free."""
    if multiple <= LIMIT:
        return None
    return Notice(
        "Disturbed timing",
        f"A reference pass took {1e3 * spent:.1f} ms in this chapter, {multiple:.1f} times as long as at best on this "
        "machine: something else used it. Do not compare times of this page with those of other chapters; run the chapter "
        "again on a free machine.",
    )
