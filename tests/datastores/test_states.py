"""Hidden states on disk: which are kept, round trips, and what goes on after an interruption."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib import datastores
from specdec_lib.datastores import States, StoreError, TokenStore, states
from tests.datastores.dense_stores import random_store
from tests.datastores.stores import scratch

WIDTH = 6


@pytest.fixture
def store():
    with scratch() as folder:
        yield random_store(folder, 30)


def running_sums(batch):
    """A stand-in for a model: the state of a token is of all tokens of its window up to it."""
    return [np.cumsum(tokens)[:, None] * np.arange(1, WIDTH + 1) / 8 for tokens in batch]


def write(store: TokenStore, compute=running_sums, name: str = "states", **options) -> States:
    options = {"dtype": "float32", "window": 16, "batch_tokens": 50, "progress": False, **options}
    return states.write_states(store.path.with_name(name), store, compute, WIDTH, **options)


def everything(found: States) -> tuple[np.ndarray, np.ndarray]:
    parts = list(found)
    return np.concatenate([p for p, _ in parts]), np.concatenate([s for _, s in parts])


def expected(store: TokenStore, window: int, overlap: int, cover: str, most: int | None):
    """Position after each kept state and the state, one token at a time."""
    rows = []
    for i in range(len(store)):
        tokens = store.document(i).astype(np.int64)
        starts = [0]
        while cover == "windows" and starts[-1] + window < len(tokens) - 1:
            starts.append(starts[-1] + window - overlap)
        for place in range(len(tokens) - 1):
            # The first window that holds it: it was kept there.
            start = next((s for s in starts if s <= place < s + window), None)
            if start is not None:
                rows.append((store.starts[i] + place + 1, tokens[start : place + 1].sum()))
    rows = rows[:most]
    sums = np.array([s for _, s in rows])
    return np.array([p for p, _ in rows]), sums[:, None] * np.arange(1, WIDTH + 1) / 8


@given(
    st.integers(1, 70),
    st.integers(0, 69),
    st.sampled_from(("truncate", "windows")),
    st.none() | st.integers(1, 900),
    st.integers(1, 300),
    st.sampled_from([24, 500, 10**6]),
)
@settings(max_examples=60)
def test_each_kept_state_is_that_of_its_window_and_stored_once_in_order(window, overlap, cover, most, batch, shard):
    overlap %= window
    with scratch() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(states, "STEP_BYTES", shard)
        store = random_store(folder, 8, window)
        found = write(store, window=window, overlap=overlap, cover=cover, max_states=most, batch_tokens=batch)
        positions, values = everything(found)
        wanted, sums = expected(store, window, overlap, cover, most)
        assert positions.tolist() == wanted.tolist()
        np.testing.assert_allclose(values, sums)
        assert len(found) == len(wanted) and found.width == WIDTH
        found.verify()


def test_half_precision_is_rounded(store):
    found = write(store, dtype="float16")
    np.testing.assert_allclose(everything(found)[1], everything(write(store, name="b"))[1], rtol=1e-3)


def with_column(value):
    """Sums of which the third column holds what cannot be stored."""
    return lambda batch: [np.where(np.arange(WIDTH) == 2, value, sums) for sums in running_sums(batch)]


REFUSED = [
    ({"window": 0}, "window is 0"),
    ({"max_states": 0}, "max_states is 0"),
    ({"batch_tokens": -1}, "batch_tokens is -1"),
    ({"cover": "all"}, "expected one of truncate, windows"),
    ({"dtype": "int8"}, "expected one of float16, float32"),
    ({"cover": "windows", "overlap": 16}, "overlap is 16; .* below the window, 16"),
    ({"cover": "windows", "overlap": -1}, "overlap is -1"),
    *(
        ({"compute": with_column(value), "dtype": "float16"}, f"positions .* as float16: .* {words} in column 2")
        for value, words in ((1e6, "inf"), (np.nan, "nan"), (-np.inf, "-inf"))
    ),
    ({"compute": lambda batch: [np.zeros((len(t), 5)) for t in batch]}, "expected rows of width 6"),
]


@pytest.mark.parametrize("options, words", REFUSED)
def test_what_cannot_be_stored_is_refused_and_leaves_nothing(store, options, words):
    with pytest.raises(ValueError, match=words):
        write(store, **options)
    assert [p.name for p in store.path.parent.iterdir()] == ["store"]


def test_an_interrupted_run_keeps_its_shards_and_another_one_starts_anew(store, monkeypatch):
    monkeypatch.setattr(states, "STEP_BYTES", 100 * WIDTH * 4)
    whole = write(store, name="whole", window=64)
    assert len(whole) > 400
    for change in ({}, {"window": 17}, {"model": "another"}, {"max_states": 500}):
        calls, most = [], 400

        def counts(batch):
            if sum(calls) >= most:
                raise KeyboardInterrupt
            calls.append(sum(map(len, batch)))
            return running_sums(batch)

        with pytest.raises(KeyboardInterrupt):
            write(store, counts, window=64)
        with pytest.raises(StoreError, match="holds no hidden states"):
            States.open(store.path.with_name("states"))
        calls, most = [], 10**9
        found = write(store, counts, **{"window": 64, **change})
        if not change:
            assert found.manifest == whole.manifest and sum(calls) < len(whole) - 250
        else:
            assert sum(calls) == len(found)
        shutil.rmtree(found.path)


def test_states_that_are_there_are_not_made_again_unless_they_were_damaged(store, tmp_path):
    found = write(store)
    assert write(store, lambda batch: pytest.fail("made again")).manifest == found.manifest
    shard = found.path / "states.npy"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\7")
    write(store).verify()
    other = datastores.build_tokens(tmp_path / "other", [[1, 2, 3]], 40, progress=False)
    with pytest.raises(StoreError, match="holds states of other tokens than"):
        States.open(found.path, other)
