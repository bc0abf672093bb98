"""Composed prices against sums by hand, widths against what was asked for, and PLD+'s tables against their rows."""

from __future__ import annotations

import pytest

from specdec_lib import DraftTree
from specdec_lib.chapters.ch07_other_systems import head_losses, orders, published_rows, systems
from specdec_lib.chapters.ch07_other_systems.prices import (
    Prices,
    curve,
    mean_width,
    seconds_a_unit,
    speedup,
    tokens_per_pass,
)
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.experiments import made_tasks, recorded_runs
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_numbers import published
from specdec_lib.experiments.statistics import Interval
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS, compared_in, slug
from specdec_lib.report.claims.rules import load_claims
from specdec_lib.report.display import systems_page


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECDEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = ModelPair.untuned(*recorded_runs.load_pair("pocket", "pocket-draft", dtype="float32"))
        found.store_tokens = 30_000
        yield found


@pytest.fixture(scope="module")
def recordings(pair):
    prompts = made_tasks.prompts("rename", 2)
    needed = systems.everything(list(pair.drafters(compared_in("07")).values()))
    return recorded_runs.record_prompts(pair.target, pair.tokenizer, prompts, None, 16, needed)


def step(drafted: int, tokens: int, seconds: float) -> Step:
    return Step(DraftTree.chain([3] * drafted), tuple(range(tokens - 1)), (3,) * tokens, seconds, 9.0, 9.0, 9.0)


def generation(*steps: Step) -> Generation:
    return Generation([3] * (1 + sum(len(s.tokens) for s in steps)), list(steps), "length", 1, 5.0)


def test_a_run_costs_its_passes_and_its_drafts_in_units_of_a_plain_pass():
    # The first proposal compiles something and takes 100 seconds; the median is not moved by it.
    runs = [
        generation(step(1, 2, 100.0), step(3, 2, 0.3), step(3, 4, 0.3)),
        generation(step(0, 1, 0.0), step(1, 1, 0.1)),
    ]
    costs = {1: 1.0, 2: 1.5, 4: 2.0}
    own, large = Prices(costs, 0.05), Prices(costs, 2.0, network=0.25)
    assert seconds_a_unit(METHODS["SpecDec"], runs) == pytest.approx(0.1)
    assert own.of(METHODS["SpecDec"], runs) == pytest.approx([1.5 + 2 + 2 + 7 * 2, 1 + 1.5 + 1 * 2])
    assert large.of(METHODS["SpecDec"], runs) == pytest.approx([5.5 + 7 * 0.25, 2.5 + 0.25])
    # A search costs each step, and what it costs is seconds of the host whatever the network's price.
    spent = seconds_a_unit(METHODS["PLD"], runs)
    assert spent == pytest.approx(0.3)
    assert large.of(METHODS["PLD"], runs) == pytest.approx([5.5 + 3 * spent / 2, 2.5 + 2 * spent / 2])
    assert own.of(None, runs) == [5.5, 2.5]
    known = [recorded_runs.Recording(Prompt(str(number), "rename", ("",)), 0, None) for number in range(2)]
    width = mean_width(known, runs)
    assert width.value == pytest.approx((2 + 4 + 4 + 1 + 2) / 5) and width.low < width.value < width.high


def test_a_price_is_a_ratio_of_medians_with_its_interval_over_rounds():
    found = curve({1: [1.0, 2.0, 1.0, 1.0, 9.0], 4: [2.0, 4.0, 2.0, 3.0, 2.0]})
    assert found[1] == (1.0, 1.0, 1.0)
    assert found[4].value == pytest.approx(2) and found[4].low <= 2 <= found[4].high and found[4].low < found[4].high
    assert not curve({1: [1.0], 4: [3.0]})[4].known


def test_a_loss_has_its_intervals_by_depth_and_none_where_there_is_none():
    row = {"top1": [0.5, 0.25], "intervals": {"top1": [[0.4, 0.6], None]}}
    first, second = head_losses.rates(row, "top1")
    assert first == Interval(0.5, 0.4, 0.6) and second.value == 0.25 and not second.known


def test_a_chart_of_widths_has_a_row_a_system_with_the_interval_of_each_width():
    rows = [
        {"method": name, "width": width, "speedup": Interval(width / 8, width / 10, width / 6)}
        for name in ("PLD", "REST")
        for width in (4, 16)
    ]
    (ax,) = systems_page.widths_chart(rows).axes
    points = [line for line in ax.get_lines() if line.get_marker() != "None"]
    assert [list(line.get_xdata()) for line in points] == [[0.5, 0.5], [2, 2]]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["PLD", "REST"] and len(ax.collections) == 4


def test_rates_are_sums_over_all_prompts_with_an_interval(pair, recordings):
    asked = pair.drafters(["plain", "PLD"])
    runs = systems.Measured.of(pair.target, recordings, {systems.PUBLISHED: asked}).runs[systems.PUBLISHED]
    free = Prices({1: 1.0, 64: 1.0}, 1e9)
    rate = tokens_per_pass(recordings, runs["PLD"])
    steps = [s for run in runs["PLD"] for s in run.steps]
    assert (
        rate.value == pytest.approx(sum(len(s.tokens) for s in steps) / len(steps))
        and rate.low <= rate.value <= rate.high
    )
    # Where width and drafting are free, a pass is a pass.
    found = speedup(recordings, runs["plain"], "PLD", runs["PLD"], free)
    assert found.value == pytest.approx(sum(len(run.steps) for run in runs["plain"]) / len(steps))


def test_a_sized_system_keeps_to_its_width_and_the_best_is_that_of_the_largest_speedup(pair, recordings):
    candidates = systems.sized(pair, (4, 16))
    assert set(candidates) == {name for name in compared_in("07") if METHODS[name].sized}
    for by_width in candidates.values():
        for width, drafter in by_width.items():
            (run,) = recorded_runs.runs_of(pair.target, recordings[:1], drafter)
            assert max(s.width for s in run.steps) <= 1.3 * width
    steep = Prices({1: 1.0, 4: 40.0, 16: 160.0}, 1.0)
    rows = systems.best_widths(pair.target, recordings, {name: candidates[name] for name in ("PLD", "REST")}, steep)
    for name in ("PLD", "REST"):
        own = [row for row in rows if row["method"] == name]
        assert [row["chosen"] for row in own] == [row["speedup"] == max(r["speedup"] for r in own) for row in own]


def test_pairs_are_compared_on_the_same_prompts(pair, recordings):
    drafters = pair.drafters(["plain", "PLD", "REST"])
    measured = systems.Measured.of(pair.target, recordings, {systems.PUBLISHED: drafters})
    prices = Prices({1: 1.0, 64: 2.0}, 1e9)
    ahead, missing, back = systems.ratios(
        measured, prices, ["rename"], [("PLD", "REST"), ("PLD", None), ("REST", "PLD")]
    )
    assert missing is None and isinstance(ahead, Interval) and ahead.value == pytest.approx(1 / back.value)
    rows = {(row["method"], row["shape"]): row for row in measured.table({"own": prices})}
    assert set(rows) == {("PLD", "published"), ("REST", "published")}
    both = rows["PLD", "published"]["own"].value / rows["REST", "published"]["own"].value
    assert ahead.value == pytest.approx(both)


def test_published_rows_are_those_of_the_tables_and_systems_find_their_methods():
    assert published_rows.ours("SpS", METHODS) == "SpecDec" and published_rows.ours("PLD+ (h)", METHODS) == "PLD+ (h)"
    assert published_rows.ours("EAGLE", ["EAGLE-1", "EAGLE-2"]) == "EAGLE-1"
    assert published_rows.ours("PLD", ["PLD+ (a)"]) is None and published_rows.ours("PLD+", ["PLD+ (a)"]) == "PLD+ (a)"
    rows = published_rows.beside(METHODS)
    number = {key: float(row["value"]) for key, row in published("pld_plus").items() if row["value"] != "not available"}
    (row,) = (r for r in rows if (r["table"], r["task"], r["system"]) == (1, "code editing", "Lookahead"))
    sizes = [number[f"pld-plus-t1-{size}b-lookahead-code"] for size in (7, 13, 33)]
    assert (row["low"], row["high"], row["sizes"], row["method"]) == (min(sizes), max(sizes), 3, "Lookahead")
    assert {row["table"] for row in rows} == {1, 2, 4, 11} and {r["sampled"] for r in rows if r["table"] == 2} == {True}
    lines = published_rows.with_ours(rows, (1, 4), {"code editing": {"Lookahead": 1.5}})
    (line,) = (line for line in lines if line["system"] == "Lookahead")
    sizes.append(number["pld-plus-t4-7b-lookahead-code"])
    assert line["code editing"] == f"{min(sizes):.2f} to {max(sizes):.2f}" and line["code editing, here"] == 1.5


def test_neighbours_stand_in_the_order_of_the_published_means():
    rows = published_rows.neighbours(published_rows.beside(METHODS), 1, ["code editing"])
    assert all(row["published"] >= 1 for row in rows)
    assert [row["second"] for row in rows[:-1]] == [row["first"] for row in rows[1:]]
    number = {key: float(row["value"]) for key, row in published("pld_plus").items() if row["value"] != "not available"}
    ends = {
        name: [number[f"pld-plus-t1-{size}b-{short}-code"] for size in (7, 13, 33)]
        for name, short in (("PLD+ (h)", "h"), ("Lookahead", "lookahead"))
    }
    first, last = ((min(v) + max(v)) / 2 for v in ends.values())
    product = 1.0
    for row in rows:
        product *= row["published"]
    assert rows[-1]["second"] == "Lookahead" and rows[0]["first"].startswith("PLD+")
    assert product >= first / last * (1 - 1e-9)


def test_orders_are_ratios_of_speedups_at_their_place_and_sampling():
    """Runs whose passes are given: PLD+ (h) three tokens a pass, EAGLE two, PLD one; twice as many for EAGLE at temperature 1."""

    def runs(tokens):
        return [generation(*[step(tokens - 1, tokens, 0.0)] * (12 // tokens)) for _ in recordings]

    prompts = [Prompt(str(number), "code editing", ("",)) for number in range(3)]
    recordings = [recorded_runs.Recording(prompt, 0, None) for prompt in prompts]
    by_table = {
        table: systems.Measured(recordings, {systems.PUBLISHED: {name: runs(count) for name, count in counts.items()}})
        for table, counts in ((1, {"PLD+ (h)": 3, "EAGLE": 2, "PLD": 1}), (2, {"PLD+ (h)": 3, "EAGLE": 4, "PLD": 1}))
    }
    flat = Prices({1: 1.0, 64: 1.0}, 1.0, network=0.0)
    rows, found = orders.compared(published_rows.beside(METHODS), by_table, flat)
    assert found["order_code_h_eagle"].value == found["order_editing_h_eagle"].value == pytest.approx(3 / 2)
    assert found["order_all_h_eagle"].value == pytest.approx(3 / 2)
    assert found["order_temperature_one_eagle_h"].value == pytest.approx(4 / 3)
    assert found["order_editing_hydra_medusa"] is None
    (row,) = (r for r in rows if (r["where"], r["first"], r["second"]) == ("editing", "EAGLE", "PLD"))
    assert row["ratio"].value == pytest.approx(2) and row["published"] > 1


def test_every_value_that_the_ledger_asks_of_chapter_7_is_recorded():
    pairs = {
        f"order_{name}_{slug(a)}_{slug(b)}"
        for name, place in orders.PLACES.items()
        for a, b in [
            *place.pairs,
            *(
                row["pair"]
                for row in published_rows.neighbours(published_rows.beside(METHODS), place.table, place.tasks)
                if place.shown
            ),
        ]
    }
    asked = {key[3:] for claim in load_claims() for key in claim.keys if key.startswith("07/")}
    assert len(asked) >= 25 and asked <= pairs
