"""REST against counting, and against a plain reading of what its released code does."""

import heapq

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec_lib import DraftTree
from specdec_lib.datastores.trie import sample_uniform
from specdec_lib.decoding.tree import EMPTY
from specdec_lib.drafters import Rest
from specdec_lib.drafters.rest import released_selection
from tests.datastores import stores
from tests.datastores.stores import build, full_trie, in_order, propose, rest_questions, tree_paths


@pytest.mark.core_cases(0)
@given(rest_questions())
@settings(max_examples=60)
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
    paths = stores.first_matches(documents, context, sizes["max_ngram"], sizes["length"], sizes["max_matches"])
    trie = full_trie(paths)
    expected = in_order(trie)[: sizes["choices"]]
    assert tree_paths(tree.tokens, tree.parents) == expected
    # A node's score is the share of the matches whose continuation goes through it.
    assert (tree.scores or []) == [trie[path] / len(paths) for path in expected]
    assert weights == [trie[path] for path in expected]


@given(rest_questions(), st.integers(0, 3))
@settings(max_examples=60)
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
        paths = stores.continuations(documents, drawn.tolist(), sizes["length"])
        assert tree_paths(tree.tokens, tree.parents) == in_order(full_trie(paths))[: sizes["choices"]]


def plain_released(paths: list[tuple[int, ...]], weights: list[int], choices: int, seed: int, rows: int | None):
    """The released selection as papers describe it, step by step over paths; of it the first rows, as DReSD's code
    takes them."""
    heap: list[tuple] = []
    for node in np.random.default_rng(seed).permutation(len(paths)).tolist():
        # A heap of the lightest; of equals, the path that comes last is on top.
        item = (weights[node], [-token for token in paths[node]] + [1], node)
        if len(heap) < choices:
            heapq.heappush(heap, item)
        elif weights[node] > heap[0][0]:
            heapq.heappushpop(heap, item)
    kept = sorted(node for _, _, node in heap)
    verified = [kept[i] for i in np.random.default_rng(seed + 1).permutation(len(kept)).tolist()]
    left = sorted(verified, key=lambda node: len(set(paths[node])), reverse=True)
    while sum(len(set(paths[node])) for node in left) > choices:
        left = left[1:]
    while len(full_trie([paths[node] for node in left])) > choices:
        left = left[1:]  # the released code ends with an error here, before it returns any row
    return set(full_trie([paths[node] for node in verified if node in left][:rows]))


#: A path of repeated tokens costs 2 and is up to 6 long: what remains after the cut is too large for 9 choices.
REPEATS = (
    300,
    [[255, 0], [255, 256, 256, 299, 256, 256, 256, 255, 299, 256, 256], [0, 0]],
    [255],
    {"max_ngram": 1, "length": 6, "choices": 9, "max_matches": 3},
)


@given(rest_questions(), st.none() | st.integers(1, 12), st.integers(0, 5))
@example(REPEATS, 2, 5)
@settings(max_examples=150)
def test_the_released_selection_is_that_of_a_plain_reading(question, rows, seed):
    _, documents, context, sizes = question
    trie = full_trie(stores.first_matches(documents, context, sizes["max_ngram"], sizes["length"]))
    nodes = in_order(trie)
    if not nodes:
        return
    index = {path: i for i, path in enumerate(nodes)} | {(): -1}
    tokens, parents = [path[-1] for path in nodes], [index[path[:-1]] for path in nodes]
    kept = released_selection(tokens, parents, [trie[path] for path in nodes], sizes["choices"], seed, seed + 1, rows)
    expected = plain_released(nodes, [trie[path] for path in nodes], sizes["choices"], seed, rows)
    assert {nodes[node] for node in kept} == expected
    assert kept == sorted(kept) and len(kept) <= sizes["choices"]


@given(rest_questions(), st.integers(0, 5))
@settings(max_examples=100)
def test_the_random_selection_takes_whole_continuations_of_different_occurrences(question, seed):
    vocabulary, documents, context, sizes = question
    sizes["choices"] = max(sizes["choices"], sizes["length"])
    with build(documents, vocabulary) as index:
        tree = propose(Rest(index, min_ngram=1, selection="random", seed=seed, **sizes), context, vocabulary)
        again = propose(Rest(index, min_ngram=1, selection="random", seed=seed, **sizes), context, vocabulary)
    every = stores.first_matches(documents, context, sizes["max_ngram"], sizes["length"])
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
        assert propose(drafter, [1, 2], 10, 1).tokens == [3]  # no deeper than asked
