"""Medusa, Hydra, EAGLE and EAGLE-2: what they draft, against direct computation from the same heads."""

import copy
import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from specdec_lib import Context, Sampling, generate
from specdec_lib.decoding.sampling import distribution
from specdec_lib.drafters.eagle import Eagle
from specdec_lib.drafters.eagle2 import Eagle2, rerank
from specdec_lib.drafters.hydra import Hydra
from specdec_lib.drafters.medusa import Medusa
from specdec_lib.drafters.token_recycling import template
from specdec_lib.heads.answers import Answer
from specdec_lib.heads.draft_training import HeadTraining, states_of, texts_with_states, train_heads
from specdec_lib.heads.drafting import HydraHeads
from specdec_lib.heads.grown_tree import best_tree_shape
from tests.chaos import draft_heads_of
from tests.datastores.stores import tree_paths
from tests.families import build, prompt

SMALL = [(-1, 0), (-1, 1), (-1, 3), (0, 0), (0, 2), (1, 0), (3, 1), (5, 0)]
DRAFTERS = {"medusa": Medusa, "hydra": Hydra, "eagle": Eagle, "eagle2": Eagle2}
DRAFTERS |= {"hydra deep": Hydra, "hydra plain": Hydra, "eagle drawn": Eagle}


def heads_of(model, name: str):
    """Random heads, wide enough that what a node's children are depends on all that they read."""
    if name.startswith("hydra "):
        torch.manual_seed(1)
        heads = HydraHeads.for_target(model, prefix=name == "hydra deep", layers=2)
    else:
        heads = draft_heads_of(model, "eagle" if name.startswith("eagle") else name)
    torch.manual_seed(2)
    with torch.no_grad():
        for weights in heads.parameters():
            weights += 0.1 * torch.randn(weights.shape)
    return heads.eval()


def drafter_of(model, name: str, shape=SMALL):
    heads = heads_of(model, name)
    if name == "eagle2":
        return Eagle2(model, heads, nodes=9, depth=3, branches=3)
    if name == "eagle":
        return Eagle(model, heads, shape, drawn=False)
    return DRAFTERS[name](model, heads, shape)


def same_as_plain(model, start, drafter, count: int = 8):
    """A run with the drafter, which emits what plain decoding does."""
    run = generate(model, start, drafter, max_new_tokens=count)
    assert run.tokens == generate(model, start, None, max_new_tokens=count).tokens
    return run


def proposed(model, drafter, tokens, limit: int):
    """What a drafter drafts after a prompt."""
    states = states_of(model, tokens[:-1])
    context = Context(list(tokens), len(tokens), model.config.vocab_size, Sampling(), hidden=lambda layer: states)
    drafter.start(context)
    return drafter.propose(context, limit)


def rows_along(model, heads, tokens, path, depth):
    """Log-probabilities after a path of drafted tokens, from the heads' own features along the whole text."""
    text = [*tokens, *path]
    padding = [0] * (heads.depth or 8)
    states = torch.cat([states_of(model, tokens[:-1]), torch.zeros(1 + len(path) + len(padding), 32)])
    where = torch.zeros(1, len(text) + len(padding), dtype=torch.bool)
    where[0, len(tokens) - 2] = True
    with torch.no_grad():
        ends = drafter_of(model, "medusa").ends
        features = heads.features(ends, states[None], torch.tensor([text + padding]), where, depth)
        return heads.logits(ends, depth, features[-1])[0].log_softmax(-1)


@pytest.mark.parametrize("name", DRAFTERS)
def test_each_node_is_the_choice_of_its_rank_along_its_path(llama, name):
    drafter, tokens = drafter_of(llama, name), prompt(3, 11)
    tree = proposed(llama, drafter, tokens, 8)
    assert len(tree) == (9 if name == "eagle2" else len(SMALL))
    ranks = []
    for node, parent in enumerate(tree.parents):
        path = [tree.tokens[i] for i in tree.path(parent)]
        rows = rows_along(llama, drafter.heads, tokens, path, len(path) + 1)
        ranks.append((parent, int((rows > rows[tree.tokens[node]]).sum())))
        if name == "eagle2":
            above = 1.0 if parent < 0 else tree.scores[parent]
            assert tree.scores[node] == pytest.approx(above * float(rows[tree.tokens[node]].exp()), rel=1e-4)
    assert name == "eagle2" or by_path(ranks) == by_path(SMALL)
    for limit in (1, 2):
        assert proposed(llama, drafter, tokens, limit).depth == limit


def by_path(shape):
    """The ranks on the path to each node, whatever the order of the nodes."""
    return set(tree_paths([rank for _, rank in shape], [parent for parent, _ in shape]))


@pytest.mark.core_cases(3)
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=1)])
def test_a_cached_step_is_one_computed_from_scratch(llama, name, sampling):
    start = prompt(1, 9)
    plain = generate(llama, start, None, sampling, 24).tokens
    drafter = drafter_of(llama, name)
    # Heads that know this text, so that whole paths are accepted.
    (text,) = texts_with_states(llama, [Answer(np.array(start, np.int32), np.array(plain, np.int32))], progress=False)
    train_heads(drafter.heads, llama, [text], [text], HeadTraining(epochs=60, rate=1e-2), progress=False)
    seen, propose = [], drafter.propose

    def watched(context, limit):
        tree = propose(context, limit)
        # A rejected branch must leave nothing: the accepted tokens are now read with the target's own states.
        fresh = drafter_of(llama, name)
        fresh.heads = drafter.heads
        fresh.start(context)
        own = fresh.propose(context, limit)
        assert (tree.tokens, tree.parents) == (own.tokens, own.parents)
        if tree.scores is not None:
            assert tree.scores == pytest.approx(own.scores, rel=1e-4)
        seen.append(len(context.tokens))
        return tree

    drafter.propose = watched
    run = generate(llama, start, drafter, sampling, 24)
    assert run.tokens == plain or (name == "eagle drawn" and not sampling.greedy)
    assert len(seen) > 3 and max(step.accepted for step in run.steps) > 1


def test_children_are_drawn_from_the_layer_s_distribution_in_turn(llama):
    drafter, tokens, sampling = drafter_of(llama, "eagle drawn"), prompt(3, 11), Sampling(0.7, top_k=9, seed=5)
    states = states_of(llama, tokens[:-1])
    context = Context(list(tokens), len(tokens), llama.config.vocab_size, sampling, hidden=lambda layer: states)
    drafter.start(context)
    tree = drafter.propose(context, 8)
    assert len(tree) == len(SMALL) and by_path([(p, t) for p, t in zip(tree.parents, tree.tokens, strict=True)])
    for node, parent in enumerate(tree.parents):
        path = [tree.tokens[i] for i in tree.path(parent)]
        rows = distribution(rows_along(llama, drafter.heads, tokens, path, len(path) + 1), sampling)
        torch.testing.assert_close(tree.probabilities[node], rows, atol=1e-5, rtol=1e-3)
        assert float(rows[tree.tokens[node]]) > 0
    cut = tree.truncated(2)
    assert len(cut.probabilities) == len(cut) < len(tree)


def test_eagle_2_pays_for_the_levels_that_it_computes_and_a_small_tree_has_fewer(llama):
    heads = heads_of(llama, "eagle2")
    tree = proposed(llama, Eagle2(llama, heads, nodes=2), prompt(3, 11), 99)
    assert tree.depth <= 2 and tree.levels == tree.truncated(1).levels == 6
    assert proposed(llama, Eagle2(llama, heads, nodes=2), prompt(3, 11), 3).levels == 3
    shapes = [Eagle2.of_size(llama, heads, nodes) for nodes in (1, 3, 15, 59)]
    assert [(each.nodes, each.depth, each.branches) for each in shapes] == [
        (1, 1, 1),
        (3, 2, 2),
        (15, 4, 4),
        (59, 6, 10),
    ]


def test_the_default_trees_have_the_published_numbers_of_nodes(llama):
    published = {"medusa": [10, 28, 23, 2], "hydra": [10, 28, 23, 2], "eagle": [4, 8, 8, 3, 2]}
    for name, sizes in published.items():
        depths = Counter(map(len, by_path(DRAFTERS[name](llama, heads_of(llama, name)).shape)))
        assert [depths[depth] for depth in sorted(depths)] == sizes
    assert Eagle2(llama, heads_of(llama, "eagle")).nodes == 59


@pytest.mark.parametrize("name", ["medusa", "hydra", "eagle"])
def test_a_tree_grown_from_the_heads_own_accuracies(llama, name):
    heads = heads_of(llama, name)
    heads.story["accuracies"] = [[0.5, 0.25], [0.5, 0.1], [0.4]]
    drafter = DRAFTERS[name].grown(llama, heads, 5)
    assert drafter.shape == best_tree_shape(heads.accuracies, 5) == [(-1, 0), (-1, 1), (0, 0), (1, 0), (2, 0)]
    same_as_plain(llama, prompt(4, 8), drafter)


def test_a_vocabulary_smaller_than_the_ranks_leaves_nodes_out():
    model = build("llama", vocab_size=5)
    for name in ("medusa", "hydra", "eagle"):
        same_as_plain(model, [1, 2, 3], drafter_of(model, name, template((4, 8, 3), 8)))
    shape = [(-1, 0), (-1, 7), (1, 0), (0, 0)]
    # Ranks 5 and up, and what follows them, are not there.
    assert len(proposed(model, drafter_of(model, "medusa", shape), [1, 2, 3], 4)) == 2
    for name in ("medusa", "hydra", "eagle", "hydra plain"):  # nor is what would follow a level that is not there
        run = same_as_plain(model, [1, 2, 3], drafter_of(model, name, [(-1, 5), (0, 0)]))
        assert not any(step.drafted for step in run.steps)


@pytest.mark.parametrize("name", ["medusa", "hydra", "eagle", "eagle2"])
def test_two_drafters_may_have_one_head(llama, name):
    half, heads = copy.deepcopy(llama).to(torch.bfloat16), heads_of(llama, name)
    first = DRAFTERS[name](half, heads)
    assert {weights.dtype for weights in first.heads.parameters()} == {torch.bfloat16}
    before = generate(half, prompt(1, 8), first, max_new_tokens=8)
    generate(llama, prompt(1, 8), DRAFTERS[name](llama, heads), max_new_tokens=8)
    again = generate(half, prompt(1, 8), first, max_new_tokens=8)
    assert [step.tree.tokens for step in again.steps] == [step.tree.tokens for step in before.steps]
    assert {weights.dtype for weights in heads.parameters()} == {torch.float32}


def test_eagle_2_drafts_the_most_likely_nodes_of_all_trees():
    """Where every node is expanded into the whole vocabulary, against the products of probabilities of all paths."""
    model, tokens = build("llama", vocab_size=5), [3, 1, 2, 4]
    heads = heads_of(model, "eagle")
    tree = proposed(model, Eagle2(model, heads, nodes=12, depth=2, branches=5), tokens, 9)
    worth = {}
    for path in (*itertools.product(range(5), repeat=1), *itertools.product(range(5), repeat=2)):
        rows = rows_along(model, heads, tokens, path[:-1], len(path))
        worth[path] = worth.get(path[:-1], 0.0) + float(rows[path[-1]])
    best = sorted(worth, key=lambda path: -worth[path])[:12]
    assert {tuple(tree.tokens[i] for i in tree.path(node)) for node in range(len(tree))} == set(best)


def test_reranking_keeps_every_parent_where_all_values_tie():
    # A chain of certain tokens beside ten that are as certain: no node may lose its parent.
    tokens, parents = [*range(10), *range(10), *range(10)], [-1] * 10 + [3] * 10 + [13] * 10
    for count in (1, 4, 11, 14, 30, 99):
        tree = rerank(tokens, parents, [0.0] * 30, count)
        assert len(tree) == min(count, 30) and all(-1 <= p < i for i, p in enumerate(tree.parents))


@pytest.mark.parametrize("name", ["medusa", "hydra", "eagle", "eagle2"])
def test_heads_of_one_target_are_refused_by_another_of_other_states(llama, name):
    other = build("llama", hidden_size=llama.config.hidden_size * 2, intermediate_size=32)
    with pytest.raises(ValueError, match="the heads were made for a target of .* give both the same model"):
        generate(other, [3, 4, 5], drafter_of(llama, name), max_new_tokens=4)
