"""SuffixDecoding's draft against its equations, written out over all substrings."""

import random
from fractions import Fraction

import pytest

from specdec_lib import Context, Sampling, generate
from specdec_lib.drafters import SuffixDecoding
from tests.datastores.stores import build as build_store
from tests.datastores.stores import substrings, tree_paths
from tests.families import VOCABULARY, build, prompt


def tree_after(counts, pattern, budget, depth, least, chains):
    """The ``budget`` likeliest nodes after a pattern: path and probability, in order, by trying all of them each time."""
    chosen = []
    while len(chosen) < budget:
        places = {(): -1} | {path: place for place, (path, _) in enumerate(chosen)}
        options = []
        for path, share in [((), Fraction(1)), *chosen][-1 if chains else 0 :]:
            for token in range(VOCABULARY):
                child = (*path, token)
                count = counts.get((*pattern, *child), 0)
                if count and child not in places and len(child) <= depth:
                    probability = share * count / counts[(*pattern, *path)]
                    if float(probability) >= least:
                        options.append((-probability, places[path], token, child))
        if not options:
            break
        probability, *_, child = min(options)
        chosen.append((child, -probability))
    return chosen


def direct(texts_by_source, context, drafter, limit):
    """The tree of the largest score, over sources in order and matches from the longest; paths and probabilities."""
    best, score = [], Fraction(0)
    for texts in texts_by_source:
        counts = substrings(texts)
        for length in range(min(len(context), drafter.depth - 1), 0, -1):
            pattern = tuple(context[-length:])
            if pattern not in counts:
                continue
            budget = min(drafter.most, int(drafter.factor * length + drafter.offset + 1e-6))
            tree = tree_after(
                counts, pattern, budget, min(limit, drafter.depth - length), drafter.least, drafter.chains
            )
            total = sum(share for _, share in tree)
            if total > score:
                best, score = tree, total
    return best


@pytest.mark.parametrize("seed", range(10))
def test_the_draft_is_the_tree_of_the_largest_score_over_texts_and_matches(seed):
    rng = random.Random(seed)
    settings = {"factor": rng.choice([0.5, 1.0, 2.0]), "offset": rng.choice([0.0, 1.0]), "most": rng.choice([3, 64])}
    settings |= {"depth": rng.choice([4, 12, 64]), "least": rng.choice([0.05, 0.1, 0.4])}
    settings["chains"] = seed % 2 == 1
    documents = [[rng.randrange(4) for _ in range(rng.randint(3, 12))] for _ in range(3)]
    with build_store(documents, VOCABULARY) as index:
        drafter = SuffixDecoding(index, **settings)
    earlier, drafted = [], 0
    for _ in range(3):
        start = [rng.randrange(4) for _ in range(rng.randint(1, 10))]
        context = Context([*start, rng.randrange(4)], len(start), VOCABULARY, Sampling())
        drafter.start(context)
        for _ in range(8):
            limit = rng.choice([1, 3, 20])
            tree = drafter.propose(context, limit)
            expected = direct([[context.tokens], earlier, documents], context.tokens, drafter, limit)
            assert tree_paths(tree.tokens, tree.parents) == [path for path, _ in expected]
            assert (tree.scores or []) == [float(share) for _, share in expected]
            drafted += len(tree)
            context.tokens += [rng.randrange(4) for _ in range(rng.randint(1, 3))]
        drafter.finish()
        earlier.append(context.tokens[len(start) :])
    assert drafted > 20


def test_earlier_outputs_are_remembered_until_it_is_reset():
    model, start = build("llama-gqa"), prompt(1, 12)
    drafter = SuffixDecoding()
    first, again = (generate(model, start, drafter, Sampling(), 24) for _ in range(2))
    assert first.tokens == again.tokens and len(again.steps) < len(first.steps)
    drafter.reset()
    cold = generate(model, start, drafter, Sampling(), 24)
    assert [step.tree for step in cold.steps] == [step.tree for step in first.steps]
