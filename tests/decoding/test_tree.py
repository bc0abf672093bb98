"""Draft trees against brute force over sets of prefixes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_lib import DraftTree, Passengers

drafts = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6)


@st.composite
def trees(draw, most: int = 12, vocabulary: int = 6) -> DraftTree:
    """Trees with nodes in any order that puts parents first."""
    tokens: list[int] = []
    parents: list[int] = []
    for i in range(draw(st.integers(0, most))):
        parent = draw(st.integers(-1, i - 1))
        token = draw(st.integers(0, vocabulary - 1))
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            tokens.append(token)
            parents.append(parent)
        else:
            break
    return DraftTree(tokens, parents)


def texts(tree: DraftTree) -> list[tuple[int, ...]]:
    """The tokens that lead to each node, by following parents one by one."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((found[parent] if parent >= 0 else ()) + (token,))
    return found


def prefixes(lists) -> set[tuple[int, ...]]:
    return {tuple(d[:n]) for d in lists for n in range(1, len(d) + 1)}


@given(drafts)
def test_from_drafts_holds_every_prefix_once(lists):
    found = texts(DraftTree.from_drafts(lists))
    assert len(found) == len(set(found))
    assert set(found) == prefixes(lists)


@given(trees())
def test_depths_paths_and_children_follow_parents(tree):
    found = texts(tree)
    assert tree.depths == [len(text) for text in found]
    assert tree.depth == max(tree.depths, default=0)
    for node, text in enumerate(found):
        assert tuple(tree.tokens[n] for n in tree.path(node)) == text
    assert tree.path(-1) == []
    for node in range(-1, len(tree)):
        for token in range(6):
            expected = [i for i in range(len(tree)) if tree.parents[i] == node and tree.tokens[i] == token]
            assert tree.child(node, token) == (expected[0] if expected else None)


@given(trees())
def test_mask_is_the_ancestor_relation(tree):
    mask = tree.mask()
    paths = [set(), *(set(tree.path(node)) for node in range(len(tree)))]
    for i, ancestors in enumerate(paths):
        for j in range(len(tree) + 1):
            assert mask[i, j] == (j == 0 or j - 1 in ancestors)


@given(trees(), st.integers(0, 6))
def test_truncated_keeps_the_shallow_nodes_in_order(tree, depth):
    cut = tree.truncated(depth)
    assert texts(cut) == [text for text in texts(tree) if len(text) <= depth]
    assert cut is tree or tree.depth > depth


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 8))
def test_a_chain_is_the_tree_of_one_draft(tokens, depth):
    chain = DraftTree.chain(tokens)
    assert chain == DraftTree(tokens, list(range(-1, len(tokens) - 1))) == DraftTree.from_drafts([tokens])
    assert chain.is_chain and chain.depth == len(chain) == len(tokens)
    assert np.array_equal(chain.mask(), np.tri(len(tokens) + 1, dtype=bool))
    assert chain.truncated(depth).tokens == tokens[:depth]


@given(drafts, st.integers(0, 5))
def test_a_tree_that_was_sent_to_another_process_is_the_same(lists, depth):
    for tree in (
        DraftTree.from_drafts(lists),
        DraftTree.from_drafts(lists, merge=False),
        DraftTree.from_drafts(lists, merge=False).truncated(depth),
    ):
        children = dict(tree.children())
        sent = pickle.loads(pickle.dumps(tree))
        assert sent == tree and (sent.depths, sent.is_chain) == (tree.depths, tree.is_chain)
        # Of a batch with equal prefixes the first such child, which parents and tokens do not tell.
        assert sent.children() == children


def test_a_truncated_chain_keeps_the_probabilities_of_what_is_left():
    rows = torch.eye(5)[:3]
    cut = DraftTree.chain([0, 1, 2], rows).truncated(2)
    assert torch.equal(cut.probabilities, rows[:2])


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: DraftTree([1, 2], [-1]), "2 tokens but 1 parents"),
        (lambda: DraftTree([1, 2], [-1, 1]), r"parents\[1\] is 1"),
        (lambda: DraftTree([1], [-2]), r"parents\[0\] is -2"),
        (lambda: DraftTree([-4], [-1]), r"tokens\[0\] is -4"),
        (lambda: DraftTree([5, 5], [-1, -1]), "two children of one node carry the same token"),
        (lambda: DraftTree([1, 2], [-1, -1], torch.ones(2, 9)), "no chain"),
        (lambda: DraftTree([1, 2], [-1, 0], torch.ones(3, 9)), r"shape \(3, 9\)"),
        (lambda: DraftTree([1, 2], [-1, 0], torch.ones(9)), "one row for each"),
        (lambda: DraftTree.chain([1, -3]), "-3"),
        (lambda: DraftTree.chain([3, 4]).annotated(scores=[1.0]), "1 scores but 2 tokens"),
        (lambda: DraftTree([3, 4], [-1, -1]).annotated(sources=["a", "b", "c"]), "3 sources but 2 tokens"),
        (
            lambda: DraftTree.chain([3, 4]).annotated(passengers=Passengers([1], [1], np.ones((1, 3)))),
            r"visible has shape \(1, 3\); expected 4 columns",
        ),
        (lambda: Passengers([1, 2], [1], np.ones((2, 3))), "2 passengers but 1 depths"),
        (lambda: Passengers([1, 2], [1, 1], np.ones((1, 3))), r"visible has shape \(1, 3\)"),
        (lambda: Passengers([1, 2], [1, 1], np.ones(2)), r"visible has shape \(2,\)"),
        (lambda: Passengers([1, -2], [1, 1], np.ones((2, 3))), "tokens of passengers hold -2"),
        (lambda: Passengers([1, 2], [1, -1], np.ones((2, 3))), "depths of passengers hold -1"),
    ],
)
def test_malformed_trees_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("kind", [np.array, torch.tensor, lambda tokens: list(np.array(tokens))])
@pytest.mark.parametrize(
    "make",
    [
        DraftTree.chain,
        lambda tokens: DraftTree(tokens, np.array([-1, 0, 1])),
        lambda tokens: DraftTree.from_drafts([tokens]),
        lambda tokens: DraftTree.from_drafts([tokens], merge=False),
        lambda tokens: Passengers(tokens, tokens, np.ones((3, 4))),
    ],
)
def test_token_ids_of_arrays_and_tensors_become_ints(make, kind):
    tree = make(kind([4, 5, 6]))
    assert tree.tokens == [4, 5, 6] and {type(number) for number in tree.tokens} == {int}


def test_token_ids_that_are_no_whole_numbers_are_refused():
    for make in (DraftTree.chain, lambda tokens: DraftTree(tokens, [-1])):
        with pytest.raises(TypeError):
            make([2.5])
