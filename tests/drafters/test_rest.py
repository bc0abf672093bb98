"""REST against counting, and against a plain reading of what its released code does."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec_lib import datastores
from specdec_lib.datastores.trie import sample_uniform
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters import Rest
from specdec_lib.drafters.rest import released_selection
from tests.datastores.stores import (
    WIDTHS,
    build,
    continuations,
    document_lists,
    full_trie,
    propose,
    rest_sizes,
    scan,
    tree_paths,
)


def in_order(trie: Counter) -> list[tuple[int, ...]]:
    return sorted(trie, key=lambda path: (-trie[path], len(path), path))


@st.composite
def questions(draw):
    vocabulary, ids = draw(st.sampled_from(WIDTHS))
    documents = draw(document_lists(ids, max_documents=8, max_length=30))
    document = draw(st.sampled_from(documents))
    context = document[: draw(st.integers(1, len(document)))]
    return vocabulary, documents, context, draw(rest_sizes())


@pytest.mark.core_cases(0)
@given(questions())
@settings(max_examples=60, deadline=None)
def test_the_draft_is_the_head_of_the_whole_trie_sorted_by_weight_depth_and_tokens(question):
    vocabulary, documents, context, sizes = question
    with build(documents, vocabulary) as index:
        drafter = Rest(index, min_ngram=1, **sizes)
        tree = propose(drafter, context, vocabulary)
        weights = drafter._room.nodes[2, : len(tree)].tolist()
        # Scratch is left clean.
        assert not drafter._room.counts.any() and propose(drafter, context, vocabulary) == tree
    checked = DraftTree(tree.tokens, tree.parents)
    assert (checked.tokens, checked.parents, checked.is_chain) == (tree.tokens, tree.parents, tree.is_chain)
    length, places = scan(documents, context, sizes["max_ngram"])
    # The released rule: the first k in order of continuation.
    paths = sorted(continuations(documents, places, sizes["length"]))[: sizes["max_matches"]]
    expected = in_order(full_trie(paths))[: sizes["choices"]]
    assert tree_paths(tree.tokens, tree.parents) == expected
    # A node's score is the share of the matches whose continuation goes through it.
    trie = full_trie(paths)
    assert (tree.scores or []) == [trie[path] / len(paths) for path in expected]
    assert weights == [trie[path] for path in expected]


@given(questions(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_uniform_draw_takes_one_match_from_each_part_and_the_same_ones_again(question, seed):
    vocabulary, documents, context, sizes = question
    with build(documents, vocabulary) as index:
        drafter = Rest(index, min_ngram=1, subsample="uniform", seed=seed, **sizes)
        tree = propose(drafter, context, vocabulary)
        assert propose(Rest(index, min_ngram=1, subsample="uniform", seed=seed, **sizes), context, vocabulary) == tree
        places = index.positions(drafter.last).tolist()
        keep, count = sizes["max_matches"], len(places)
        if count <= keep:
            return
        drawn = np.zeros(keep, np.int32)
        sample_uniform(index.suffixes, drafter.last.start, drafter.last.stop, keep, seed, drawn)
        for i, entry in enumerate(drawn.tolist()):
            assert entry in places[i * count // keep : (i + 1) * count // keep]
        paths = continuations(documents, drawn.tolist(), sizes["length"])
        assert tree_paths(tree.tokens, tree.parents) == in_order(full_trie(paths))[: sizes["choices"]]


def test_each_match_is_drawn_as_often_as_any_other():
    suffixes, drawn, out = np.arange(100, 130, dtype=np.int32), Counter(), np.zeros(6, np.int32)
    for seed in range(6000):
        sample_uniform(suffixes, 5, 23, 6, seed, out)
        drawn.update(out.tolist())
    assert set(drawn) == set(range(105, 123))
    # Each is drawn with probability 1/3: 2000 times, standard deviation 36.5.
    assert all(abs(count - 2000) < 5 * 36.5 for count in drawn.values()), drawn


def test_drafts_of_large_tries_agree_with_counting():
    rng = random.Random(0)
    documents = [[rng.choice((0, 1, 2, 3, rng.randrange(400))) for _ in range(300)] for _ in range(40)]
    with build(documents, 400) as index:
        for max_matches, choices in ((5000, 64), (5000, 256), (500, 64), (37, 5)):
            drafter = Rest(index, min_ngram=1, max_ngram=2, max_matches=max_matches, choices=choices)
            for context in ([0], [1, 2], [399, 3], [0, 0], [17]):
                tree = propose(drafter, context, 400)
                paths = sorted(continuations(documents, scan(documents, context, 2)[1], 10))[:max_matches]
                assert tree_paths(tree.tokens, tree.parents) == in_order(full_trie(paths))[:choices]


def plain_released(
    paths: list[tuple[int, ...]],
    weights: list[int],
    choices: int,
    first_seed: int,
    second_seed: int,
    rows: int | None = None,
):
    """The released selection as papers describe it, step by step over paths; of it the first rows, as DReSD's code
    takes them."""
    heap: list[tuple] = []
    for node in np.random.default_rng(first_seed).permutation(len(paths)).tolist():
        # A heap of the lightest; of equals, the path that comes last is on top.
        item = (weights[node], [-token for token in paths[node]] + [1], node)
        if len(heap) < choices:
            heapq.heappush(heap, item)
        elif weights[node] > heap[0][0]:
            heapq.heappushpop(heap, item)
    kept = sorted(node for _, _, node in heap)
    verified = [kept[i] for i in np.random.default_rng(second_seed).permutation(len(kept)).tolist()]
    by_cost = sorted(verified, key=lambda node: len(set(paths[node])), reverse=True)
    total = sum(len(set(paths[node])) for node in verified)
    removed = 0
    for node in by_cost:
        if total <= choices:
            break
        total -= len(set(paths[node]))
        removed += 1
    left = by_cost[removed:]
    while True:
        closed = {paths[node][:n] for node in left for n in range(1, len(paths[node]) + 1)}
        if len(closed) <= choices:
            break
        left = left[1:]  # the released code ends with an error here, before it returns any row
    returned = [paths[node] for node in verified if node in left][:rows]
    return {path[:n] for path in returned for n in range(1, len(path) + 1)}


#: A path of repeated tokens costs 2 and is up to 6 long: what remains after the cut is too large for 9 choices.
REPEATS = (
    300,
    [[255, 0], [255, 256, 256, 299, 256, 256, 256, 255, 299, 256, 256], [0, 0]],
    [255],
    {"max_ngram": 1, "length": 6, "choices": 9, "max_matches": 3},
)


@given(questions(), st.none() | st.integers(1, 12), st.integers(0, 5))
@example(REPEATS, 2, 5)
@settings(max_examples=150, deadline=None)
def test_the_released_selection_is_that_of_a_plain_reading(question, rows, seed):
    _, documents, context, sizes = question
    paths = sorted(continuations(documents, scan(documents, context, sizes["max_ngram"])[1], sizes["length"]))
    trie = full_trie(paths)
    nodes = in_order(trie)
    if not nodes:
        return
    index = {path: i for i, path in enumerate(nodes)} | {(): -1}
    tokens, parents = [path[-1] for path in nodes], [index[path[:-1]] for path in nodes]
    kept = released_selection(tokens, parents, [trie[path] for path in nodes], sizes["choices"], seed, seed + 1, rows)
    assert {nodes[node] for node in kept} == plain_released(
        nodes, [trie[p] for p in nodes], sizes["choices"], seed, seed + 1, rows
    )
    assert kept == sorted(kept) and len(kept) <= sizes["choices"]


@given(questions(), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_the_random_selection_takes_whole_continuations_of_different_occurrences(question, seed):
    vocabulary, documents, context, sizes = question
    sizes["choices"] = max(sizes["choices"], sizes["length"])
    with build(documents, vocabulary) as index:
        tree = propose(Rest(index, min_ngram=1, selection="random", seed=seed, **sizes), context, vocabulary)
        again = propose(Rest(index, min_ngram=1, selection="random", seed=seed, **sizes), context, vocabulary)
    every = continuations(documents, scan(documents, context, sizes["max_ngram"])[1], sizes["length"])
    kept = set(tree_paths(tree.tokens, tree.parents))
    leaves = {path for path in kept if not any(other[:-1] == path for other in kept)}
    room = sizes["choices"] // sizes["length"]
    assert tree == again and leaves <= set(every) and len(leaves) <= room
    if len(every) <= room:
        assert kept == set(full_trie(every))


def test_a_match_shorter_than_min_ngram_drafts_nothing_and_the_last_match_is_told():
    with build([[1, 2, 3, 4], [9, 2, 5]], 10) as index:
        drafter = Rest(index)
        assert propose(drafter, [7, 2], 10) is EMPTY and drafter.last.length == 1
        assert propose(drafter, [8], 10) is EMPTY and drafter.last.length == 0
        assert propose(drafter, [1, 2], 10).tokens == [3, 4] and drafter.last.length == 2


def test_a_draft_never_crosses_a_document_and_is_no_deeper_than_asked():
    with build([[1, 2, 3], [4, 1, 2, 6, 7, 8, 9]], 10) as index:
        assert propose(Rest(index), [1, 2], 10).tokens == [3, 6, 7, 8, 9]
        for limit in range(1, 5):
            assert propose(Rest(index), [4, 1, 2], 10, limit).tokens == [6, 7, 8, 9][:limit]


def test_another_vocabulary_and_a_missing_store_are_refused(tmp_path):
    with build([[1, 2]], 5) as index:
        with pytest.raises(ValueError, match="has 5 token ids, the model 4: they do not share"):
            propose(Rest(index), [1], 4)
    with pytest.raises(datastores.StoreError, match="no datastore at"):
        Rest(tmp_path / "none")
