"""A store of shards against one store of the same documents."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec_lib import Context, Sampling, datastores
from specdec_lib.datastores import ArrayStates, StoreError, sharded
from specdec_lib.datastores.reduction import Moments, fit
from specdec_lib.drafters import Dresd, Rest
from tests.datastores import dense_stores, stores
from tests.datastores.stores import build, full_trie, in_order, propose, rest_questions, scratch, tree_paths


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


@pytest.mark.core_cases(0)
@given(rest_questions(), st.lists(st.integers(0, 7), max_size=4), st.booleans(), st.sampled_from(["exact", "released"]))
@example((3, [[0, 1, 2], [1, 0]], [2], dict(max_ngram=2, length=2, choices=4, max_matches=1)), [1], False, "exact")
@settings(max_examples=25)
def test_the_draft_and_the_match_are_those_of_one_store_node_for_node(question, cuts, foreign, selection):
    vocabulary, documents, context, sizes = question
    context = [vocabulary, documents[0][0]] * foreign + context
    with build(documents, vocabulary) as one, shards_of(documents, cuts, vocabulary) as many:
        whole, parts = (Rest(store, selection=selection, min_ngram=1, **sizes) for store in (one, many))
        tree = propose(whole, context, vocabulary)
        assert propose(parts, context, vocabulary) == tree
        assert parts.last == whole.last
        weights = [drafter._room.nodes[2, : len(tree)].tolist() for drafter in (whole, parts)]
        assert weights[0] == weights[1] or selection == "released"
        assert not parts._room.counts.any()


def test_drafts_of_large_ranges_are_those_of_counting_in_one_store_and_in_shards():
    rng = random.Random(0)
    documents = [[rng.choice((0, 1, 2, 3, rng.randrange(400))) for _ in range(300)] for _ in range(40)]
    sizes = [{"max_matches": most, "choices": kept} for most, kept in ((5000, 64), (5000, 256), (500, 64), (37, 5))]
    with build(documents, 400) as one, shards_of(documents, [5, 6, 30], 400) as many:
        for options in (*sizes, {"max_matches": 500, "selection": "released"}):
            whole, parts = (Rest(store, min_ngram=1, max_ngram=4, **options) for store in (one, many))
            for context in ([0], [1, 2], [399, 3], [0, 0], [17], [5, 1, 0, 2], [0, 1, 2, 3]):
                tree = propose(whole, context, 400)
                assert propose(parts, context, 400) == tree and parts.last == whole.last
                if options in sizes:
                    trie = full_trie(stores.first_matches(documents, context, 4, most=options["max_matches"]))
                    assert tree_paths(tree.tokens, tree.parents) == in_order(trie)[: options["choices"]]


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


@pytest.mark.parametrize("cuts", [None, [1, 4]], ids=["one store", "shards"])
@pytest.mark.parametrize("options", [{"subsample": "uniform"}, {"selection": "random", "length": 1, "choices": 4}])
def test_each_occurrence_in_one_store_or_in_shards_of_any_size_is_drawn_as_often_as_any_other(options, cuts):
    # Twelve occurrences, in shards of one, three and eight, of which four are taken.
    documents = [[1, 2, i] for i in range(3, 15)]
    drawn = np.zeros(20)
    with shards_of(documents, cuts, 20) if cuts else build(documents, 20) as store:
        index = datastores.open_suffix_index(store) if cuts else store
        for seed in range(1500):
            tree = propose(Rest(index, max_matches=4, seed=seed, **options), [1, 2], 20)
            assert len(tree) == 4
            drawn[list(tree.tokens)] += 1
    # Each is drawn with probability 1/3: 500 times, standard deviation at most 18.3.
    assert np.abs(drawn[3:15] - 500).max() < 5 * 18.3 and drawn.sum() == 6000, drawn


def dense_shards(folder: Path, cuts: list[int]):
    """One store and one of shards over the same random states, all with the reduction of the one store."""
    rng = np.random.default_rng(3)
    documents = [rng.integers(0, 5, 9).tolist() for _ in range(12)]
    one = datastores.build_tokens(folder / "one", documents, 5, progress=False)
    positions = dense_stores.stored_positions(one)
    states = rng.normal(size=(len(positions), 6)).astype(np.float32)
    whole = dense_stores.build(one, ArrayStates(positions, states), dims=4)
    reduction = fit(Moments(states), 4)
    write(folder / "set", documents, cuts, 5)
    for begin, end, shard in zip([0, *cuts], [*cuts, 12], sorted((folder / "set").glob("shard-*")), strict=True):
        rows = slice(begin * 8, end * 8)
        source = ArrayStates(positions[rows] - (int(one.starts[begin]) - 1), states[rows])
        datastores.build_dense_index(shard / "dense", source, reduction=reduction, progress=False)
    return whole, folder / "set", states


def test_the_neighbours_of_shards_and_what_dresd_drafts_are_those_of_one_index(tmp_path):
    whole, path, states = dense_shards(tmp_path, [3, 4])
    parts = datastores.open_dense_index(path)
    assert len(parts) == len(whole) and parts.width == whole.width
    for row, state in enumerate(states[::5] + 0.1):
        scores, positions = whole.search(state, 20)
        nearest = parts.nearest(state[None], 20, 4)
        assert [score for score, _ in nearest] == pytest.approx(scores[0].tolist(), abs=1e-5)
        expected = [whole.store.continuation(position, 4) for position in positions[0].tolist()]
        assert [tokens for _, tokens in nearest] == expected
        hidden, drafted = torch.from_numpy(np.stack([state, state])), []
        context = Context([0, 1, row % 5], 0, 5, Sampling(), hidden=lambda layer: hidden)
        for drafter in (Dresd(whole, length=4), Dresd(path, length=4)):
            drafter.start(context)
            tree = drafter.propose(context, 10)
            drafted.append((tree_paths(tree.tokens, tree.parents), drafter.survivors))
        assert drafted[0] == drafted[1]


def test_dense_shards_with_reductions_of_their_own_are_refused(tmp_path):
    _, path, states = dense_shards(tmp_path, [6])
    source = ArrayStates(np.array([2, 3, 4]), states[:3])
    datastores.build_dense_index(path / "shard-00001" / "dense", source, dims=4, progress=False)
    with pytest.raises(StoreError, match="another reduction or model"):
        datastores.open_dense_index(path)


def test_shards_of_two_tokenizers_and_a_folder_without_shards_are_refused(tmp_path):
    path = write(tmp_path / "set", [[1, 2, 3], [4, 5, 6]], [1], 10)
    datastores.build_tokens(path / "shard-00001", [[7, 8]], 11, progress=False)
    with pytest.raises(StoreError, match="have 2 tokenizers"):
        sharded.write_shards(path, 2)
    with pytest.raises(StoreError, match="is no store of shards"):
        sharded.ShardedStore.open(tmp_path)
