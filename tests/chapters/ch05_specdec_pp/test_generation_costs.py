"""Timed generations: who is fitted, who is predicted, and what comes of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from specdec_lib import Sampling, record
from specdec_lib.chapters.ch05_specdec_pp import generation_costs, head_knowledge, published, real_runs, wide_study
from specdec_lib.chapters.ch05_specdec_pp.draft_pass import draft_along
from specdec_lib.chapters.ch05_specdec_pp.head_study import Variant, Workshop, knows, reweighted
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import Study, baselines, with_head
from specdec_lib.chapters.ch05_specdec_pp.theory import best_rules
from specdec_lib.drafters import DraftModel, SpecDecPP
from specdec_lib.experiments.acceptance_training import parted
from specdec_lib.experiments.calibration import ranking_accuracy
from specdec_lib.experiments.recorded_runs import Recording
from specdec_lib.experiments.statistics import Interval
from specdec_lib.experiments.sum_of_forwards import fit_forward_times
from specdec_lib.heads.acceptance import Examples
from specdec_lib.heads.acceptance_data import label
from specdec_lib.report.claims import rules
from tests.chaos import head_of
from tests.families import perturbed, prompt


@pytest.fixture(scope="module")
def pair(llama):
    return llama, perturbed(llama)


@pytest.fixture(scope="module")
def recordings(pair):
    """A short and a long output of each of three prompts, the prompts of two tasks."""
    return [
        Recording(SimpleNamespace(task="ab"[s % 2]), 0, record(pair[0], prompt(s, 12), max_new_tokens=n))
        for n in (8, 16)
        for s in range(3)
    ]


@pytest.fixture(scope="module")
def timed(pair, recordings):
    return generation_costs.time_generations(*pair, recordings, [1, 3], 1)


def test_every_recording_is_timed_at_every_length_and_by_either_model_alone(timed, recordings):
    assert {length: len(runs) for length, runs in timed.drafted.items()} == {1: 6, 3: 6}
    assert len(timed.with_draft()) == 12 and len(timed.with_draft([0, 2])) == 4
    assert all(step.drafted == 0 for run in timed.target_alone for step in run.steps)
    assert set(timed.widths()) <= {1, 2, 4}


def test_outputs_of_one_prompt_stay_in_one_half(timed):
    first, second = timed.halves()
    assert sorted(first + second) == list(range(6))
    prompts = [{tuple(timed.recordings[i].trace.prompt) for i in half} for half in (first, second)]
    assert not prompts[0] & prompts[1]


def test_table_2_has_the_times_that_a_setting_can_tell(timed):
    rows = {row["setting"]: row for row in generation_costs.table_2(timed)}
    assert [(name, "t_draft" in row, "t_target" in row) for name, row in rows.items()] == [
        ("SpecDec", True, True),
        ("draft alone", True, False),
        ("target alone", False, True),
    ]
    assert rows["SpecDec"]["runs"] == 12 and rows["target alone"]["t_target"].value > 0
    counts = timed.counts()
    for setting, row in rows.items():
        fit = fit_forward_times(*counts[setting])
        found = [row[name] for name in ("t_draft", "t_target") if name in row]
        assert [one.value for one in found] == pytest.approx([1e3 * seconds for seconds in fit.seconds])
        assert all(one.low <= one.high for one in found) and row["r_squared"].value == pytest.approx(fit.r_squared)


def test_predictions_are_about_the_other_half(timed):
    found = generation_costs.predict(timed)
    assert len(found.measured) == len(timed.with_draft(timed.halves()[1]))
    values = generation_costs.values(timed, found)
    errors = abs(found.predicted - found.measured) / found.measured
    assert values["cost_error_largest"] == errors.max() >= values["cost_error_median"] > 0
    assert values["cost_t_draft_specdec_ms"] == generation_costs.table_2(timed)[0]["t_draft"].value


def test_real_runs_are_counted_and_a_wrong_count_is_seen(pair, recordings):
    target, small = pair
    head = head_of(small)
    study = Study([draft_along(one.trace, small, 12) for one in recordings], ["a"] * 3 + ["b"] * 3, 12)
    drafters = {"x": SpecDecPP(small, head, 0.5, max_tokens=12)}
    right = {"x": with_head("x", head, [0.5])[0]}
    counts = real_runs.compared(target, recordings, study, drafters, right)
    assert counts == {"runs": 2, "differ": 0, "unexplained": 0, "apart": 0}
    one_token = {"x": baselines(12)["any fixed K"][0]}  # SpecDec++ drafts two at least
    assert real_runs.compared(target, recordings, study, drafters, one_token)["apart"] == 2
    assert real_runs.first_of_each(study, 2) == [0, 1, 3, 4]


def test_sampled_text_of_each_set_is_tested_at_each_temperature(pair, recordings):
    target, small = pair
    study = Study([draft_along(one.trace, small, 12) for one in recordings], ["a"] * 3 + ["b"] * 3, 12)
    values = real_runs.law_values(target, recordings, study, DraftModel(small, 3), (0.6, 1.0), 12)
    assert values["head_law_tests"] == 4 and 0 <= values["head_law_rejected"] <= 4
    assert 0 <= values["head_law_least"] <= 1 and values["head_law_tokens"] <= 12 * 12


def test_the_weight_of_the_loss_is_undone_and_the_confidence_is_as_it_is(pair):
    import torch

    head = head_of(pair[1])
    states = torch.randn(5, head.out.in_features, generator=torch.Generator().manual_seed(0))
    found = Examples(states, torch.tensor([1.0, 0, 1, 1, 0]), torch.tensor([0.9, 0.2, 0.8, 0.7, 0.6]))
    own = head_knowledge.Tokens(found, np.array([0, 0, 1, 1, 2]))
    tokens = {head_knowledge.MIXTURE: own, "a": own}
    said = head_knowledge.predictions(tokens, {"head": head}, 6.0)
    assert np.allclose(said["a"]["confidence"].predicted, [0.9, 0.2, 0.8, 0.7, 0.6])
    expected = reweighted(head.probability(states, found.confidence), 6.0)
    assert np.allclose(said["a"]["head"].predicted, expected)
    values = head_knowledge.values(head_knowledge.table(said, tokens), "a", {"confidence": "head_auc_confidence"})
    assert values["head_auc_confidence_a"] == 1.0 and values["head_auc_gain_confidence"] == "1.000"
    assert "head_auc_confidence_training mixture, held out" not in values
    lead = head_knowledge.lead(said["a"], "head")
    assert lead.value == pytest.approx(ranking_accuracy(expected, found.acceptance.numpy()) - 1)
    assert values["said_lead_a"] == f"{lead:.3f}"
    assert values["head_ece_a"] == values["head_ece_mixture"] == knows(expected, found)["ece"]


def test_the_page_gives_a_reason_only_for_what_the_run_found():
    worse, better, open_ = Interval(-0.2, -0.3, -0.1), Interval(0.2, 0.1, 0.3), Interval(0.0, -0.1, 0.1)
    assert "ranks tokens worse" in head_knowledge.why([worse, worse])
    assert "ranks tokens better" in head_knowledge.why([better, better])
    assert all("depends on the text" in head_knowledge.why([worse, other]) for other in (better, open_))


def test_held_out_tokens_are_told_apart_by_their_answers(pair):
    import torch

    target, small = pair
    with torch.no_grad():
        traces = [record(target, prompt(s, 8), max_new_tokens=9) for s in range(12)]
        responses = [label(target, small, trace.prompt, trace.tokens, Sampling()) for trace in traces]
        workshop = Workshop(small, responses, 1)
        for mixing in (0.4, None):
            tokens = head_knowledge.held_out(workshop, mixing)
            assert len(tokens.outputs) == len(tokens.examples)
            assert set(tokens.outputs.tolist()) == set(range(len(parted(responses)[1])))
    first, again = (workshop.reseeded(workshop.head(Variant(depth=1, mixing=None)), 3) for _ in range(2))
    assert len(first) == 3 and all(one is other for one, other in zip(first, again, strict=True))
    assert len({one.out.bias.item() for one in first}) == 3


def test_the_recorded_values_of_the_long_study_are_those_of_its_file(pair, tmp_path):
    rows = wide_study.read()
    hottest = max(row.temperature for row in rows)
    (row,) = [
        row
        for row in rows
        if (row.draft, row.temperature, row.set, row.quantity) == ("draft", hottest, "code", "over fixed K")
    ]
    values = wide_study.values(rows, ["draft", "larger"])
    assert values["head_pp_over_fixed_code_sampled"] == row.interval
    assert values["sampled_gain_code"] == f"{row.interval:.2f}"
    (row,) = [
        r for r in rows if (r.draft, r.temperature, r.set, r.quantity) == ("draft", 0, "prose", "over confidence")
    ]
    assert values["head_pp_over_confidence_prose_greedy"] == row.interval

    assert not wide_study.is_of(*pair, "draft")
    own = [row for row in rows if row.draft == "draft" and row.set in ("editing", "code", "prose")]
    for how, hot in (("sampled", True), ("greedy", False)):
        prompts = {row.prompts for row in own if bool(row.temperature) == hot}
        assert (values[f"{how}_prompts_least"], values[f"{how}_prompts"]) == (min(prompts), max(prompts))
    (lead,) = [
        r
        for r in rows
        if (r.draft, r.temperature, r.set, r.quantity) == ("draft", 0, "editing", "AUC, head less confidence")
    ]
    assert values["sizes_draft_lead"] == f"{lead.interval:.3f}" and values["sizes_larger_lead"] == "not available"
    nothing = wide_study.values([], ["draft"], path=tmp_path / "none.csv")
    assert (
        nothing["head_pp_over_fixed_code_greedy"] == nothing["head_pp_over_fixed_code_sampled"] == "not available"
        and nothing["sampled_prompts"] == 0
    )


def test_what_the_page_says_of_drafts_of_three_sizes_is_true_of_the_file():
    rows = [row for row in wide_study.read() if row.temperature == 0]
    leads = {(r.draft, r.set): r.interval for r in rows if r.quantity == "AUC, head less confidence"}
    assert len(leads) == 9 and all(lead.high < 0 for lead in leads.values())
    small, middle, large = (leads[name, "editing"] for name in ("draft_small", "draft", "draft_large"))
    assert large.high < min(small.low, middle.low)  # the largest model's head is furthest from its probability
    accepted = {r.draft: r.value for r in rows if (r.set, r.quantity) == ("editing", "acceptance")}
    best = {r.draft: r.setting for r in rows if (r.set, r.quantity) == ("editing", "speed-up, any fixed K")}
    assert accepted["draft_small"] < accepted["draft"] < accepted["draft_large"]
    assert best["draft_small"] == "K = 1"  # below the two tokens that SpecDec++ always drafts


def test_a_survey_is_recorded_as_means_and_extremes():
    import pandas as pd

    found = pd.DataFrame(best_rules.survey(3, 4, np.linspace(0, 0.95, 5)))
    values = best_rules.survey_values(found)
    assert values["mdp_instances"] == 3 and values["mdp_failures"] == 0
    assert values["mdp_best_fixed_worst"] == found.best_fixed.max() >= values["mdp_best_fixed_mean"] >= 0
    assert values["mdp_threshold_wins"] == np.mean(found.best_threshold <= found.best_fixed + 1e-12)


def test_the_published_times_are_a_small_and_a_large_model():
    paper = published.paper()
    assert paper.times[0] < paper.alone < paper.times[1] and 0 < paper.threshold < 1
    assert paper.setting.reject_weight > 1 and set(paper.speedups) == {"alpaca", "humaneval", "gsm8k"}


def test_what_the_claims_say_of_sampled_ratios_is_true_of_the_file():
    rows = wide_study.read()
    hottest = max(row.temperature for row in rows)
    for name in ("editing", "code", "prose"):
        assert wide_study.best_length(rows, "draft", hottest, name) == 2
        (ratio,) = [r for r in rows if r[:1] + r[2:4] == ("draft", hottest, name) and r.quantity == "over fixed K"]
        alike = pytest.approx(1, abs=0.005)
        assert (ratio.low == alike and ratio.high == alike) == (name != "editing")
    prompts = {(row.set, row.temperature): row.prompts for row in rows if row.draft == "draft"}
    for temperature in {row.temperature for row in rows}:
        assert prompts["code", temperature] < min(prompts[name, temperature] for name in ("editing", "prose"))
    (note,) = [claim.note for claim in rules.load_claims() if claim.id == "specdec-pp-table-1"]
    assert "On code and prose" in note and "these two ratios say little" in note
