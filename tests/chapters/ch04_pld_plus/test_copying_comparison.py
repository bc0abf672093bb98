"""PLD+ against PLD on many prompts: what is replayed, and what the ratios are ratios of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specdec_lib import load_model
from specdec_lib.chapters.ch04_pld_plus import copying_comparison
from specdec_lib.decoding.replay import replay
from specdec_lib.drafters import PromptLookup, PromptLookupAttention, PromptLookupHidden, TokenRecycling
from specdec_lib.experiments import comparison, recorded_runs
from specdec_lib.experiments import input_guided as guided
from specdec_lib.experiments.metrics import pooled
from specdec_lib.experiments.pass_costs import step_seconds
from specdec_lib.experiments.recorded_runs import record_prompts, replay_all
from tests.experiments.test_input_guided import made_up


def recordings(*texts):
    """Greedy recordings of made-up outputs, of two tasks in turn."""
    made = [made_up(text[:6], text[6:]) for text in texts]
    return [replace(r, prompt=replace(r.prompt, id=str(i), task=("one", "two")[i % 2])) for i, r in enumerate(made)]


KNOWN = recordings(
    [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2], [1, 2, 1, 3, 1, 2, 1, 3, 1, 9, 9, 9], [4, 5, 6, 4, 5, 7, 4, 5, 6]
)


def test_many_prompts_are_replayed_in_parts_as_all_at_once(monkeypatch):
    model, tokenizer = load_model("pocket-draft", "cpu")
    prompts = guided.mechanical_prompts(1)
    drafters = {"h": PromptLookupHidden(1, 10), "a": PromptLookupAttention([(0, 0), (1, 1)], 10), "p": PromptLookup()}
    monkeypatch.setattr(copying_comparison, "AT_A_TIME", 2)
    known, runs = copying_comparison.replay_many(model, tokenizer, prompts, None, 12, drafters)
    capture = drafters["h"].capture | drafters["a"].capture
    whole = record_prompts(model, tokenizer, prompts, None, 12, capture)
    assert [(r.prompt.id, r.turn, r.trace.tokens) for r in known] == [
        (r.prompt.id, r.turn, r.trace.tokens) for r in whole
    ]
    assert not any(r.trace.hidden or r.trace.attention for r in known)
    for name, drafter in drafters.items():
        assert [run.tokens for run in runs[name]] == [r.trace.tokens for r in whole]
        assert [len(run.steps) for run in runs[name]] == [len(replay(r.trace, drafter).steps) for r in whole]


def test_methods_at_two_choices_of_lengths_do_what_they_do_at_each_alone(monkeypatch):
    model, tokenizer = load_model("pocket-draft", "cpu")
    known = record_prompts(model, tokenizer, guided.mechanical_prompts(1)[:2], None, 12)
    state = {"PLD": "cold", "Token Recycling": "warm"}
    drafters = {
        how: {"PLD": PromptLookup(3, length), "Token Recycling": TokenRecycling()}
        for how, length in (("paper", 10), ("equal", 2))
    }
    used = []
    monkeypatch.setattr(
        copying_comparison, "all_runs", lambda *given: used.append(set(given[2])) or recorded_runs.all_runs(*given)
    )
    found = copying_comparison.at_lengths(model, known, drafters, state)
    assert used == [{("paper", "PLD"), ("equal", "PLD"), ("paper", "Token Recycling")}]
    for how, own in drafters.items():
        for name, runs in recorded_runs.all_runs(model, known, own, state).items():
            assert all(map(comparison.same_steps, found[how][name], runs))


def test_a_pass_costs_what_the_line_between_its_neighbours_says():
    prices = {1: 1.0, 11: 1.1, 61: 1.6}
    for width, price in ((1, 1.0), (6, 1.05), (11, 1.1), (36, 1.35), (61, 1.6), (71, 1.7)):
        assert step_seconds(prices, width) == pytest.approx(price)
    assert min(copying_comparison.card_prices().values()) == 1


def test_priced_tokens_are_those_after_the_first_and_each_pass_costs_by_its_width():
    prices = {1: 1.0, 11: 2.0}
    runs = replay_all(KNOWN, PromptLookup(2, 3, "transformers"))
    tokens, cost = copying_comparison.priced(runs, prices)
    assert tokens == [len(run.tokens) - 1 for run in runs]
    assert cost == pytest.approx([sum(1 + step.drafted / 10 for step in run.steps) for run in runs])
    flat = copying_comparison.priced(runs, {1: 1.0, 2: 1.0})
    assert sum(flat.above) / sum(flat.below) == pooled(runs)["tokens_per_forward"]


def test_gains_are_of_each_task_and_of_all():
    ours, theirs = replay_all(KNOWN, PromptLookup(1, 4, "transformers")), replay_all(KNOWN, None)
    found = dict(copying_comparison.gains(ours, theirs, KNOWN))
    assert list(found) == ["one", "two", None]
    assert found[None].value == pooled(ours)["tokens_per_forward"]
    assert found["two"].value == pooled(ours[1:2])["tokens_per_forward"] and not found["two"].known
    priced = dict(copying_comparison.gains(ours, theirs, KNOWN, {1: 1.0, 2: 2.0}))
    assert priced[None].value < found[None].value


def test_the_fastest_other_is_compared_on_the_first_set_that_has_it():
    ours, plain = replay_all(KNOWN, PromptLookup(1, 4, "transformers")), replay_all(KNOWN, None)
    best = replay_all(KNOWN, PromptLookup(2, 4, "transformers"))
    prices = {1: 1.0, 2: 1.0}
    sets = [
        (KNOWN, {"ours": ours, "plain": plain}),
        (KNOWN[:2], {"ours": ours[:2], "other": best[:2], "plain": plain[:2]}),
    ]
    found = copying_comparison.over_fastest("ours", sets, prices)
    one = KNOWN[:1]
    expected = copying_comparison.speed_gain(ours[:1], best[:1], one, prices)
    assert found["one"] == pytest.approx(expected, nan_ok=True)
    assert copying_comparison.over_fastest("ours", sets[:1], prices)["one"] == copying_comparison.speed_gain(
        [ours[0], ours[2]], [plain[0], plain[2]], [KNOWN[0], KNOWN[2]], prices
    )


def test_the_rank_correlation_is_spearmans():
    x, y = [3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]
    ranks = [np.array([3, 1.5, 4, 1.5, 5, 6]), np.array([2.5, 4, 1, 5.5, 2.5, 5.5])]
    found = copying_comparison.rank_correlation(x, y, range(6))
    assert found.value == pytest.approx(np.corrcoef(*ranks)[0, 1]) and found.low < found.value < found.high
    assert copying_comparison.rank_correlation(x, [2 * v for v in x], range(6)).value == pytest.approx(1)


def test_spans_are_means_over_the_drafting_passes():
    long, short = (
        replay_all(KNOWN, PromptLookup(1, 6, "transformers")),
        replay_all(KNOWN, PromptLookup(1, 1, "transformers")),
    )
    spans, gains, places = copying_comparison.spans_and_gains(long, short)
    assert places == [0, 1, 2]
    first = [step.accepted for step in long[0].steps if step.drafted]
    assert spans[0] == sum(first) / len(first) and gains[0] == len(short[0].steps) / len(long[0].steps)
    assert copying_comparison.spans_and_gains(replay_all(KNOWN, None), short) == ([], [], [])


def test_random_draws_are_pooled():
    ours, plain = replay_all(KNOWN, PromptLookup(1, 4, "transformers")), replay_all(KNOWN, None)
    found = copying_comparison.gain_over_draws(ours, [ours, plain], KNOWN)
    emitted = sum(len(run.tokens) - 1 for run in ours)
    rate = 2 * emitted / (sum(len(run.steps) for run in ours) + sum(len(run.steps) for run in plain))
    assert found.value == pytest.approx(pooled(ours)["tokens_per_forward"] / rate)


def test_states_that_are_all_alike_are_no_more_alike_to_their_neighbours():
    import torch

    known = [replace(r, trace=replace(r.trace, hidden={1: torch.ones(8, 4)})) for r in KNOWN]
    assert copying_comparison.neighbour_lead(known, 1) == pytest.approx((0, 0, 0), abs=1e-6)
    turning = torch.eye(8).cumsum(0)  # neighbours share most of their ones
    known = [replace(r, trace=replace(r.trace, hidden={1: turning})) for r in KNOWN]
    assert copying_comparison.neighbour_lead(known, 1).low > 0
