"""The five tasks, and the choices made from replays of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerFast

from specdec_lib import Capture, paths, record
from specdec_lib.decoding.target import Target
from specdec_lib.drafters import PromptLookup, PromptLookupHidden
from specdec_lib.experiments import draft_costs, metrics, recorded_runs
from specdec_lib.experiments import input_guided as guided
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import Recording
from tests import families
from tests.chaos import CountingClock
from tests.experiments.made import made_up


@pytest.fixture(scope="module")
def tokenizer():
    return PreTrainedTokenizerFast.from_pretrained(paths.POCKET / "target")


def recordings(model, capture=Capture()):
    out = []
    for i, task in enumerate(("code editing", "summarisation", "code editing")):
        trace = record(model, families.prompt(i, 30, 9), max_new_tokens=20, eos_token_id=[], capture=capture)
        out.append(Recording(Prompt(f"p{i}", task, ("text",)), 0, trace))
    return out


def test_each_task_has_as_many_prompts_as_asked_for_and_lengths_that_fit():
    prompts = guided.mechanical_prompts(3)
    assert [p.task for p in prompts] == [task for task in guided.TASKS for _ in range(3)]
    answers = {task: [len(p.reference) for p in prompts if p.task == task] for task in guided.TASKS}
    assert max(answers["short text editing"]) <= guided.SHORT < guided.LONG <= min(answers["long text editing"])
    assert all(len(p.turns) == (2 if p.task == "multi-turn" else 1) for p in prompts)
    with pytest.raises(ValueError, match="per_task is 0"):
        guided.mechanical_prompts(0)


def test_many_prompts_are_each_there_once_under_the_seed_that_drew_them_first():
    without = guided.calibration_prompts(guided.CALIBRATION, 1, 1)
    many = guided.many_prompts(3, (0, 1, 0), without)
    assert len({p.turns for p in many}) == len({(p.task, p.id) for p in many}) == len(many)
    assert {p.id.rpartition(", ")[2] for p in many} == {"seed 0", "seed 1"}
    bodies = {p.text.split("\n\n", 1)[1] for p in without}
    drawn = [p for seed in (0, 1) for p in guided.mechanical_prompts(3, seed)]
    wanted = {p.turns for p in drawn if p.text.split("\n\n", 1)[1] not in bodies}
    assert {p.turns for p in many} == wanted and len(wanted) < len(drawn)
    few = guided.first_of_each(many, 2)
    assert [p.task for p in few] == [task for task in guided.TASKS for _ in range(2)]
    assert all(p.id.endswith("seed 0") for p in few)


def test_calibration_prompts_share_no_text_with_those_of_the_experiment():
    prompts = guided.mechanical_prompts(4)
    for seed in (0, 1):
        chosen = guided.calibration_prompts(guided.CALIBRATION, 3, seed, without=prompts)
        assert len(chosen) == 3 * len(guided.CALIBRATION)
        bodies = {p.text.split("\n\n", 1)[1] for p in prompts}
        assert not bodies & {p.text.split("\n\n", 1)[1] for p in chosen}
    with pytest.raises(ValueError, match="per_task is 0"):
        guided.calibration_prompts(guided.CALIBRATION, 0)


def test_an_output_is_right_if_it_is_the_reference_or_was_cut_before_its_end(tokenizer):
    def said(text, end, reason):
        tokens = [*tokenizer.encode(text, add_special_tokens=False), *([tokenizer.eos_token_id] if end else [])]
        known = made_up([5, 6], tokens)
        trace = replace(known.trace, finish_reason=reason)
        return replace(known, prompt=Prompt("one", "t", ("ask",), reference="def f():\n    return 1"), trace=trace)

    whole, cut = said("def f():\n    return 1", True, "eos"), said("def f():\n", False, "length")
    short, wrong = said("def f():\n", True, "eos"), said("def g():\n", False, "length")
    assert guided.right_so_far([whole, cut], tokenizer) == 1
    assert guided.right_so_far([whole, cut, short, wrong], tokenizer) == 0.5
    turns = replace(whole, prompt=replace(whole.prompt, turns=("a", "b")))
    assert guided.right_so_far([whole, turns, short], tokenizer) == 0.5


def test_the_best_layer_has_the_largest_rate_and_is_the_lowest_of_those(library):
    known = recordings(library["llama"], Capture((0, 1, 2)))
    found = guided.best_layer(known, lambda i: PromptLookupHidden(i, 4), range(3))
    runs = [recorded_runs.replay_all(known, PromptLookupHidden(i, 4)) for i in range(3)]
    rates = [metrics.pooled(own)["tokens_per_forward"] for own in runs]
    assert found == rates.index(max(rates))


def test_drafting_costs_have_a_row_a_length_and_drafter_and_count_memory():
    tokens = [i % 40 for i in range(400)]
    rows = draft_costs.drafting(
        {"PLD": PromptLookup(), "h": PromptLookupHidden(1, 5)}, tokens, [100, 200], width=16, steps=20
    )
    assert [(row["tokens"], row["method"]) for row in rows] == [(n, m) for n in (100, 200) for m in ("PLD", "h")]
    assert {row["method"]: row["bytes_per_token"] for row in rows} == {"PLD": 0, "h": 16 * 4}
    assert all(row["median_ms"] > 0 for row in rows)
    assert all(len(row["all_ms"]) == 20 for row in rows)
    with pytest.raises(ValueError, match="tokens holds 400; expected 420"):
        draft_costs.drafting({"PLD": PromptLookup()}, tokens, [400], steps=20)


def test_passes_with_and_without_capture_take_turns(library, monkeypatch):
    """Other work on the machine then falls on both: timed one after the other, a pass that keeps states seemed the faster."""
    order, verify = [], Target.verify

    def noted(target, root, tree):
        order.append(target.capture)
        return verify(target, root, tree)

    monkeypatch.setattr(Target, "verify", noted)
    captures = {"none": Capture(), "layer": Capture((1,))}
    draft_costs.capturing(library["llama"], captures, [20], draft=4, repeats=3)
    assert order == [*captures.values()] * 5


def test_a_ratio_of_times_is_one_of_means():
    ratio = draft_costs.time_ratio([1, 2, 3, 2], [4, 4])
    assert ratio.value == 0.5 and 0.25 <= ratio.low < 0.5 < ratio.high <= 0.75
    assert draft_costs.time_ratio([3, 3], [1, 1, 1]) == (3, 3, 3)


def test_the_pass_is_timed_by_the_clock_of_the_models_devices(library, monkeypatch):
    asked = []
    monkeypatch.setattr(draft_costs, "clock_of", lambda devices: asked.append(set(devices)) or CountingClock(0.5))
    (row,) = draft_costs.capturing(library["llama"], {"one": Capture((1,))}, [20], draft=4, repeats=3)
    assert row["median_ms"] == 500 and asked == [{library["llama"].device}]
