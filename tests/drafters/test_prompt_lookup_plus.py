"""PLD+ against a reading of the paper's equations on states and attention that transformers itself gives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib import Sampling, Trace, generate, replay
from specdec_lib.decoding.loop import Limits
from specdec_lib.drafters import PromptLookup, PromptLookupAttention, PromptLookupHidden
from tests import families

PROMPT = families.prompt(3, 40, 12)


def run_of(model, drafter=None):
    return generate(model, PROMPT, drafter, max_new_tokens=40, eos_token_id=[])


def whole_run(model):
    return [*PROMPT, *run_of(model).tokens]


def drafts(run):
    """Position of the last token, what was proposed there and where it was copied from, step by step."""
    place, out = run.prompt_length, []
    for step in run.steps:
        out.append((place, (step.tree.tokens, step.tree.copied_from)))
        place += len(step.tokens)
    return out


def by_equation(text, last, score, generated=True, first=0):
    """Equation 1 or 2 read aloud: score every earlier occurrence, take the best, copy six tokens of what followed."""
    end, room = last if generated else min(last, len(PROMPT)), len(text) - last - 2
    places = [j for j in range(first, end) if text[j] == text[last]]
    if not places or not room:
        return [], None
    best = max(places, key=lambda j: (score(j), -j))
    return text[best + 1 : last + 1][: min(6, room)], best + 1


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("generated", [True, False])
def test_hidden_variant_copies_from_the_nearest_state(library, layer, generated):
    model = library["llama-gqa"]
    text = whole_run(model)
    with torch.no_grad():
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states[layer][0].double().numpy()
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    run = run_of(model, PromptLookupHidden(layer, 6, generated=generated))
    assert [*PROMPT, *run.tokens] == text
    for last, got in drafts(run):

        def cosine(j):
            return round(float(states[j - 1] @ states[last - 1]), 5)

        assert got == by_equation(text, last, cosine, generated, first=1), last


@pytest.mark.parametrize("family", ["llama", "llama-gqa"])
@pytest.mark.parametrize("aggregate", ["max", "sum"])
def test_attention_variant_copies_from_where_the_heads_looked(library, family, aggregate):
    model, heads = library[family], [(0, 1), (1, 3), (1, 0)]
    text = whole_run(model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attention = model(torch.tensor([text]), output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    rows = torch.stack([attention[block][0, head] for block, head in heads]).double().numpy()
    fold = np.max if aggregate == "max" else np.sum
    run = run_of(model, PromptLookupAttention(heads, 6, aggregate=aggregate))
    assert [*PROMPT, *run.tokens] == text
    for last, got in drafts(run):
        assert got == by_equation(text, last, lambda j: round(float(fold(rows[:, last - 1, j])), 5)), last


def remembered(prompt, tokens, seed):
    """A trace with random states and rows: what they say cannot matter where there is no choice."""
    generator = torch.Generator().manual_seed(seed)
    count = len(prompt) + len(tokens)
    rows = [torch.rand(2, n, generator=generator) for n in range(len(prompt), count + 1)]
    limits, states = Limits(len(tokens), frozenset(), None), {1: torch.randn(count, 8, generator=generator)}
    return Trace(prompt, tokens, Sampling(), 100, limits, "length", states, ((0, 1), (1, 3)), rows)


@settings(max_examples=60)
@given(
    st.permutations(range(1, 20)),
    st.lists(st.integers(1, 30), unique=True, min_size=2, max_size=25),
    st.integers(1, 9),
    st.integers(0, 9),
)
def test_with_one_candidate_all_steps_are_those_of_prompt_lookup_with_single_tokens(prompt, tokens, length, seed):
    # Every token is at most once in the prompt and once in the output, and the first one, before which there
    # is no state, only there: no step has more than one candidate.
    trace = remembered([0, *prompt], tokens, seed)
    expected = replay(trace, PromptLookup(1, length, variant="transformers"))
    for drafter in (PromptLookupHidden(1, length), PromptLookupAttention(trace.heads, length)):
        assert drafts(replay(trace, drafter)) == drafts(expected)


def test_threshold_and_averaging_change_what_the_text_says_they_change(library):
    def found(**options):
        return drafts(run_of(library["llama-gqa"], PromptLookupHidden(1, 6, **options)))

    assert found() == found(threshold=-1.0) == found(average=1)
    assert not any(draft for _, (draft, _) in found(threshold=1.0))
    text = whole_run(library["llama-gqa"])
    for last, got in found(average=3, average_over="printed"):
        assert got == by_equation(text, last, lambda j: 0, first=1)
