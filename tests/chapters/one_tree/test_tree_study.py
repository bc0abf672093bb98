"""The ladder: hindsight chooses among sizes, prices choose for one tree, and shares are of the bound."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_lib.chapters import one_tree as study
from specdec_lib.chapters.one_tree import by_source, judged_on
from specdec_lib.decoding.replay import replay
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_prices import CURVES, PassPrices
from specdec_lib.drafters.prompt_lookup import PromptLookup
from specdec_lib.drafters.tree_probabilities import Judged, TreeProbabilities
from specdec_lib.experiments.calibration import expected_calibration_error
from specdec_lib.experiments.recorded_runs import Recording
from specdec_lib.experiments.statistics import Interval
from tests.experiments.made import made_up

PRICES = [CURVES["gpu"], CURVES["server"]]


def _recordings() -> list[Recording]:
    """Two tasks: one copies a long span, one copies little."""
    rng, out = np.random.default_rng(0), []
    for number in range(6):
        task = ("copy", "new")[number % 2]
        prompt = rng.integers(5, 40, 40).tolist()
        answer = prompt[3:33] if task == "copy" else [*rng.integers(5, 40, 20).tolist(), *prompt[4:9]]
        out.append(made_up(prompt, answer, str(number), task))
    return out


def _sources() -> dict[str, PromptLookup]:
    return {"PLD": PromptLookup(3, 40, variant="transformers"), "REST": PromptLookup(1, 10, variant="transformers")}


def _ladder(recordings: list[Recording]) -> study.Ladder:
    single = {"PLD": 3, "PLD+ (h)": 2, "REST": 1}
    drafters = {(name, size): PromptLookup(n, size) for name, n in single.items() for size in (2, 20)}
    drafters |= {(study.TREE, each.name): OneTree(_sources(), each) for each in PRICES}
    drafters |= {(rung, 20): OneTree(_sources(), study.whole(20)) for rung in (study.SAM, study.ARCTIC)}
    return study.measure(recordings, drafters, _sources())


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
    rows = study.marks({"greedy": ladder}, PRICES, ["copy", "new"])
    assert len(rows) == len(PRICES) * len(study.MARKS)
    assert rows[-1]["mark"] == study.REACHED and rows[-1]["ratio"] == ladder.share(study.TREE, PRICES[1])


def test_prices_of_a_whole_size_ask_for_that_many_nodes():
    for size in (1, 4, 7):
        run = replay(_recordings()[0].trace, OneTree(_sources(), study.whole(size)))
        assert max(step.drafted for step in run.steps) == size


def test_a_draft_models_tokens_are_priced(ladder):
    runs = ladder.measured["PLD", 2].runs
    prices = PassPrices({1: 1.0}, drafted_token=0.5)
    free = study.Measured(runs, [0] * len(runs)).counts(prices)
    paid = study.Measured(runs, [4] * len(runs)).counts(prices)
    assert [b - a for a, b in zip(free.below, paid.below, strict=True)] == [2.0] * len(runs)


@pytest.mark.parametrize(("ratios", "verdict"), [
    ([(1.2, 1.1, 1.3), (1.3, 1.05, 1.4)], "met"), ([(1.2, 1.1, 1.3), (0.9, 0.8, 0.95)], "missed"),
    ([(1.2, 1.1, 1.3), (1.0, 0.9, 1.2)], "not resolved"), ([(1.2, math.nan, math.nan)], "not resolved"),
])  # fmt: skip
def test_a_mark_is_judged_by_whole_intervals(ratios, verdict):
    intervals = [Interval(*ratio) for ratio in ratios]
    given = SimpleNamespace(  # a ladder whose ratios and shares are given: the worst of them decides
        best_single=lambda prices, task: "PLD",
        ratio=lambda ours, theirs, prices, task=None: intervals[task or 0],
        share=lambda rung, prices: intervals[0],
    )
    rows = study.marks({"greedy": given}, PRICES[:1], range(len(ratios)))
    assert [row["mark"] for row in rows] == list(study.MARKS)
    assert rows[0]["verdict"] == verdict and rows[0]["ratio"] in intervals


def test_nodes_are_given_to_the_sources_that_proposed_them():
    """With one source all nodes are its own; a source that proposes the other's beginning has fewer, with the same outcomes."""
    traces = [one.trace for one in _recordings()]
    sources = {"a": PromptLookup(3, 8, variant="transformers"), "b": PromptLookup(3, 2, variant="transformers")}
    judged = judged_on(traces, sources)
    parts = by_source(judged, TreeProbabilities.unfitted(("a", "b")))
    nodes = sum(len(rows) for rows in judged.features)
    assert len(parts["a"][0]) == nodes > len(parts["b"][0]) > 0
    rough = TreeProbabilities.unfitted(("a", "b"))
    sure = TreeProbabilities(("a", "b"), rough.weights * 9.0)
    errors = [study.calibration({"all": judged}, own)[1]["error"] for own in (rough, sure)]
    assert errors == [expected_calibration_error(*by_source(judged, own)["b"]) for own in (rough, sure)]
    assert errors[0] != errors[1]
    curves = study.reliability_curves({"all": judged, "none": Judged()}, rough, bins=1)
    assert curves["none"] == {} and set(curves["all"]) == {"a", "b"}
    for source, (predicted, hit) in parts.items():
        (mean,), (share,) = curves["all"][source]
        assert (mean, share) == (pytest.approx(predicted.mean()), pytest.approx(hit.mean()))


def test_nodes_judged_answer_by_answer_are_those_judged_in_one_go():
    recordings = _recordings()
    sets = {"first": recordings[:2], "rest": recordings[2:], "none": []}
    judged = study.judged_on_each(sets, _sources())
    for name, own in sets.items():
        whole = judged_on([one.trace for one in own], _sources())
        assert judged[name].outcomes == whole.outcomes
        assert all(map(np.array_equal, judged[name].features, whole.features))
