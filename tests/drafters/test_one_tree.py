"""One tree of several sources: merged, scored, sized, judged and learned from as the equations say."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from specdec_lib import AuxiliaryTokens, Capture, Context, Drafter, DraftTree, Sampling, generate, record, replay
from specdec_lib.decoding.contract import Evidence
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.decoding.tree import EMPTY
from specdec_lib.drafters import (
    AdaptiveDraftModel,
    DraftModel,
    PromptLookup,
    PromptLookupAttention,
    PromptLookupHidden,
    SpecDecPP,
)
from specdec_lib.drafters.merged_tree import FEATURES, MergedTree, width
from specdec_lib.drafters.one_tree import OneTree, WorthItsCost
from specdec_lib.drafters.pass_costs import CURVES, PassCosts
from specdec_lib.drafters.stopping import Round
from specdec_lib.drafters.tree_probabilities import NodeOutcomes, TreeProbabilities
from specdec_lib.experiments.checks.comparison import replay_differences
from tests.chaos import head_of
from tests.datastores.stores import tree_paths

FLAT = PassCosts({1: 1.0})


def _random_draft(rng: np.random.Generator, size: int, merge: bool = True) -> DraftTree:
    return DraftTree.from_drafts([rng.integers(0, 3, rng.integers(1, 4)) for _ in range(size)], merge=merge)


def _paths(tree: DraftTree) -> set[tuple[int, ...]]:
    return set(tree_paths(tree.tokens, tree.parents))


class Fixed(Drafter):
    """Proposes the same drafts at each step, whatever the limit."""

    def __init__(self, *drafts):
        self.tree = DraftTree.from_drafts(drafts)

    def propose(self, context, limit):
        return self.tree


def started(sources, costs: PassCosts, **options) -> tuple[OneTree, Context]:
    drafter, context = OneTree(sources, costs, **options), Context([9, 9], 1, 16, Sampling())
    drafter.start(context)
    return drafter, context


def _merged(drafts: list[DraftTree], limit: int = 9, room: int = 64) -> MergedTree:
    merged = MergedTree(len(drafts), room)
    for source, draft in enumerate(drafts):
        merged.add(source, draft, [1.0] * len(draft), Evidence(match=1), 0.0, 0, limit)
    return merged


@pytest.mark.parametrize("seed", range(12))
def test_the_merged_nodes_are_the_union_of_the_sources_paths(seed):
    """Prefixes that a batch has several times are one node, with the features of the first."""
    limit, found = 1 + seed % 3, []
    for merge in (True, False):
        rng = np.random.default_rng(seed)
        drafts = [_random_draft(rng, 3, merge) for _ in range(3)]
        merged = _merged(drafts, limit)
        union = {path for draft in drafts for path in _paths(draft) if len(path) <= limit}
        paths = tree_paths(merged.tokens[: merged.count].tolist(), merged.parents[: merged.count].tolist())
        assert set(paths) == union and len(paths) == len(union)
        for path, proposed in zip(paths, merged.proposed.tolist(), strict=False):
            assert proposed == [path in _paths(draft) for draft in drafts]
        found.append((paths, merged.features[: merged.count].tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(10))
def test_probabilities_are_the_conditional_logit(seed):
    rng = np.random.default_rng(seed)
    merged = _merged([_random_draft(rng, 3) for _ in range(2)])
    weights = rng.normal(size=width(2))
    merged.score(weights)
    scores = merged.features @ weights
    for node in range(merged.count):
        siblings = [i for i in range(merged.count) if merged.parents[i] == merged.parents[node]]
        expected = math.exp(scores[node]) / (1 + sum(math.exp(scores[i]) for i in siblings))
        assert merged.conditional[node] == pytest.approx(expected)
        parent = merged.parents[node]
        above = 1.0 if parent < 0 else merged.probability[parent]
        assert merged.probability[node] == pytest.approx(expected * above)


def _feature(merged: MergedTree, name: str, source: int = 0) -> list[float]:
    return merged.features[: merged.count, source * len(FEATURES) + FEATURES.index(name)].tolist()


def test_a_rank_is_the_place_among_what_the_source_itself_proposes_after_a_node():
    """In the source's own order, whatever other sources proposed there before."""
    merged = _merged([DraftTree.from_drafts([[4], [2, 9]]), DraftTree.from_drafts([[1], [2, 5], [3], [2, 6]])])
    order = merged.tokens[: merged.count].tolist()
    first, second = (dict(zip(order, np.exp(_feature(merged, "log rank", i)), strict=True)) for i in (0, 1))
    assert [first[token] for token in (4, 2, 9)] == pytest.approx([1, 2, 1])
    assert [second[token] for token in (1, 2, 3, 5, 6)] == pytest.approx([1, 2, 3, 1, 2])


def test_similarity_of_each_node_and_attention_count_less_the_deeper_a_node_is():
    for similarity, expected in (([0.5, 0.5, 0.25], [0.5, 0.25, 0.25]), ([0.5], [0.5, 0.25, 0.5])):
        merged, found = MergedTree(1, 8), Evidence(1, similarity=similarity, attention=-2.0)
        merged.add(0, DraftTree([1, 2, 3], [-1, 0, -1]), [1.0] * 3, found, 0.0, 0, 9)
        assert _feature(merged, "similarity") == expected and _feature(merged, "log attention") == [-2.0, -1.0, -2.0]


def test_sources_say_how_near_what_they_copy_is(library):
    """PLD+ (h) the cosine and PLD+ (a) the attention of the place that was copied, also of an only candidate."""
    model = library["llama-gqa"]
    for prompt in ([3, 5, 6, 7, 8, 5, 9, 10, 5], [3, 5, 6, 7, 8, 9, 10, 11, 5]):
        trace = record(model, prompt, max_new_tokens=2, capture=Capture((1,)))
        rows = torch.rand(2, len(prompt) - 1, generator=torch.Generator().manual_seed(0))
        context = Context([*prompt], len(prompt), trace.vocabulary, Sampling())
        context.hidden, context.attention = lambda layer: trace.hidden[layer][: len(prompt) - 1], lambda: rows
        near, attended = PromptLookupHidden(1, 4), PromptLookupAttention([(1, 0), (0, 1)], 4)
        for source in (near, attended):
            source.start(context)
            assert len(source.propose(context, 9))
        states = trace.hidden[1].double()
        cosine = torch.cosine_similarity(states[near.source - 2], states[len(prompt) - 2], 0)
        assert near.candidates == prompt[:-1].count(5)
        assert near.evidence(context).similarity[0] == pytest.approx(float(cosine), abs=1e-6)
        found = attended.evidence(context)
        assert found.attention == pytest.approx(math.log(float(rows[:, attended.source - 1].max())))
        assert found.similarity == (0.0,) and near.evidence(context).attention == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_the_best_subtree_is_that_of_brute_force(seed):
    """Over all parent-closed subtrees, for any costs, also such as fall with the width."""
    rng = np.random.default_rng(seed)
    merged = _merged([_random_draft(rng, 2) for _ in range(2)])
    merged.score(rng.normal(size=width(2)))
    curve, sunk = rng.uniform(0.5, 3.0, merged.count + 1), rng.uniform(0, 1)
    tokens, parents, nodes, rate = merged.best(curve, sunk)
    best = 0.0
    for chosen in itertools.product((False, True), repeat=merged.count):
        closed = all(merged.parents[i] < 0 or chosen[merged.parents[i]] for i in range(merged.count) if chosen[i])
        if closed:
            total = 1 + sum(merged.probability[i] for i in range(merged.count) if chosen[i])
            best = max(best, total / (curve[sum(chosen)] + sunk))
    assert rate == pytest.approx(best)
    assert rate == pytest.approx((1 + merged.probability[nodes].sum()) / (curve[len(nodes)] + sunk))
    paths = tree_paths(merged.tokens[: merged.count].tolist(), merged.parents[: merged.count].tolist())
    assert _paths(DraftTree(tokens, parents)) == {paths[node] for node in nodes}  # parents come before children


def test_fit_finds_the_law_that_judged_nodes_were_drawn_from():
    """One source of two candidates whose shares tell how likely they are; the fitted probabilities are the true ones."""
    rng = np.random.default_rng(0)
    observed, truth = NodeOutcomes(), TreeProbabilities.unfitted(["a"])
    weights = truth.weights.copy()
    weights[FEATURES.index("match 1")], weights[FEATURES.index("log share")] = 0.5, 0.8
    for _ in range(4000):
        share = rng.uniform(0.1, 0.9)
        merged = MergedTree(1, 8)
        merged.add(0, DraftTree([1, 2], [-1, -1]), [share, 1 - share], Evidence(1), 0.0, 0, 8)
        merged.score(weights)
        first, second = merged.conditional[:2]
        outcome = rng.choice([0, 1, -1], p=[first, second, 1 - first - second])
        observed.features.append(merged.features[:2].copy())
        observed.outcomes.append(int(outcome))
    fitted = truth.fitted(observed, "drawn").weights
    assert fitted[FEATURES.index("match 1")] == pytest.approx(0.5, abs=0.12)
    assert fitted[FEATURES.index("log share")] == pytest.approx(0.8, abs=0.12)


def passed(drafter: OneTree, context: Context) -> DraftTree:
    """The tree of a pass that emits the token 1."""
    tree = drafter.propose(context, 4)
    context.tokens.append(1)
    drafter.verified(tree, (), None)
    return tree


def test_online_steps_follow_what_is_emitted():
    """A source that is always right gets a probability near 1, one that is always wrong near 0."""
    drafter, context = started({"right": Fixed([1]), "wrong": Fixed([2])}, FLAT, rate=0.3)
    for _ in range(300):
        tree = passed(drafter, context)
    chances = dict(zip(tree.tokens, tree.scores, strict=True))
    assert chances[1] > 0.95 and chances[2] < 0.05
    drafter.reset()
    assert np.array_equal(drafter.weights, drafter.probabilities.weights)


def test_sources_are_judged_wherever_they_proposed_also_where_nothing_was_verified():
    dear = PassCosts({1: 1.0, 2: 90.0})
    drafter, context = started({"a": Fixed([1, 2]), "b": Fixed([3])}, dear, rate=0.0, observe=True)
    assert len(passed(drafter, context)) == 0
    assert drafter.observed.outcomes == [[0, 1][drafter._children(-1)[0] != 0]]
    assert drafter._lately[0] > 0.5 > drafter._lately[1]
    assert drafter._streak.tolist() == [1, 0]


def test_weights_of_fewer_sources_in_another_order_are_theirs():
    part, per = TreeProbabilities(("a", "b", "c"), np.arange(width(3), dtype=float)).of(["c", "a"]), len(FEATURES)
    pair = 3 * per + 1  # (a, c)
    assert part.weights.tolist() == [*range(2 * per, 3 * per), *range(per), pair]


def test_weights_are_written_and_read(tmp_path):
    path, one = tmp_path / "w", TreeProbabilities(("a", "b"), np.arange(width(2), dtype=float), "ten prompts")
    one.save(path)
    other = TreeProbabilities.load(path)
    assert (other.sources, other.fitted_on, other.weights.tolist()) == (("a", "b"), "ten prompts", one.weights.tolist())
    with safe_open(path, "np") as file:
        about = json.loads(file.metadata()["tree"])
    for change, message in (
        ({"fitted_on": None}, "KeyError: 'fitted_on'"),
        ({"format": 9}, "format 9; this release reads format"),
        ({"features": ["match"]}, "other features"),
    ):
        changed = {name: value for name, value in (about | change).items() if value is not None}
        save_file({"weights": one.weights}, path, metadata={"tree": json.dumps(changed)})
        with pytest.raises(ValueError, match=message):
            TreeProbabilities.load(path)
    path.write_bytes(b"no weights")
    with pytest.raises(ValueError, match="holds no weights of a tree"):
        TreeProbabilities.load(path)


def test_a_token_is_drafted_iff_it_raises_the_ratio():
    """The rule's threshold is the mediant's: (a + p) / (b + t) > a / b iff p > t a / b."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        tokens, spent, cost, chance = rng.uniform(0.1, 5, 4)
        rule = WorthItsCost()
        rule._right[:], rule._judged[:] = min(chance, 1.0), 1.0
        rule.rate, rule.cost = tokens / spent, cost
        gains = (tokens + min(chance, 1.0)) / (spent + cost) > tokens / spent
        assert rule.stop(Round(0)) == (not gains)


def test_costs_are_written_and_read(tmp_path):
    measured = PassCosts({1: 1.0, 8: 1.5}, 0.1, 0.2, "mine", {"PLD": 0.01, "merging": 0.02})
    for number, costs in enumerate((CURVES["cpu"], measured)):
        costs.save(tmp_path / f"{number}.json")
        assert PassCosts.load(tmp_path / f"{number}.json") == costs
    assert measured.step_of("PLD", "merging", "REST") == pytest.approx(0.13)
    # As written by releases before costs of drafting.
    (tmp_path / "old.json").write_text('{"widths": {"1": 1.0}, "step": 0.5}')
    assert PassCosts.load(tmp_path / "old.json").step_of("PLD") == 0.5
    (tmp_path / "other.json").write_text('{"1": 2}')
    with pytest.raises(ValueError, match="holds no costs"):
        PassCosts.load(tmp_path / "other.json")


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, top_p=0.95, seed=5)])
def test_a_real_run_is_its_replay_up_to_the_rounding_of_states(library, sampling):
    """With sources of tokens alone to the last bit of each score, through all online steps. States are rounded differently by
    one pass over the whole text and by passes over drafts; they move scores by as much, and no tree."""
    model, found = library["llama-gqa"], []
    alone = {"PLD": PromptLookup(3, 10, variant="transformers"), "last": PromptLookup(1, 6)}
    for sources in (alone, alone | {"h": PromptLookupHidden(1, 12)}):
        drafter, real, again = OneTree(sources, PassCosts({1: 1.0, 64: 1.5})), [], []
        for first in range(5, 8):
            prompt = [first, 6, 7, 8, 5, 6, 7, first, 9, 5, 6, 7, 8]
            drafter.reset()
            run = generate(model, prompt, drafter, sampling, 40)
            trace, _ = record_known(model, prompt, run.tokens, run.finish_reason, sampling, 40, drafter.capture)
            drafter.reset()
            real.append(run)
            again.append(replay(trace, drafter))
        found.append(replay_differences(real, again))
    assert found[0] == (0, 0, 0.0) and found[1][:2] == (0, 0) and 0 < found[1][2] < 1e-5


def test_runs_that_are_not_their_replays_are_counted(library):
    model, prompt = library["llama-gqa"], [5, 6, 7, 8, 5, 6, 7, 8, 9, 5, 6]
    one, other, short = (
        generate(model, prompt, OneTree({"PLD": PromptLookup(1, count)}, FLAT), max_new_tokens=new)
        for count, new in ((6, 30), (1, 30), (6, 12))
    )
    assert replay_differences([one, one], [one, other]) == (0, 1, 0.0) and replay_differences([one], [short])[:2] == (
        1,
        1,
    )


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, top_p=0.95, seed=5)])
@pytest.mark.parametrize("name", ["SpecDec", "SpecDec++"])
def test_draft_models_of_any_rule_stop_where_another_token_does_not_pay(library, name, sampling):
    """They draft less the more a token costs, and change no token."""
    model, prompt, asked = library["llama-gqa"], [5, 6, 7, 8, 5, 6, 7, 8], []
    for cost in (0.01, 0.6, 50.0):
        source = DraftModel(model, 6) if name == "SpecDec" else SpecDecPP(model, head_of(model), max_tokens=5)
        drafter = OneTree({name: source}, PassCosts({1: 1.0}, drafted_token=cost))
        assert isinstance(drafter.sources[name].rule, WorthItsCost)
        run = generate(model, prompt, drafter, sampling, 30)
        assert run.tokens == generate(model, prompt, None, sampling, 30).tokens
        assert max(step.tree.depth for step in run.steps) <= source.max_tokens
        asked.append(drafter.drafted)
    assert asked[0] > asked[1] >= asked[2] == 0


def test_what_sources_cost_is_part_of_the_step_that_pays():
    """The tree sent is that of brute force over its sizes, with the loop, the merging and every source in the cost; where a
    step is dear anyway, more nodes pay."""
    sizes = []
    for drafting, sunk in (({}, 0.125), ({"a": 0.5, "b": 2.0, "merging": 0.25, "elsewhere": 9.0}, 2.875)):
        costs = PassCosts({1: 1.0, 2: 1.3, 8: 3.0}, step=0.125, drafting=drafting)
        drafter, context = started({"a": Fixed([1, 2, 3, 4]), "b": Fixed([1, 2, 7])}, costs)
        assert drafter.step_cost == sunk
        sizes.append(len(drafter.propose(context, 8)))
        likely = sorted(drafter._tree.probability[: drafter._tree.count], reverse=True)
        rates = [(1 + sum(likely[:n])) / (costs.curve(9)[n] + sunk) for n in range(len(likely) + 1)]
        assert sizes[-1] == int(np.argmax(rates))
    assert sizes[1] > sizes[0]


@pytest.mark.parametrize("drafting", [{}, {"a": 0.2}])
@pytest.mark.parametrize("right", [False, True])
def test_sources_are_left_alone_while_drafts_cost_more_than_they_save(drafting, right):
    """Only where the costs say what drafting costs; from a loss of three one-token passes on, for 16 steps."""
    costs = PassCosts({1: 1.0, 2: 1.3, 8: 3.0}, drafting=drafting)
    drafter, context = started({"a": Fixed([1])}, costs, rate=0.0)
    drafter._tree.score = lambda weights: drafter._tree.probability.__setitem__(slice(None), 0.9)  # sure of itself
    asked = []
    for _ in range(100):
        tree = drafter.propose(context, 4)
        asked.append(len(tree))
        path = (0,) if right and len(tree) else ()
        context.tokens += [1, 2] if path else [2]
        drafter.verified(tree, path, None)
    if right or not drafting:
        assert asked == [1] * 100
    else:
        # Each step costs 1.5 passes and emits a token: after the seventh the loss is above 3, later after each fourth above 1.5.
        assert asked == ([1] * 7 + ([0] * 16 + [1] * 4) * 5)[:100]


def test_a_full_room_keeps_whole_paths():
    """A source is cut at as many tokens as there is room for, and what has no place is left out with all that follows it."""
    merged = _merged([DraftTree.chain([1, 2]), DraftTree.from_drafts([[3, 4], [1, 2, 5]])], room=3)
    assert merged.tokens[:3].tolist() == [1, 2, 3] and merged.parents[:3].tolist() == [-1, 0, -1]
    assert merged.proposed.tolist() == [[True, True], [True, False], [False, True]]


def test_a_pass_that_nothing_was_proposed_for_teaches_nothing():
    """Where one token may still be emitted nobody is asked; the draft of the pass before was judged already."""
    drafter, context = started({"a": Fixed([1, 1])}, FLAT, observe=True)
    passed(drafter, context)
    weights, judged = drafter.weights.copy(), len(drafter.observed.outcomes)
    context.tokens += [1]
    drafter.verified(EMPTY, (), None)
    assert np.array_equal(drafter.weights, weights) and len(drafter.observed.outcomes) == judged == 1


def test_a_draft_model_is_asked_where_the_room_is_full(library):
    model, prompt = library["llama-gqa"], [5, 6, 7, 8]
    sources = {"a": Fixed([1, 2], [3]), "draft": AdaptiveDraftModel(model, WorthItsCost(), min_tokens=0)}
    drafter = OneTree(sources, PassCosts({1: 1.0}, drafted_token=0.01), room=3)
    run = generate(model, prompt, drafter, max_new_tokens=8)
    assert run.tokens == generate(model, prompt, max_new_tokens=8).tokens
    assert max(step.width for step in run.steps) == 4


def test_a_source_serves_one_generation_at_a_time(library):
    """On its own too: a source in use by one tree is refused, and free afterwards."""
    model, prompt = library["llama-gqa"], [5, 6, 7, 8, 5, 6]
    shared = PromptLookup(3, 4)
    drafter, other = (OneTree({"a": shared, "b": Fixed([1])}, FLAT) for _ in range(2))

    def meanwhile(tokens):
        for second in (shared, other):
            with pytest.raises(RuntimeError, match="PromptLookup.* is in use by another generation"):
                generate(model, prompt, second, max_new_tokens=4)

    expected = generate(model, prompt, max_new_tokens=6).tokens
    assert generate(model, prompt, drafter, max_new_tokens=6, on_tokens=meanwhile).tokens == expected
    assert generate(model, prompt, other, max_new_tokens=6).tokens == expected


def test_a_draft_with_auxiliary_tokens_is_refused():
    source = Fixed([1])
    source.tree = DraftTree.chain([1]).annotated(auxiliary=AuxiliaryTokens([2], [1], np.ones((1, 3), bool)))
    drafter, context = started({"a": source}, FLAT)
    with pytest.raises(ValueError, match="source 'a' has auxiliary tokens"):
        drafter.propose(context, 4)
