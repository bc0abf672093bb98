"""DReSD against a loop over all stored states."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from specdec_lib import Sampling, datastores
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.dense_at_scale import UnfilteredDresd
from specdec_lib.datastores import ArrayStates, DenseIndex, StoreError
from specdec_lib.decoding.contract import LAST, Context
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters import Dresd
from tests.datastores.stores import scratch, tree_paths

WIDTH, VOCABULARY = 8, 6


@pytest.fixture(scope="module")
def index():
    """A few tokens in many documents, so that most neighbours survive the filter, and states of noise."""
    rng = random.Random(0)
    documents = [[rng.randrange(VOCABULARY) for _ in range(rng.randrange(2, 25))] for _ in range(40)]
    with scratch() as folder:
        store = datastores.build_tokens(folder / "store", documents, VOCABULARY, progress=False)
        inside = np.concatenate([np.arange(store.starts[i] + 1, store.starts[i + 1] - 1) for i in range(len(store))])
        states = np.random.default_rng(0).normal(size=(len(inside), WIDTH)).astype(np.float32)
        yield datastores.build_dense_index(
            store.path / "dense", ArrayStates(inside, states), dims=WIDTH, progress=False
        )


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


class Found(list):
    """Drafts, and the positions of the neighbours that they follow."""

    def __init__(self):
        self.places = []


def by_loop(index: DenseIndex, context: Context, drafts: int, length: int, neighbours: int):
    """Drafts in order, and how many neighbours start with the last token."""
    store = index.store
    found, survivors = Found(), 0
    for position in index.search(context.hidden(LAST)[-1], neighbours)[1][0].tolist():
        document = int(np.searchsorted(store.starts, position, side="right")) - 1
        end = int(store.starts[document + 1]) - 1
        if store.tokens[position] != context.tokens[-1]:
            continue
        survivors += 1
        draft = tuple(store.tokens[position + 1 : min(end, position + 1 + length)].tolist())
        if draft and len(found) < drafts and draft not in found:
            found.append(draft)
            found.places.append(position)
    return found, survivors


@pytest.mark.parametrize("drafts, length, neighbours", [(10, 10, 50), (1, 1, 1), (3, 20, 50), (4, 2, 30), (50, 3, 200)])
def test_drafts_are_the_first_filtered_continuations_merged_into_one_tree(index, drafts, length, neighbours):
    drafted = 0
    for context in contexts(40):
        drafter = Dresd(index, drafts, length, neighbours)
        tree = propose(drafter, context)
        expected, survivors = by_loop(index, context, drafts, length, neighbours)
        assert drafter.survivors == survivors
        checked = DraftTree(tree.tokens, tree.parents)
        assert (checked, checked.is_chain) == (tree, tree.is_chain)
        prefixes = dict.fromkeys(draft[:n] for draft in expected for n in range(1, len(draft) + 1))
        assert tree_paths(tree.tokens, tree.parents) == list(prefixes)
        scores, positions = (rows[0] for rows in index.search(context.hidden(LAST)[-1], neighbours))
        score_of = dict(zip(positions.tolist(), scores.tolist(), strict=True))
        nearest = [score_of[place] for place in expected.places]
        assert drafter.similarities == [
            max(score for score, draft in zip(nearest, expected, strict=True) if draft[: len(path)] == path)
            for path in prefixes
        ]
        drafted += len(tree)
    assert drafted > 0


def test_a_draft_of_n_tokens_has_n_without_the_token_it_was_filtered_by(index):
    deepest = 0
    for context in contexts(40):
        tree = propose(Dresd(index, 50, 3), context)
        assert tree.depth <= 3
        deepest = max(deepest, tree.depth)
        for limit in (1, 2):
            assert propose(Dresd(index, 50, 3), context, limit) == tree.truncated(limit)
    assert deepest == 3


def test_no_survivor_gives_an_empty_draft(index):
    for context in contexts(10):
        context.tokens[-1] = VOCABULARY - 1
        rare = Context([*context.tokens[:-1], VOCABULARY], 3, VOCABULARY + 1, Sampling(), context.hidden)
        # The id after the last is the separator: neighbours that were not found must not pass for it.
        assert propose(Dresd(index, neighbours=5), rare) is EMPTY
        few = Dresd(index, neighbours=10**4)
        assert len(propose(few, context)) > 0 and few.survivors < len(index)


def test_another_model_or_vocabulary_is_refused_at_the_start(index, tmp_path):
    context = contexts(1)[0]
    context.vocabulary = VOCABULARY - 1
    with pytest.raises(ValueError, match="has 6 token ids, the model 5: they do not share"):
        propose(Dresd(index), context)
    wide = Context([1, 2], 1, VOCABULARY, Sampling(), lambda layer: torch.zeros(1, WIDTH + 1))
    with pytest.raises(ValueError, match="states have width 9, those of .* 8: index this model's"):
        propose(Dresd(index), wide)
    with pytest.raises(StoreError, match="has no dense index"):
        Dresd(tmp_path / "none")


def test_without_the_filter_every_neighbour_is_continued_after_its_next_token(index):
    for context in contexts(50):
        positions = index.search(context.hidden(LAST)[-1], 30)[1][0].tolist()
        drafts = [index.store.continuation(position + 1, 4) for position in positions]
        expected = list(dict.fromkeys(map(tuple, filter(None, drafts))))[:5]
        tree = propose(UnfilteredDresd(index, 5, 4, 30), context)
        whole = DraftTree.from_drafts(map(list, expected))
        assert (tree.tokens, tree.parents) == (whole.tokens, whole.parents)
