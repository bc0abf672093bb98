"""A process that ends with the one that started it, and files that are replaced as a whole."""

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
from specdec_lib.files import replacing

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


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as aside:
        aside.write_text("ha")
        raise error
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_the_file_is_there_once_the_block_has_ended_and_two_writers_do_not_meet(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as first, replacing(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
        assert not path.exists() and first.parent == tmp_path
    assert path.read_text() == "first" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_who_may_read_the_file_is_what_the_process_says_and_a_missing_folder_is_named(tmp_path):
    before = os.umask(0o077)
    with replacing(tmp_path / "a.txt") as aside:
        os.umask(before)
        aside.chmod(0o640)  # as a library may that writes there
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileNotFoundError, match="no folder .*/none; make it before a.txt"):
        replacing(tmp_path / "none" / "a.txt").__enter__()


@pytest.mark.parametrize("there", [True, False])
def test_what_a_symbolic_link_leads_to_is_replaced_and_the_link_stays(tmp_path, there):
    large, path = tmp_path / "large-disk" / "a.txt", tmp_path / "a.txt"
    large.parent.mkdir()
    if there:
        large.write_text("old")
    path.symlink_to(large)
    with replacing(path) as aside:
        aside.write_text("new")
    assert path.is_symlink() and large.read_text() == "new" and [p.name for p in large.parent.iterdir()] == ["a.txt"]
