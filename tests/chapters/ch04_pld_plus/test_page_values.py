"""What chapter 4 records, on made-up outputs whose rates can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec_lib.chapters.ch04_pld_plus import copying_comparison, page_values
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.metrics import pooled
from specdec_lib.experiments.recorded_runs import replay_all
from tests.chapters.ch04_pld_plus.test_copying_comparison import KNOWN

PRICES = {1: 1.0, 11: 2.0}
ENDS = {"one": "one", "two": "two", "summarisation": "summarisation", None: "all"}


def rate(runs):
    return pooled(runs)["tokens_per_forward"]


@pytest.fixture(autouse=True)
def made_up_tasks(monkeypatch):
    monkeypatch.setattr(page_values, "ENDS", ENDS)


def test_tokens_per_pass_are_recorded_by_method_and_task_and_without_loops():
    runs = {"PLD": replay_all(KNOWN, PromptLookup(1, 4, "transformers"))}
    values = page_values.tokens_per_pass(KNOWN, runs, "t0")
    assert set(values) == {"t0_pld_one", "t0_pld_two", "t0_pld_all", "t0_pld_unlooped"}
    assert values["t0_pld_all"] == rate(runs["PLD"]) and values["t0_pld_two"] == rate(runs["PLD"][1:2])
    unlooped = [run for run, r in zip(runs["PLD"], KNOWN, strict=True) if not r.looped]
    assert values["t0_pld_unlooped"] == (rate(unlooped) if unlooped else "not available")


def test_a_ratio_is_recorded_as_number_and_as_text_at_both_prices():
    runs = {"h": replay_all(KNOWN, PromptLookup(1, 4, "transformers")), "pld": replay_all(KNOWN, None)}
    pairs = {"t0_h_over_pld": ("h", "pld")}
    found = [copying_comparison.compare(runs, KNOWN, pairs, prices) for prices in (None, PRICES)]
    values = page_values.ratios(*found)
    assert values["t0_h_over_pld_all"].value == rate(runs["h"])
    assert values["t0_h_over_pld_all_gpu"].value < rate(runs["h"])
    assert values["t0_h_over_pld_text"] == f"{values['t0_h_over_pld_all']:.2f}"


def test_the_share_of_length_is_what_of_the_lead_goes_at_equal_length():
    long, short, none = (
        replay_all(KNOWN, drafter) for drafter in (PromptLookup(1, 4, "transformers"), PromptLookup(1, 1), None)
    )
    cold = {
        "paper": {"PLD": none, "PLD+ (h)": long, "PLD+ (a)": none},
        "equal": {"PLD+ (h)": short, "PLD+ (a)": none},
    }
    values = page_values.length_shares(cold, KNOWN)
    assert values["length_share_h"] == f"{(rate(long) - rate(short)) / (rate(long) - rate(none)):.0%}"
    assert values["length_share_a"] == "not available"


def test_the_best_length_of_pld_and_the_ends_of_the_sweep_are_recorded():
    each = copying_comparison.sweep(KNOWN, lambda k: PromptLookup(1, k, "transformers"), [1, 2, 4])
    swept = dict.fromkeys(page_values.LENGTH_RULES, each)
    by_length = {k: rate(runs) for k, runs in swept["PLD, as released"].items()}
    named = [replace(r, prompt=replace(r.prompt, task="summarisation")) for r in KNOWN]
    values = page_values.draft_lengths(named, swept, PRICES)
    assert values["k_best_pld"] == max(by_length, key=by_length.get)
    assert (values["k_first"], values["k_last"]) == (1, 4)
    assert values["k_last_over_first_h"].value == pytest.approx(by_length[4] / by_length[1])
    assert values["k_70_over_10_h_gpu"] == "not available"


def test_the_best_layer_is_compared_with_the_embeddings_and_the_last():
    by_layer = {i: replay_all(KNOWN, PromptLookup(1, k)) for i, k in enumerate((1, 3, 2))}
    values = page_values.layers(KNOWN, by_layer, by_layer[0])
    rates = {i: rate(runs) for i, runs in by_layer.items()}
    best = max(rates, key=rates.get)
    assert values["layer_best"] == best and values["layer_best_share"] == best / 2
    assert values["layer_rate_last"] == rates[2] and values["layer_rate_worst"] == min(rates.values())
    assert values["layer_best_over_embeddings"].value == pytest.approx(rates[best] / rates[0])


def test_heads_are_compared_with_all_credited_ones_with_every_one_and_with_random_ones():
    own, fewer, none = (replay_all(KNOWN, d) for d in (PromptLookup(1, 4, "transformers"), PromptLookup(1, 1), None))
    values = page_values.head_sets_tried(KNOWN, {"1": fewer, "3": own, "every": none}, own, {0: none, 1: fewer})
    assert values["heads_best"] == 3 and values["heads_rate_one"] == rate(fewer)
    assert values["heads_chosen_over_credited"].value == 1
    assert values["heads_chosen_over_every"].value == pytest.approx(rate(own))
    assert values["heads_rate_random_low"] == rate(none) and values["heads_rate_random_high"] == rate(fewer)
    assert values["random_draws_used"] == 2
