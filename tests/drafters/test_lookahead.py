"""Lookahead's window against Jacobi iteration by full forwards, its pool against a list, and the width of its passes."""

from __future__ import annotations

import random

import pytest
import torch

from specdec_lib import Sampling, generate
from specdec_lib.drafters import Lookahead
from tests.families import build, prompt

GREEDY = Sampling()


class Watched(Lookahead):
    """Keeps what every pass rides with and drafts."""

    def start(self, context):
        super().start(context)
        self.passes = []

    def verified(self, tree, path, outputs):
        if tree.passengers is not None:
            leaves = set(range(len(tree))) - set(tree.parents)
            drafts = {tuple(tree.tokens[n] for n in tree.path(leaf)) for leaf in leaves}
            said = outputs.passenger_tokens[:, 0].tolist()
            self.passes.append((tree.passengers.tokens, drafts, said, tree.width))
        super().verified(tree, path, outputs)


def next_token(model, tokens):
    with torch.inference_mode():
        return int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())


def jacobi(model, start, output, window, levels, guesses, seed):
    """Passes of the method, from its description: a grid of guesses whose first corner is the last token.

    Row r, column i of the grid is a guess of the token r + i places after the last one. What follows column i is the
    argmax after the text, the first row up to column i, and the column itself.
    """
    rng, text, done = random.Random(seed), [*start, output[0]], 1
    grid = [[None, *(rng.choice(start) for _ in range(window + levels - 3))]]
    pool: dict[int, list[tuple[int, ...]]] = {}
    passes = []
    while len(output) - done > 1:
        grid[0][0] = text[-1]
        columns = range(len(grid[0]))
        said = [next_token(model, text + grid[0][1 : i + 1] + [row[i] for row in grid[1:]]) for i in columns]
        full = len(grid) == levels - 1
        drafts = pool.get(text[-1], []) if full else []
        passes.append(([token for row in grid for token in row][1:], set(drafts), list(said)))
        limit = len(output) - done - 1
        agreed = max((agreement(draft[:limit], output[done:]) for draft in drafts), default=0)
        if full:
            for i in columns:
                known = pool.setdefault(grid[0][i], [])
                ngram = (*(row[i] for row in grid[1:]), said[i])
                if ngram in known:
                    known.remove(ngram)
                known.append(ngram)
                del known[:-guesses]
            grid = [*grid[1:], said]
        else:
            grid = [row[1:] for row in (*grid, said)]
        text += output[done : done + agreed + 1]
        done += agreed + 1
    return passes


def agreement(draft, tokens):
    differ = (i for i, (a, b) in enumerate(zip(draft, tokens, strict=False)) if a != b)
    return next(differ, min(len(draft), len(tokens)))


@pytest.mark.parametrize("window, levels, guesses", [(7, 5, 7), (3, 3, 2), (1, 4, 1)])
def test_the_window_is_jacobi_iteration_and_its_ngrams_are_what_is_drafted(window, levels, guesses):
    model, start = build("llama-gqa"), prompt(3, 12)
    drafter = Watched(window, levels, guesses, seed=5)
    run = generate(model, start, drafter, GREEDY, 40)
    expected = jacobi(model, start, run.tokens, window, levels, guesses, 5)
    assert len(drafter.passes) == len(expected)
    drafted = 0
    for place, ((riding, drafts, said, width), (grid, guessed, follows)) in enumerate(
        zip(drafter.passes, expected, strict=True)
    ):
        assert riding == grid
        # The last token is the first column of the first row; what follows it is the target's own token.
        rows = min(place + 1, levels - 1)
        last = follows if rows > 1 else follows[1:]
        assert said[len(said) - len(last) :] == last
        if len(run.tokens) - sum(len(s.tokens) for s in run.steps[:place]) > levels:  # not cut by the limit
            assert drafts == guessed
            assert width == 1 + len(grid) + (levels - 1) * len(guessed)
        drafted += len(drafts)
    assert drafted > 5


@pytest.mark.parametrize("merge", [False, True])
def test_a_full_match_counts_all_its_tokens(merge):
    model, start = build("llama-gqa"), prompt(2, 12)
    text = [*start, *generate(model, start, None, GREEDY, 40).tokens]

    class Knowing(Lookahead):
        """Its pool knows the true continuation."""

        def propose(self, context, limit):
            here = len(context.tokens)
            ngram = tuple(text[here : here + 4])
            if len(ngram) == 4:
                self.pool.add(context.tokens[-1], (*ngram[:2], 90, 91))
                self.pool.add(context.tokens[-1], ngram)
            return super().propose(context, limit)

    run = generate(model, start, Knowing(merge=merge), GREEDY, 40)
    assert run.tokens == text[12:]
    inside = run.steps[3:-2]
    assert {len(step.tokens) for step in inside} == {5}


def test_the_first_window_is_the_seed_s_and_nothing_is_kept_from_prompt_to_prompt():
    model, start = build("llama-gqa"), prompt(3, 12)
    drafter = Watched(seed=1)
    first, again = [], []
    for seen in (first, again):
        generate(model, start, drafter, GREEDY, 16)
        seen += drafter.passes
    assert first == again and set(first[0][0]) <= set(start)
    other = Watched(seed=2)
    generate(model, start, other, GREEDY, 16)
    assert other.passes[0][0] != first[0][0]
