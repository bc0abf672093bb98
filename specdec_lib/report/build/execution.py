"""Executes one notebook with papermill, in a process of its own that ends with the run."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

from specdec_lib.processes import end_with_parent, wait_without_spinning

#: Files of the process's folder: how far it is, and why it ended before the notebook's end.
PROGRESS, ERROR = "progress", "error"


class Work(NamedTuple):
    """A notebook with what its process needs: the ``source``, the executed ``copy``, and its parameters ``given``.

    :data:`PROGRESS` and :data:`ERROR` are written in ``folder``. The kernel works in ``root`` with these environment variables;
    None removes one. ``parent`` is the process of the run.
    """

    source: Path
    copy: Path
    given: dict[str, Any]
    folder: Path
    root: Path
    variables: dict[str, str | None]
    parent: int


def execute(work: Work) -> None:
    """Execute the notebook, and exit with status 1 where it does not come to its end."""
    end_with_parent(work.parent)
    signal.signal(signal.SIGINT, lambda *_: None)  # the run is told, and ends this process
    for name, value in work.variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    wait_without_spinning()
    import papermill

    logging.getLogger("papermill").setLevel(logging.ERROR)
    begun = 0

    def begin(**_: Any) -> None:
        nonlocal begun
        begun += 1
        (work.folder / PROGRESS).write_text(str(begun))

    try:
        papermill.execute_notebook(
            str(work.source),
            str(work.copy),
            parameters=work.given,
            cwd=str(work.root),
            kernel_name="python3",
            progress_bar=False,
            extra_arguments=["--log-level=CRITICAL"],  # a kernel that is told to end logs the interruption as an error
            on_cell_execute=begin,
            **_kernel_manager(work.folder),
        )
    except Exception as error:  # every way in which a cell, a kernel or its client can fail is told the same way
        (work.folder / ERROR).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        sys.exit(1)


def _kernel_manager(folder: Path) -> dict[str, Any]:
    """A kernel over local sockets in ``folder``: two runs cannot take the same port, and nothing is said of unencrypted TCP."""
    if sys.platform == "win32":
        return {}
    from jupyter_client.manager import AsyncKernelManager

    class LocalKernelManager(AsyncKernelManager):
        def __init__(self, **options: Any):
            super().__init__(**options)
            self.transport, self.ip = "ipc", str(folder / "kernel")

    return {"kernel_manager_class": LocalKernelManager}
