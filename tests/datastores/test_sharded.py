"""A store of shards against one store of the same documents."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec_lib import Sampling, datastores, generate
from specdec_lib.datastores import StoreError, sharded
from specdec_lib.datastores.states import ArrayStates
from specdec_lib.datastores.store_files import BuildLock, StoreBusy
from specdec_lib.decoding.contract import Context
from specdec_lib.drafters import Dresd, Rest
from tests.datastores.stores import WIDTHS, build, document_lists, scratch, tree_paths


def propose(drafter, tokens, vocabulary, limit=1000):
    context = Context(list(tokens), 0, vocabulary, Sampling())
    drafter.start(context)
    return drafter.propose(context, limit)


@contextmanager
def shards_of(documents, cuts, vocabulary):
    """A store of shards, cut before the documents of these numbers."""
    with ExitStack() as stack, scratch() as folder:
        edges = sorted({0, len(documents), *(cut % len(documents) for cut in cuts)})
        for begin, end in zip(edges, edges[1:], strict=False):
            index = stack.enter_context(build(documents[begin:end], vocabulary))
            datastores.add_shard(folder / "set", index.store)
        yield folder / "set"


@st.composite
def questions(draw):
    vocabulary, ids = draw(st.sampled_from(WIDTHS))
    documents = draw(document_lists(ids, max_documents=8, max_length=30))
    document = draw(st.sampled_from(documents))
    context = document[: draw(st.integers(1, len(document)))]
    context = draw(st.lists(st.sampled_from([*ids, vocabulary]), max_size=3)) + context
    sizes = draw(
        st.fixed_dictionaries(
            {
                "max_ngram": st.integers(1, 6),
                "min_ngram": st.just(1),
                "length": st.integers(1, 6),
                "choices": st.integers(1, 40),
                "max_matches": st.sampled_from([1, 2, 3, 7, 5000]),
            }
        )
    )
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


def test_a_uniform_draw_is_that_of_one_store_where_all_occurrences_are_taken():
    documents = [[1, 2, i] for i in range(3, 9)]
    with build(documents, 10) as one, shards_of(documents, [2, 4], 10) as many:
        drafts = [propose(Rest(store, subsample="uniform", max_matches=6), [1, 2], 10) for store in (one, many)]
        assert drafts[0] == drafts[1] and len(drafts[0]) == 6


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


def test_generation_with_a_store_of_shards_is_plain_decoding(llama, tmp_path):
    rng = np.random.default_rng(0)
    vocabulary = llama.config.vocab_size
    for number in range(3):
        documents = [rng.integers(0, vocabulary, 50).tolist() for _ in range(3)]
        store = datastores.build_tokens(tmp_path / str(number), documents, vocabulary, progress=False)
        datastores.build_suffix_array(store, progress=False)
        datastores.add_shard(tmp_path / "set", store)
    prompt = documents[0][:20]
    plain = generate(llama, prompt, None, max_new_tokens=24)
    assert generate(llama, prompt, Rest(tmp_path / "set"), max_new_tokens=24).tokens == plain.tokens


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
    begin = 0
    for end in [*cuts, len(documents)]:
        store = datastores.build_tokens(folder / f"part{end}", documents[begin:end], 5, progress=False)
        datastores.build_suffix_array(store, progress=False)
        rows = slice(begin * 8, end * 8)
        offset = int(one.starts[begin]) - 1
        source = ArrayStates(positions[rows] - offset, states[rows])
        datastores.build_dense_index(store.path / "dense", source, reduction=reduction, factory=factory, progress=False)
        datastores.add_shard(folder / "set", store)
        begin = end
    return whole, folder / "set", states


def test_the_neighbours_of_shards_are_those_of_one_index(tmp_path):
    whole, path, states = dense_shards(tmp_path, [3, 4])
    parts = datastores.open_dense_index(path, device="cpu")
    assert len(parts) == len(whole) and parts.width == whole.width
    for state in states[::7] + 0.1:
        scores, positions = whole.search(state, 20)
        nearest = parts.nearest(state[None], 20, 4)
        assert [one.score for one in nearest] == pytest.approx(scores[0].tolist(), abs=1e-5)
        expected = [whole.store.continuation(position, 4) for position in positions[0].tolist()]
        assert [one.tokens for one in nearest] == expected


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
    store = datastores.build_tokens(tmp_path / "other", [[1, 2, 3, 4]], 5, progress=False)
    datastores.build_suffix_array(store, progress=False)
    datastores.build_dense_index(
        store.path / "dense", ArrayStates(np.array([2, 3, 4]), states[:3]), dims=4, progress=False
    )
    datastores.add_shard(path, store)
    with pytest.raises(StoreError, match="another reduction or model"):
        datastores.open_dense_index(path, device="cpu")


def finished(folder: Path, documents, vocabulary=10):
    store = datastores.build_tokens(folder, documents, vocabulary, progress=False)
    datastores.build_suffix_array(store, progress=False)
    return store


def stamps(folder: Path) -> dict:
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_shards_come_and_go_without_touching_the_others(tmp_path):
    path = tmp_path / "set"
    for number in range(3):
        store = finished(tmp_path / str(number), [[1, 2, number + 3]])
        assert datastores.add_shard(path, store) == f"shard-{number:05d}"
    assert len(propose(Rest(path), [1, 2], 10)) == 3
    before = stamps(path / "shard-00002")
    datastores.remove_shard(path, "shard-00001")
    assert propose(Rest(path), [1, 2], 10).tokens == [3, 5] and not (path / "shard-00001").exists()
    assert datastores.add_shard(path, finished(tmp_path / "new", [[1, 2, 9]])) == "shard-00001"
    assert sorted(propose(Rest(path), [1, 2], 10).tokens) == [3, 5, 9]
    assert stamps(path / "shard-00002") == before
    datastores.open_suffix_index(path).verify()
    with pytest.raises(StoreError, match="'shard-00007' cannot be removed"):
        datastores.remove_shard(path, "shard-00007")
    with BuildLock(path), pytest.raises(StoreBusy):
        datastores.remove_shard(path, "shard-00001")


@pytest.mark.parametrize("step", ["take_over", "rename", "write_json"])
def test_an_interrupted_change_leaves_the_shards_that_were_there(tmp_path, monkeypatch, step):
    path = tmp_path / "set"
    datastores.add_shard(path, finished(tmp_path / "a", [[1, 2, 3]]))
    new = finished(tmp_path / "b", [[1, 2, 4]])

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(sharded.os if step == "rename" else sharded.store_files, step, stop)
        datastores.add_shard(path, new)
    assert propose(Rest(path), [1, 2], 10).tokens == [3]
    assert datastores.add_shard(path, new) == "shard-00001"
    assert sorted(propose(Rest(path), [1, 2], 10).tokens) == [3, 4]


def test_a_store_that_does_not_fit_the_shards_is_refused(tmp_path):
    path = tmp_path / "set"
    datastores.add_shard(path, finished(tmp_path / "a", [[1, 2, 3]]))
    with pytest.raises(StoreError, match="has 11 token ids .* has one tokenizer"):
        datastores.add_shard(path, finished(tmp_path / "b", [[1, 2, 4]], 11))
    bare = datastores.build_tokens(tmp_path / "c", [[1, 2, 3]], 10, progress=False)
    with pytest.raises(StoreError, match="no suffix array"):
        datastores.add_shard(path, bare)
    with pytest.raises(StoreError, match="exists and is no store of shards"):
        datastores.add_shard(tmp_path / "a", finished(tmp_path / "d", [[1, 2, 3]]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about.update(version=2), "version 2 of the format"),
        (lambda about: about.update(shards=[]), "expected one or more"),
        (lambda about: about["shards"].append(about["shards"][0]), "each once"),
        (lambda about: about["shards"][0].update(name="../x"), "expected the name of a folder beside it"),
        (lambda about: about["shards"][0].update(name=".."), "expected the name of a folder beside it"),
        (lambda about: about["shards"][0].update(name=""), "expected the name of a folder beside it"),
        (lambda about: about["shards"][0].pop("tokens"), "no field 'tokens'"),
        (lambda about: about["shards"][0].update(tokens_sha256="0"), "is not the store that"),
        (lambda about: about["shards"][0].update(name="elsewhere"), "no datastore at"),
    ],
)
def test_an_altered_manifest_is_refused(tmp_path, change, message):
    path = tmp_path / "set"
    datastores.add_shard(path, finished(tmp_path / "a", [[1, 2, 3]]))
    about = json.loads((path / sharded.MANIFEST).read_text())
    change(about)
    (path / sharded.MANIFEST).write_text(json.dumps(about))
    with pytest.raises(StoreError, match=message):
        Rest(path)
