"""Builds on a cluster against the same builds in this process, with workers and nodes that are killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from specdec_lib.__main__ import main
from specdec_lib.commands.datastore import load_tokenizer
from specdec_lib.datastores import ray_data
from specdec_lib.datastores.sharded_build import build_sharded
from specdec_lib.files import ForeignFile
from tests.cluster.failing_documents import Counted, EndsItsWorker, HoldsUpItsWorker
from tests.datastores.test_sharded_build import TEXTS, contents, lines, parts

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here") / "store"
    build_sharded(folder, parts(3), load_tokenizer("pocket"), progress=False)
    return contents(folder)


def build(folder, kinds):
    """A store of three parts of these kinds, built on the cluster."""
    documents = [
        kind(texts, folder / f"notes-{i}") for i, (kind, texts) in enumerate(zip(kinds, parts(3), strict=True))
    ]
    tokenizer = load_tokenizer("pocket")
    return build_sharded(folder / "store", documents, tokenizer, build=ray_data.build_shards, progress=False)


def test_a_killed_worker_loses_only_its_shard(nodes, tmp_path, expected):
    build(tmp_path, (Counted, EndsItsWorker, Counted))
    notes = sorted(tmp_path.glob("notes-*"))
    assert contents(tmp_path / "store") == expected
    assert [len(note.read_text().splitlines()) for note in notes] == [1, 2, 1]


def test_a_killed_node_loses_only_its_shards(nodes, tmp_path, monkeypatch, expected):
    def kill(note: Path, ended: threading.Event) -> None:
        while not ended.wait(0.5):
            if note.exists() and note.read_text().endswith("\n"):
                nodes.remove(note.read_text().split()[0])
                break

    # Ray may ask the dead node for a worker without end (ray-project/ray issue 63405). It gives a stream up on which nothing
    # moved for this long: then again.
    monkeypatch.setattr(nodes.ray.data.DataContext.get_current(), "execution_no_progress_timeout_s", 120)
    for attempt in range(3):
        folder = tmp_path / f"attempt-{attempt}"
        folder.mkdir()
        notes = [folder / f"notes-{i}" for i in range(3)]
        ended = threading.Event()
        killer = threading.Thread(target=kill, args=(notes[0], ended))
        killer.start()
        try:
            build(folder, (HoldsUpItsWorker, Counted, Counted))
            break
        except nodes.ray.data.exceptions.ExecutionTimeoutError:
            continue
        finally:
            ended.set()
            killer.join()
            nodes.add(num_cpus=1)
    assert contents(folder / "store") == expected
    first, second = notes[0].read_text().split()
    assert first != second
    assert [len(note.read_text().splitlines()) for note in notes[1:]] == [1, 1]


def test_a_shard_that_fits_no_node_is_refused(nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_data, "SORT_BYTES", 2**50)
    with pytest.raises(ValueError, match="cut the texts into more --shards"):
        build(tmp_path, [Counted] * 3)


def test_the_command_builds_tokens_and_states_on_ray_as_here(nodes, tmp_path, capsys):
    path = lines(tmp_path / "a.jsonl", TEXTS)
    for name, on in (("here", []), ("ray", ["--on", "ray"])):
        store = str(tmp_path / name)
        assert main(["datastore", "build", store, str(path), "--tokenizer", "pocket", "--shards", "2", *on]) == 0
        assert main(["datastore", "dense", store, "--model", "pocket", "--dims", "4", "--device", "cpu", *on]) == 0
    here, there = capsys.readouterr().out.split("shards              2")[1::2]
    assert here == there
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


RUN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell turns off for what it runs in the background
from pathlib import Path
from specdec_lib.commands.datastore import load_tokenizer
from specdec_lib.datastores import ray_data
from specdec_lib.datastores.sharded_build import build_sharded
from specdec_lib.files import ForeignFile
from tests.cluster.failing_documents import HoldsUpItsWorker
folder = Path(sys.argv[1])
documents = [HoldsUpItsWorker(["some text"], folder / f"notes-{i}") for i in range(2)]
build_sharded(folder / "store", documents, load_tokenizer("pocket"), build=ray_data.build_shards, progress=False)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_five_seconds_after_a_build_is_ended_nothing_below_it_is_left(tmp_path, number):
    pytest.importorskip("ray", reason="needs the extra ray")
    psutil = pytest.importorskip("psutil")
    # On a busy machine Ray may give up starting, because its helpers are late (ray-project/ray issue 65983): then again.
    waits = {"RAY_raylet_start_wait_time_s": "60", "RAY_worker_register_timeout_seconds": "300"}
    environment = os.environ | waits | {"PYTHONPATH": os.getcwd()}
    below = set()
    try:
        for _ in range(3):
            run = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], env=environment)
            while run.poll() is None and not list(tmp_path.glob("notes-*")):  # until a worker reads documents
                time.sleep(0.1)
                below |= set(psutil.Process(run.pid).children(recursive=True))
            if run.poll() is None:
                break
        assert list(tmp_path.glob("notes-*")) and below, "no worker began to read"
        run.send_signal(number)
        deadline = time.monotonic() + 5
        run.wait(timeout=5)
        _, alive = psutil.wait_procs(below, timeout=max(0.0, deadline - time.monotonic()))
        left = [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        assert not left, left
    finally:
        for one in [run, *below]:
            try:
                one.kill()
            except psutil.NoSuchProcess:
                pass


def test_a_store_lies_where_a_relative_path_behind_a_link_leads_and_in_no_foreign_folder(
    nodes, tmp_path, monkeypatch, expected
):
    (tmp_path / "texts, müde").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "texts, müde")
    monkeypatch.chdir(tmp_path / "link")
    documents = [Counted(texts, tmp_path / f"notes-{i}") for i, texts in enumerate(parts(3))]

    def build_in(place):
        return build_sharded(
            Path(place), documents, load_tokenizer("pocket"), build=ray_data.build_shards, progress=False
        )

    build_in("my store")
    assert contents(tmp_path / "texts, müde" / "my store") == expected
    Path("app").mkdir()
    Path("app/manifest.json").write_text('{"name": "an app"}')
    with pytest.raises(ForeignFile, match="app exists and is no store of shards"):
        build_in("app")
    assert [path.name for path in Path("app").iterdir()] == ["manifest.json"]
