"""A process that ends with the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

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
    program = PARENT.format(code=CHILD.format(change=change))
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=paths.PACKAGE.parent
    )
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("it lives on")


BELOW = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nprint(flush=True)\ntime.sleep(600)"
ADOPTING = """
import subprocess, sys, threading
from specdec_lib import processes
processes.adopt_orphans()
child = subprocess.Popen([sys.executable, "-c", {code!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(open(f"/proc/{{child.pid}}/task/{{child.pid}}/children").read().strip(), flush=True)
child.kill()
child.wait()
sys.stdin.read()
processes.kill_children()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
def test_a_process_that_adopts_orphans_kills_grandchildren_too():
    adopting = subprocess.Popen(
        [sys.executable, "-c", ADOPTING.format(code=BELOW)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=paths.PACKAGE.parent,
    )
    grandchild = int(adopting.stdout.readline())
    os.kill(grandchild, 0)
    adopting.communicate()
    with pytest.raises(ProcessLookupError):
        os.kill(grandchild, 0)
