"""What a full disk, a kill, a second builder, a link or a path leaves behind, for everything that is built."""

import errno
import json
import os
import random
import select
import shutil
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from tqdm.auto import tqdm

from specdec_lib import datastores, files
from specdec_lib.datastores import (
    ArrayStates,
    DenseIndex,
    States,
    StoreBusy,
    StoreError,
    SuffixIndex,
    TokenStore,
    states,
)
from specdec_lib.datastores.sharded import is_sharded
from specdec_lib.datastores.sharded_build import build_sharded
from specdec_lib.drafters import Dresd, Rest
from tests.datastores import dense_stores
from tests.datastores.stores import scratch
from tests.families import tokenizer
from tests.interrupted import full, kill, stopped

WIDTH = 6


class Built:
    """What is built in ``path``, in one of two versions, ``side``."""

    def __init__(self, folder):
        self.folder = folder
        self.store = dense_stores.random_store(folder) if self.inside else None
        self.path = folder / self.inside / self.name

    def manifest(self):
        return self.opened().manifest


class Store(Built):
    """A token store with its suffix array."""

    name, inside = "store", ""

    def build(self, side: int, wait=lambda: None):
        def encode(batch):
            wait()
            return [list(map(int, text)) for text in batch]

        rng = random.Random(side)
        texts = ["".join(rng.choices("0123456789", k=rng.randrange(2, 120))) for _ in range(200 + 50 * side)]
        finish = partial(datastores.build_suffix_array, progress=False)
        return datastores.build_tokens(self.path, texts, 10, encode=encode, progress=False, finish=finish).manifest

    def opened(self):
        return SuffixIndex.open(self.path)

    def manifest(self):
        return self.opened().store.manifest


class Dense(Built):
    """A dense index inside a store."""

    name, inside = "dense", "store"

    def build(self, side: int, wait=lambda: None):
        class Waits(ArrayStates):
            def __iter__(self):
                wait()
                return super().__iter__()

        source = dense_stores.source(self.store, side)
        source = Waits(source.positions, source.states, source.model)
        return dense_stores.build(self.store, source, self.path, factory="IVF8,Flat", nprobe=8).manifest

    def opened(self):
        return DenseIndex.open(self.path)


class Hidden(Built):
    """Hidden states of a store; of another side they are of another model."""

    name, inside = "states", "."

    def build(self, side: int, wait=lambda: None):
        def compute(batch):
            wait()
            return [np.cumsum(tokens)[:, None] * np.arange(1, WIDTH + 1) / 8 + side for tokens in batch]

        how = {"window": 16, "batch_tokens": 50, "model": str(side), "progress": False}
        return states.write_states(self.path, self.store, compute, WIDTH, **how).manifest

    def opened(self):
        return States.open(self.path)


KINDS = pytest.mark.parametrize("kind", [Store, Dense, Hidden], ids=lambda kind: kind.name)


@pytest.fixture
def made(kind):
    with scratch() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(states, "STEP_BYTES", 40 * WIDTH * 2)
        patched.setattr(datastores.build, "CHUNK_TOKENS", 2000)
        yield kind(folder)


def alone(made) -> bool:
    """Whether nothing of a build is left beside what was built."""
    left = [path.name for path in made.folder.rglob("*")]
    return not [
        name
        for name in left
        if name.endswith((files.UNFINISHED, files.ASIDE, files.LOCK)) or name.startswith(files.SCRATCH)
    ]


@KINDS
def test_a_full_disk_leaves_what_was_there_at_every_write(made, monkeypatch):
    left, sound = 10**9, files.write

    def write(file, data):
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= 1
        sound(file, data)

    old = made.build(0)
    monkeypatch.setattr(files, "write", write)
    new = made.build(1)
    writes = 10**9 - left
    assert writes > 10 and new != old
    assert made.build(0) == old
    for count in range(writes):
        left = count
        with pytest.raises(OSError, match="No space left"):
            made.build(1)
        opened = made.opened()
        assert made.manifest() == old
        if made.path.name == "states":  # which go on after their last whole shard
            files.remove(files.beside(made.path, files.UNFINISHED))
        assert alone(made)
    opened.verify()
    left = writes
    assert made.build(1) == new


@KINDS
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("how", [kill, full])
def test_a_kill_or_a_full_disk_at_any_step_leaves_one_of_the_two_whole_and_the_next_build_cleans_up(made, how):
    old = made.build(0)
    steps = stopped(partial(made.build, 1), -1, how)
    new = made.manifest()
    assert steps > 15 and new != old
    tried = random.Random(steps).sample(range(steps), 8)
    for count in tried:
        made.build(0)
        assert made.manifest() == old
        stopped(partial(made.build, 1), count, how)
        found = made.opened()
        assert made.manifest() in (old, new), count
        found.verify()
        made.build(1)
        assert made.manifest() == new and alone(made), count


@KINDS
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_who_opens_while_it_is_built_again_and_again_gets_one_build_whole(made):
    known = [made.build(0), made.build(1)]
    if (pid := os.fork()) == 0:
        tqdm.set_lock(threading.RLock())
        try:
            for number in range(10**9):
                made.build(number % 2)
        finally:
            os._exit(0)
    try:
        end, seen = time.monotonic() + 6, []
        while time.monotonic() < end:
            seen.append(made.manifest())
            assert seen[-1] in known
        assert seen.count(known[0]) and seen.count(known[1])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for side in (0, 1):  # the killed build of states goes on when it is asked for again
        made.build(side)
    assert alone(made)


def test_what_is_opened_and_then_built_again_says_so(tmp_path):
    path = tmp_path / "store"
    store = datastores.build_tokens(path, [[1, 2, 3]], 10, progress=False)
    finish = partial(datastores.build_suffix_array, progress=False)
    datastores.build_tokens(path, [[4, 5, 6]], 10, progress=False, finish=finish)
    for work in (store.verify, partial(SuffixIndex.open, store), partial(datastores.build_suffix_array, store)):
        with pytest.raises(StoreError, match="built again, since|built again since it was opened"):
            work()
    SuffixIndex.open(path).verify()


@KINDS
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_second_builder_is_told_who_builds_and_takes_over_when_that_one_is_dead(made):
    read, write = os.pipe()

    def wait():
        os.write(write, b"x")
        time.sleep(60)

    if (pid := os.fork()) == 0:
        # tqdm's lock is shared with forked processes: killed while holding it, the child would stop the parent for ever.
        tqdm.set_lock(threading.RLock())
        try:
            made.build(0, wait)
        finally:
            os._exit(0)
    try:
        assert select.select([read], [], [], 120)[0], "the first builder has not begun"
        with pytest.raises(StoreBusy, match=f"is being built by another process \\(process {pid}, since 20"):
            made.build(0)
        if isinstance(made, Dense):  # whose store must not be replaced beneath it
            with pytest.raises(StoreBusy):
                datastores.build_tokens(made.store.path, [[1, 2]], 10, progress=False)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)
    made.build(0)
    assert alone(made)


def test_a_file_system_without_locks_is_not_taken_for_another_builder(tmp_path, monkeypatch):
    def refuses(handle, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", refuses)
    with pytest.raises(OSError, match="No locks available .*store.build-lock") as told:
        Store(tmp_path).build(0)
    assert not isinstance(told.value, StoreBusy) and told.value.errno == errno.ENOLCK


def test_a_store_stays_readable_while_and_after_it_is_replaced(tmp_path):
    path = tmp_path / "store"
    old = datastores.build_tokens(path, [[1, 2, 3]], 10, progress=False)

    def finish(folder):
        assert TokenStore.open(path).document(0).tolist() == [1, 2, 3]

    datastores.build_tokens(path, [[4, 5]], 10, progress=False, finish=finish)
    assert old.document(0).tolist() == [1, 2, 3] and TokenStore.open(path).document(0).tolist() == [4, 5]


@KINDS
@pytest.mark.parametrize("target", ["there", "empty", "missing"])
def test_what_lies_behind_a_symbolic_link_is_built_there_and_the_link_stays(made, tmp_path, target):
    large = tmp_path / "large-disk" / "data"
    if target == "there":
        made.build(0)
        shutil.move(made.path, large)
    elif target == "empty":
        large.mkdir(parents=True)
    made.path.symlink_to(large)
    for side in (0, 1):
        manifest = made.build(side)
        made.opened().verify()
        assert made.path.is_symlink() and made.manifest() == manifest and alone(made)
        assert [path.name for path in large.parent.iterdir()] == ["data"]


@KINDS
def test_a_path_means_the_same_from_home_with_a_slash_or_after_a_change_of_folder(made, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(made.path.parent))
    real, manifest = made.path, made.build(0)
    monkeypatch.chdir(real.parent)
    for named in (f"~/{real.name}", f"{real}/", f"{real.parent}/x/../{real.name}", real.name):
        made.path = named
        assert made.manifest() == manifest
    opened = made.opened()
    monkeypatch.chdir(tmp_path)
    opened.verify()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", ["", "~nobody-of-this-name/store"])
def test_what_is_no_path_is_refused(words):
    build = partial(datastores.build_tokens, documents=[[1, 2]], vocabulary=10, progress=False)
    for work in (build, TokenStore.open, DenseIndex.open, States.open, Rest, Dresd, is_sharded):
        with pytest.raises(ValueError, match="is no path .*; give the name of a file or a folder"):
            work(words)


@KINDS
def test_what_is_something_else_or_cannot_be_written_is_refused_before_any_work(made, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / ".hidden").write_text("mine")
    (tmp_path / "file").write_text("mine")
    below = "cannot be written .part of it is a file"
    for place, words in (("notes", "exists and is no"), ("file", "exists and is no"), ("file/below", below)):
        made.path = tmp_path / place
        with pytest.raises(ValueError, match=words):
            made.build(0, lambda: pytest.fail("work began"))
        with pytest.raises(ValueError, match=words):
            build_sharded(made.path, [["some text"]], tokenizer(), progress=False)
    assert (tmp_path / "notes" / ".hidden").read_text() == (tmp_path / "file").read_text() == "mine"


def test_a_store_with_a_dense_index_is_not_replaced(tmp_path):
    index = dense_stores.build(store := dense_stores.random_store(tmp_path))
    with pytest.raises(StoreError, match="store stays: .*dense is of its tokens; remove that"):
        datastores.build_tokens(store.path, pytest.fail, 40, progress=False)
    kept = DenseIndex.open(store.path)
    kept.verify()
    assert kept.manifest == index.manifest and [path.name for path in tmp_path.iterdir()] == ["store"]


def a_stranger(folder):
    (folder / ".git").mkdir(parents=True, exist_ok=True)
    (folder / ".git" / "HEAD").write_text("years of work")


#: What lies where a build puts something, and was not written by the library.
FOREIGN = {
    "a manifest of an app": lambda path: (
        path.mkdir(),
        [
            (path / name).write_text(json.dumps({"name": "app", "manifest_version": 3}))
            for name in ("manifest.json", "dense.json", "states.json", "shards.json")
        ],
    ),
    "a folder in the store": lambda path: a_stranger(path),
    "an unfinished build": lambda path: a_stranger(files.beside(path, files.UNFINISHED)),
    "something set aside": lambda path: a_stranger(files.beside(path, files.ASIDE)),
    "a lock": lambda path: files.beside(path.parent if path.name == "dense" else path, files.LOCK).write_text("years"),
    "a linked unfinished build": lambda path: files.beside(path, files.UNFINISHED).symlink_to(path.parent),
    "another store in it": lambda path: datastores.build_tokens(path / "other", [[1, 2]], 10, progress=False),
    "what only looks like scratch": lambda path: (
        (scratch := path / f"{files.SCRATCH}mine").mkdir(parents=True),
        [(scratch / name).write_text("years of work") for name in (files.IN_USE, "thesis")],
    ),
    "a manifest that lists everything": lambda path: (
        path.mkdir(exist_ok=True),
        (path / "x.json").write_text(json.dumps({"format": "specdec-lib", "files": ["*"], "names": {"th*": 1}})),
        (path / "thesis").write_text("years of work"),
    ),
}


# In a store the manifest is the library's own.
@KINDS
@pytest.mark.parametrize(
    ("name", "there"),
    [(name, there) for name in FOREIGN for there in (False, True) if not (there and name == "a manifest of an app")],
)
def test_what_the_library_did_not_write_stays_and_is_named(made, name, there):
    old = made.build(0) if there else None
    FOREIGN[name](made.path)
    before = {path: path.read_bytes() for path in made.folder.rglob("*") if path.is_file()}
    for _ in range(2):
        with pytest.raises(ValueError, match="move it away|exists and is no"):
            made.build(1)
    assert {path: path.read_bytes() for path in made.folder.rglob("*") if path.is_file()} == before
    if there:
        made.opened().verify()
        assert made.manifest() == old


@KINDS
def test_who_may_read_what_is_built_stays(made):
    made.build(0)
    name = next(path.name for path in made.path.iterdir() if path.suffix == ".npy")
    (made.path / name).chmod(0o600)
    made.path.chmod(0o700)
    made.build(1)
    assert made.path.stat().st_mode & 0o777 == 0o700 and (made.path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_index_that_is_built_again_stays_good_at_every_step(tmp_path):
    class Index(Store):
        def build(self, side, wait=lambda: None):
            return datastores.build_suffix_array(self.path, progress=False).manifest

    Store(tmp_path).build(0)
    made = Index(tmp_path)
    known = made.build(0)
    steps = stopped(partial(made.build, 0), -1, kill)
    for how in (kill, full):
        for count in range(0, steps, 5):
            stopped(partial(made.build, 0), count, how)
            index = made.opened()
            assert index.manifest == known
            index.verify()
    made.build(0)
    assert alone(made)
