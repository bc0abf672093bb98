"""Token Recycling's table against a dict that follows the paper, and its tree against a search of all trees."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from specdec_lib import Sampling, generate
from specdec_lib.drafters.token_recycling import LEVELS, TokenRecycling, template
from tests.families import build, prompt


def ranks_to_root(nodes):
    """For each node the ranks on its path, from the root down, from 1."""
    paths = []
    for parent, rank in nodes:
        paths.append((*(paths[parent] if parent >= 0 else ()), rank + 1))
    return paths


def test_the_template_has_the_published_level_sizes_and_is_closed_under_better_ranks():
    paths = ranks_to_root(template())
    assert len(paths) == 80 == len(set(paths))
    assert tuple(Counter(map(len, paths))[depth] for depth in range(1, 7)) == LEVELS == (8, 21, 25, 15, 8, 3)
    for path in paths:
        assert path[:-1] in ((), *paths), "a node without its parent"
        assert all((*path[:-1], better) in paths for better in range(1, path[-1])), "a better sibling is left out"


def test_each_level_has_the_smallest_products_of_ranks_below_the_level_above():
    paths = ranks_to_root(template((4, 6, 5), width=4))
    for depth in (1, 2, 3):
        level = [path for path in paths if len(path) == depth]
        above = {path for path in paths if len(path) == depth - 1} or {()}
        possible = sorted(int(np.prod(path)) for path in product(range(1, 5), repeat=depth) if path[:-1] in above)
        assert sorted(int(np.prod(path)) for path in level) == possible[: len(level)]


class Watched(TokenRecycling):
    """Keeps every pass it is shown."""

    def reset(self):
        super().reset()
        self.passes, self.drafts, self.after = [], [], []

    def propose(self, context, limit):
        before = {token: row.tolist() for token, row in self.table.items()}
        tree = super().propose(context, limit)
        self.drafts.append((before, context.tokens[-1], tree))
        return tree

    def verified(self, tree, path, outputs):
        super().verified(tree, path, outputs)
        self.passes.append((tree, path, outputs))
        self.after.append({token: row.tolist() for token, row in self.table.items()})


@pytest.fixture(scope="module")
def runs():
    """Three prompts of one model, decoded with a table that stays."""
    model = build("llama-gqa")
    drafter = Watched()
    starts = [prompt(seed, 20) for seed in range(3)]
    done = [generate(model, start, drafter, Sampling(), 30) for start in starts]
    return model, drafter, starts, done


def test_the_table_is_what_a_dict_would_hold_after_every_pass_in_order(runs):
    _, drafter, _, _ = runs
    table: dict[int, list[int]] = {}
    for (tree, _, outputs), after in zip(drafter.passes, drafter.after, strict=True):
        for token, row in zip([outputs.root, *tree.tokens], outputs.tokens.tolist(), strict=True):
            table[token] = row  # the last node of a token wins
        assert after == table
    assert len(table) > 20


def test_a_child_is_the_entry_of_its_parent_s_row_that_the_template_says(runs):
    _, drafter, _, _ = runs
    paths = {tuple(rank - 1 for rank in path) for path in ranks_to_root(template())}
    widest = 0
    for before, root, tree in drafter.drafts:
        expected = set()
        for path in sorted(paths, key=len):
            token, tokens = root, []
            for rank in path:
                token = before[token][rank] if token in before else None
                tokens.append(token)
            if None not in tokens and len(tokens) <= 6:
                expected.add(tuple(tokens))
        drafted = {tuple(tree.tokens[n] for n in tree.path(node)) for node in range(len(tree))}
        assert drafted <= expected and (drafted == expected or tree.depth < 6)
        widest = max(widest, len(tree))
    assert widest == 80


def test_nothing_is_known_of_a_token_never_read_and_reset_forgets(runs):
    model, _, starts, done = runs
    drafter = TokenRecycling()
    first = generate(model, starts[0], drafter, Sampling(), 12)
    assert first.steps[0].drafted == 0 and first.steps[0].accepted == 0
    assert drafter.table and first.tokens == done[0].tokens[:12]
    drafter.reset()
    assert drafter.table == {}
    again = generate(model, starts[0], drafter, Sampling(), 12)
    assert [step.tree.tokens for step in again.steps] == [step.tree.tokens for step in first.steps]
