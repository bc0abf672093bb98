"""A damaged store is refused or used, whatever is wrong with it; it never ends the process or fails in other words."""

import faulthandler
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specdec_lib import datastores, files
from specdec_lib.__main__ import main
from specdec_lib.datastores import DenseIndex, States, StoreError, SuffixIndex, states
from specdec_lib.datastores.sharded import write_shards
from specdec_lib.drafters import Rest
from tests.datastores.dense_stores import build, random_states
from tests.datastores.stores import propose

VOCABULARY = 40
FILES = (
    "store/manifest.json", "store/tokens.npy", "store/documents.npy", "store/suffix_array.json",
    "store/suffix_array.npy", "store/first.npy", "store/keys.npy", "store/dense/dense.json",
    "store/dense/positions.npy", "store/dense/index.faiss", "states/states.json", "states/states.npy",
    "states/positions.npy", "set/shards.json",
)  # fmt: skip
SWITCHES = (
    {"max_ngram": 64},
    {"max_matches": 7, "choices": 16},
    {"max_matches": 3, "subsample": "uniform"},
    {"selection": "released", "max_matches": 40},
    {"selection": "random"},
)


def damages(sound: Path, name: str, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """``count`` versions of a file of a store, each with words that say what was done to it.

    One bit is flipped, in the header or anywhere; in arrays numbers also change places, which leaves them in range.
    """
    rng, data = random.Random(f"{seed} {name}"), (sound / name).read_bytes()
    kinds = ["bit", "bit", "header", "places"] if name.endswith(".npy") else ["bit"]
    for i in range(count):
        damaged, kind = bytearray(data), kinds[i % len(kinds)]
        if kind == "places":
            array = np.load(sound / name)
            np.random.default_rng(rng.randrange(2**32)).shuffle(array[1:-1])
            yield f"{name}: all numbers in other places", data[:128] + array.tobytes()
            continue
        place, bit = rng.randrange(128 if kind == "header" else len(data)), rng.randrange(8)
        damaged[place] ^= 1 << bit
        yield f"{name}: bit {bit} of byte {place}", bytes(damaged)


def use(path: Path) -> None:
    """Open a store and both of its indexes and draft from them, or read the states."""
    if path.name == "states":
        assert sum(len(rows) for _, rows in States.open(path)) > 0
        return
    if path.name == "set":
        path = datastores.open_suffix_index(path).shards[0].store.path
    index = SuffixIndex.open(path)
    store = index.store
    documents = [store.document(i).tolist() for i in range(len(store))]
    contexts = [[], [0], [1, 2], [VOCABULARY - 1, 0], sum(documents[:4], [])]
    contexts += [document[:i] for document in documents for i in (1, 2, 5)]
    for switches in SWITCHES:
        drafter = Rest(index, min_ngram=1, **switches)
        for tokens in contexts:
            tree = propose(drafter, tokens, VOCABULARY + 1000, 12)
            assert all(0 <= token < store.vocabulary for token in tree.tokens), tree.tokens
    dense = DenseIndex.open(store)
    for position in dense.search(random_states(12, 3), 20)[1].ravel().tolist():
        store.continuation(position, 10)


def outcome(path: Path) -> str:
    """``"used"``, ``"refused"``, or the error that a user would not understand."""
    try:
        use(path)
    except StoreError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "used"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A store of few tokens, with both indexes, in ``store``, its states in ``states``, and itself twice in ``set``."""
    folder, rng = tmp_path_factory.mktemp("damage"), np.random.default_rng(5)
    documents = [rng.integers(0, VOCABULARY, (2, rng.integers(2, 90))).min(0).tolist() for _ in range(20)]
    store = datastores.build_tokens(folder / "store", documents, VOCABULARY, progress=False)
    datastores.build_suffix_array(store, progress=False)
    build(store, factory="IVF4,Flat", nprobe=4)
    zeros = lambda batch: [np.zeros((len(tokens), 3)) for tokens in batch]  # noqa: E731
    states.write_states(folder / "states", store, zeros, 3, progress=False)
    for number in range(2):
        shutil.copytree(store.path, folder / "set" / f"shard-{number:05d}")
    write_shards(folder / "set", 2)
    assert [outcome(folder / kind) for kind in OPEN] == ["used"] * 3
    return folder


def ended(path) -> str:
    """The outcome in a process of its own, for one that is killed has none."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        try:
            os.write(write, outcome(path).encode()[:4000])
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
@pytest.mark.parametrize("name", FILES)
def test_a_store_with_one_damage_is_refused_or_used(sound, tmp_path, name, seed):
    copy, outcomes = shutil.copytree(sound, tmp_path / "copy"), Counter()
    for words, data in damages(sound, name, 12, seed):
        (copy / name).write_bytes(data)
        result = ended(copy / name.partition("/")[0])
        assert result in ("used", "refused"), f"{words}: {result}"
        outcomes[result] += 1
    assert outcomes["refused"], outcomes


def put(place, value):
    """A number of an array changes; its file keeps its size."""

    def change(path):
        array = np.load(path)
        array[place] = value
        np.save(path, array)

    return change


def field(forged=False, **changes):
    """Fields of a manifest change; with its checksum made again, where ``forged``."""

    def change(path):
        about = json.loads(path.read_text()) | changes
        if forged:
            del about["sha256"]
            about["sha256"] = files._own_sum(about)
        path.write_text(json.dumps(about))

    return change


def replaced(folder):
    """Another store takes the place of one."""
    shutil.rmtree(folder)
    datastores.build_tokens(folder, [[7, 8]], VOCABULARY, progress=False)


def rewritten(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


TRUNCATED = rewritten(lambda data: data[:-2])
ZEROS = rewritten(lambda data: b"\0" * len(data))
FLIPPED = rewritten(lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
GONE = os.remove
MANIFESTS = [name for name in FILES if name.endswith(".json")]
ARRAYS = [name for name in FILES if not name.endswith(".json")]

#: File, what is done to it, and the words of the refusal; None where only ``verify`` sees it.
DAMAGE = [
    *((name, field(version=9), "has version 9, this library reads 2") for name in MANIFESTS),
    *((name, field(about=1), "was altered after it was built .its sha256 differs") for name in MANIFESTS),
    *((name, field(sha256=None), "was altered after it was built") for name in MANIFESTS),
    *((name, TRUNCATED, "missing or damaged|has no|holds no|is no store") for name in MANIFESTS),
    *((name, GONE, "missing or damaged|has no|holds no|is no store") for name in MANIFESTS),
    *((name, TRUNCATED, "has .* bytes, not") for name in ARRAYS),
    *((name, GONE, "is missing: the datastore is damaged") for name in ARRAYS),
    *((name, ZEROS, "cannot be read|was altered after it was built") for name in ARRAYS),
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
    ("store/dense/index.faiss", FLIPPED, "index.faiss was altered after it was built"),
    ("store/manifest.json", field(tokens=6, forged=True), "not uint16 of"),
    ("store/suffix_array.json", field(tokens_sha256="0", forged=True), "belongs to other tokens"),
    ("store/dense/dense.json", field(tokens_sha256="0", forged=True), "belongs to other tokens"),
    ("store/dense/dense.json", field(width=3, forged=True), "of shape .12,., not float64 of .3,"),
    *(
        (name, field(files=wrong, forged=True), "does not say which size and sha256")
        for name in MANIFESTS
        for wrong in (None, [], {"../x": {"bytes": 1, "sha256": "0"}}, {"tokens.npy": 3})
    ),
    *(
        (name, field(**{key: wrong}, forged=True), f"as its {key}, which cannot be")
        for name, key, values in (
            ("store/manifest.json", "vocabulary", ("10", None, 10.0, -1, 2**70, True)),
            ("store/manifest.json", "documents", (None, -2, [])),
            ("store/manifest.json", "sources", ("x", [3])),
            ("store/manifest.json", "tokenizer", (3,)),
            ("store/suffix_array.json", "entries", ("3", -1, 2.0)),
            ("store/dense/dense.json", "rows", ("3", None, 2**70)),
            ("store/dense/dense.json", "factory", (None,)),
            ("states/states.json", "dtype", ("object", None, 3)),
            ("set/shards.json", "shards", ({}, [], [3], [{"name": "../store", "tokens": 1, "documents": 1}])),
        )
        for wrong in values
    ),
    ("states/states.npy", FLIPPED, None),
    ("set/shard-00000/manifest.json", GONE, "shard-00000 is no datastore"),
    ("set/shard-00001", shutil.rmtree, "no datastore at .*shard-00001"),
    ("set/shard-00001", replaced, "shard-00001 is not the store that .*shards.json names"),
    ("set/shard-00000/tokens.npy", put(5, 41), "holds the token 41"),
    ("set/shard-00000/keys.npy", FLIPPED, None),
]


OPEN = {"store": (SuffixIndex.open, DenseIndex.open), "states": (States.open,), "set": (datastores.open_suffix_index,)}


@pytest.mark.parametrize("name, change, words", DAMAGE)
def test_each_damage_is_refused_in_one_sentence(sound, tmp_path, capsys, name, change, words):
    copy = shutil.copytree(sound, tmp_path / "copy")
    change(copy / name)
    kind = name.partition("/")[0]
    if words is None and kind == "store":
        use(copy / "store")
    with pytest.raises(StoreError, match=words or "was altered after it was built"):
        parts = [each(copy / kind) for each in OPEN[kind]]
        assert words is None
        for part in parts:
            for one in getattr(part, "shards", [part]):
                one.verify()
    if kind != "states" and not (change is GONE and name.endswith("suffix_array.json")):
        assert main(["datastore", "verify", str(copy / kind)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1


def test_an_index_that_names_rows_it_does_not_have_is_refused_when_it_is_searched(sound, tmp_path):
    copy = shutil.copytree(sound / "store", tmp_path / "copy")
    index, data = DenseIndex.open(copy), bytearray((copy / "dense/index.faiss").read_bytes())
    query = random_states(1, 3)
    row = int(index.index.search(query, 1)[1][0, 0])
    place = data.rindex(row.to_bytes(8, "little"))  # the ids of the lists
    data[place : place + 8] = (10**6).to_bytes(8, "little")
    (copy / "dense/index.faiss").write_bytes(data)
    field(forged=True, files=index.manifest["files"] | {"index.faiss": files.describe(copy / "dense/index.faiss")})(
        copy / "dense/dense.json"
    )
    with pytest.raises(StoreError, match="index.faiss holds the row 1000000; expected 0 to"):
        for seed in range(50):
            DenseIndex.open(copy).search(random_states(8, seed), 200)
