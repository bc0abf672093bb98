"""The table of methods, and all of its rows on one pair of models."""

from types import SimpleNamespace

import pytest

from specdec_lib import methods
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.runs import recorded_runs
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS
from tests.families import build, perturbed, prompt


@pytest.fixture(scope="module")
def pair():
    return ModelPair.untuned(*recorded_runs.load_pair("pocket", "pocket-draft", dtype="float32"))


def test_every_method_is_known_by_its_name_and_says_what_it_drafts():
    assert all(name == row.name and row.about.endswith(".") for name, row in METHODS.items())


def test_a_row_builds_the_class_it_names_and_its_drafter_says_how_it_is_replayed(pair):
    drafters = pair.drafters(list(METHODS))
    assert set(drafters) == set(METHODS), "the shipped pair has what every method needs"
    for name, drafter in drafters.items():
        assert type(drafter) is METHODS[name].drafter
        # A draft with probabilities is equal in distribution, and cannot be replayed where the target samples.
        assert (METHODS[name].exact == "in distribution") == (drafter.replays == "greedy")


def test_lengths_are_those_asked_for_by_name_by_the_name_without_brackets_or_the_row_s(pair):
    asked = {"PLD+": 30, "PLD+ (a)": 20, "SpecDec": 7}
    got = {name: methods.draft_length(name, asked) for name in ("PLD", "PLD+ (h)", "PLD+ (a)", "SpecDec", "REST")}
    assert got == {"PLD": 10, "PLD+ (h)": 30, "PLD+ (a)": 20, "SpecDec": 7, "REST": 10}
    assert pair.drafters(["PLD", "PLD+ (h)"], asked)["PLD+ (h)"].num_tokens == 30
    with pytest.raises(ValueError, match="drafts of SpecDec\\+\\+ have no length"):
        methods.draft_length("SpecDec++", {})


def test_what_these_models_have_nothing_for_is_left_out_and_noted():
    target = build("llama-gqa")
    strange = ModelPair.untuned(target, perturbed(target), None)
    assert list(strange.drafters(["plain", "PLD", "SpecDec++"])) == ["plain", "PLD"]
    assert "acceptance head" in strange.notes["left out"]["SpecDec++"]
    with pytest.raises(ValueError, match="'Sequoia'; expected some of plain, PLD"):
        strange.drafters(["Sequoia"])


def test_what_cannot_be_replayed_is_run_for_real():
    model = build("llama-gqa")
    traces = [recorded_runs.record(model, prompt(i, 12), max_new_tokens=8) for i in range(2)]
    recordings = [recorded_runs.Recording(SimpleNamespace(task="t"), 0, trace) for trace in traces]
    live = PromptLookup()
    live.replays = "never"
    replayed, real = (recorded_runs.runs_of(model, recordings, d) for d in (PromptLookup(), live))
    assert [r.tokens for r in replayed] == [r.tokens for r in real] == [t.tokens for t in traces]
    # A replay runs no target, so it spends no time on verification.
    spent = [sum(step.verify_seconds for run in runs for step in run.steps) for runs in (replayed, real)]
    assert spent[0] < spent[1]
