"""What a dense index refuses, and what a full disk, a kill or a second builder leaves."""

from __future__ import annotations

import errno
import json
import os
import random
import select
import shutil
import signal
import time

import numpy as np
import pytest

from specdec_lib import datastores, files
from specdec_lib.datastores import ArrayStates, DenseIndex, StoreBusy, StoreError, store_files
from tests.datastores.dense_stores import WIDTH, build, random_store, source
from tests.datastores.stores import scratch
from tests.datastores.test_tokens import in_child
from tests.families import tokenizer


@pytest.fixture
def store():
    with scratch() as folder:
        yield random_store(folder)


def test_states_that_are_not_finite_or_not_as_wide_are_refused(store):
    bad = source(store)
    for value in (np.nan, np.inf, -np.inf):
        bad.states[17, 3] = value
        with pytest.raises(ValueError, match=f"row 17 of the states has the value {value} in column 3"):
            build(store, bad)
    assert not list(store.path.glob("dense*"))
    index = build(store)
    with pytest.raises(ValueError, match="row 0 of the states has the value nan"):
        index.search(np.full(WIDTH, np.nan, np.float32), 3)
    with pytest.raises(ValueError, match=r"states have shape \(1, 7\); expected rows of width 12"):
        index.search(np.zeros(7, np.float32), 3)
    with pytest.raises(ValueError, match="expected one position for each row"):
        ArrayStates(np.arange(3), np.zeros((4, 5)))
    for wrong in (0, -1, 2.0):
        with pytest.raises(ValueError, match=f"k is {wrong}; expected a whole number, 1 or more"):
            index.search(np.zeros(WIDTH, np.float32), wrong)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dims": 0}, "dims is 0; expected a whole number from 1 to the states' width, 12"),
        ({"dims": 13}, "dims is 13"),
        ({"dims": 2.0}, "dims is 2.0"),
        ({"sample": 0}, "sample is 0"),
        ({"eps": -1.0}, "eps is -1.0"),
        ({"factory": "Nope"}, "factory is 'Nope'; expected a factory string of FAISS for 5 dimensions"),
        ({"factory": "IVF4,PQ3x4"}, "factory is 'IVF4,PQ3x4'"),
        ({"factory": "IVF9999,Flat"}, r"with 9999 lists, for \d+ states"),
        ({"factory": "PQ5x12"}, r"factory is 'PQ5x12', which \d+ states cannot train"),
        ({"nprobe": 4}, "nprobe is given for an index that has none"),
        ({"factory": "IVF4,Flat", "ef_search": 4}, "ef_search is given for an index that has none"),
        ({"factory": "IVF4,Flat", "nprobe": 0}, "nprobe is 0; expected a whole number, 1 or more"),
    ],
    ids=str,
)
def test_bad_parameters_are_refused_and_leave_nothing(store, options, message):
    with pytest.raises(ValueError, match=message):
        build(store, **options)
    assert not list(store.path.glob("dense*"))


def test_no_states_and_positions_without_a_continuation_are_refused(store):
    with pytest.raises(ValueError, match="there are no states to index"):
        build(store, ArrayStates(np.zeros(0, np.int64), np.zeros((0, WIDTH), np.float32)))
    states = source(store)
    for wrong in (0, -1, len(store.tokens), int(store.starts[1]) - 1):
        places = states.positions.copy()
        places[5] = wrong
        with pytest.raises(ValueError, match=f"position {wrong} holds no token of"):
            build(store, ArrayStates(places, states.states))
    assert not list(store.path.glob("dense*"))
    with pytest.raises(ValueError, match="eps is 0; expected more than 0"):
        build(store, ArrayStates(states.positions, np.ones_like(states.states)), eps=0)
    # Where nothing varies every key is the same.
    build(store, ArrayStates(states.positions, np.ones_like(states.states)), dims=2)


def test_indexes_of_other_tokens_models_and_versions_are_refused(store, tmp_path):
    index = build(store)
    other = datastores.build_tokens(tmp_path / "other", [[1, 2, 3]], 40, progress=False)
    with pytest.raises(StoreError, match="belongs to other tokens"):
        DenseIndex.open(index.path, other)
    with pytest.raises(StoreError, match="states of another model .fingerprint a model, yours is another"):
        DenseIndex.open(index.path, model="another")
    with pytest.raises(StoreError, match="a model it does not know"):
        build(store, source(store, model=None)).check_model("any")
    with pytest.raises(StoreError, match="without a tokenizer"):
        DenseIndex.open(index.path, tokenizer=tokenizer())
    with pytest.raises(StoreError, match="has no dense index"):
        DenseIndex.open(other.path)

    def refused(change, message, verify=False):
        copy = store.path / "copy"
        shutil.copytree(index.path, copy)
        change(copy)
        with pytest.raises(StoreError, match=message):
            opened = DenseIndex.open(copy)
            if verify:
                opened.verify()
        shutil.rmtree(copy)

    def rewrite(name, change):
        return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))

    def manifest(**changes):
        return rewrite("dense.json", lambda data: json.dumps(json.loads(data) | changes).encode())

    refused(rewrite("index.faiss", lambda data: data[:-1]), "index.faiss has .* bytes, its manifest says")
    refused(rewrite("index.faiss", lambda data: b"\0" * len(data)), "cannot be read by FAISS")
    refused(rewrite("index.faiss", lambda data: data[:-1] + b"\1"), "was altered", verify=True)
    refused(lambda folder: (folder / "positions.npy").unlink(), "positions.npy is missing")
    refused(manifest(version=9), "version 9 of the format, this library reads version 1")
    refused(manifest(width=3), "of width 12, its manifest says .* of width 3")
    refused(rewrite("dense.json", lambda data: b"{"), "has no dense index")


def test_what_is_no_dense_index_is_not_replaced(store):
    (store.path / "notes").mkdir()
    (store.path / "notes" / "a").write_text("mine")
    with pytest.raises(ValueError, match="exists and is no dense index"):
        build(store, path=store.path / "notes")
    assert (store.path / "notes" / "a").read_text() == "mine"


def test_a_full_disk_leaves_the_old_index_at_every_write(store, monkeypatch):
    old, sound, left = build(store).manifest, store_files.write, 10**9

    def fills_up(file, data):
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= 1
        sound(file, data)

    monkeypatch.setattr(store_files, "write", fills_up)
    build(store, source(store, 1), path=store.path / "other")
    writes = 10**9 - left
    assert writes > 10
    for count in range(writes):
        left = count
        with pytest.raises(OSError, match="No space left"):
            build(store, source(store, 1))
        opened = DenseIndex.open(store.path)
        assert opened.manifest == old
        assert not (store.path / "dense.partial").exists()
    opened.verify()
    left = writes
    assert build(store, source(store, 1)).manifest != old


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.draws
def test_a_kill_at_any_moment_leaves_the_old_index_or_the_new_one_whole(store, seed):
    rng = random.Random(seed)
    sides = [source(store, 1), source(store, 2)]

    def work():
        build(store, sides[wanted], factory="IVF8,Flat", nprobe=8)

    wanted, known = 0, []
    for wanted in (1, 0):
        began = time.perf_counter()
        work()
        duration = time.perf_counter() - began
        known.append(DenseIndex.open(store.path).manifest)
    unfinished = 0
    for kill in range(20):
        wanted = kill % 2
        pid = in_child(work)
        time.sleep(rng.random() * 1.3 * duration)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        opened = DenseIndex.open(store.path)
        opened.verify()
        assert opened.manifest in known
        unfinished += opened.manifest != known[1 - wanted] or (store.path / "dense.partial").exists()
    assert unfinished > 0, "no kill came in time: the test shows nothing"
    work()
    assert DenseIndex.open(store.path).manifest == known[1 - wanted]
    assert sorted(p.name for p in store.path.glob("dense*")) == ["dense"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_second_builder_is_told_who_builds(store):
    read, write = os.pipe()

    class Waits(ArrayStates):
        def __iter__(self):
            os.write(write, b"x")
            time.sleep(60)

    states = source(store)
    pid = in_child(lambda: build(store, Waits(states.positions, states.states)))
    try:
        assert select.select([read], [], [], 120)[0], "the first builder has not begun"
        with pytest.raises(StoreBusy, match=f"is being built by another process \\(process {pid}, since 20"):
            build(store)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)
    build(store)
    assert sorted(p.name for p in store.path.glob("dense*")) == ["dense"]


@pytest.mark.parametrize("links", [True, False], ids=["linked", "copied"])
def test_a_rebuild_of_the_same_tokens_keeps_the_dense_index(store, monkeypatch, links):
    index = build(store)
    documents = [store.document(i).tolist() for i in range(len(store))]
    if not links:

        def refuses(source, name):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        monkeypatch.setattr(os, "link", refuses)
    again = datastores.build_tokens(store.path, documents, 40, sources=[{"name": "again"}], progress=False)
    assert again.manifest["sources"] == [{"name": "again"}]
    kept = DenseIndex.open(store.path)
    kept.verify()
    assert kept.manifest == index.manifest
    assert [p.name for p in store.path.parent.iterdir()] == ["store"]


def test_a_rebuild_of_other_tokens_is_refused_while_there_is_a_dense_index(store):
    index, old = build(store), store.manifest
    calls = 0

    def encode(batch):
        nonlocal calls
        calls += 1
        return [[int(word) for word in text.split()] for text in batch]

    def rebuild():
        return datastores.build_tokens(store.path, ["1 2 3", "4 5"], 40, encode=encode, progress=False)

    with pytest.raises(StoreError, match="dense index is not of the tokens that were built now: remove .*dense"):
        rebuild()
    assert datastores.TokenStore.open(store.path).manifest == old
    kept = DenseIndex.open(store.path)
    kept.verify()
    assert kept.manifest == index.manifest
    shutil.rmtree(store.path / "dense")
    assert rebuild().count == 5 and calls == 1, "the second run does not tokenize again"
    assert [p.name for p in store.path.parent.iterdir()] == ["store"]


def test_a_kill_before_the_rebuilt_store_takes_its_place_leaves_the_dense_index(store, monkeypatch):
    index = build(store)
    documents = [store.document(i).tolist() for i in range(len(store))]

    class Killed(BaseException):
        pass

    def killed(new, target):
        raise Killed

    monkeypatch.setattr(files, "swap_in", killed)
    with pytest.raises(Killed):
        datastores.build_tokens(store.path, documents, 40, progress=False)
    DenseIndex.open(store.path).verify()
    monkeypatch.undo()
    datastores.build_tokens(store.path, documents, 40, progress=False)
    kept = DenseIndex.open(store.path)
    kept.verify()
    assert kept.manifest == index.manifest


def test_a_missing_faiss_is_named_with_the_extra_that_brings_it(store, monkeypatch):
    build(store)
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ImportError, match="install the extra 'cpu' or 'gpu', never both"):
        DenseIndex.open(store.path)
