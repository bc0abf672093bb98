"""A store of shards against one store of the same documents."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec_lib import Sampling, datastores
from specdec_lib.datastores import StoreError, sharded
from specdec_lib.datastores.states import ArrayStates
from specdec_lib.decoding.contract import Context
from specdec_lib.drafters import Dresd, Rest
from tests.datastores.stores import WIDTHS, build, document_lists, propose, rest_sizes, scratch, tree_paths


def write(folder: Path, documents, cuts, vocabulary) -> Path:
    """A store of shards, cut before the documents of these numbers."""
    edges = sorted({0, len(documents), *(cut % len(documents) for cut in cuts)})
    for number, (begin, end) in enumerate(zip(edges, edges[1:], strict=False)):
        shard = folder / sharded.SHARD.format(number)
        store = datastores.build_tokens(shard, documents[begin:end], vocabulary, progress=False)
        datastores.build_suffix_array(store, progress=False)
    sharded.write_shards(folder, len(edges) - 1)
    return folder


@contextmanager
def shards_of(documents, cuts, vocabulary):
    with scratch() as folder:
        yield write(folder / "set", documents, cuts, vocabulary)


@st.composite
def questions(draw):
    vocabulary, ids = draw(st.sampled_from(WIDTHS))
    documents = draw(document_lists(ids, max_documents=8, max_length=30))
    document = draw(st.sampled_from(documents))
    context = document[: draw(st.integers(1, len(document)))]
    context = draw(st.lists(st.sampled_from([*ids, vocabulary]), max_size=3)) + context
    sizes = draw(rest_sizes()) | {"min_ngram": 1}
    return vocabulary, documents, draw(st.lists(st.integers(0, 7), max_size=4)), context, sizes


@pytest.mark.core_cases(0)
@given(questions(), st.sampled_from(["exact", "released"]))
@example(
    (3, [[0, 1, 2], [1, 0]], [1], [2, 2], dict(max_ngram=2, min_ngram=1, length=2, choices=4, max_matches=1)), "exact"
)
@settings(max_examples=40, deadline=None)
def test_the_draft_and_the_match_are_those_of_one_store_node_for_node(question, selection):
    vocabulary, documents, cuts, context, sizes = question
    with build(documents, vocabulary) as one, shards_of(documents, cuts, vocabulary) as many:
        whole, parts = (Rest(store, selection=selection, **sizes) for store in (one, many))
        tree = propose(whole, context, vocabulary)
        assert propose(parts, context, vocabulary) == tree
        assert parts.last == whole.last
        weights = [drafter._room.nodes[2, : len(tree)].tolist() for drafter in (whole, parts)]
        assert weights[0] == weights[1] or selection == "released"
        assert not parts._room.counts.any()


def test_large_ranges_are_found_by_their_keys_in_shards_too():
    rng = random.Random(0)
    documents = [[rng.choice((0, 1, 2, 3, rng.randrange(400))) for _ in range(300)] for _ in range(40)]
    with build(documents, 400) as one, shards_of(documents, [5, 6, 30], 400) as many:
        for sizes in ({"max_matches": 5000}, {"max_matches": 37}, {"max_matches": 500, "selection": "released"}):
            whole, parts = (Rest(store, min_ngram=1, max_ngram=4, **sizes) for store in (one, many))
            for context in ([0], [1, 2], [399, 3], [0, 0], [17], [5, 1, 0, 2], [0, 1, 2, 3]):
                assert propose(parts, context, 400) == propose(whole, context, 400)
                assert parts.last == whole.last


def test_threads_that_share_a_store_of_shards_draft_as_each_would_alone():
    rng = random.Random(1)
    documents = [[rng.choice((0, 1, 2, rng.randrange(400))) for _ in range(2000)] for _ in range(8)]
    contexts = [[0], [1], [2], [0, 1], [1, 2], [0, 0]] * 12
    with shards_of(documents, [2, 5], 400) as many:
        index = datastores.open_suffix_index(many)

        def drafts(order):
            drafter = Rest(index, min_ngram=1, max_matches=11)
            return {number: propose(drafter, contexts[number], 400) for number in order}

        alone = drafts(range(len(contexts)))
        with ThreadPoolExecutor(4) as threads:
            orders = [rng.sample(range(len(contexts)), len(contexts)) for _ in range(8)]
            assert all(found == alone for found in threads.map(drafts, orders))


@pytest.mark.parametrize("options", [{"subsample": "uniform"}, {"selection": "random", "length": 1, "choices": 4}])
def test_each_occurrence_in_shards_of_any_size_is_drawn_as_often_as_any_other(options):
    # Twelve occurrences, in shards of one, three and eight, of which four are taken.
    documents = [[1, 2, i] for i in range(3, 15)]
    drawn = np.zeros(20)
    with shards_of(documents, [1, 4], 20) as many:
        index = datastores.open_suffix_index(many)
        for seed in range(1500):
            tree = propose(Rest(index, max_matches=4, seed=seed, **options), [1, 2], 20)
            assert len(tree) == 4
            drawn[list(tree.tokens)] += 1
    # Each is drawn with probability 1/3: 500 times, standard deviation at most 18.3.
    assert np.abs(drawn[3:15] - 500).max() < 5 * 18.3 and drawn.sum() == 6000, drawn


def dense_shards(folder: Path, cuts: list[int], factory: str = "Flat"):
    """One store and one of shards over the same random states, all with the reduction of the one store."""
    rng = np.random.default_rng(3)
    documents = [rng.integers(0, 5, 9).tolist() for _ in range(12)]
    one = datastores.build_tokens(folder / "one", documents, 5, progress=False)
    positions = np.concatenate([np.arange(a + 1, b - 1) for a, b in zip(one.starts, one.starts[1:], strict=False)])
    states = rng.normal(size=(len(positions), 6)).astype(np.float32)
    whole = datastores.build_dense_index(
        one.path / "dense", ArrayStates(positions, states), dims=4, factory=factory, progress=False
    )
    reduction = datastores.fit_transform(states, 4)
    write(folder / "set", documents, cuts, 5)
    for begin, end, shard in zip([0, *cuts], [*cuts, 12], sorted((folder / "set").glob("shard-*")), strict=True):
        rows = slice(begin * 8, end * 8)
        source = ArrayStates(positions[rows] - (int(one.starts[begin]) - 1), states[rows])
        datastores.build_dense_index(shard / "dense", source, reduction=reduction, factory=factory, progress=False)
    return whole, folder / "set", states


def test_the_neighbours_of_shards_are_those_of_one_index(tmp_path):
    whole, path, states = dense_shards(tmp_path, [3, 4])
    parts = datastores.open_dense_index(path)
    assert len(parts) == len(whole) and parts.width == whole.width
    for state in states[::7] + 0.1:
        scores, positions = whole.search(state, 20)
        nearest = parts.nearest(state[None], 20, 4)
        assert [score for score, _ in nearest] == pytest.approx(scores[0].tolist(), abs=1e-5)
        expected = [whole.store.continuation(position, 4) for position in positions[0].tolist()]
        assert [tokens for _, tokens in nearest] == expected


def test_dresd_drafts_from_shards_what_it_drafts_from_one_index(tmp_path):
    whole, path, states = dense_shards(tmp_path, [3, 4])
    for row, state in enumerate(states[::5]):
        hidden = torch.from_numpy(np.stack([state, state]))
        context = Context([0, 1, row % 5], 0, 5, Sampling(), hidden=lambda layer, rows=hidden: rows)
        drafters = [Dresd(index, length=4) for index in (whole, path)]
        for drafter in drafters:
            drafter.start(context)
        trees = [drafter.propose(context, 10) for drafter in drafters]
        assert tree_paths(trees[0].tokens, trees[0].parents) == tree_paths(trees[1].tokens, trees[1].parents)
        assert drafters[0].survivors == drafters[1].survivors


def test_dense_shards_with_reductions_of_their_own_are_refused(tmp_path):
    _, path, states = dense_shards(tmp_path, [6])
    dense = path / "shard-00001" / "dense"
    source = ArrayStates(np.array([2, 3, 4]), states[:3])
    datastores.build_dense_index(dense, source, dims=4, progress=False)
    with pytest.raises(StoreError, match="another reduction or model"):
        datastores.open_dense_index(path)


def test_shards_that_are_missing_replaced_or_of_two_tokenizers_are_refused(tmp_path):
    path = write(tmp_path / "set", [[1, 2, 3], [4, 5, 6]], [1], 10)
    assert propose(Rest(path), [1, 2], 10).tokens == [3]
    second = path / "shard-00001"
    datastores.build_tokens(second, [[7, 8]], 10, progress=False)
    with pytest.raises(StoreError, match="shard-00001 is not the store that .*shards.json names"):
        Rest(path)
    datastores.build_tokens(second, [[7, 8]], 11, progress=False)
    with pytest.raises(StoreError, match="have 2 tokenizers"):
        sharded.write_shards(path, 2)
    shutil.rmtree(second)
    with pytest.raises(StoreError, match="no datastore at .*shard-00001"):
        Rest(path)
    with pytest.raises(StoreError, match="is no store of shards"):
        sharded.ShardedStore.open(tmp_path)
