"""Composed costs against sums by hand, sized systems against their widths, and PLD+'s tables against their rows."""

from itertools import pairwise

import pandas as pd
import pytest

from specdec_lib import DraftTree, paths
from specdec_lib.chapters import ch07_other_systems as systems
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.experiments.costs.measured_passes import units
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.published_numbers import published
from specdec_lib.experiments.runs import recorded_runs, results
from specdec_lib.experiments.runs.papers_prompts import SPEC_BENCH
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS
from specdec_lib.report.appearance import compared_in
from tests.experiments.made import made_up


def step(drafted: int, tokens: int, seconds: float) -> Step:
    return Step(DraftTree.chain([3] * drafted), tuple(range(tokens - 1)), (3,) * tokens, seconds, 9.0, 9.0, 9.0)


def generation(*steps: Step) -> Generation:
    return Generation([3] * (1 + sum(len(s.tokens) for s in steps)), list(steps), "length", 1, 5.0)


# The first proposal compiles something and takes 100 seconds; the median is not moved by it.
RUNS = [generation(step(1, 2, 100.0), step(3, 2, 0.3), step(3, 4, 0.3)), generation(step(0, 1, 0.0), step(1, 1, 0.1))]
PASSES = {1: 1.0, 2: 1.5, 4: 2.0}


def rows_of(method: str) -> pd.DataFrame:
    return results.table([made_up([1], [3], str(number)) for number in range(2)], {method: RUNS})


@pytest.mark.parametrize(("method", "passes", "drafting", "expected"), [
    ("SpecDec", PASSES, systems.drafting_costs({"SpecDec": RUNS}, 0.05), [1.5 + 2 + 2 + 7 * 2, 1 + 1.5 + 1 * 2]),
    ("SpecDec", PASSES, systems.network_costs(["SpecDec"], 0.25), [5.5 + 7 * 0.25, 2.5 + 0.25]),
    # EAGLE asks its network once a level: these chains have as many levels as tokens.
    ("EAGLE", PASSES, systems.network_costs(["EAGLE"], 0.25), [5.5 + 7 * 0.25, 2.5 + 0.25]),
    # A search costs each step, and its seconds of the host.
    ("PLD, sized", PASSES, systems.drafting_costs({"PLD, sized": RUNS}, 2.0), [5.5 + 3 * 0.3 / 2, 2.5 + 2 * 0.3 / 2]),
    ("PLD", PASSES, systems.network_costs(["PLD"], 0.25), [5.5, 2.5]),
    ("plain", PASSES, systems.drafting_costs({"plain": RUNS}, 0.05), [5.5, 2.5]),
    # Beyond the widest cost the slope of the last two goes on.
    ("plain", {1: 1.0, 2: 1.5}, {}, [1.5 + 2.5 + 2.5, 2.5]),
])  # fmt: skip
def test_a_run_costs_its_passes_and_its_drafts_in_units_of_a_plain_pass(method, passes, drafting, expected):
    table = systems.with_cost(rows_of(method), passes, drafting)
    assert table.cost.tolist() == pytest.approx(expected)
    width = results.rate(table, ("verified", "passes"))
    assert width.value == pytest.approx((2 + 4 + 4 + 1 + 2) / 5) and width.low < width.value < width.high
    fork = Step(DraftTree([1, 2, 3], [-1, -1, 1]), (1, 2), (2, 3, 5), 0, 0, 0)
    assert [units(METHODS[name], fork) for name in ("PLD", "SpecDec", "EAGLE")] == [1, 3, 2]  # steps, tokens, levels


def test_a_cost_is_a_ratio_of_medians_with_its_interval_over_rounds():
    found = systems.latency_curve({1: [1.0, 2.0, 1.0, 1.0, 9.0], 4: [2.0, 4.0, 2.0, 3.0, 2.0]})
    assert found[1] == (1.0, 1.0, 1.0, 0)
    assert found[4].value == pytest.approx(2) and found[4].low <= 2 <= found[4].high and found[4].low < found[4].high
    assert not systems.latency_curve({1: [1.0], 4: [3.0]})[4].known


def test_a_sized_system_keeps_to_its_width_and_a_free_pass_is_a_pass(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    pair = ModelPair.untuned(*recorded_runs.load_pair("pocket", "pocket-draft", dtype="float32"))
    pair.store_tokens = 30_000
    sized = {name: METHODS[name].sized for name in compared_in("07") if METHODS[name].sized}
    drafters = {name: of_width(pair, 16) for name, of_width in sized.items()} | {"plain": None}
    needed = Capture()
    for drafter in drafters.values():
        needed |= drafter.capture if drafter else Capture()
    asked = prompts.load("report", ["code editing"], 1)
    recordings = recorded_runs.record_prompts(pair.target, pair.tokenizer, asked, None, 16, needed)
    runs = {name: recorded_runs.runs_of(pair.target, recordings, drafter) for name, drafter in drafters.items()}
    table = systems.with_cost(results.table(recordings, runs), {1: 1.0, 64: 1.0}, {})
    assert (table.widths.map(len) - 1).max() <= 1.3 * 16
    speedup = results.ratio(table, "PLD", "plain", results.SPEED)
    assert speedup.value == pytest.approx(len(runs["plain"][0].steps) / len(runs["PLD"][0].steps))


@pytest.mark.parametrize(("system", "names", "method"), [
    ("SpS", METHODS, "SpecDec"), ("PLD+ (h)", METHODS, "PLD+ (h)"), ("EAGLE", ["EAGLE-1", "EAGLE-2"], "EAGLE-1"),
    ("PLD", ["PLD+ (a)"], None), ("PLD+", ["PLD+ (a)"], "PLD+ (a)"),
])  # fmt: skip
def test_systems_of_the_paper_find_their_methods(system, names, method):
    assert systems.method_of_row(system, names) == method


def test_published_rows_are_those_of_the_tables_and_systems_stand_in_the_order_of_their_means():
    paper, rows = systems.speedups_of_paper(), published("pld_plus")
    assert set(paper.table) == {1, 2, 4, 11}
    sizes, ends = (
        [float(rows[f"pld-plus-t1-{size}b-{name}-code"]["value"]) for size in (7, 13, 33)]
        for name in ("lookahead", "h")
    )
    row = paper[(paper.table == 1) & (paper.task == "code editing") & (paper.system == "Lookahead")]
    assert (row.low.item(), row.high.item()) == (min(sizes), max(sizes))
    here = {"Lookahead": {"code editing": Interval(1.5, 1.0, 2.0)}}
    line = systems.with_ours(paper, (1, 4), here).set_index("System").loc["Lookahead"]
    sizes.append(float(rows["pld-plus-t4-7b-lookahead-code"]["value"]))
    assert line["code editing"] == f"{min(sizes):.2f} to {max(sizes):.2f}"
    assert line["code editing, here"].value == 1.5 and line["summarisation, here"] is None
    order = systems.published_order(paper, 1, ["code editing"])
    assert order["PLD+ (h)"] == pytest.approx((min(ends) + max(ends)) / 2)
    assert list(order) == sorted(order, reverse=True)
    assert order.index[-1] == "Lookahead" and order.index[0].startswith("PLD+")
    editing = [task for task in paper.task.unique() if "editing" in task]
    order = systems.published_order(paper, 1, editing)
    assert list(order.index)[2:] == ["EAGLE", "PLD", "Hydra", "Medusa", "SpS", "REST", "Lookahead"]
    # The claim on this order leaves out the one pair that is too close.
    assert [first for first, second in pairwise(order.index[1:]) if order[first] < 1.03 * order[second]] == ["PLD"]
    tied = pd.DataFrame({"table": 1, "task": "t", "system": ["b", "a"], "low": 1.0, "high": 2.0})
    assert list(systems.published_order(tied, 1, ["t"]).index) == ["b", "a"]


def test_each_part_of_spec_benchs_leaderboard_has_a_task_here():
    board = pd.read_csv(paths.PUBLISHED / "spec_bench.csv")
    parts = board[board.quantity == "speed-up"].setting.str.rpartition(", ")[2]
    assert set(parts) - {"A100-80GB"} == set(systems.PARTS) and set(systems.PARTS.values()) == set(SPEC_BENCH.values())


def test_answers_are_counted_that_heads_have_read():
    first = {"answers": 7800, "answers_of_an_epoch": 2000, "epoch_kept": 3}
    last = {"answers": 16000, "epoch_kept": 0.75, "before": first}
    assert systems.answers_read(last) == 12000 and systems.answers_read(first) == 2000
    assert systems.answers_read({"accuracies": []}) is None
