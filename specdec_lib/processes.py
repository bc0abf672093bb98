"""Processes that end with the one that started them, and threads that wait without keeping a core busy."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: How often a process looks for its parent where the system does not tell it, in seconds.
_LOOK_SECONDS = 1.0


def end_with_parent(parent: int) -> None:
    """End this process when the process ``parent``, which started it, ends in whatever way, SIGKILL too.

    On Linux the system sends SIGKILL, which a computation cannot delay. Elsewhere a thread looks every second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the system knew
            os._exit(1)
    elif hasattr(os, "getppid"):
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends, where the system can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_children() -> None:
    """Kill the children of this process until it has none; after :func:`adopt_orphans` those are all that are below it."""
    if sys.platform != "linux":
        return
    try:
        while True:
            for children in Path("/proc/self/task").glob("*/children"):
                for child in children.read_text().split():
                    os.kill(int(child), signal.SIGKILL)
            os.wait()
    except ChildProcessError:
        pass


def wait_without_spinning() -> None:
    """Let threads of OpenMP sleep while they wait, unless the user has set how they wait; has an effect before torch is imported.

    By default they spin. Next to one busy process on two cores, the thread that the others wait for is then not running: 70
    products of 16 × 576 by 576 × 1,536 took 656 ms on two threads, and 71 ms with threads that sleep (one thread: 62 ms).
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
