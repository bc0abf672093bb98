"""SAM-Decoding's choice of a source against the rule of the paper, by searching the texts."""

import random
from collections import Counter

import numpy as np
import pytest

from specdec_lib import Context, DraftTree, Outputs, Sampling, generate
from specdec_lib.decoding.contract import Capture
from specdec_lib.drafters import SamDecoding, TokenRecycling
from tests.chaos import Silent
from tests.datastores.stores import build as build_store
from tests.datastores.stores import tree_paths
from tests.families import VOCABULARY, prompt, uncached

AUXILIARY = DraftTree([90, 91], [-1, -1])


def ends(texts, string):
    """Where a string ends: text and place, in order."""
    places = ((i, end) for i, text in enumerate(texts) for end in range(len(string), len(text) + 1))
    return [(i, end) for i, end in places if texts[i][end - len(string) : end] == string]


def direct(tokens, documents, length, threshold, bias):
    """The chain that the rule copies, or None where the auxiliary drafter drafts."""
    own = max((n for n in range(1, len(tokens)) if ends([tokens[:-1]], tokens[-n:])), default=0)
    static = max((n for n in range(1, len(tokens) + 1) if ends(documents, tokens[-n:])), default=0)
    if max(own, static - bias) < threshold:
        return None
    if static - bias > own:
        text, end = ends(documents, tokens[-static:])[0]
        return documents[text][end : end + length] or None
    options = [tokens[ends([tokens], tokens[-n:])[0][1] :][:length] for n in range(own, 0, -1)]
    return next((option for option in options if len(option) == length), options[-1])


@pytest.mark.parametrize("seed", range(12))
def test_the_longest_match_decides_who_drafts_and_what(seed):
    rng = random.Random(seed)
    length, threshold, bias = rng.choice([2, 5, 39]), rng.choice([1, 3, 5]), rng.choice([0, 2, 5])
    documents = [[rng.randrange(3) for _ in range(rng.randint(5, 40))] for _ in range(3)]
    auxiliary = Silent()
    auxiliary.propose = lambda context, limit: AUXILIARY
    with build_store(documents, VOCABULARY) as index:
        drafter = SamDecoding(auxiliary, index, length, threshold, bias)
    seen = set()
    for _ in range(2):
        start = [rng.randrange(3) for _ in range(rng.randint(1, 12))]
        context = Context([*start, rng.randrange(3)], len(start), VOCABULARY, Sampling())
        drafter.start(context)
        for _ in range(25):
            expected = direct(context.tokens, documents, length, threshold, bias)
            tree = drafter.propose(context, 99)
            assert tree == (AUXILIARY if expected is None else DraftTree.chain(expected))
            seen.add(expected is None)
            copy = rng.choice([context.tokens, *documents])
            place = rng.randrange(len(copy))
            context.tokens += copy[place : place + rng.randint(1, 6)] or [0]
    assert False in seen


def test_by_default_the_table_learns_from_the_prompt_and_the_tree_is_the_released_one(llama):
    start, drafter, seen = prompt(3, 14), SamDecoding(), []
    auxiliary = drafter.drafter
    propose = drafter.propose
    drafter.propose = lambda context, limit: seen.append(dict(auxiliary.table)) or propose(context, limit)
    run = generate(llama, start, drafter, max_new_tokens=8)
    assert run.tokens == generate(llama, start, None, max_new_tokens=8).tokens
    logits, _ = uncached(llama, start)
    expected = {token: row.topk(8).indices.tolist() for token, row in zip(start, logits, strict=True)}
    assert {token: row.tolist() for token, row in seen[0].items()} == expected
    depths = Counter(map(len, tree_paths([rank for _, rank in auxiliary._nodes], [p for p, _ in auxiliary._nodes])))
    assert [depths[depth] for depth in sorted(depths)] == [7, 20, 21, 8, 4]
    with pytest.raises(ValueError, match="topk is 0; say how many"):
        Capture(prompt=True)


def test_a_draft_keeps_to_the_limit_and_the_auxiliary_drafter_learns_from_every_pass():
    auxiliary = TokenRecycling()
    drafter = SamDecoding(auxiliary, num_tokens=10, threshold=2)
    assert drafter.capture == auxiliary.capture and drafter.replays == "never"
    context = Context([5, 6, 7, 8, 9, 5, 6], 6, VOCABULARY, Sampling())
    drafter.start(context)
    copied = drafter.propose(context, 2)
    assert copied == DraftTree.chain([7, 8])
    # Of a pass over a copied draft the auxiliary drafter learns what the target found likely after each of its tokens.
    likely = np.array([[7, 1, 2, 3, 4, 9, 10, 11], [8, 2, 3, 4, 9, 10, 11, 12], [9, 3, 4, 10, 11, 12, 13, 14]])
    drafter.verified(copied, (0, 1), Outputs(likely, likely, likely[:0], likely[:0], 6))
    assert [auxiliary.table[token].tolist() for token in (6, 7, 8)] == likely.tolist()
