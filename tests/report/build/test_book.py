"""A book that is being rendered ends with the command; a stand-in for jupyter-book has a process of its own."""

import signal
import sys

import pytest

from tests.test_processes import left_of

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell turns off for what it runs in the background
from pathlib import Path
from specdec_lib.report.build import book
book.executed_profiles = lambda *_: {}
book.rerun.write_pages = book.draw_pictures = lambda *_: None
book.paths.root = lambda: Path(sys.argv[1])
book.build()
"""
BUILDS = """
import os, time
from pathlib import Path
def main():
    child = os.fork()
    if child:
        Path("pids.new").write_text(f"{os.getpid()} {child}")
        os.rename("pids.new", "pids")
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_five_seconds_after_its_end_nothing_is_rendered(tmp_path, number):
    (tmp_path / "_build").mkdir()
    (tmp_path / "jupyter_book" / "cli").mkdir(parents=True)
    for name, text in (
        ("__init__", ""),
        ("sphinx", "build_sphinx = print"),
        ("cli/__init__", ""),
        ("cli/main", BUILDS),
    ):
        (tmp_path / "jupyter_book" / f"{name}.py").write_text(text)
    pids = tmp_path / "pids"

    def below(run):
        return set(map(int, pids.read_text().split())) if pids.exists() else set()

    assert not left_of([sys.executable, "-c", PROGRAM, str(tmp_path)], below, number, cwd=tmp_path)
