"""A cluster on this machine ends with the process that started it; a stand-in for Ray starts daemons that nobody tells."""

import os
import signal
import subprocess
import sys

import pytest

from tests.test_processes import left_after

#: Starts a daemon whose own child outlives it, and a second one.
RAY = """
import os, subprocess, sys
from pathlib import Path
from types import SimpleNamespace
SLEEP = "import time; time.sleep(600)"
NOTES = Path(os.environ["NOTES"])

def init(**options):
    orphan = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid)"
    with open(NOTES / "orphan", "w") as out:
        subprocess.run([sys.executable, "-c", orphan], stdout=out)
    other = subprocess.Popen([sys.executable, "-c", SLEEP])
    (NOTES / "pids").write_text(f"{os.getpid()} {other.pid} {(NOTES / 'orphan').read_text()}")

def get_runtime_context():
    return SimpleNamespace(gcs_address="somewhere:1")
"""
RUN = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from specdec_lib.datastores.ray_cluster import local_cluster
with local_cluster() as address:
    print(address, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to an ancestor")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_five_seconds_after_its_end_no_daemon_is_left(tmp_path, number):
    (tmp_path / "ray.py").write_text(RAY)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()]), "NOTES": str(tmp_path)}
    run = subprocess.Popen([sys.executable, "-c", RUN], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout.readline() == "somewhere:1\n"
        pids = [run.pid, *map(int, (tmp_path / "pids").read_text().split())]
        assert len(pids) == 4
        run.send_signal(number)
        assert not left_after(pids)
    finally:
        run.kill()
        run.communicate()
