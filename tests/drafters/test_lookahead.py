"""Lookahead's window against Jacobi iteration by full forwards, its pool against a list, and the width of its passes."""

import random
from os.path import commonprefix

import pytest

from specdec_lib import generate
from specdec_lib.drafters import Lookahead
from tests.families import prompt, uncached


class Watched(Lookahead):
    """Keeps what every pass rides with and drafts."""

    def start(self, context):
        super().start(context)
        self.passes = []

    def verified(self, tree, path, outputs):
        if tree.auxiliary is not None:
            leaves = set(range(len(tree))) - set(tree.parents)
            drafts = {tuple(tree.tokens[n] for n in tree.path(leaf)) for leaf in leaves}
            said = outputs.auxiliary_tokens[:, 0].tolist()
            self.passes.append((tree.auxiliary.tokens, drafts, said, tree.width))
        super().verified(tree, path, outputs)


def jacobi(model, start, output, window, levels, guesses, seed, prompt):
    """Passes of the method, from its description: a grid of guesses whose first corner is the last token.

    Row r, column i of the grid is a guess of the token r + i places after the last one. What follows column i is the
    argmax after the text, the first row up to column i, and the column itself.
    """
    rng, text, done = random.Random(seed), [*start, output[0]], 1
    grid = [[None, *(rng.choice(start) for _ in range(window + levels - 3))]]
    pool: dict[int, list[tuple[int, ...]]] = {}
    passes, pooled = [], 0

    def noted(token, ngram):
        known = pool.setdefault(token, [])
        if ngram in known:
            known.remove(ngram)
        known.append(ngram)
        del known[:-guesses]

    while len(output) - done > 1:
        grid[0][0] = text[-1]
        read = [text + grid[0][1 : i + 1] + [row[i] for row in grid[1:]] for i in range(len(grid[0]))]
        said = [int(uncached(model, tokens)[0][-1].argmax()) for tokens in read]
        full = len(grid) == levels - 1
        while prompt and pooled + levels <= len(text):
            token, *ngram = text[pooled : pooled + levels]
            noted(token, tuple(ngram))
            pooled += 1
        drafts = pool.get(text[-1], []) if full else []
        passes.append(([token for row in grid for token in row][1:], set(drafts), list(said)))
        limit = len(output) - done - 1
        agreed = max((len(commonprefix([list(draft[:limit]), output[done:]])) for draft in drafts), default=0)
        if full:
            for i in range(len(grid[0])):
                noted(grid[0][i], (*(row[i] for row in grid[1:]), said[i]))
            grid = [*grid[1:], said]
        else:
            grid = [row[1:] for row in (*grid, said)]
        text += output[done : done + agreed + 1]
        done += agreed + 1
    return passes


@pytest.mark.parametrize("prompt_too", [False, True])
@pytest.mark.parametrize("window, levels, guesses", [(7, 5, 7), (3, 3, 2), (1, 4, 1)])
def test_the_window_is_jacobi_iteration_and_its_ngrams_are_what_is_drafted(llama, window, levels, guesses, prompt_too):
    start = prompt(3, 12)
    drafter = Watched(window, levels, guesses, seed=5, prompt=prompt_too)
    run = generate(llama, start, drafter, max_new_tokens=40)
    expected = jacobi(llama, start, run.tokens, window, levels, guesses, 5, prompt_too)
    assert len(drafter.passes) == len(expected)
    drafted = 0
    for place, (grid, guessed, follows) in enumerate(expected):
        riding, drafts, said, width = drafter.passes[place]
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
def test_a_full_match_counts_all_its_tokens(llama, merge):
    start = prompt(2, 12)
    text = [*start, *generate(llama, start, None, max_new_tokens=40).tokens]

    class Knowing(Lookahead):
        """Its pool knows the true continuation."""

        def propose(self, context, limit):
            here = len(context.tokens)
            if here + 4 <= len(text):
                self.pool.add(text[here - 1], (*text[here : here + 2], 90, 91))
                self.pool.add(text[here - 1], tuple(text[here : here + 4]))
            return super().propose(context, limit)

    run = generate(llama, start, Knowing(merge=merge), max_new_tokens=40)
    assert run.tokens == text[12:]
    assert {len(step.tokens) for step in run.steps[3:-2]} == {5}


def test_the_first_window_is_the_seed_s_and_nothing_is_kept_from_prompt_to_prompt(llama):
    start, same, seen = prompt(3, 12), Watched(seed=1), []
    for drafter in (same, same, Watched(seed=2)):
        generate(llama, start, drafter, max_new_tokens=16)
        seen.append(drafter.passes)
    assert seen[0] == seen[1] and set(seen[0][0][0]) <= set(start) and seen[2][0][0] != seen[0][0][0]
