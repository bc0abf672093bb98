"""Token Recycling's table against a dict that follows the paper, and its tree against a search of all trees."""

import numpy as np
import pytest

from specdec_lib import Sampling, generate
from specdec_lib.drafters import TokenRecycling
from specdec_lib.drafters.token_recycling import LEVELS, template
from tests.datastores.stores import tree_paths
from tests.families import build, prompt


def ranks_to_root(nodes):
    """For each node the ranks on its path, from the root down, from 1."""
    return tree_paths([rank + 1 for _, rank in nodes], [parent for parent, _ in nodes])


@pytest.mark.parametrize("levels, width", [((8, 21, 25, 15, 8, 3), 8), ((4, 6, 5), 4)])
def test_each_level_has_the_smallest_products_of_ranks_below_the_level_above(levels, width):
    """Published are the first level sizes, which are the default."""
    paths = ranks_to_root(template(levels, width))
    assert (template() == template(levels, width)) == (levels == LEVELS) and len(set(paths)) == len(paths)
    above = [()]
    for depth, count in enumerate(levels, start=1):
        level = [path for path in paths if len(path) == depth]
        possible = {(*path, rank): int(np.prod([*path, rank])) for path in above for rank in range(1, width + 1)}
        assert set(level) <= set(possible), "a node without its parent"
        assert sorted(possible[path] for path in level) == sorted(possible.values())[:count]
        above = level


class Watched(TokenRecycling):
    """Keeps every pass it is shown."""

    def reset(self):
        super().reset()
        self.passes, self.after = [], [{}]

    def verified(self, tree, path, outputs):
        super().verified(tree, path, outputs)
        self.passes.append((tree, outputs))
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
    for (tree, outputs), after in zip(drafter.passes, drafter.after[1:], strict=True):
        for token, row in zip([outputs.root, *tree.tokens], outputs.tokens.tolist(), strict=True):
            table[token] = row  # the last node of a token wins
        assert after == table
    assert len(table) > 20


def test_a_child_is_the_entry_of_its_parent_s_row_that_the_template_says(runs):
    _, drafter, _, _ = runs
    paths = {tuple(rank - 1 for rank in path) for path in ranks_to_root(template())}
    for (tree, outputs), before in zip(drafter.passes, drafter.after, strict=False):
        expected = set()
        for path in sorted(paths, key=len):
            token, tokens = outputs.root, []
            for rank in path:
                token = before[token][rank] if token in before else None
                tokens.append(token)
            if None not in tokens and len(tokens) <= 6:
                expected.add(tuple(tokens))
        drafted = set(tree_paths(tree.tokens, tree.parents))
        assert drafted <= expected and (drafted == expected or tree.depth < 6)
    assert max(len(tree) for tree, _ in drafter.passes) == 80


def test_nothing_is_known_of_a_token_never_read_and_reset_forgets(runs):
    model, _, starts, done = runs
    drafter, seen = TokenRecycling(), []
    for _ in range(2):
        seen.append(generate(model, starts[0], drafter, Sampling(), 12))
        assert drafter.table and seen[-1].steps[0].drafted == 0 and seen[-1].tokens == done[0].tokens[:12]
        drafter.reset()
        assert drafter.table == {}
    assert [step.tree for step in seen[0].steps] == [step.tree for step in seen[1].steps]
