"""Executes one notebook with papermill, in a process of its own that ends with the run."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, ReadWriteLock

from specdec_lib.processes import end_with_parent, wait_without_spinning

#: Files of the process's folder: how far it is, and why it ended before the notebook's end.
PROGRESS, ERROR = "progress", "error"
#: The tag of a cell that measures time.
TIMED = "timed"


class Turns:
    """Cells of notebooks that run at once: one that measures time runs while no other does.

    The locks are files of the folder that the notebooks share, and end with the process that holds them.
    """

    def __init__(self, folder: Path):
        #: Whoever waits holds the gate, so that cells which begin meanwhile do not keep a timed one from its turn.
        self.gate, self.cells = FileLock(folder / "gate.lock"), ReadWriteLock(folder / "cells.lock")

    def begin(self, cell: Mapping[str, Any], **_: Any) -> None:
        """Wait until the cell may run."""
        with self.gate:
            (self.cells.acquire_write if TIMED in cell["metadata"].get("tags", ()) else self.cells.acquire_read)()

    def end(self, **_: Any) -> None:
        """Let others run."""
        self.cells.release()


def execute(
    source: Path, copy: Path, given: Mapping[str, Any], root: Path, variables: Mapping[str, str | None], parent: int
) -> None:
    """Execute a notebook with the parameters ``given`` into a copy, and exit with status 1 where it does not come to its end.

    :data:`PROGRESS` and :data:`ERROR` are written into the copy's folder. The kernel works in ``root`` with these environment
    variables; None removes one. ``parent`` is the process of the run.
    """
    folder = copy.parent
    end_with_parent(parent)
    signal.signal(signal.SIGINT, lambda *_: None)  # the run is told, and ends this process
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    wait_without_spinning()
    import papermill
    from traitlets.config import Config

    logging.getLogger("papermill").setLevel(logging.ERROR)
    begun, turns = 0, Turns(folder.parent)

    def begin(**about: Any) -> None:
        nonlocal begun
        begun += 1
        (folder / PROGRESS).write_text(str(begun))
        turns.begin(**about)

    # Local ones: two runs cannot take the same port, and nothing is said of unencrypted TCP.
    sockets = {"transport": "ipc", "ip": str(folder / "kernel")}
    try:
        papermill.execute_notebook(
            str(source),
            str(copy),
            parameters=given,
            cwd=str(root),
            kernel_name="python3",
            progress_bar=False,
            extra_arguments=["--log-level=CRITICAL"],  # a kernel that is told to end logs the interruption as an error
            on_cell_execute=begin,
            on_cell_executed=turns.end,
            **({} if sys.platform == "win32" else {"config": Config(KernelManager=sockets)}),
        )
    except Exception as error:  # every way in which a cell, a kernel or its client can fail is told the same way
        (folder / ERROR).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        sys.exit(1)
