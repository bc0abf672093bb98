"""Draft trees against brute force over sets of prefixes."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_lib import AuxiliaryTokens, DraftTree
from tests.chaos import shuffled
from tests.datastores.stores import full_trie, tree_paths

drafts = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6)
#: Trees with nodes in any order that puts parents first.
trees = st.builds(lambda lists, rng: shuffled(DraftTree.from_drafts(lists), rng), drafts, st.randoms())


def texts(tree: DraftTree) -> list[tuple[int, ...]]:
    return tree_paths(tree.tokens, tree.parents)


@given(drafts)
def test_from_drafts_holds_every_prefix_once(lists):
    found = texts(DraftTree.from_drafts(lists))
    assert len(found) == len(set(found)) and set(found) == set(full_trie(map(tuple, lists)))


@given(trees)
def test_depths_paths_children_mask_and_what_is_kept_of_fewer_levels_follow_parents(tree):
    found = texts(tree)
    assert tree.depths == [len(text) for text in found]
    assert tree.depth == max(tree.depths, default=0)
    for node, text in enumerate(found):
        assert tuple(tree.tokens[n] for n in tree.path(node)) == text
    assert tree.path(-1) == []
    for node in range(-1, len(tree)):
        seen = {-1, *tree.path(node)}
        assert tree.mask()[node + 1].tolist() == [other in seen for other in range(-1, len(tree))]
        for token in range(5):
            expected = [i for i in range(len(tree)) if tree.parents[i] == node and tree.tokens[i] == token]
            assert tree.child(node, token) == (expected[0] if expected else None)
    for depth in range(7):
        cut = tree.truncated(depth)
        assert texts(cut) == [text for text in found if len(text) <= depth]
        assert cut is tree or tree.depth > depth


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 8))
def test_a_chain_is_the_tree_of_one_draft(tokens, depth):
    rows = torch.rand(len(tokens), 10)
    chain = DraftTree.chain(tokens, rows)
    assert chain == DraftTree(tokens, list(range(-1, len(tokens) - 1))) == DraftTree.from_drafts([tokens])
    assert chain.is_chain and chain.depth == len(chain) == len(tokens)
    assert np.array_equal(chain.mask(), np.tri(len(tokens) + 1, dtype=bool))
    cut = chain.truncated(depth)
    assert cut.tokens == tokens[:depth] and torch.equal(cut.probabilities, rows[:depth])


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


RIDER = AuxiliaryTokens([1], [1], np.ones((1, 3)))


@pytest.mark.parametrize("make, says", [
    (lambda: DraftTree([1, 2], [-1]), "2 tokens but 1 parents"),
    (lambda: DraftTree([1, 2], [-1, 1]), r"parents\[1\] is 1"),
    (lambda: DraftTree([1], [-2]), r"parents\[0\] is -2"),
    (lambda: DraftTree([-4], [-1]), r"tokens\[0\] is -4"),
    (lambda: DraftTree([5, 5], [-1, -1]), "two children of one node carry the same token"),
    (lambda: DraftTree([1, 2], [-1, 0], torch.ones(3, 9)), r"shape \(3, 9\)"),
    (lambda: DraftTree([1, 2], [-1, 0], torch.ones(9)), "one row per token"),
    (lambda: DraftTree.chain([1, -3]), "-3"),
    (lambda: DraftTree.chain([3, 4]).annotated(scores=[1.0]), "1 scores but 2 tokens"),
    (lambda: DraftTree([3, 4], [-1, -1]).annotated(sources=["a", "b", "c"]), "3 sources but 2 tokens"),
    (lambda: DraftTree.chain([3, 4]).annotated(auxiliary=RIDER), r"visible has shape \(1, 3\); expected 4 columns"),
    (lambda: AuxiliaryTokens([1, 2], [1], np.ones((2, 3))), "2 auxiliary tokens but 1 depths"),
    (lambda: AuxiliaryTokens([1, 2], [1, 1], np.ones((1, 3))), r"visible has shape \(1, 3\)"),
    (lambda: AuxiliaryTokens([1, 2], [1, 1], np.ones(2)), r"visible has shape \(2,\)"),
    (lambda: AuxiliaryTokens([1, -2], [1, 1], np.ones((2, 3))), "tokens of auxiliary tokens hold -2"),
    (lambda: AuxiliaryTokens([1, 2], [1, -1], np.ones((2, 3))), "depths of auxiliary tokens hold -1"),
])  # fmt: skip
def test_malformed_trees_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("kind", [np.array, torch.tensor, lambda tokens: list(np.array(tokens))])
@pytest.mark.parametrize("make", [
    DraftTree.chain,
    lambda tokens: DraftTree(tokens, np.array([-1, 0, 1])),
    lambda tokens: DraftTree.from_drafts([tokens]),
    lambda tokens: DraftTree.from_drafts([tokens], merge=False),
    lambda tokens: AuxiliaryTokens(tokens, tokens, np.ones((3, 4))),
])  # fmt: skip
def test_token_ids_of_arrays_and_tensors_become_ints(make, kind):
    tree = make(kind([4, 5, 6]))
    assert tree.tokens == [4, 5, 6] and {type(number) for number in tree.tokens} == {int}
    with pytest.raises(TypeError):
        make([2.5, 3.5, 4.5])
