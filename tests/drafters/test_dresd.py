"""DReSD against a loop over all stored states."""

import itertools
import random

import numpy as np
import pytest
import torch

from specdec_lib import LAST, Context, DraftTree, Sampling, datastores
from specdec_lib.datastores import ArrayStates, DenseIndex
from specdec_lib.decoding.tree import EMPTY
from specdec_lib.drafters import Dresd
from tests.datastores.dense_stores import build, stored_positions
from tests.datastores.stores import full_trie, scratch, tree_paths

WIDTH, VOCABULARY = 8, 6


@pytest.fixture(scope="module")
def index():
    """A few tokens in many documents, so that most neighbours survive the filter, and states of noise."""
    rng = random.Random(0)
    documents = [[rng.randrange(VOCABULARY) for _ in range(rng.randrange(2, 25))] for _ in range(40)]
    with scratch() as folder:
        store = datastores.build_tokens(folder / "store", documents, VOCABULARY, progress=False)
        inside = stored_positions(store)
        states = np.random.default_rng(0).normal(size=(len(inside), WIDTH)).astype(np.float32)
        yield build(store, ArrayStates(inside, states), dims=WIDTH)


def contexts(count: int) -> list[Context]:
    rng, found = np.random.default_rng(1), []
    for _ in range(count):
        tokens = rng.integers(0, VOCABULARY, 5).tolist()
        hidden = torch.from_numpy(rng.normal(size=(4, WIDTH)).astype(np.float32))
        found.append(Context(tokens, 3, VOCABULARY, Sampling(), lambda layer, hidden=hidden: hidden))
    return found


def propose(drafter: Dresd, context: Context, limit: int = 1000) -> DraftTree:
    drafter.start(context)
    return drafter.propose(context, limit)


def by_loop(index: DenseIndex, context: Context, drafts: int, length: int, neighbours: int):
    """Drafts in order with the score of the neighbour each follows, and how many neighbours start with the last token."""
    store, found, survivors = index.store, {}, 0
    scores, positions = (rows[0].tolist() for rows in index.search(context.hidden(LAST)[-1], neighbours))
    for score, position in zip(scores, positions, strict=True):
        document = int(np.searchsorted(store.starts, position, side="right")) - 1
        end = int(store.starts[document + 1]) - 1
        if store.tokens[position] != context.tokens[-1]:
            continue
        survivors += 1
        draft = tuple(store.tokens[position + 1 : min(end, position + 1 + length)].tolist())
        if draft and len(found) < drafts and draft not in found:
            found[draft] = score
    return found, survivors


@pytest.mark.parametrize("drafts, length, neighbours", [(10, 10, 50), (1, 1, 1), (3, 20, 50), (4, 2, 30), (50, 3, 200)])
def test_drafts_are_the_first_filtered_continuations_merged_into_one_tree(index, drafts, length, neighbours):
    depths = set()
    for context, limit in itertools.product(contexts(25), (2, 1000)):
        drafter = Dresd(index, drafts, length, neighbours)
        tree = propose(drafter, context, limit)
        expected, survivors = by_loop(index, context, drafts, min(length, limit), neighbours)
        assert drafter.survivors == survivors
        checked = DraftTree(tree.tokens, tree.parents)
        assert (checked, checked.is_chain) == (tree, tree.is_chain)
        prefixes = list(full_trie(list(expected)))
        assert tree_paths(tree.tokens, tree.parents) == prefixes
        assert drafter.similarities == [
            max(score for draft, score in expected.items() if draft[: len(path)] == path) for path in prefixes
        ]
        depths.add(tree.depth)
    assert 0 < max(depths) <= length


def test_no_survivor_gives_an_empty_draft(index):
    for context in contexts(10):
        context.tokens[-1] = VOCABULARY - 1
        rare = Context([*context.tokens[:-1], VOCABULARY], 3, VOCABULARY + 1, Sampling(), context.hidden)
        # The id after the last is the separator: neighbours that were not found must not pass for it.
        assert propose(Dresd(index, neighbours=5), rare) is EMPTY
        few = Dresd(index, neighbours=10**4)
        assert len(propose(few, context)) > 0 and few.survivors < len(index)


def test_another_model_is_refused_at_the_start(index):
    wide = Context([1, 2], 1, VOCABULARY, Sampling(), lambda layer: torch.zeros(1, WIDTH + 1))
    with pytest.raises(ValueError, match="states have width 9, those of .* 8: index this model's"):
        propose(Dresd(index), wide)


def test_without_the_filter_every_neighbour_is_continued_after_its_next_token(index):
    # The chapter needs pandas, which make test-core leaves out.
    chapter = pytest.importorskip("specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.growing_stores")
    for context in contexts(50):
        positions = index.search(context.hidden(LAST)[-1], 30)[1][0].tolist()
        drafts = [index.store.continuation(position + 1, 4) for position in positions]
        expected = list(dict.fromkeys(map(tuple, filter(None, drafts))))[:5]
        tree = propose(chapter.UnfilteredDresd(index, 5, 4, 30), context)
        whole = DraftTree.from_drafts(map(list, expected))
        assert (tree.tokens, tree.parents) == (whole.tokens, whole.parents)
