"""The results table: rates, ratios and prices against counting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments import results
from specdec_lib.experiments.metrics import pooled
from specdec_lib.experiments.pass_costs import step_seconds
from specdec_lib.experiments.recorded_runs import replay_all
from tests.experiments.test_input_guided import made_up

TEXTS = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2], [1, 2, 1, 3, 1, 2, 1, 3, 1, 9, 9, 9], [4, 5, 6, 4, 5, 7, 4, 5, 6]


@pytest.fixture(scope="module")
def known():
    made = [made_up(text[:6], text[6:]) for text in TEXTS]
    return [replace(r, prompt=replace(r.prompt, id=str(i), task=("one", "two")[i % 2])) for i, r in enumerate(made)]


@pytest.fixture(scope="module")
def runs(known):
    return {"PLD": replay_all(known, PromptLookup(1, 4, "transformers")), "plain": replay_all(known, None)}


def test_rates_are_pooled_over_all_outputs_and_by_group(known, runs):
    rates = results.rate(results.table(known, runs), by=["task", "method"])
    assert rates["two", "PLD"].value == pooled(runs["PLD"][1:2])["tokens_per_forward"]
    assert rates["one", "plain"].value == 1
    accepted = results.rate(results.table(known, {"PLD": runs["PLD"]}), results.ACCEPTANCE)
    assert accepted.value == pooled(runs["PLD"])["acceptance_rate"]


def test_ratios_are_of_the_outputs_that_both_methods_have(known, runs):
    table = results.table(known, runs)
    ratios = results.ratio(table, "PLD", "plain", by="task")
    assert list(ratios) == [results.ALL, "one", "two"]
    assert ratios[results.ALL].value == pooled(runs["PLD"])["tokens_per_forward"]
    part = table[(table.method == "plain") | (table.prompt == "0")]
    assert results.ratio(part, "PLD", "plain").value == pooled(runs["PLD"][:1])["tokens_per_forward"]
    with pytest.raises(ValueError, match="no row of method 'REST'; expected one of PLD, plain"):
        results.ratio(table, "REST", "plain")


def test_a_pass_is_priced_by_its_width_and_beyond_the_curve_by_its_last_slope(known, runs):
    for curve in ({1: 1.0, 3: 1.5}, {1: 1.0, 11: 2.0}):
        table = results.priced(results.table(known, runs), curve, draft=0.25)
        for recording, run, price in zip(known, runs["PLD"], table[table.method == "PLD"].price, strict=True):
            assert len(recording.trace.tokens) == len(run.tokens)
            assert price == pytest.approx(
                sum(step_seconds(curve, step.width) + 0.25 * step.drafted for step in run.steps)
            )
