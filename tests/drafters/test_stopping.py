"""Stopping rules one by one, against their definitions and against transformers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.generation.logits_process import LogitsProcessorList

from specdec_lib import generate
from specdec_lib.drafters import AdaptiveDraftModel, stopping
from specdec_lib.drafters.stopping import Round, fitted_threshold
from tests.families import perturbed, prompt


def drafted(*confidence: float, **kwargs) -> Round:
    return Round(10, len(confidence), list(confidence), **kwargs)


#: A rule, the rounds that it goes on in, and those that it stops.
RULES = [
    (stopping.FixedLength(3), [Round(0, 0), Round(0, 2)], [Round(0, 3), Round(0, 4)]),
    (stopping.Confidence(0.4), [drafted(), drafted(0.1, 0.4)], [drafted(0.9, 0.39)]),
    (stopping.CumulativeConfidence(0.5), [drafted(), drafted(0.8, 0.7)], [drafted(0.8, 0.6)]),
    (stopping.Entropy(0.7), [Round(0), Round(0, 1, entropy=[0.69])], [Round(0, 2, entropy=[0.1, 0.71])]),
    (stopping.PredictedRejection(0.7), [Round(0, 1), Round(0, 3, acceptance=[0.5, 0.61])], [Round(0, 3, acceptance=[0.5, 0.59])]),
]  # fmt: skip


@pytest.mark.parametrize("rule, going_on, stopped", RULES)
def test_a_rule_stops_where_its_definition_says(rule, going_on, stopped):
    assert not any(map(rule.stop, going_on)) and all(map(rule.stop, stopped))


def test_the_heuristic_grows_by_two_and_shrinks_by_one_to_no_less_than_one():
    rule = stopping.Heuristic(2)
    lengths = []
    for count, accepted in ((2, 2), (4, 4), (6, 0), (5, 4), (4, 0), (3, 1), (2, 1), (1, 0), (1, 1)):
        rule.verified(Round(0, count), accepted)
        lengths.append(rule.length)
    assert lengths == [4, 6, 5, 4, 3, 2, 1, 1, 3]

    for transient, expected in ((True, 5), (False, 7)):  # what is transient begins anew
        rule = stopping.Heuristic(5, transient)
        rule.start()
        rule.verified(Round(0, 5), 5)
        rule.start()
        assert rule.length == expected


def brute_force(confidence: list[float], accepted: list[bool]) -> float:
    """Cost of each threshold by counting, largest threshold first."""
    costs = {}
    for threshold in sorted(set(confidence), reverse=True):
        passed = sum(c >= threshold for c, a in zip(confidence, accepted, strict=True) if not a)
        missed = sum(c < threshold for c, a in zip(confidence, accepted, strict=True) if a)
        costs[threshold] = round(passed / accepted.count(False) + 3 * missed / accepted.count(True), 9)
    return min(costs, key=costs.get)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=30))
def test_the_fitted_threshold_has_the_least_cost(pairs):
    confidence, accepted = [c / 8 for c, _ in pairs], [a for _, a in pairs]
    found = fitted_threshold(confidence, accepted)
    if len(pairs) <= 5 or len(set(accepted)) < 2:
        assert found is None
    else:
        assert found == brute_force(confidence, accepted)


def test_fitting_counts_accepted_tokens_and_the_first_refused_one():
    rule = stopping.FittedConfidence(0.4)
    rule.start()
    rule.verified(drafted(0.9, 0.8, 0.3, 0.99), 2)
    rule.verified(drafted(0.7, 0.2), 1)
    assert rule.threshold == 0.4, "five tokens are too few"
    rule.verified(drafted(0.6, 0.95), 2)
    confidence, accepted = [0.9, 0.8, 0.3, 0.7, 0.2, 0.6, 0.95], [True, True, False, True, False, True, True]
    assert rule.threshold == brute_force(confidence, accepted)
    rule.start()
    assert rule.threshold == 0.4


@pytest.mark.parametrize("schedule", ["heuristic", "constant"])
def test_drafts_are_those_of_transformers_round_by_round(llama, schedule):
    small, start = perturbed(llama), prompt(4, 30)
    threshold, length = (0.0, 3) if schedule == "heuristic" else (0.25, 20)
    small.generation_config.update(
        num_assistant_tokens=length, num_assistant_tokens_schedule=schedule, assistant_confidence_threshold=threshold
    )
    rule = stopping.Heuristic(length) if schedule == "heuristic" else stopping.Confidence(threshold)
    run = generate(llama, start, AdaptiveDraftModel(small, rule), max_new_tokens=70, eos_token_id=[])
    tokens = torch.tensor([start + run.tokens[:1]])
    config = GenerationConfig(min_length=0, max_length=10**6, do_sample=False, eos_token_id=None)
    peer = AssistedCandidateGenerator(
        tokens, small, config, {"attention_mask": torch.ones_like(tokens)}, logits_processor=LogitsProcessorList()
    )
    # Of the last rounds ours is cut to what may still be emitted.
    for step in run.steps[:-4]:
        theirs = peer.get_candidates(tokens)[0][0, tokens.shape[1] :].tolist()
        assert step.tree.tokens == theirs
        peer.update_candidate_strategy(None, torch.zeros(1, len(theirs) + 1, 2), step.accepted)
        tokens = torch.cat([tokens, torch.tensor([step.tokens])], dim=1)
    lengths = {step.drafted for step in run.steps[:-4]}
    assert len(lengths) > 2 and len(run.steps) > 8, "the lengths must vary for the test to say something"
