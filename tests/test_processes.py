"""A process that ends with the one that started it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from specdec_lib import paths

CHILD = "import os, time\nfrom specdec_lib import processes\n{change}processes.end_with_parent(os.getppid())\ntime.sleep(60)"
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {code!r}])
time.sleep(1)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no parents that end")
@pytest.mark.parametrize("system", ["this", "one without PR_SET_PDEATHSIG"])
def test_a_process_whose_parent_is_killed_ends(system):
    change = "" if system == "this" else "processes.sys = type('S', (), {'platform': 'darwin'})\n"
    command = [sys.executable, "-c", PARENT.format(code=CHILD.format(change=change))]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=paths.PACKAGE.parent)
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    parent.kill()
    parent.communicate()
    assert not left_after([child])


def left_of(command: list[str], ready: Callable, sent: int, **options) -> set[int]:
    """Send a command a signal once ``ready(run)`` names the processes below it; those that live 5 seconds longer."""
    variables, below = os.environ | {"PYTHONPATH": str(paths.PACKAGE.parent)}, set()
    run = subprocess.Popen(command, env=variables, **options)
    try:
        deadline = time.monotonic() + 120
        while not (below := ready(run)) and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert below
        run.send_signal(sent)
        run.wait(timeout=10)
        return left_after(below)
    finally:
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.kill()
        run.wait()


def left_after(pids: Iterable[int], seconds: float = 5) -> set[int]:
    """Those that are still alive after so many seconds, or as soon as none is; a zombie is not (Linux)."""
    deadline = time.monotonic() + seconds
    while (left := {pid for pid in pids if _alive(pid)}) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
