"""A damaged store is refused or used, whatever bit it is; it never ends the process or fails in other words."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from specdec_lib import datastores
from specdec_lib.__main__ import main
from specdec_lib.datastores import DenseIndex, States, StoreError, SuffixIndex, TokenStore, states, store_files
from specdec_lib.datastores.suffix_array import _shared, longest_suffix
from specdec_lib.paths import PACKAGE
from tests.datastores import corruption
from tests.datastores.stores import scratch


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = corruption.make(tmp_path_factory.mktemp("corruption"))
    assert corruption.outcome(path) == "used"
    return path


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
    copy, outcomes = shutil.copytree(sound, tmp_path / "copy"), Counter()
    for words, data in corruption.damages(sound, name, 12, seed):
        (copy / name).write_bytes(data)
        result = ended(copy)
        assert result in ("used", "refused"), f"{words}: {result}"
        outcomes[result] += 1
    assert outcomes["refused"] or name == "dense/index.faiss", outcomes  # most of it are the keys' own bits


@pytest.mark.draws
@pytest.mark.slow  # compiles all loops with checks: a minute
def test_no_compiled_loop_leaves_its_arrays_whatever_is_damaged(tmp_path, seed):
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.datastores.corruption", str(seed), "200"],
        cwd=PACKAGE.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_search_of_entries_in_any_order_stays_in_its_range_and_reads_nothing_before_the_first_token():
    rng, run = np.random.default_rng(0), 8
    tokens = np.array([2, *[1] * run, 2, 0, *[1] * run, 2], np.uint16)
    context = np.ones(40, np.int64)
    for _ in range(500):
        suffixes = rng.integers(1, len(tokens) - 1, int(rng.integers(1, 30))).astype(np.int32)
        first = np.array([0, rng.integers(0, len(suffixes) + 1), len(suffixes)])
        length, start, stop, _ = longest_suffix(tokens, suffixes, first, np.zeros(1, np.uint64), context, 40, 40)
        if first[1] == first[2]:
            assert (length, start, stop) == (0, 0, 0)
        else:
            assert first[1] <= start < stop <= first[2] and length >= 1
    # In any other order than that of the entries, one near the beginning seems to share what its neighbours do. An
    # index before 0 counts from the end of the array, where there are ones again.
    for position in range(1, run):
        assert _shared(tokens, position, context, 39, position + 2, 40) == position + 2


GONE = object()


def damaged(path, message, **changes):
    """Each change of a manifest, which may take a field out, is refused with these words."""
    about = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in (about | changes).items() if value is not GONE}))
    with pytest.raises(StoreError, match=message):
        if "states" in path.name:
            States.open(path.parent)
        else:
            use_of = path.parent.parent if path.parent.name == "dense" else path.parent
            SuffixIndex.open(use_of)
            DenseIndex.open(use_of, device="cpu")
    status = None if "states" in path.name else main(["datastore", "info", str(use_of)])
    path.write_text(json.dumps(about))
    return status


@pytest.mark.parametrize(
    "name, message, changes",
    [
        ("manifest.json", "has no field 'vocabulary'; expected a whole number, 1 or more", {"vocabulary": GONE}),
        ("manifest.json", "has 'tokens': 'x'; expected a whole number, 1 or more", {"tokens": "x"}),
        ("manifest.json", "has 'documents': True; expected a whole number", {"documents": True}),
        ("manifest.json", r"has 'files': \[1\]; expected sizes and checksums by file", {"files": [1]}),
        ("manifest.json", r"does not list the file tokens.npy", {"files": {}}),
        ("manifest.json", r"has 'files': .*; expected sizes", {"files": {"tokens.npy": {"bytes": "1", "sha256": ""}}}),
        ("manifest.json", "has no field 'sources'; expected a list of objects", {"sources": GONE}),
        ("manifest.json", "vocabulary is 4294967295; expected the number of token ids", {"vocabulary": 2**32 - 1}),
        ("manifest.json", "version None of the format", {"version": GONE}),
        ("suffix_array.json", "has no field 'entries'", {"entries": GONE}),
        ("suffix_array.json", "has 'entries': -1; expected", {"entries": -1}),
        ("suffix_array.json", "does not list the file suffix_array.npy", {"files": {}}),
        ("suffix_array.json", "has no field 'tokens_sha256'", {"tokens_sha256": GONE}),
        ("dense/dense.json", "has no field 'rows'", {"rows": GONE}),
        ("dense/dense.json", "has 'width': 1.5; expected", {"width": 1.5}),
        ("dense/dense.json", "does not list the file index.faiss", {"files": {}}),
    ],
)
def test_a_damaged_manifest_is_refused_in_one_sentence(sound, tmp_path, capsys, name, message, changes):
    copy = shutil.copytree(sound, tmp_path / "copy")
    assert damaged(copy / name, message, **changes) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    SuffixIndex.open(copy)


@pytest.mark.parametrize(
    "message, changes",
    [
        ("has no field 'shards'", {"shards": GONE}),
        ("has 'shards': 'x'", {"shards": "x"}),
        ("says 5 states as 'float16' in shards of ", {"states": 5}),
        ("as 'int8' in shards", {"dtype": "int8"}),
        ("does not list the file positions.npy", {"files": {}}),
    ],
)
def test_a_damaged_manifest_of_states_is_refused(message, changes):
    with scratch() as folder:
        store = TokenStore.open(corruption.make(folder))
        made = states.write_states(
            folder / "states", store, lambda batch: [np.zeros((len(t), 3)) for t in batch], 3, progress=False
        )
        damaged(made.path / states.MANIFEST, message, **changes)


@pytest.mark.filterwarnings("ignore:Data type alias:DeprecationWarning")
def test_every_flip_of_a_bit_in_the_header_of_an_array_is_refused_or_changes_nothing(sound, tmp_path):
    path, data = tmp_path / "a.npy", (sound / "documents.npy").read_bytes()
    array = np.load(sound / "documents.npy")
    for place in range(store_files.NPY_HEADER):
        for bit in range(8):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            try:
                opened = store_files.open_array(path, array.dtype, *array.shape)
            except StoreError as error:
                assert "\n" not in str(error)
            else:
                assert np.array_equal(opened, array)


@pytest.mark.parametrize(
    "name, place, value, message",
    [
        ("tokens.npy", 5, 41, "holds the token 41; expected 0 to 40"),
        ("tokens.npy", 5, 40, None),  # a separator within a document: shorter continuations, nothing worse
        ("documents.npy", 0, 2, "does not say where documents start"),
        ("documents.npy", 3, 10**15, "holds the start 1000000000000000; expected 1 to"),
        ("documents.npy", 3, 7, "does not say where documents start"),
        ("suffix_array.npy", 4, 0, "holds the position 0; expected 1 to"),
        ("suffix_array.npy", 4, -5, "holds the position -5"),
        ("first.npy", 5, 10**9, "holds the entry 1000000000; expected 0 to"),
        ("first.npy", 5, 0, "first.npy does not rise from 0 to the number of entries"),
        ("first.npy", -1, 3, "first.npy does not rise"),
        ("dense/positions.npy", 2, 10**6, "holds the position 1000000; expected 1 to"),
        ("dense/positions.npy", 2, -1, "holds the position -1; expected 1 to"),
    ],
)
def test_numbers_out_of_range_are_refused_when_a_store_is_opened(sound, tmp_path, name, place, value, message):
    copy = shutil.copytree(sound, tmp_path / "copy")
    array = np.load(copy / name)
    array[place] = value
    np.save(copy / name, array)
    if message is None:
        corruption.use(copy)
        with pytest.raises(StoreError, match="was altered after it was built"):
            TokenStore.open(copy).verify()
    else:
        with pytest.raises(StoreError, match=message):
            SuffixIndex.open(copy)
            DenseIndex.open(copy, device="cpu")


def test_an_index_that_names_rows_it_does_not_have_is_refused_when_it_is_searched(sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "copy")
    index, data = DenseIndex.open(sound, device="cpu"), bytearray((copy / "dense/index.faiss").read_bytes())
    query = corruption.random_states(1, 3)
    row = int(index.search_rows(query, 1)[1][0, 0])
    place = data.rindex(row.to_bytes(8, "little"))  # the ids of the lists
    data[place : place + 8] = (10**6).to_bytes(8, "little")
    (copy / "dense/index.faiss").write_bytes(data)
    with pytest.raises(StoreError, match="index.faiss holds the row 1000000; expected 0 to"):
        for seed in range(50):
            DenseIndex.open(copy, device="cpu").search(corruption.random_states(8, seed), 200)


def test_half_of_a_surrogate_pair_and_a_huge_vocabulary_are_refused_before_any_work(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "def f(x): return x"}\n{"text": "a half \\ud83d of it"}\n')
    assert main(["datastore", "build", str(tmp_path / "s"), "--jsonl", str(tmp_path / "a.jsonl")]) == 2
    assert (
        "begins with 'a half \\ud83d of it' has half of a surrogate pair as its character 8" in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match="vocabulary is 4294967295; expected the number of token ids, 1 to 16777216"):
        datastores.build_tokens(tmp_path / "s", [[1, 2]], 2**32 - 1, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
