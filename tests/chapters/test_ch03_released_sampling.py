"""The released multi-draft sampling rules: their law is what they do, and it is not the target's."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from specdec_lib import Sampling
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import released_sampling
from specdec_lib.decoding.acceptance import exact_match
from specdec_lib.decoding.sampling import distribution, invert_cdf
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.data import prompts as book_prompts
from specdec_lib.experiments.runs import recorded_runs
from tests.decoding.test_acceptance import RIGHT, WRONG, surprise

VOCABULARY, DRAWS = 6, 6_000


def a_tree_and_its_target(seed):
    rng = np.random.default_rng(seed)
    drafts = [rng.integers(0, VOCABULARY, size=rng.integers(1, 4)).tolist() for _ in range(5)]
    tree = DraftTree.from_drafts(drafts)
    return tree, torch.from_numpy(rng.dirichlet(np.ones(VOCABULARY), size=len(tree) + 1))


def first_tokens(tree, accept):
    counts, lengths = Counter(), []
    for _ in range(DRAWS):
        path, token = accept()
        counts[tree.tokens[path[0]] if path else token] += 1
        lengths.append(len(path))
    return counts, float(np.mean(lengths)), float(np.std(lengths) / DRAWS**0.5)


def released_acceptance(tree: DraftTree, draw, rule: str) -> tuple[list[int], int]:
    """Accept as the released codes of ``"rest"`` or ``"dresd"`` do when sampling: the accepted nodes of the tree, which
    is not empty, and the next token.

    ``draw(node)`` draws the target's token after ``node`` (-1 for the root) anew at each call.
    """
    best: list[int] = []
    own: int | None = None
    for row in released_sampling.rows(tree):
        kept, node = 0, -1
        token = draw(node)
        while kept < len(row) and token == tree.tokens[row[kept]]:
            node = row[kept]
            kept += 1
            token = draw(node)
        if own is None or kept > len(best):
            best, own = row[:kept], token
    return best, (draw(best[-1] if best else -1) if rule == "rest" else own)


@pytest.mark.parametrize("rule", released_sampling.RULES)
@pytest.mark.parametrize("seed", range(2))
def test_the_law_and_the_expected_length_are_those_of_the_rule(rule, seed):
    tree, p = a_tree_and_its_target(seed)
    rng = np.random.default_rng(100 + seed)

    def draw(node):
        return invert_cdf(p[node + 1], rng.random())

    counts, length, error = first_tokens(tree, lambda: released_acceptance(tree, draw, rule))
    law = released_sampling.released_distribution(tree, p, rule)
    assert float(law.sum()) == pytest.approx(1.0, abs=1e-12)
    assert surprise(counts, dict(enumerate(law.tolist()))) < RIGHT
    assert abs(length - released_sampling.released_accepted(tree, p)) < 4.5 * error
    assert surprise(counts, dict(enumerate(p[0].tolist()))) > WRONG, "the bias would pass unnoticed"
    # One draw a node keeps the target.
    counts, length, error = first_tokens(tree, lambda: exact_match(tree, lambda node, path: draw(node), frozenset()))
    assert surprise(counts, dict(enumerate(p[0].tolist()))) < RIGHT
    assert abs(length - released_sampling.exact_accepted(tree, p)) < 4.5 * error


@pytest.mark.parametrize("chance", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_a_token_on_many_rows_gets_many_chances(chance, count):
    """Rows share their first token and part after it, so that each is a chance of its own for the first."""
    tree = DraftTree.from_drafts([[0, 2 + i] for i in range(count)])
    p = torch.zeros(count + 1 + 1, count + 2, dtype=torch.float64)
    p[0, 0], p[0, 1] = chance, 1 - chance
    p[1:, 1] = 1.0
    assert float(released_sampling.released_distribution(tree, p, "rest")[0]) == pytest.approx(
        1 - (1 - chance) ** (count + 1)
    )
    assert float(released_sampling.released_distribution(tree, p, "dresd")[0]) == pytest.approx(
        1 - (1 - chance) ** count
    )


def test_rows_that_share_a_token_are_accepted_more_and_rows_that_do_not_less():
    """Independent draws give a shared token several chances, but two rows can both match, or both miss."""
    one, none = torch.tensor([[0.25, 0.75]], dtype=torch.float64), DraftTree([], [])
    assert torch.equal(released_sampling.released_distribution(none, one, "rest"), one[0]), (
        "an empty draft leaves the target alone"
    )
    assert released_sampling.released_accepted(none, one) == released_sampling.exact_accepted(none, one) == 0.0
    p = torch.tensor([[0.4, 0.4, 0.2]] * 4, dtype=torch.float64)
    apart = DraftTree.from_drafts([[0], [1]])
    assert released_sampling.exact_accepted(apart, p) == pytest.approx(0.8)
    assert released_sampling.released_accepted(apart, p) == pytest.approx(1 - 0.6 * 0.6)
    shared = DraftTree.from_drafts([[0, 0], [0, 2]])
    assert released_sampling.exact_accepted(shared, p) == pytest.approx(0.4 + 0.4 * 0.6)
    assert released_sampling.released_accepted(shared, p) == pytest.approx(1 - 0.6**2 + 1 - (1 - 0.16) * (1 - 0.08))


def recorded_by(pocket, sampling, drafter=PromptLookup(num_tokens=3)):
    """A recording of the pocket model with replays of a drafter."""
    prompts = book_prompts.load("report", ("code editing",), 1)
    recorded = recorded_runs.record_prompts(*pocket, prompts, sampling, 24)
    return recorded, recorded_runs.replay_all(recorded, drafter)


def test_the_bias_is_that_of_probabilities_computed_without_the_cache(pocket):
    model, sampling = pocket[0], Sampling(temperature=1.0, top_p=0.95, seed=1)
    recorded, runs = recorded_by(pocket, sampling)
    rows = released_sampling.bias_counts(model, recorded, runs, "rest")
    assert rows.prompt.tolist() == [recorded[0].prompt.id] and rows.method.tolist() == ["rest"]
    found = released_sampling.bias(rows)
    trace, distances, exact, done = recorded[0].trace, [], [], 1
    for step in runs[0].steps:
        before = trace.prompt + trace.tokens[:done]
        if len(step.tree):
            ids = torch.tensor([before + step.tree.tokens])
            with torch.inference_mode():
                p = distribution(model(ids).logits[0, len(before) - 1 :], sampling)
            distances.append(
                released_sampling.total_variation(released_sampling.released_distribution(step.tree, p, "rest"), p[0])
            )
            exact.append(released_sampling.exact_accepted(step.tree, p))
        done += len(step.tokens)
    assert found.steps == len(distances) > 0
    assert found.mean.value == pytest.approx(np.mean(distances), abs=1e-4)
    assert found.largest == pytest.approx(max(distances), abs=1e-4)
    assert found.accepted_exactly.value == pytest.approx(np.mean(exact), abs=1e-4)


def test_one_draft_has_no_bias_under_dresds_rule_and_greedy_runs_are_refused(pocket):
    rows = released_sampling.bias_counts(pocket[0], *recorded_by(pocket, Sampling(1.0)), "dresd")
    found = released_sampling.bias(rows)
    assert found.largest < 1e-9 and found.accepted.value == pytest.approx(found.accepted_exactly.value)
    with pytest.raises(ValueError, match="recorded greedily"):
        released_sampling.bias_counts(pocket[0], *recorded_by(pocket, None), "rest")
    none = released_sampling.bias_counts(pocket[0], *recorded_by(pocket, Sampling(1.0), None), "rest")
    assert none.steps.tolist() == [0]
    with pytest.raises(ValueError, match="no step of the runs has a draft"):
        released_sampling.bias(none)
    # A run without a draft adds nothing to the others.
    assert released_sampling.bias(pd.concat([rows, none.assign(prompt="other")])).mean.value == found.mean.value
