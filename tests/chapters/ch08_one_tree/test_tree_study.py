"""The ladder: hindsight chooses among sizes, prices choose for one tree, and shares are of the bound."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from specdec_lib import Sampling, paths
from specdec_lib.chapters.ch08_one_tree import marks, study
from specdec_lib.chapters.ch08_one_tree.fitting import by_source, judged_on
from specdec_lib.decoding.loop import Limits
from specdec_lib.decoding.replay import Trace, replay
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_prices import CURVES, PassPrices
from specdec_lib.drafters.prompt_lookup import PromptLookup
from specdec_lib.drafters.tree_probabilities import Judged, TreeProbabilities
from specdec_lib.experiments import result_files
from specdec_lib.experiments.calibration import expected_calibration_error
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import Recording, load_pair
from specdec_lib.experiments.statistics import Interval

PRICES = [CURVES["gpu"], CURVES["server"]]


def _recordings() -> list[Recording]:
    """Two tasks: one copies a long span, one copies little."""
    rng, out = np.random.default_rng(0), []
    for number in range(6):
        task = ("copy", "new")[number % 2]
        prompt = rng.integers(5, 40, 40).tolist()
        answer = prompt[3:33] if task == "copy" else [*rng.integers(5, 40, 20).tolist(), *prompt[4:9]]
        trace = Trace(prompt, answer, Sampling(), 100, Limits(len(answer)), "length")
        out.append(Recording(Prompt(str(number), task, ("",), chat=False), 0, trace))
    return out


def _sources() -> dict[str, PromptLookup]:
    return {"PLD": PromptLookup(3, 40, variant="transformers"), "REST": PromptLookup(1, 10, variant="transformers")}


def _ladder(recordings: list[Recording]) -> study.Ladder:
    drafters = {
        (name, size): PromptLookup(n, size)
        for name, n in (("PLD", 3), ("PLD+ (h)", 2), ("REST", 1))
        for size in (2, 20)
    }
    drafters |= {(study.TREE, each.name): OneTree(_sources(), each) for each in PRICES}
    drafters |= {(rung, 20): OneTree(_sources(), study.whole(20)) for rung in (study.SAM, study.ARCTIC)}
    return study.measure(recordings, drafters, list(_sources().values()), jobs=1)


@pytest.fixture(scope="module")
def ladder() -> study.Ladder:
    return _ladder(_recordings())


def test_hindsight_takes_the_better_size_and_prices_their_own(ladder):
    gpu, server = PRICES
    for task in ("copy", "new", None):
        for rung in study.SINGLES:
            rates = {}
            for size in (2, 20):
                tokens, price = ladder.measured[rung, size].counts(server)
                rates[size] = sum(tokens[i] for i in ladder.places(task)) / sum(price[i] for i in ladder.places(task))
            assert ladder.best_size(rung, server, task) == max(rates, key=rates.get)
            assert ladder.rate(rung, server, task).value == pytest.approx(max(rates.values()))
    assert ladder.best_size("PLD", gpu, "copy") == 20
    assert ladder.best_size(study.TREE, server) == "server" and ladder.best_size(study.TREE, gpu) == "gpu"


def test_a_ratio_is_that_of_the_rates_and_no_share_is_above_one(ladder):
    for prices in PRICES:
        single = ladder.best_single(prices)
        assert all(ladder.rate(single, prices).value >= ladder.rate(name, prices).value for name in study.SINGLES)
        expected = ladder.rate(study.TREE, prices).value / ladder.rate(single, prices).value
        assert ladder.ratio(study.TREE, single, prices).value == pytest.approx(expected)
        assert 0 < ladder.share(study.TREE, prices).value <= 1
    rows = ladder.gains(PRICES[0], ["copy", "new"])
    assert [row["task"] for row in rows] == ["copy", "new", "all mixed"]


def test_the_marks_ask_about_each_task_source_rule_and_the_bound(ladder):
    found = marks.rows({"greedy": ladder}, PRICES, ["copy", "new"])
    assert [row["prices"] for row in found] == [each.name for each in PRICES for _ in range(2 + 3 + 2 + 1)]
    server = {(row["mark"], row["compared"]): row["ratio"] for row in found if row["prices"] == "server"}
    names = {(mark, label) for mark, label in server}
    assert names == {
        *(("no worse than the best single source", task) for task in ("copy", "new")),
        *(("ahead of every single source, all mixed", name) for name in study.SINGLES),
        *(("ahead of the selection rules, all mixed", rule) for rule in (study.SAM, study.ARCTIC)),
        ("75 % of the hindsight bound, all mixed", "the bound"),
    }
    single = ladder.best_single(PRICES[1], "copy")
    assert server["no worse than the best single source", "copy"] == ladder.ratio(study.TREE, single, PRICES[1], "copy")
    assert server["ahead of every single source, all mixed", "REST"] == ladder.ratio(study.TREE, "REST", PRICES[1])


def test_kept_rows_come_back_for_the_same_weights_alone(ladder, tmp_path, monkeypatch):
    found = marks.rows({"greedy": ladder}, PRICES, ["copy", "new"])
    weights = {"target": "this one", "tree": "those"}
    monkeypatch.setattr(marks, "identity", lambda target: {**weights, "target": target})
    about = {"commit": "c", "date": "d", "machine": "m", "command": "c"}
    path = tmp_path / "one_tree.csv"
    assert marks.kept("this one", path) is None
    marks.write(path, found, about | weights)
    again = marks.kept("this one", path)
    assert again.about["commit"] == "c" and again.rows == found
    assert marks.judged(again.rows) == marks.judged(found)
    assert marks.kept("another", path) is None


def test_a_tree_that_keeps_its_weights_sees_the_tasks_in_turn(monkeypatch):
    sources = _sources()
    monkeypatch.setattr(study, "without_draft_model", lambda pair: sources)
    by_task = sorted(_recordings(), key=lambda recording: recording.task)
    ladder = _ladder(by_task)
    found = study.carried_over(ladder, None, PRICES, None)
    # By hand: one tree, never reset, over the recordings as they were made, whose tasks alternate.
    for each in PRICES:
        tree = OneTree(_sources(), each)
        tokens, price = 0, 0.0
        for recording in _recordings():
            run = replay(recording.trace, tree)
            tokens += len(run.tokens) - 1
            price += sum(each.curve(step.width)[-1] for step in run.steps)
        cold = ladder.rate(study.TREE, each).value
        assert found[each.name].value == pytest.approx(tokens / price / cold)


def test_the_plan_has_the_values_of_the_notebook():
    given: dict = {}
    for cell in json.loads((paths.ROOT / "notebooks" / "08_one_tree.ipynb").read_text("utf-8"))["cells"]:
        if "parameters" in cell["metadata"].get("tags", ()):
            exec("".join(cell["source"]), given)  # noqa: S102 -- the repository's own parameters
    plan = marks.Plan()
    for name in ("max_new_tokens", "layer_prompts", "store_tokens"):
        assert getattr(plan, name) == given[name]
    assert list(plan.tasks) == given["tasks"] and list(plan.sizes) == given["sizes"]
    assert plan.sampling == Sampling(temperature=given["temperature"], top_p=given["top_p"], seed=given["seed"])
    assert plan.prompts > given["prompts_per_task"]


@pytest.mark.parametrize("size", [1, 4, 7])
def test_prices_of_a_whole_size_ask_for_that_many_nodes(size):
    tree = OneTree(_sources(), study.whole(size))
    trace = _recordings()[0].trace
    drafted = [step.drafted for step in replay(trace, tree).steps]
    assert max(drafted) == size


def test_a_draft_models_tokens_are_priced(ladder):
    runs = ladder.measured["PLD", 2].runs
    prices = PassPrices({1: 1.0}, drafted_token=0.5)
    free = study.Measured(runs, [0] * len(runs)).counts(prices)
    paid = study.Measured(runs, [4] * len(runs)).counts(prices)
    assert [b - a for a, b in zip(free.below, paid.below, strict=True)] == [2.0] * len(runs)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([(1.2, 1.1, 1.3), (1.3, 1.05, 1.4)], "met"),
        ([(1.2, 1.1, 1.3), (0.9, 0.8, 0.95)], "missed"),
        ([(1.2, 1.1, 1.3), (1.0, 0.9, 1.2)], "not resolved"),
        ([(1.2, math.nan, math.nan)], "not resolved"),
        ([(1.2, math.nan, math.nan), (0.9, 0.8, 0.95)], "missed"),
    ],
)
def test_a_mark_is_judged_by_whole_intervals(ratios, verdict):
    intervals = [Interval(*ratio) for ratio in ratios]
    assert marks.verdict(intervals, 1.0) == verdict
    mark = "ahead of the selection rules, all mixed"  # which asks for more than 1
    found = [
        {"answers": "greedy", "prices": "gpu", "mark": mark, "compared": str(i), "ratio": ratio}
        for i, ratio in enumerate(intervals)
    ]
    (row,) = marks.judged(found)
    assert row["verdict"] == verdict and row["compared"] == str(len(ratios) - 1)


def test_the_shipped_marks_are_those_of_the_shipped_weights():
    """The page shows them for the pocket pair; after training, `python -m specdec_lib one-tree` makes them again."""
    about, rows = result_files.read(marks.RESULTS)
    assert {name: about[name] for name in ("target", "tree")} == marks.identity(load_pair("pocket", "pocket")[0])
    assert {row["mark"] for row in rows} == set(marks.MARKS) and {row["prices"] for row in rows} == set(CURVES)
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)


def test_nodes_are_given_to_the_sources_that_proposed_them():
    """With one source all nodes are its own; a source that proposes the other's beginning has fewer, with the same outcomes."""
    traces = [one.trace for one in _recordings()]
    sources = {"a": PromptLookup(3, 8, variant="transformers"), "b": PromptLookup(3, 2, variant="transformers")}
    judged = judged_on(traces, sources)
    parts = by_source(judged, TreeProbabilities.unfitted(("a", "b")))
    nodes = sum(len(rows) for rows in judged.features)
    assert len(parts["a"][0]) == nodes > len(parts["b"][0]) > 0
    sure = TreeProbabilities(("a", "b"), TreeProbabilities.unfitted(("a", "b")).weights * 9.0)
    weights = {"rough": TreeProbabilities.unfitted(("a", "b")), "sure": sure}
    rows = study.calibration({"all": judged}, weights)
    assert [row["nodes"] for row in rows] == [nodes, len(parts["b"][0])]
    assert rows[0]["emitted"] == pytest.approx(parts["a"][1].mean())
    for name, own in weights.items():
        assert rows[1][name] == expected_calibration_error(*by_source(judged, own)["b"])
    assert rows[1]["rough"] != rows[1]["sure"]
    curves = study.reliability_curves({"all": judged, "none": Judged.none()}, weights["rough"], bins=1)
    assert curves["none"] == {} and set(curves["all"]) == {"a", "b"}
    for source, (predicted, hit) in parts.items():
        (mean,), (share,) = curves["all"][source]
        assert (mean, share) == (pytest.approx(predicted.mean()), pytest.approx(hit.mean()))


def test_nodes_judged_answer_by_answer_are_those_judged_in_one_go():
    recordings = _recordings()
    sets = {"first": recordings[:2], "rest": recordings[2:], "none": []}
    judged = study.judged_on_each(sets, _sources(), jobs=1)
    for name, own in sets.items():
        whole = judged_on([one.trace for one in own], _sources())
        assert judged[name].outcomes == whole.outcomes
        assert all(map(np.array_equal, judged[name].features, whole.features))
