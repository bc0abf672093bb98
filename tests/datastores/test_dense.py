"""The dense index against brute force, plain FAISS and other implementations."""

import sys

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib import datastores
from specdec_lib.datastores import ArrayStates, DenseIndex, StoreError, dense, reduction
from specdec_lib.datastores.exact_search import ExactIndex
from specdec_lib.datastores.faiss_index import set_effort
from specdec_lib.datastores.reduction import Moments, fit
from tests.datastores.dense_stores import WIDTH, build, random_states, random_store, source
from tests.datastores.stores import scratch

SWITCHES = [(zscore, normalise) for zscore in (True, False) for normalise in (True, False)]


@pytest.fixture
def store():
    with scratch() as folder:
        yield random_store(folder)


def plain_keys(states: np.ndarray, dims: int, zscore: bool, normalise: bool) -> np.ndarray:
    """The three steps one after the other, components by singular values."""
    states = states.astype(np.float64)
    centred = states - states.mean(0)
    if zscore:
        centred /= np.sqrt(states.var(0) + reduction.EPSILON)
    keys = centred @ np.linalg.svd(centred, full_matrices=False)[2][:dims].T
    return keys / np.linalg.norm(keys, axis=1, keepdims=True) if normalise else keys


@pytest.mark.parametrize("zscore, normalise", SWITCHES)
@pytest.mark.parametrize("dims", [1, 4, WIDTH])
def test_keys_are_those_of_the_three_steps_by_singular_values(zscore, normalise, dims):
    states = random_states(300)
    reduced = fit(Moments(states), dims, zscore=zscore, normalise=normalise)
    ours, theirs = reduced.apply(states), plain_keys(states, dims, zscore, normalise)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), rtol=2e-3, atol=2e-4 * np.abs(theirs).max())
    largest = (theirs**2).sum(1).max()
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, rtol=1e-3, atol=1e-4 * largest)
    scaled = (states - states.mean(0)) / (np.sqrt(states.var(0) + reduction.EPSILON) if zscore else 1)
    values = np.linalg.svd(scaled, compute_uv=False) ** 2
    np.testing.assert_allclose(reduced.explained, values / values.sum(), rtol=1e-3, atol=1e-6)


@given(st.lists(st.integers(1, 80), min_size=1, max_size=6), st.integers(0, 9))
@settings(max_examples=40)
def test_moments_of_parts_are_those_of_the_whole(sizes, seed):
    states = random_states(sum(sizes), seed) + 100
    moments = Moments(*np.split(states, np.cumsum(sizes)[:-1]))
    wide = states.astype(np.float64)
    np.testing.assert_allclose(moments.mean, wide.mean(0), rtol=1e-6)
    np.testing.assert_allclose(moments.covariance(), np.cov(wide.T, bias=True), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("zscore, normalise", SWITCHES)
def test_search_finds_what_brute_force_finds(store, zscore, normalise):
    states, queries = source(store), random_states(50, seed=7)
    reduced = fit(Moments(states.states), 5, zscore=zscore, normalise=normalise)
    expected = reduced.apply(queries) @ reduced.apply(states.states).T
    scores, positions = build(store, states, zscore=zscore, normalise=normalise).search(queries, 9)
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :9], rtol=1e-4, atol=1e-5)
    found = np.take_along_axis(expected, np.searchsorted(states.positions, positions), 1)
    np.testing.assert_allclose(found, scores, rtol=1e-4, atol=1e-5)
    assert all(len(set(line)) == 9 for line in positions.tolist())


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "HNSW8", "IVF4,PQ5x4"])
@pytest.mark.parametrize("normalise", [True, False])
def test_any_program_with_faiss_finds_the_same_neighbours_from_raw_states(store, factory, normalise):
    index = build(store, factory=factory, normalise=normalise)
    plain = faiss.read_index(str(index.path / "index.faiss"))
    assert (plain.d, plain.ntotal, plain.metric_type) == (WIDTH, len(index), faiss.METRIC_INNER_PRODUCT)
    queries = random_states(20, seed=3)
    scores, rows = plain.search(queries, 6)
    np.testing.assert_array_equal(index.search(queries, 6)[0], scores)
    positions = np.load(index.path / "positions.npy", allow_pickle=False)
    np.testing.assert_array_equal(index.search(queries, 6)[1], np.where(rows < 0, -1, positions[rows]))


@pytest.mark.parametrize(
    "factory", ["SQ8", "IVF4,SQ8,RFlat", "L2norm,Flat", "PCA4,Flat", "IVF4,RaBitQ", "HNSW8,SQ8", "RQ2x4", "PQ5x4fs"]
)
def test_what_is_taken_of_faiss_gives_the_largest_inner_products_first(store, factory):
    queries, exact = random_states(30, seed=5), build(store)
    best = exact.search(queries, 40)[1]
    scores, found = build(store, path=store.path / "dense-other", factory=factory).search(queries, 5)
    assert (np.diff(scores) <= 1e-6).all() and len(found) == 30
    assert np.mean([len(set(one) & set(of)) / 5 for one, of in zip(found, best, strict=True)]) > 0.4, (
        "chance is a tenth"
    )


def test_approximate_search_is_exact_when_everything_is_searched_and_keeps_its_effort_in_the_file(store):
    queries, flat = random_states(30, seed=5), build(store)
    exact = flat.search(queries, 5)
    for factory, given, effort in (
        ("IVF8,Flat", {"nprobe": 3}, {"nprobe": 8}),
        ("HNSW8", {"ef_search": 11}, {"ef_search": len(flat)}),
    ):
        index = build(store, path=store.path / factory.replace(",", "-"), factory=factory, **given)
        plain = faiss.read_index(str(index.path / "index.faiss"))
        inner = faiss.downcast_index(plain.index)
        assert 3 == inner.nprobe if "nprobe" in given else inner.hnsw.efSearch == 11
        set_effort(index.index, **effort)
        scores, positions = index.search(queries, 5)
        np.testing.assert_allclose(scores, exact[0], rtol=1e-5, atol=1e-6)
        assert (positions == exact[1]).mean() > 0.99
    index = build(store, path=store.path / "pq", factory="IVF4,PQ5x4", nprobe=4)
    assert (index.search(queries, 10)[1][:, :, None] == exact[1][:, None, :1]).any(1).mean() > 0.5
    assert index.manifest["factory"] == "IVF4,PQ5x4" and index.bytes_per_state < flat.bytes_per_state


def test_a_sample_is_spread_evenly_and_decides_the_reduction(store):
    states = source(store)
    rows = np.concatenate([s[:, 0] for s in dense._sampled(states, 100)])
    picked = np.flatnonzero(np.isin(states.states[:, 0], rows))
    assert len(rows) == 100 and set(np.diff(picked)) <= {len(states) // 100, len(states) // 100 + 1}
    index = build(store, states, sample=100)
    expected = fit(Moments(states.states[picked]), 5)
    np.testing.assert_allclose(index.explained_variance, expected.explained, rtol=1e-5, atol=1e-9)
    keys = faiss.downcast_index(index.index.index).reconstruct_n(0, len(index))
    np.testing.assert_allclose(keys, expected.apply(states.states), rtol=1e-4, atol=1e-5)
    assert index.manifest["sample"] == 100


def test_a_build_makes_the_same_files_each_time_and_opens_as_it_was_built(store):
    first = build(store, factory="IVF8,Flat", nprobe=4)
    again = build(store, factory="IVF8,Flat", nprobe=4)
    assert first.manifest == again.manifest
    opened = DenseIndex.open(store.path)
    opened.verify()
    assert opened.manifest == first.manifest
    queries = random_states(5, seed=2)
    np.testing.assert_array_equal(opened.search(queries, 3), first.search(torch.from_numpy(queries), 3))
    np.testing.assert_array_equal(opened.search(queries[0], 3)[1], opened.search(queries, 3)[1][:1])
    assert sorted(p.name for p in store.path.iterdir() if p.name.startswith("dense")) == ["dense"]
    about = {"dims": 5, "width": WIDTH, "factory": "IVF8,Flat", "zscore": True, "normalise": True, "model": "a model"}
    assert about.items() <= opened.manifest.items()


def test_fewer_rows_than_neighbours_are_filled_with_none(store):
    states = source(store)
    few = ArrayStates(states.positions[:3], states.states[:3])
    index = build(store, few, dims=2)
    for each in (index, ExactIndex(few, store, 2)):
        scores, positions = each.search(states.states[:2], 5)
        assert set(positions[0, :3]) == set(few.positions) and positions[0, 3:].tolist() == [-1, -1]
    assert np.isneginf(scores[:, 3:]).all()


def test_the_exact_search_by_torch_finds_what_faiss_finds(store):
    states = source(store)
    flat, exact = build(store, states), ExactIndex(states, store, 5)
    assert (len(exact), exact.width) == (len(flat), flat.width)
    queries = random_states(20, seed=9)
    for given in (queries, torch.from_numpy(queries).double(), queries[0]):
        scores, positions = exact.search(given, 8)
        np.testing.assert_allclose(scores, flat.search(given, 8)[0], rtol=1e-4, atol=1e-5)
        assert (positions == flat.search(given, 8)[1]).mean() > 0.99
    with pytest.raises(ValueError, match="expected rows of width 12"):
        exact.search(torch.zeros(1, 3), 8)


def altered(store, value: float = 0.0, position: int = 1) -> ArrayStates:
    """The states of a store with one value, or one position, that cannot be."""
    states = source(store)
    states.states[17, 3], states.positions[5] = value, position
    return states


NOT_BUILT = [
    *(({}, lambda s, v=v: altered(s, v), f"row 17 of the states has {v} in column 3") for v in (np.nan, np.inf)),
    *(({}, lambda s, p=place: altered(s, 0, p), f"position {place} holds no token of") for place in (0, -1)),
    ({}, lambda s: altered(s, 0, len(s.tokens)), "holds no token of"),
    ({}, lambda s: altered(s, 0, int(s.starts[1]) - 1), "holds no token of"),
    ({}, lambda s: ArrayStates(np.zeros(0, np.int64), np.zeros((0, WIDTH), np.float32)), "there are no states to index"),
    ({}, lambda s: ArrayStates(np.arange(3), np.zeros((4, 5))), "expected one position for each row"),
    ({"dims": 0}, source, "dims is 0; expected a whole number from 1 to the states' width, 12"),
    ({"dims": 13}, source, "dims is 13"),
    ({"dims": 2.0}, source, "dims is 2.0"),
    ({"sample": 0}, source, "sample is 0"),
    ({"factory": "Nope"}, source, "factory is 'Nope'; expected a factory string of FAISS"),
    ({"factory": "IVF4,PQ3x4"}, source, "factory is 'IVF4,PQ3x4'"),
    ({"factory": "IVF9999,Flat"}, source, r"with 9999 lists, for \d+ states"),
    ({"factory": "PQ5x12"}, source, r"factory is 'PQ5x12' with codes of 4096 centroids, for \d+ states"),
    *(({"factory": f}, source, "numbers its rows by ids of one's own") for f in ("IDMap,Flat", "IDMap2,Flat", "IDMap,IVF4,Flat")),
    *(({"factory": f}, source, "searches by another distance than the inner") for f in ("HNSW8,PQ5x4", "IVF4,ITQ5,SH")),
    *(({"factory": f}, source, "is not known to add states in parts") for f in ("NSG8,Flat", "MinMax,SQ8", "RCQ2x4")),
    ({"nprobe": 4}, source, "nprobe is given for an index that has none"),
    ({"factory": "IVF4,Flat", "ef_search": 4}, source, "ef_search is given for an index that has none"),
    ({"factory": "IVF4,Flat", "nprobe": 0}, source, "nprobe is 0; expected a whole number, 1 or more"),
]  # fmt: skip


@pytest.mark.parametrize("options, states, words", NOT_BUILT)
def test_what_cannot_be_indexed_is_refused_and_leaves_nothing(store, options, states, words):
    with pytest.raises(ValueError, match=words):
        build(store, states(store), **options)
    assert not list(store.path.glob("dense*"))


def test_what_an_index_cannot_search_or_is_not_of_is_refused_and_a_missing_faiss_named(store, tmp_path, monkeypatch):
    index = build(store)
    other = datastores.build_tokens(tmp_path / "other", [[1, 2, 3]], 40, progress=False)
    for call, error, words in (
        (lambda: index.search(np.full(WIDTH, np.nan, np.float32), 3), ValueError, "row 0 of the states has nan"),
        (lambda: index.search(np.zeros(7), 3), ValueError, r"shape \(1, 7\); expected rows of width 12"),
        (lambda: index.search(np.zeros(WIDTH), 0), ValueError, "k is 0; expected a whole number, 1 or more"),
        (lambda: DenseIndex.open(index.path, other), StoreError, "belongs to other tokens"),
    ):
        with pytest.raises(error, match=words):
            call()
    # Where nothing varies every key is the same, which is no error.
    build(store, ArrayStates(source(store).positions[:9], np.ones((9, WIDTH), np.float32)), dims=2)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match="needs faiss .*pip install"):
        DenseIndex.open(store.path)
