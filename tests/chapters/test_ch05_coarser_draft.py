"""The coarser draft model: weights rounded as one would by hand, in some layers, and none of the target changed."""

import numpy as np
import pandas as pd
import pytest
import torch

from specdec_lib import load_model, paths
from specdec_lib.chapters.ch05_specdec_pp import draft_agreement
from specdec_lib.chapters.ch05_specdec_pp import policies as chapter
from specdec_lib.chapters.ch05_specdec_pp.policies import PolicyComparison, in_sets
from specdec_lib.experiments.coarser_draft import coarser, rounded
from specdec_lib.heads.acceptance import AcceptanceHead


def nearest_levels(row, bits, group):
    """Each weight at the nearest level of its group, found by looking at all of them."""
    found = []
    for start in range(0, len(row), group):
        part = row[start : start + group]
        levels = np.linspace(part.min(), part.max(), 2**bits)
        found += [levels[abs(levels - weight).argmin()] for weight in part]
    return found


@pytest.mark.parametrize(("bits", "group"), [(3, 32), (2, 8), (1, 64)])
def test_each_weight_is_at_the_nearest_level_of_its_group(bits, group):
    weights = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32))
    weights[2] = 0.25  # a group of equal weights has one level
    found = rounded(weights, bits, group)
    expected = [nearest_levels(row, bits, group) for row in weights.double().numpy()]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert max(len(part.unique()) for row in found for part in row.split(group)) == 2**bits
    assert torch.equal(found[2], weights[2])


def test_groups_that_do_not_divide_a_row_are_refused():
    with pytest.raises(ValueError, match="rows of 48 weights cannot be parted into groups of 32"):
        rounded(torch.ones(2, 48))


@pytest.mark.parametrize(("share", "changed"), [(0.25, (3, 4)), (1 / 30, (3,))])
def test_the_middle_layers_are_rounded_and_all_else_is_the_targets(share, changed):
    model, _ = load_model("pocket", "cpu")
    before = {name: weights.clone() for name, weights in model.named_parameters()}
    assert len(model.model.layers) == 8
    theirs = dict(coarser(model, share).named_parameters())
    for name, weights in model.named_parameters():
        assert torch.equal(weights, before[name])
        of_layer = int(name.split(".")[2]) if ".layers." in name else -1
        assert (theirs[name] is weights) == (of_layer not in changed)
        linear = of_layer in changed and weights.ndim == 2
        assert torch.equal(theirs[name], rounded(weights) if linear else weights)
        assert torch.equal(theirs[name], weights) != linear
    with pytest.raises(ValueError, match="share is 0; expected a share of the model's 8 layers"):
        coarser(model, 0)


def test_its_heads_come_with_a_target_and_serve_no_other_draft_model():
    model, _ = load_model("pocket", "cpu")
    kinds = chapter.coarse_heads(model, coarser(model))
    assert kinds["acceptance"] and not any(head.sees_confidence for heads in kinds.values() for head in heads)
    with pytest.raises(ValueError, match="holds no heads of this draft model; train some"):
        chapter.coarse_heads(model, model)


@pytest.mark.parametrize("seed", range(3))
def test_smollm2s_heads_learned_enough_to_judge_claims(seed):
    """From 400 answers on, and better than the best constant on held-out ones: its loss is the entropy of the weighted mean."""
    story = AcceptanceHead.load(paths.SMOLLM2 / "head-coarse" / f"acceptance-{seed}.safetensors").story
    accepted, weight = story["held_out_acceptance"], story["training"]["reject_weight"]
    constant = accepted / (accepted + weight * (1 - accepted))
    entropy = -constant * np.log(constant) - (1 - constant) * np.log(1 - constant)
    assert story["answers"] >= 400 and weight == 6
    assert story["curve"][story["epoch_kept"] - 1]["held_out"] < entropy


def made_plays():
    """Rows of three policies on eight prompts of each set: SpecDec++ halves the passes of a fixed length of 4."""
    rows = []
    for task in draft_agreement.SETS.values():
        for prompt in range(8):
            about = {"task": task, "prompt": str(prompt), "turn": 0, "seed": 0, "temperature": 0, "looped": False}
            for family, setting, passes in (
                ("fixed K", "K = 4", 10),
                ("any fixed K", "K = 4", 10),
                ("confidence", "threshold = 0.4", 9),
                ("confidence, two or more", "threshold = 0.4", 8),
                ("cumulative confidence", "h = 0.4", 7),
                ("SpecDec++", "h = 0.3", 5),
                ("SpecDec++, equal weights", "h = 0.3", 6),
                ("SpecDec++, linear", "h = 0.3", 5),
                ("SpecDec++, unmixed", "h = 0.3", 7),
                ("oracle", "", 4),
            ):
                for head in range(3 if "++" in family else 1):
                    counts = {
                        "tokens": 40,
                        "passes": passes,
                        "drafted": 45,
                        "accepted": 40 - passes,
                        "draft_passes": 45,
                    }
                    method = f"{family}, {setting}" if setting else family
                    rows.append(about | {"family": family, "method": method, "head": head} | counts)
    return in_sets(pd.DataFrame(rows), {})


def test_numbers_of_rows_that_are_known():
    met = pd.DataFrame(
        [
            {"task": task, "prompt": str(prompt), "turn": 0, "seed": 0, "accepted": accepted, "head": 0.5}
            for task, share in zip(draft_agreement.SETS.values(), (2, 3, 4), strict=True)
            for prompt in range(8)
            for accepted in [1.0] * share + [0.0] * (5 - share)
        ]
    )
    found = draft_agreement.coarse_numbers(PolicyComparison(made_plays(), (0.1, 1.0, 1.0)), met)
    assert found["coarse_agreement_chat"].value == pytest.approx(0.4)
    assert found["coarse_agreement_math_minus_chat"].value == pytest.approx(0.4)
    assert found["coarse_speedup_pp_chat"].value == pytest.approx(40 / 9.5)
    assert found["coarse_pp_over_fixed_code"].value == pytest.approx(14.5 / 9.5)
    assert found["coarse_pp_over_confidence_math"].value == pytest.approx(12.5 / 9.5)
    assert found["coarse_pp_over_plain_confidence_chat"].value == pytest.approx(13.5 / 9.5)
    # The fastest of the three heuristics, chosen together, is the product of the confidences.
    assert found["coarse_pp_over_heuristics_math"].value == pytest.approx(11.5 / 9.5)
    assert found["coarse_pp_over_fixed_chat"].prompts == 8  # each half of the prompts chose for the other
    assert found["coarse_pp_over_equal_math"].value == pytest.approx(10.5 / 9.5)
    assert found["coarse_pp_over_unmixed_code"].value == pytest.approx(11.5 / 9.5)
    # There is one length, which takes more passes and drafts as much, and one threshold.
    assert (found["coarse_front_share_math"], found["coarse_front_within_math"]) == (1, 1)
    assert found["coarse_front_gap_math"][:3] == pytest.approx((10 / 15,) * 3)
    assert found["coarse_one_setting"].value == found["coarse_transfer_least"].value == 1
    assert found["coarse_pp_over_fixed_quick_math"].value == pytest.approx(12.25 / 7.25)
    assert found["coarse_pp_over_fixed_slow_code"].value == pytest.approx(19 / 14)
    assert found["coarse_pp_over_fixed_chat"].prompts == 8  # each half is compared at the settings of the other
    assert (found["coarse_k4_discard_chat"].value, found["coarse_k4_verification_chat"].value) == (15 / 40, 10 / 40)
    assert found["coarse_oracle_over_fixed"].value == pytest.approx(14.5 / 8.5)
    # The head says 0.5 of each token; 0.4, 0.6 and 0.8 of the tokens are accepted.
    overconfident = [found[f"coarse_overconfidence_{key}"].value for key in draft_agreement.SETS]
    assert overconfident == pytest.approx([0.1, -0.1, -0.3])


def test_the_best_length_is_longer_where_models_agree_and_with_a_faster_draft_model():
    """Two lengths by hand, on 20 tokens: drafts of one take 12 passes, drafts of two 11, or 8 where the models agree more."""
    rows = [
        {
            **{"task": "conversation", "prompt": str(prompt), "turn": 0, "seed": 0, "temperature": 0, "looped": False},
            **{"family": "any fixed K", "method": f"any fixed K, K = {length}", "head": 0, "tokens": 20},
            **{"passes": passes, "drafted": length * passes, "accepted": 20 - passes, "draft_passes": length * passes},
        }
        for length in (1, 2)
        for prompt in range(8)
        for passes in [12 if length == 1 else 8 if prompt >= 4 else 11]
    ]
    met = pd.DataFrame(
        [
            {
                "task": "conversation",
                "prompt": str(prompt),
                "turn": 0,
                "seed": 0,
                "accepted": float(place < 3 or prompt >= 4),
            }
            for prompt in range(8)
            for place in range(5)
        ]
    )

    def found(draft):
        comparison = PolicyComparison(in_sets(pd.DataFrame(rows), {}), (draft, 1.0, 1.0))
        return draft_agreement.best_lengths(comparison, met, "some")

    # Where they agree less, 12 + 12 d is less than 11 + 22 d from d = 0.1 on; where they agree more, 8 + 16 d is less up to d = 1.
    assert found(0.2)["some_best_k_aligned_minus_other"].value == 1
    assert found(0.05)["some_best_k_aligned_minus_other"].value == 0
    # Over all outputs the shorter length is best only with a slow draft model.
    assert found(0.2)["some_best_k_quick_minus_slow"].value == 0
    assert found(0.4)["some_best_k_quick_minus_slow"].value == 1


def test_drafts_of_twenty_tokens_are_compared_with_those_of_fifteen_on_all_prompts():
    plays = made_plays()
    four = plays[plays.method == "any fixed K, K = 4"]
    fifteen = four.assign(method="any fixed K, K = 15", draft_passes=150)
    twenty = four.assign(method="any fixed K, K = 20", draft_passes=200, tokens=four.tokens * (1 + four.tuning))
    found = draft_agreement.beyond_fifteen(PolicyComparison(pd.concat([fifteen, twenty]), (0.1, 1.0, 1.0)))
    assert found.value == pytest.approx((40 / 30 + 80 / 30) / 2 / (40 / 25)) and found.prompts == 24
