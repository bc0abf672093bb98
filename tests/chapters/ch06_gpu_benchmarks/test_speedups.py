"""Costs by width, composed times, divergences and the widened methods, each against an oracle."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_lib import Runtime, Sampling, generate, load_model
from specdec_lib.chapters.ch06_gpu_benchmarks import composed_speedups as composing
from specdec_lib.chapters.ch06_gpu_benchmarks import (
    pass_times,
    published_speedups,
    speedups,
    widened_pair,
    widened_study,
)
from specdec_lib.chapters.ch06_gpu_benchmarks.hardware import Machine, Rate, step_work
from specdec_lib.chapters.ch06_gpu_benchmarks.shapes import Shape
from specdec_lib.chapters.ch06_gpu_benchmarks.widen import place_heads, widen_to
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.decoding.sampling import invert_cdfs
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.drafters import SpecDecPP
from specdec_lib.experiments import made_tasks, metrics, pass_costs, recorded_runs
from specdec_lib.experiments.published_numbers import pass_prices
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.methods import METHODS, Unavailable, compared_in
from specdec_lib.models.fingerprint import fingerprint
from tests.chaos import CountingClock
from tests.families import build, save

SMALL = Shape(384, 9, 896, 384, 384)


@pytest.fixture(scope="module")
def pair():
    return widened_pair.build_pair(device="cpu", dtype="float32", store_tokens=20_000, dense_tokens=3_000)


@pytest.fixture(scope="module")
def prompts():
    return widened_study.comparison_prompts(1)


@pytest.fixture(scope="module")
def measured(pair, prompts):
    return speedups.measure(pair, prompts[:2], None, 12, 2)


def test_a_pass_between_two_measured_widths_costs_what_lies_between():
    times = {1: 2.0, 4: 2.6, 8: 4.6}
    assert [pass_costs.step_seconds(times, w) for w in (1, 2, 4, 6, 8, 10)] == pytest.approx(
        [2.0, 2.2, 2.6, 3.6, 4.6, 5.6]
    )
    assert [pass_costs.step_seconds(times, w, padded=True) for w in (1, 2, 4, 5, 8, 10)] == pytest.approx(
        [2.0, 2.6, 2.6, 4.6, 4.6, 5.6]
    )


def test_the_composed_time_is_the_sum_over_steps(measured):
    _, timed = measured
    runs = timed["PLD"][0]
    widths = [len(step.tree) + 1 for run in runs for step in run.steps]
    line = {1: 1.5, 128: 1.5 + 127 * 0.01}
    expected = sum(1.5 + 0.01 * (w - 1) + 0.2 + 0.003 * (w - 1) for w in widths)
    assert composing.composed(runs, line, 0.2, 0.003) == pytest.approx(expected)


def test_the_share_of_draws_alike_is_that_of_many_draws():
    laws = torch.tensor(
        [[[0.1, 0.3, 0.3, 0.3], [0.0, 0.3, 0.3, 0.4]], [[0.5, 0.0, 0.5, 0.0], [0.4, 0.2, 0.0, 0.4]]]
    ).double()
    uniforms = ((torch.arange(20_000) + 0.5) / 20_000).tolist()
    for first, second in laws:
        drawn = [torch.stack([invert_cdfs(law[None], [u])[0] for u in uniforms[::10]]) for law in (first, second)]
        assert float(speedups.same_draws(first, second)) == pytest.approx(
            float((drawn[0] == drawn[1]).double().mean()), abs=2e-3
        )
    assert float(speedups.same_draws(*laws[0])) < 0.9 - 0.1  # total variation 0.1, and each boundary moved by it


def test_in_float32_a_wide_pass_draws_what_passes_over_one_token_draw_and_in_bfloat16_less(pair):
    # Of few tokens: where 4,096 are drawn from, one of rounded probability moves as many boundaries. Of code and not of
    # quotes: a copied token has nearly all of the probability, and rounding moves nothing.
    sampling = Sampling(3.0, top_k=50, seed=3)
    code = made_tasks.prompts("code-completion", 2)
    recordings = recorded_runs.record_prompts(pair.target, pair.tokenizer, code, sampling, 12)
    found = speedups.draw_agreement(pair.target, recordings)
    assert found["outputs"] == 2 and found["equal_expected"] == pytest.approx(2, abs=1e-3)
    assert 0 <= found["total_variation"] < 1e-5
    coarse, _ = load_model("pocket", "cpu", "bfloat16")
    rounded = speedups.draw_agreement(coarse, recordings)
    assert rounded["total_variation"] > 100 * found["total_variation"]
    assert 0 < rounded["equal_expected"] < found["equal_expected"]


def test_in_float64_a_wide_pass_draws_what_passes_over_one_token_draw_from_the_whole_vocabulary(pair, prompts):
    recordings = recorded_runs.record_prompts(pair.target, pair.tokenizer, prompts[:2], Sampling(1.0, seed=3), 12)
    fine = speedups.draw_agreement(copy.deepcopy(pair.target).double(), recordings)
    single = speedups.draw_agreement(pair.target, recordings)
    assert fine["equal_expected"] == pytest.approx(2, abs=1e-6) and fine["total_variation"] < 1e-12
    assert 0 < 2 - single["equal_expected"] and fine["total_variation"] < single["total_variation"] < 1e-5


def test_every_method_is_measured_and_in_float32_none_changes_a_token(measured):
    recordings, timed = measured
    assert set(timed) == {"plain", *compared_in("06")} and all(len(runs) == 2 for runs in timed.values())
    rows = speedups.table(recordings, timed, [recordings[0].task])
    assert {row["equal"] for row in rows if row["task"] == "all"} == {2}
    assert {row["method"]: row["state"] for row in rows} == {
        "plain": "cold",
        **{name: METHODS[name].state for name in compared_in("06")},
    }
    for row in rows:
        if row["method"] == "plain":
            assert [row[name] for name in speedups.DEFINITIONS] == [1.0] * 3 and row["tokens_per_forward"] == 1
        assert (
            all(row[part] >= 0 for part in ("draft_ms", "verify_ms", "commit_ms", "host_ms")) and row["verify_ms"] > 0
        )
        assert row["speedup_low"] <= row[speedups.DEFINITIONS[0]] <= row["speedup_high"]
    of_task = [row for row in rows if row["task"] != "all"]
    assert {row["prompts"] for row in of_task} == {sum(r.task == recordings[0].task for r in recordings)}


def test_what_is_compared_has_intervals_over_prompts_and_their_repeats(measured):
    recordings, timed = measured
    rows = speedups.by_sampling({"greedy": measured})
    for row in rows:
        if row["task"] == "all":
            found = row["intervals"]
            assert {*found} == {"tokens_per_second", "tokens_per_forward", *speedups.DEFINITIONS}
            assert all(one.low <= one.value <= one.high for one in found.values())
            assert found["tokens_per_forward"].value == pytest.approx(row["tokens_per_forward"])
    ours, theirs = ([run for repeat in timed[name] for run in repeat] for name in ("PLD", "plain"))
    found = next(row["intervals"] for row in rows if (row["method"], row["task"]) == ("PLD", "all"))
    expected = metrics.speedups(ours, theirs)
    assert {name: found[name].value for name in speedups.DEFINITIONS} == pytest.approx(expected)


def test_a_divergence_is_found_with_the_margin_of_the_choice(pair, measured):
    recordings, timed = measured
    altered = recorded_runs.run_again(pair.target, recordings, None)
    altered[1].tokens[3] += 1
    (row,) = speedups.divergences(pair.target, recordings, {"altered": altered})
    trace = recordings[1].trace
    with torch.inference_mode():
        logits = pair.target(torch.tensor([trace.prompt + trace.tokens[:3]])).logits[0, -1].topk(2).values
    unit = torch.finfo(torch.float32).eps * 2.0 ** int(logits[0].abs().log2().floor())
    assert (row["outputs"], row["equal"]) == (2, 1)
    assert row["margin_largest"] == pytest.approx(float(logits[0] - logits[1]) / unit, rel=1e-3)
    assert speedups.divergences(pair.target, recordings, {"plain": timed["plain"][0]})[0]["margin_largest"] is None


def test_transformers_own_methods_write_the_same_and_are_timed_beside_ours(pair, measured):
    rows = speedups.peers(pair, measured[0], repeats=1)
    assert [row["method"] for row in rows] == list(speedups.PEERS)
    assert all(
        row["equal"] == row["outputs"] == 2 and row["ratio_low"] <= row["ratio"] <= row["ratio_high"] for row in rows
    )
    assert all(row["ratio"] == pytest.approx(row["ours_tokens_per_second"] / row["tokens_per_second"]) for row in rows)


def test_step_times_cover_each_width_and_stand_beside_what_the_machine_allows(pair):
    machine = Machine("cpu", 1, "float32", Rate(1e15, 1e15, 1, 1), Rate(1e12, 1e12, 1, 1))
    rows = [
        row
        for runtime in ("eager", "static")
        for row in pass_costs.step_times(pair.draft, 40, runtime, (1, 4), repeats=2)
    ]
    rows += pass_times.transformers_step_times(pair.draft, 40, (1, 4), repeats=2)
    found = pass_times.beside_roofline(rows, pair.draft, machine)
    # Whatever the width and the runtime, so that their times are comparable; 44 rounded up to a multiple of 8.
    assert {row["slots"] for row in found} == {48}
    assert [(row["runtime"], row["width"]) for row in found] == [
        (runtime, width) for runtime in ("eager", "static", "transformers") for width in (1, 4)
    ]
    for row in found:
        assert row["ms_low"] <= row["ms"] <= row["ms_high"] <= row["ms_p99"]
        assert row["median_low"] <= row["ms"] <= row["median_high"]
        work = step_work(pair.draft.config, row["width"], 48 - row["width"], torch.float32)
        assert row["bound_ms"] == pytest.approx(1e3 * max(work.bytes / 1e15, work.flops / 1e12))
        assert row["bandwidth_fraction"] == pytest.approx(work.bytes / (row["ms"] / 1e3) / 1e15)
    assert [row["ratio"] for row in found if row["width"] == 1] == [1.0] * 3
    with pytest.raises(ValueError, match="runtime is 'quick'"):
        pass_costs.step_times(pair.draft, 40, "quick")


def test_layer_and_heads_of_a_widened_pair_are_the_small_pair_s_in_their_new_places(pair):
    target, draft = (widen_to(small, SMALL, dtype="float32", device="cpu") for small in (pair.target, pair.draft))
    last = decoder_config(pair.target).num_hidden_layers
    for layer, wide_layer in ((3, 3), (last, 9)):  # the last counts behind the final norm
        narrow = ModelPair(pair.target, pair.draft, pair.tokenizer, notes={"layer": layer, "heads": [(1, 2)]})
        wide = widened_pair.WidePair.of(narrow, target, draft, "test")
        place = place_heads(pair.target.config, target.config)[0]
        assert (wide.layer, wide.heads) == (wide_layer, [(1, place[2])]) and wide.small is narrow
        assert wide.notes["small layer"] == layer and wide.notes["small heads"] == [(1, 2)]
    assert pair.small is pair and pair.shape == "its own" and wide.shape == "test"


def test_the_widened_pair_writes_and_drafts_what_the_small_pair_does(pair, prompts):
    target, draft = (widen_to(small, SMALL, dtype="float32", device="cpu") for small in (pair.target, pair.draft))
    large = widened_pair.WidePair.of(pair, target, draft, "test")
    for each in (pair, large):
        each.choose_heads(prompts, count=3, per_task=1, max_new_tokens=8)
    assert large.notes["layer"] == pair.notes["layer"] or large.notes["layer"] == 9
    ours, theirs = (
        recorded_runs.record_prompts(each.target, each.tokenizer, prompts[:2], None, 16) for each in (large, pair)
    )
    assert [r.trace.tokens for r in ours] == [r.trace.tokens for r in theirs]
    for method in ("plain", *compared_in("06")):
        runs = [
            recorded_runs.run_again(each.target, rec, each.drafters([method])[method])
            for each, rec in ((large, ours), (pair, theirs))
        ]
        steps = [[[s.tree.tokens for s in run.steps] for run in found] for found in runs]
        assert steps[0] == steps[1], method


def test_a_widened_head_predicts_what_the_small_one_does():
    draft, _ = load_model("pocket-draft")
    torch.manual_seed(0)
    for confident in (False, True):
        head = AcceptanceHead(128, 2, False, draft=fingerprint(draft), sees_confidence=confident)
        large = widen_to(draft, SMALL, dtype="float32", device="cpu")
        widened = widened_pair.widen_head(head, large)
        widened.check(large)
        states, sure = torch.randn(5, 128), torch.rand(5) if confident else None
        padded = torch.nn.functional.pad(states, (0, 384 - 128))
        torch.testing.assert_close(widened.probability(padded, sure), head.probability(states, sure))
    with pytest.raises(ValueError, match="width 128, the head's 384"):
        widened_pair.widen_head(widened, draft)


def test_a_head_of_another_draft_leaves_specdec_pp_out_and_an_unknown_method_is_refused(pair):
    torch.manual_seed(1)
    config = LlamaConfig(**{**pair.draft.config.to_dict(), "hidden_size": 128})
    other = LlamaForCausalLM(config).eval()
    strange = ModelPair(pair.target, other, pair.tokenizer)
    assert list(strange.drafters(["plain", "SpecDec", "SpecDec++"])) == ["plain", "SpecDec"]
    assert isinstance(pair.drafters(["SpecDec++"])["SpecDec++"], SpecDecPP)
    with pytest.raises(ValueError, match="'Sequoia'"):
        pair.drafters(["Sequoia"])


def test_through_one_width_plain_decoding_and_drafts_write_the_same(pair, prompts):
    rows = widened_study.through_one_width(
        pair, prompts[:1], widened_study.Plan(max_new_tokens=10, capacity=900, one_width=4)
    )
    assert [(row["reference"], row["method"], row["equal"]) for row in rows] == [
        ("width 1", "plain", 1),
        ("width 1", "PLD", 1),
        ("same width", "PLD", 1),
    ]


def test_a_runtime_carries_every_method(pair, prompts):
    recordings, timed = speedups.measure(
        pair,
        prompts[:1],
        None,
        10,
        1,
        runtime=Runtime(pair.target, 900, "static"),
        draft_runtime=Runtime(pair.draft, 900, "static", (1, 2, 4)),
    )
    plain = generate(pair.target, recordings[0].trace.prompt, max_new_tokens=10)
    assert {tuple(run.tokens) for runs in timed.values() for run in runs[0]} == {tuple(plain.tokens)}


def test_at_a_cost_of_one_for_any_width_the_composed_speed_up_is_tokens_per_forward(pair, prompts):
    pair.choose_heads(prompts, count=3, per_task=1, max_new_tokens=8)
    recordings, runs = composing.replayed(pair, prompts[:3], 16)
    assert set(runs) == {"plain", *compared_in("06")}
    tasks = sorted({r.task for r in recordings})
    rows = composing.composed_table(recordings, runs, {1: 1.0, 2: 1.0}, {}, tasks)
    assert len(rows) == len(runs) * (1 + len(tasks))
    for row in rows:
        assert row["speedup"].value == pytest.approx(row["tokens_per_forward"].value)
        assert row["speedup"].low == pytest.approx(row["tokens_per_forward"].low, nan_ok=True)
        assert row["task"] != "all" or row["speedup"].low <= row["speedup"].value <= row["speedup"].high


def test_outputs_of_several_seeds_stand_one_after_the_other(pair, prompts):
    samplings = [Sampling(1.0, seed=seed) for seed in (3, 4)]
    recordings, runs = composing.replayed_seeds(pair, prompts[:2], 6, ["plain", "REST", "SpecDec++"], samplings)
    half = len(recordings) // 2
    assert [r.prompt.id for r in recordings[:half]] == [r.prompt.id for r in recordings[half:]]
    assert [r.trace.sampling.seed for r in recordings] == [3] * half + [4] * half
    assert all(len(own) == len(recordings) for own in runs.values())
    assert [run.tokens for run in runs["plain"]] == [r.trace.tokens for r in recordings]


def test_a_proposal_is_priced_in_the_one_token_passes_of_plain_decoding_beside_it(pair, prompts):
    recordings, runs = composing.replayed(pair, prompts[:2], 12, ("plain", "PLD", "SpecDec"))

    def clocked(own: str, draft: float, verify: float) -> list[list[Generation]]:
        def timed(step: Step) -> Step:
            return replace(step, draft_seconds=draft, verify_seconds=verify)

        return [[replace(run, steps=[timed(step) for step in run.steps]) for run in runs[own]]]

    costs = composing.draft_costs(
        {"plain": clocked("plain", 0, 0.04), "PLD": clocked("PLD", 0.01, 9), "SpecDec": clocked("SpecDec", 0.02, 9)}
    )
    assert costs["PLD"] == pytest.approx({"draft_step": 0.25})
    steps = [step for run in runs["SpecDec"] for step in run.steps]
    drafted = sum(step.drafted for step in steps) / len(steps)
    assert costs["SpecDec"] == pytest.approx({"draft_token": 0.5 / drafted})


def test_at_published_prices_a_step_costs_what_its_width_costs_there(pair, prompts):
    pair.choose_heads(prompts, count=3, per_task=1, max_new_tokens=8)
    sampling = Sampling(1.0, seed=1)
    recordings, runs = composing.replayed(pair, prompts[:2], 12, ("plain", "PLD", "SpecDec"), sampling)
    assert all(r.trace.sampling == sampling for r in recordings)
    tables = composing.at_published_prices(recordings, runs, [])
    curves = pass_prices()
    assert set(tables) == set(curves)
    for priced, rows in tables.items():
        ours = {row["method"]: row["speedup"].value for row in rows}
        widths, prices = zip(*sorted(curves[priced].items()), strict=True)
        for name, draft in (("plain", 0.0), ("PLD", 0.0), ("SpecDec", 0.0234 / 0.108)):
            steps = [step for run in runs[name] for step in run.steps]
            # All widths here lie within the curves' longest.
            assert max(step.width for step in steps) <= 11
            spent = sum(float(np.interp(step.width, widths, prices)) + draft * step.drafted for step in steps)
            if widths[-1] >= 11:
                assert ours[name] == pytest.approx(sum(len(step.tokens) for step in steps) / spent)


def test_one_method_over_another_is_the_ratio_of_their_rates(pair, prompts):
    recordings, runs = composing.replayed(pair, prompts[:2], 12, ("plain", "PLD", "SpecDec"))
    pricing = composing.Pricing({1: 1.0, 8: 1.7}, {"SpecDec": {"draft_token": 0.2}})
    spent = {name: sum(pricing.seconds(name, own)) for name, own in runs.items()}
    assert pricing.over(recordings, runs, "PLD", "SpecDec").value == pytest.approx(spent["SpecDec"] / spent["PLD"])
    assert pricing.seconds("SpecDec, adaptive", runs["SpecDec"]) == pricing.seconds("SpecDec", runs["SpecDec"])
    steps = {name: sum(len(run.steps) for run in own) for name, own in runs.items()}
    expected = (spent["PLD"] / steps["PLD"]) / (spent["plain"] / steps["plain"])
    assert pricing.step(recordings, runs, "PLD", "plain").value == pytest.approx(expected)


def test_widths_timed_in_turns_by_the_clock_of_the_devices(pair, monkeypatch):
    monkeypatch.setattr(pass_times, "clock_of", lambda devices: CountingClock(0.5))
    found = pass_times.width_ratios(pair.target, 8, [(4, 1), (4, 2)], repeats=3)
    assert found == {(4, 1): (1.0, 1.0, 1.0), (4, 2): (1.0, 1.0, 1.0)}


def test_published_speedups_stand_beside_ours_of_the_same_method_task_and_sampling():
    rows = [
        {"sampling": "greedy", "task": "completion", "method": name, "price": price, "speedup": value}
        for name, price, value in (("REST", "a", 1.5), ("REST", "b", 2.5), ("SpecDec", "a", 1.2))
    ]
    found = published_speedups.beside(rows)
    assert {row["method"] for row in found} == {"REST", "SpecDec"}, "SpS and SpecDec, best K are SpecDec"
    by_id = {row["id"]: row for row in found}
    assert by_id["rest-t1-he-greedy-7b"]["ours"] == {"a": 1.5, "b": 2.5}
    assert by_id["specdec-pp-alpaca-specdec-speedup"]["method"] == "SpecDec"
    assert not by_id["rest-t1-he-nucleus-7b"]["ours"]
    (row,) = [
        row
        for row in published_speedups.summary(found)
        if (row["where"], row["sampling"], row["task"], row["method"]) == ("Table 1", "greedy", "completion", "REST")
    ]
    assert row["settings"] == 2 and row["published_low"] <= row["published_high"] and row["ours"]["b"] == 2.5


def test_a_model_of_another_family_is_measured_as_it_is(tmp_path):
    small = build("qwen2", seed=1)
    folder = save(small, tmp_path / "model")
    pair = widened_pair.build_pair(str(folder), str(folder), device="cpu", dtype="float32")
    with pytest.raises(Unavailable, match="acceptance head"):
        _ = pair.acceptance_head
    assert "SpecDec++" not in pair.drafters(["plain", "SpecDec", "SpecDec++"])
    assert widened_pair.model_bytes(pair.target) == 4 * sum(p.numel() for p in small.parameters())
    assert widened_pair.plain_runtime(pair.target) == "eager"
    rate = Rate(1.0, 1.0, 1, 1)
    rows = pass_costs.step_times(pair.target, 20, "static", (1, 4), repeats=2)
    found = pass_times.beside_roofline(rows, pair.target, Machine("cpu", 1, "float32", rate, rate))
    read = sum(p.numel() for p in small.parameters()) - small.get_input_embeddings().weight.numel()
    assert [row["bound_ms"] for row in found] == pytest.approx([1e3 * 4 * read, 1e3 * max(4, 8) * read])


def test_a_shape_that_does_not_fit_is_refused_with_one_that_does(monkeypatch):
    monkeypatch.setattr("specdec_lib.chapters.ch06_gpu_benchmarks.memory.available_bytes", lambda device: 3 * 10**9)
    monkeypatch.setattr(widened_pair, "available_bytes", lambda device: 3 * 10**9)
    with pytest.raises(MemoryError, match="largest shape that fits is '1b'"):
        widened_pair.build_pair(shape="7b", device="cpu", dtype="bfloat16")
