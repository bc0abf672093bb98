"""What the chapter on real cost records and shows, made from a few steps whose costs are known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specdec_lib.chapters.ch06_gpu_benchmarks import composed_speedups as composing
from specdec_lib.chapters.ch06_gpu_benchmarks.speedups import DEFINITIONS
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.claims import rules
from specdec_lib.report.display import speedup_charts, speedup_pages

PRICES = {1: 1.0, 5: 2.0}
NAMES = ("PLD", "PLD, partial", "PLD+ (h)", "PLD+ (a)", "DReSD", "SpecDec", "REST", "REST, 8 nodes", "REST, 64 nodes")
NAMES += ("REST, small store", "REST, small store from 1")


def run(drafted: int, accepted: int, steps: int) -> Generation:
    step = Step(DraftTree.chain(range(drafted)), tuple(range(accepted)), (0,) * (accepted + 1), 0, 0, 0)
    return Generation([0] * (1 + steps * (accepted + 1)), [step] * steps, "length", 1, 0)


@pytest.fixture
def texts():
    tasks = ("completion", "multi-turn")
    return [
        SimpleNamespace(task=task, prompt=SimpleNamespace(id=f"{task} {i}"), looped=bool(i))
        for task in tasks
        for i in (0, 1)
    ]


@pytest.fixture
def runs():
    """Plain decoding, and methods that draft four tokens a step and have one accepted: two tokens for a pass at 2."""
    return {"plain": [run(0, 0, 4)] * 4} | {name: [run(4, 1, 2)] * 4 for name in NAMES}


def recorded_by(monkeypatch, make):
    found = {}
    monkeypatch.setattr(speedup_pages, "record", lambda name, value, timed=False: found.setdefault(name, value))
    make()
    return found


def test_every_value_that_the_ledger_takes_from_the_chapter_is_recorded(texts, runs, monkeypatch):
    here, gpu = composing.Pricing(PRICES, {}), composing.Pricing({1: 1.0, 5: 1.0}, {})
    ratios = composing.claimed_ratios(texts, runs, here, gpu)
    once = Interval(1.0, 1.0, 1.0)
    prices = recorded_by(
        monkeypatch,
        lambda: speedup_pages.record_price_ratios(
            dict.fromkeys([(8, 1), (32, 1), (32, 8)], once), {(8, 1): once}, PRICES
        ),
    )
    named = {key[3:] for claim in rules.load_claims() for key in claim.keys if key.startswith("06/")}
    assert named - set(ratios) - set(prices) - {"small_store_tokens"} == set()
    # Two tokens for a pass at 2 here, and at 1 on the card.
    assert ratios["composed_rest_over_plain"][0].value == pytest.approx(1) and ratios["composed_rest_over_plain"][1]
    assert ratios["composed_rest_over_plain_gpu"][0].value == pytest.approx(2)
    assert not ratios["composed_rest_over_plain_gpu"][1], "a published price comes from no clock"


def test_composing_is_compared_with_the_clock(runs):
    timed = {name: [runs[name]] for name in ("plain", "PLD")}
    errors = composing.composing_errors(timed, {"plain": 1.0, "PLD": 0.5}, PRICES, {"PLD": {}})
    assert errors == {"PLD": pytest.approx(2)}
    assert "2.00 for PLD" in speedup_pages.disturbed(errors, "default").text
    assert speedup_pages.disturbed(errors, "smoke") is None
    assert speedup_pages.disturbed({"PLD": 1.2}, "default") is None


def test_outputs_that_loop_are_left_out(texts, runs):
    rows = composing.without_loops(
        texts, {name: runs[name] for name in ("plain", "REST")}, PRICES, {"plain": {}, "REST": {}}
    )
    assert {(row["method"], row["task"]) for row in rows} == {
        (method, task) for method in ("plain", "REST") for task in ("all", "completion", "multi-turn")
    }


def test_variants_have_their_width_and_a_speed_up_at_each_price(texts, runs):
    prices = {"this machine": composing.Pricing(PRICES, {}), "a card": composing.Pricing({1: 1.0, 5: 1.0}, {})}
    (row,) = composing.variants_table(texts, runs, ["REST, 8 nodes"], prices)
    assert (row["width"], row["tokens_per_forward"]) == (5, (2, 2, 2))
    assert [value.value for value in row["speedups"].values()] == pytest.approx([1, 2])
    assert "1.00" in speedup_pages.variants_table([row]).to_myst()


def test_without_a_gpu_result_there_is_a_sentence_and_no_table():
    box = speedup_pages.on_gpus([])
    assert box.title == "No GPU result is recorded" and "make gpu" in box.text
    about = {"machine": {"device": "card", "bandwidth": {"best": 2e12}}, "provenance": {"date": "today"}}
    row = {"method": "PLD", "task": "all", "sampling": "greedy", "tokens_per_second": 90.0}
    about["runs"] = [{"shape": "7b", "speedups": [{**row, speedup_pages.DEFINITIONS[0]: 2.5}]}]
    table = speedup_pages.on_gpus(speedup_pages.gpu_rows({"card": about}))
    assert "| card | 7b | PLD | 90.0 | 2.50 | 2,000 | today |" in table.to_myst()


STEPS = [
    {"runtime": name, "width": width, "ms": ms, "ms_low": ms, "ms_high": ms, "bound_ms": ms / 2, "ratio": ms / 10}
    | {"median_low": ms - 1, "median_high": ms + 1}
    for name in ("eager", "transformers")
    for width, ms in ((1, 10.0), (8, 30.0))
]


def test_prices_of_passes_are_drawn_with_the_roofline_and_the_published_curve():
    (ax,) = speedup_charts.price_curves(STEPS, {"a card": {1: 1.0, 65: 1.2}}).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}
    assert lines["eager, here"] == [1, 3] and lines["roofline, here"] == [1, 3] and lines["a card"] == [1, 1.2]
    shown = f"{Interval(30.0, 29.0, 31.0):.2f}"
    assert f"| 8 | 15.00 | {shown} | {shown} |" in speedup_pages.passes_table(STEPS).to_myst()
    once = [row | {"median_low": None, "median_high": None} for row in STEPS]
    assert "30.00 (–)" in speedup_pages.passes_table(once).to_myst()


def test_measured_speed_ups_have_their_interval():
    row = {
        "task": "all",
        "sampling": "greedy",
        "speedup_low": 1.9,
        "speedup_high": 2.1,
        speedup_pages.DEFINITIONS[0]: 2.0,
        "intervals": {speedup_pages.DEFINITIONS[0]: Interval(2.0, 1.5, 2.5)},
    }
    rows = [{**row, "method": "PLD"}, {**row, "method": "plain"}, {**row, "method": "REST", "task": "completion"}]
    (ax,) = speedup_charts.measured(rows).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["PLD"]
    (ends,) = [tuple(s[:, 0]) for lines in ax.collections for s in lines.get_segments()]
    assert ends == (1.5, 2.5)


def test_a_task_whose_outputs_are_one_token_each_has_no_rate(monkeypatch):
    """What the prefill alone writes has no time for a token; another seed of the prompts found such outputs."""
    nan = float("nan")
    rows = [
        {
            "method": "PLD",
            "task": task,
            "sampling": "greedy",
            "prompts": 2,
            "tokens_per_second": rate,
            DEFINITIONS[0]: gain,
        }
        for task, rate, gain in (("all", 50.0, 2.0), ("completion", nan, nan))
    ]
    found = recorded_by(monkeypatch, lambda: speedup_pages.record_measured(rows))
    assert found["speedup_pld_all_greedy"] == 2.0 and found["tokens_per_s_pld_all_greedy"] == 50.0
    assert found["speedup_pld_completion_greedy"] == found["tokens_per_s_pld_completion_greedy"] == "not available"
