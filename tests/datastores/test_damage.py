"""A damaged store is refused or used, whatever is wrong with it; it never ends the process or fails in other words."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
from collections import Counter

import numpy as np
import pytest

from specdec_lib import datastores
from specdec_lib.__main__ import main
from specdec_lib.datastores import DenseIndex, States, StoreError, SuffixIndex, TokenStore, states, store_files
from specdec_lib.datastores.sharded import write_shards
from tests.datastores import corruption


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A store with both indexes in ``store``, its states in ``states``, and itself as a shard in ``set``."""
    folder = tmp_path_factory.mktemp("damage")
    path = corruption.make(folder)
    assert corruption.outcome(path) == "used"
    store = TokenStore.open(path)
    states.write_states(
        folder / "states", store, lambda batch: [np.zeros((len(t), 3)) for t in batch], 3, progress=False
    )
    shutil.copytree(path, folder / "set" / "shard-00000")
    write_shards(folder / "set", 1)
    return folder


def ended(path) -> str:
    """The outcome in a process of its own, for one that is killed has none."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        try:
            os.write(write, corruption.outcome(path).encode()[:4000])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        result = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    return f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else result


@pytest.mark.core_cases(4)
@pytest.mark.draws
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", corruption.FILES)
def test_a_store_with_one_damage_is_refused_or_used(sound, tmp_path, name, seed):
    copy, outcomes = shutil.copytree(sound / "store", tmp_path / "copy"), Counter()
    for words, data in corruption.damages(sound / "store", name, 12, seed):
        (copy / name).write_bytes(data)
        result = ended(copy)
        assert result in ("used", "refused"), f"{words}: {result}"
        outcomes[result] += 1
    assert outcomes["refused"] or name == "dense/index.faiss", outcomes  # most of it are the keys' own bits


def put(place, value):
    """A number of an array changes; its file keeps its size."""

    def change(path):
        array = np.load(path)
        array[place] = value
        np.save(path, array)

    return change


def field(**changes):
    """Fields of a manifest change; with its checksum made again, where ``forged``."""

    def change(path):
        forged = changes.pop("forged", False)
        about = json.loads(path.read_text()) | changes
        if forged:
            del about["sha256"]
            about["sha256"] = store_files._own_sum(about)
        path.write_text(json.dumps(about))

    return change


def rewritten(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


TRUNCATED = rewritten(lambda data: data[:-2])
ZEROS = rewritten(lambda data: b"\0" * len(data))
FLIPPED = rewritten(lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
GONE = os.remove
MANIFESTS = [f"store/{name}" for name in corruption.FILES if name.endswith(".json")]
MANIFESTS += ["states/states.json", "set/shards.json"]
ARRAYS = [name for name in corruption.FILES if not name.endswith(".json")]

#: File, what is done to it, and the words of the refusal; None where only ``verify`` sees it.
DAMAGE = [
    *((name, field(version=9), "has version 9, this library reads 2") for name in MANIFESTS),
    *((name, field(about=1), "was altered after it was built .its sha256 differs") for name in MANIFESTS),
    *((name, field(sha256=None), "was altered after it was built") for name in MANIFESTS),
    *((name, TRUNCATED, "missing or damaged|has no|holds no|is no store") for name in MANIFESTS),
    *((name, GONE, "missing or damaged|has no|holds no|is no store") for name in MANIFESTS),
    *((f"store/{name}", TRUNCATED, "has .* bytes, not") for name in ARRAYS),
    *((f"store/{name}", GONE, "is missing: the datastore is damaged") for name in ARRAYS),
    *((f"store/{name}", ZEROS, "cannot be read") for name in ARRAYS),
    ("store/tokens.npy", put(5, 41), "holds the token 41; expected 0 to 40"),
    ("store/tokens.npy", put(-1, 3), "does not begin and end with a separator"),
    ("store/tokens.npy", put(5, 40), None),  # a separator within a document: shorter continuations, nothing worse
    ("store/documents.npy", put(0, 2), "does not say where documents start"),
    ("store/documents.npy", put(3, 10**15), "holds the start 1000000000000000; expected 1 to"),
    ("store/documents.npy", put(3, 7), "does not say where documents start"),
    ("store/suffix_array.npy", put(4, 0), "holds the position 0; expected 1 to"),
    ("store/suffix_array.npy", put(4, -5), "holds the position -5"),
    ("store/first.npy", put(5, 10**9), "holds the entry 1000000000; expected 0 to"),
    ("store/first.npy", put(5, 0), "first.npy does not rise from 0 to"),
    ("store/first.npy", put(-1, 3), "first.npy does not rise"),
    ("store/keys.npy", FLIPPED, None),
    ("store/dense/positions.npy", put(2, 10**6), "holds the position 1000000; expected 1 to"),
    ("store/dense/positions.npy", put(2, -1), "holds the position -1; expected 1 to"),
    ("store/dense/index.faiss", FLIPPED, None),
    ("store/manifest.json", field(tokens=6, forged=True), "not uint16 of"),
    ("store/suffix_array.json", field(tokens_sha256="0", forged=True), "belongs to other tokens"),
    ("store/dense/dense.json", field(tokens_sha256="0", forged=True), "belongs to other tokens"),
    ("store/dense/dense.json", field(width=3, forged=True), "of width 12, not .* of 3"),
    ("states/states.npy", FLIPPED, None),
    ("states/states.npy", TRUNCATED, "has .* bytes, not"),
    ("states/positions.npy", GONE, "is missing: the datastore is damaged"),
    ("set/shard-00000/manifest.json", GONE, "shard-00000 is no datastore"),
    ("set/shard-00000/tokens.npy", put(5, 41), "holds the token 41"),
    ("set/shard-00000/keys.npy", FLIPPED, None),
]


def opened(folder, kind):
    if kind == "store":
        return [SuffixIndex.open(folder / "store"), DenseIndex.open(folder / "store")]
    if kind == "states":
        return [States.open(folder / "states")]
    return [datastores.open_suffix_index(folder / "set")]


@pytest.mark.parametrize("name, change, words", DAMAGE, ids=lambda value: value if isinstance(value, str) else "")
def test_each_damage_is_refused_in_one_sentence(sound, tmp_path, capsys, name, change, words):
    copy = shutil.copytree(sound, tmp_path / "copy")
    change(copy / name)
    kind = name.partition("/")[0]
    if words is None:
        for part in opened(copy, kind):
            if hasattr(part, "search"):
                corruption.use(copy / "store")
        with pytest.raises(StoreError, match="was altered after it was built"):
            for part in opened(copy, kind):
                for one in getattr(part, "shards", [part]):
                    one.verify()
    else:
        with pytest.raises(StoreError, match=words):
            opened(copy, kind)
    if kind != "states" and not (change is GONE and name.endswith("suffix_array.json")):
        assert main(["datastore", "verify", str(copy / kind)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1


def test_an_index_that_names_rows_it_does_not_have_is_refused_when_it_is_searched(sound, tmp_path):
    copy = shutil.copytree(sound / "store", tmp_path / "copy")
    index, data = DenseIndex.open(copy), bytearray((copy / "dense/index.faiss").read_bytes())
    query = corruption.random_states(1, 3)
    row = int(index.index.search(query, 1)[1][0, 0])
    place = data.rindex(row.to_bytes(8, "little"))  # the ids of the lists
    data[place : place + 8] = (10**6).to_bytes(8, "little")
    (copy / "dense/index.faiss").write_bytes(data)
    with pytest.raises(StoreError, match="index.faiss holds the row 1000000; expected 0 to"):
        for seed in range(50):
            DenseIndex.open(copy).search(corruption.random_states(8, seed), 200)
