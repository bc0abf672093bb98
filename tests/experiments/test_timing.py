"""Timed runs and composed ones, each against sums that are written out."""

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_lib import DraftTree, Runtime, load_model
from specdec_lib.decoding.results import PARTS, Generation, Step
from specdec_lib.drafters import Rest, SpecDecPP
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.experiments.costs import measured_passes, timing
from specdec_lib.experiments.data import prompts as book
from specdec_lib.experiments.runs import recorded_runs
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.runs.results import SPEED, ratio, table
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.report.appearance import compared_in
from tests.chaos import CountingClock


@pytest.fixture(scope="module")
def pair(pocket):
    draft, _ = load_model("pocket-draft", "cpu", "float32")
    return ModelPair(pocket[0], draft, pocket[1], store_tokens=10_000, dense_tokens=1_500)


PROMPTS = book.load("report", ["code editing"], 2)


@pytest.mark.slow
def test_every_method_and_transformers_are_timed_and_in_float32_none_changes_a_token(pair):
    recordings, runs, rows = timing.race(pair, PROMPTS, ["plain", *compared_in("06")], 8)
    assert set(runs) == {"plain", *compared_in("06")}
    assert {row["method"] for row in rows} == {*runs, *timing.PEERS}
    assert len(rows) == len(recordings) * (len(runs) + len(timing.PEERS))
    assert all(row["equal"] and row["seconds"] > 0 for row in rows)
    assert all([run.tokens for run in own] == [r.trace.tokens for r in recordings] for own in runs.values())
    for row in rows:  # sums over the steps
        assert row["written"] == len(next(r for r in recordings if r.prompt.id == row["prompt"]).trace.tokens)
        assert row["decoding_seconds"] == pytest.approx(sum(row[part] for part in PARTS))
        assert row["decoding_seconds"] <= row["seconds"]
        assert row["passes"] == 0 if row["method"] in timing.PEERS else row["tokens"] == row["written"] - 1
        if row["method"] == "plain":
            assert row["passes"] == row["tokens"] and row["drafted"] == 0
    frame = pd.DataFrame(rows)
    sums = frame.groupby("method")[["written", "seconds"]].sum()
    speed, found = sums.written / sums.seconds, ratio(frame, "PLD", "plain", timing.CALL)
    assert found.value == pytest.approx(speed["PLD"] / speed["plain"]) and found.low <= found.value <= found.high


def test_runtimes_carry_every_method(pair, monkeypatch):
    static = Runtime(pair.target, 900, "static"), Runtime(pair.draft, 900, "static", (1, 2, 4))
    monkeypatch.setattr(timing, "_runtimes", lambda *args: static)
    _, runs, rows = timing.race(pair, PROMPTS[:1], ["plain", *compared_in("06")], 10)
    assert len(runs) > 5 and all(row["equal"] for row in rows)
    assert sum(count for width, count in static[0].passes.items() if width != "eager") > 10


def test_methods_without_their_models_are_left_out_on_both_sides(pair):
    alone = ModelPair(pair.target, None, pair.tokenizer)
    _, runs, rows = timing.race(alone, PROMPTS[:1], ["plain", "PLD", "SpecDec"], 4)
    assert set(runs) == {"plain", "PLD"}
    assert {row["method"] for row in rows} == {"plain", "PLD", "transformers", "transformers, prompt lookup"}
    # A head of another draft model leaves SpecDec++ out.
    torch.manual_seed(1)
    config = LlamaConfig(**{**pair.draft.config.to_dict(), "hidden_size": 128})
    strange = ModelPair(pair.target, LlamaForCausalLM(config).eval(), pair.tokenizer)
    assert list(strange.drafters(["plain", "SpecDec", "SpecDec++"])) == ["plain", "SpecDec"]
    assert isinstance(pair.drafters(["SpecDec++"])["SpecDec++"], SpecDecPP)


def test_the_cost_of_a_run_is_the_sum_over_its_steps(pair):
    drafters = pair.drafters(["plain", "PLD", "SpecDec"]) | {"REST, 8 nodes": Rest(pair.sparse, choices=8)}
    recordings = record_once(pair.target, pair.tokenizer, PROMPTS, None, 16)
    runs = {name: recorded_runs.replay_all(recordings, drafter) for name, drafter in drafters.items()}
    costs = PassCosts({1: 1.0, 8: 1.7}, step=0.1, drafted_token=0.2, drafting={"PLD": 0.03, "REST": 0.04})
    frame = timing.with_cost_at(table(recordings, runs), costs)
    proposing = {"plain": (0, 0), "PLD": (0.03, 0), "SpecDec": (0, 0.2), "REST, 8 nodes": (0.04, 0)}
    for name, own in runs.items():
        a_step, a_token = proposing[name]
        expected = [sum(1 + 0.1 * (s.width - 1) + 0.1 + a_step + a_token * s.drafted for s in run.steps) for run in own]
        assert list(frame[frame.method == name].cost) == pytest.approx(expected)
    spent = frame.groupby("method").cost.sum()
    assert ratio(frame, "PLD", "SpecDec", SPEED).value == pytest.approx(spent["SpecDec"] / spent["PLD"])
    # Where every width costs the same, the speed-up is tokens per pass.
    frame = timing.with_cost_at(table(recordings, runs), PassCosts({1: 1.0, 2: 1.0}))
    for name in runs:
        assert ratio(frame, name, "plain", SPEED) == pytest.approx(ratio(frame, name, "plain"))


def test_a_network_that_drafts_by_levels_is_charged_for_each_level():
    frame = pd.DataFrame(
        {"method": ["Hydra", "PLD"], "widths": [np.array([0, 1, 2])] * 2, "passes": 3, "levels": [5, 0]}
    )
    costs = PassCosts({1: 1.0, 2: 1.5}, step=0.1, drafting={"Hydra": 0.2, "PLD": 0.03})
    spent = timing.with_cost_at(frame, costs).cost
    assert list(spent) == pytest.approx([1 + 2 * 1.5 + 3 * 0.1 + 5 * 0.2, 1 + 2 * 1.5 + 3 * 0.13])


def test_proposals_have_a_cost_in_the_one_token_passes_of_plain_decoding():
    def run(*proposals: tuple[int, float]) -> list[Generation]:
        steps = [Step(DraftTree.chain([3] * drafted), (), (3,), spent, 9.0, 9.0, 9.0) for drafted, spent in proposals]
        return [Generation([3], steps, "length", 1, 5.0)]

    rows = [
        {"method": "plain", "passes": 10, "verify_seconds": 0.4, "commit_seconds": 0.01, "host_seconds": 0.03},
        {"method": "transformers"},
    ]
    # The first proposal compiles something and takes 100 seconds; the median is not moved by it.
    runs = {
        "plain": run((0, 0.0)),
        "PLD": run((8, 100.0), (8, 0.01), (0, 0.01)),
        "SpecDec": run((4, 0.02), (4, 0.02)),
        "SpecDec++": run((2, 0.01)),
        "REST, 8 nodes": run((8, 5.0)),
    }
    found = timing.measured_costs({1: 1.0, 8: 1.5}, rows, runs)
    assert found.step == pytest.approx(0.1) and found.drafting == pytest.approx({"PLD": 0.25})
    assert found.drafted_token == pytest.approx(0.005 / 0.04) and found.widths == {1: 1.0, 8: 1.5}
    # The costs put the timed plain run together again: its passes, and the loop's own work.
    assert 10 * (1 + found.step) * 0.04 == pytest.approx(0.44)


def test_passes_of_every_runtime_are_timed_by_width(pair):
    assert measured_passes.slots_of(40, (1, 4)) == 48  # 44 rounded up to a multiple of 8
    for runtime in ("eager", "static"):
        spent = measured_passes.pass_times(pair.draft, 40, runtime, (1, 4), repeats=2)
        assert list(spent) == [1, 4] and all(len(own) == 2 and min(own) > 0 for own in spent.values())
    with pytest.raises(ValueError, match="runtime is 'quick'"):
        measured_passes.pass_times(pair.draft, 40, "quick")


PUBLISHED = {"68m": 68_030_208, "0.35b": 361_821_120, "1b": 1_235_814_400, "7b": 6_738_415_616, "13b": 13_015_864_320,
             "34b": 33_743_970_304, "70b": 68_976_648_192}  # fmt: skip
CPU = torch.device("cpu")
TINY = timing.Shape(6, 32, 64, 4, 2, 100)


@pytest.mark.parametrize("name", timing.SHAPES)
def test_shapes_have_the_published_parameter_counts(name):
    shape = timing.shape_of(name)
    model = timing.random_model(shape, 2, torch.bfloat16, torch.device("meta"))
    layers = sum(weights.numel() for weights in model.model.layers.parameters())
    rest = sum(weights.numel() for weights in model.parameters()) - layers
    assert rest + layers * shape.layers // 2 == PUBLISHED[name] and model.dtype == torch.bfloat16
    assert torch.get_default_dtype() == torch.float32


def test_passes_of_a_few_layers_give_those_of_all(monkeypatch):
    """Where a layer takes 3 ms and the output 5, each times the width, the sum is exact whatever part is measured."""

    def samples(model, context, runtime, widths, repeats):
        return {w: [(3.0 * model.config.num_hidden_layers + 5.0) * w] * repeats for w in widths}

    monkeypatch.setitem(timing.SHAPES, "tiny", TINY)
    monkeypatch.setattr(timing, "_output_ms", lambda model, widths, repeats: {w: 5.0 * w for w in widths})
    monkeypatch.setattr(timing, "pass_times", samples)
    for few in (1, 2, 6, 9):
        found = timing.pass_ms("tiny", torch.float32, CPU, 8, 3, (1, 4), few=few)
        assert found == pytest.approx({1: 23.0, 4: 92.0})


def test_real_passes_of_a_random_model_are_timed_and_the_output_layer_by_the_clock_of_the_device(monkeypatch):
    monkeypatch.setitem(timing.SHAPES, "tiny", TINY)
    found = timing.pass_ms("tiny", torch.float32, CPU, 8, 2, (1, 4))
    assert list(found) == [1, 4] and all(ms > 0 for ms in found.values())
    monkeypatch.setattr(timing, "clock_of", lambda devices: CountingClock(0.5))
    model = timing.random_model(TINY, 1, torch.float32, CPU)
    assert timing._output_ms(model, (1, 4), 3) == {1: 500.0, 4: 500.0}
