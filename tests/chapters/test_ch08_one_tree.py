"""Hindsight by enumeration, selection rules by hand, costs by sums; hindsight chooses among sizes, costs choose for one tree,
and shares are of the bound."""

import itertools
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_lib.chapters import ch08_one_tree as study
from specdec_lib.chapters.ch08_one_tree import SAM_MATCH, Selection, by_source, highest_score, longest_match
from specdec_lib.datastores import SuffixIndex, build_from_texts
from specdec_lib.decoding.loop import Trace, replay
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters.one_tree import OneTree, fit, node_outcomes
from specdec_lib.drafters.pass_costs import CURVES, PassCosts
from specdec_lib.drafters.prompt_lookup import PromptLookup
from specdec_lib.drafters.suffix_decoding import SuffixDecoding
from specdec_lib.drafters.tree_probabilities import TreeProbabilities
from specdec_lib.experiments.data.published_sets.files import MissingData
from specdec_lib.experiments.data.published_sets.replies import Reply
from specdec_lib.experiments.runs import row_files
from specdec_lib.experiments.runs.recorded_runs import Recording
from specdec_lib.experiments.runs.retrieval import record_replies
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.report import plots
from tests.experiments.made import made_up

COSTS = [CURVES["gpu"], CURVES["server"]]


def cost_of(run: Generation, costs: PassCosts) -> float:
    """What the passes of a run cost, step by step."""
    curve = costs.curve(max((step.width for step in run.steps), default=1))
    return sum(curve[step.width - 1] + costs.step for step in run.steps)


def _recordings(count: int = 6) -> list[Recording]:
    """Two tasks: one copies a long span, one copies little."""
    rng, out = np.random.default_rng(0), []
    for number in range(count):
        task = ("copy", "new")[number % 2]
        prompt = rng.integers(5, 40, 40).tolist()
        answer = prompt[3:33] if task == "copy" else [*rng.integers(5, 40, 20).tolist(), *prompt[4:9]]
        out.append(made_up(prompt, answer, str(number), task))
    return out


def _traces(count: int = 6) -> list[Trace]:
    return [recording.trace for recording in _recordings(count)]


def _sources() -> dict[str, PromptLookup]:
    return {"PLD": PromptLookup(3, 40, variant="transformers"), "REST": PromptLookup(1, 10, variant="transformers")}


def _singles() -> dict[tuple[str, int], PromptLookup]:
    single = {"PLD": 3, "PLD+ (h)": 2, "REST": 1}
    return {(name, size): PromptLookup(n, size) for name, n in single.items() for size in (2, 20)}


def _comparison(recordings: list[Recording]) -> study.Comparison:
    drafters = _singles()
    drafters |= {(study.TREE, each.name): OneTree(_sources(), each) for each in COSTS}
    drafters |= {(variant, 20): OneTree(_sources(), study.costs_for_size(20)) for variant in (study.SAM, study.ARCTIC)}
    return study.Comparison(study.variant_rows(recordings, drafters, _sources()))


@pytest.fixture(scope="module")
def comparison() -> study.Comparison:
    return _comparison(_recordings())


def test_each_bar_of_a_comparison_has_its_speed_up_and_its_share_of_the_bound(comparison):
    (ax,) = plots.variant_speedups({"made": comparison}, ("PLD", study.TREE), COSTS).axes
    order = [(variant, each) for variant in ("PLD", study.TREE) for each in COSTS]
    bars = [bar for drawn in ax.containers for bar in drawn]
    assert [bar.get_height() for bar in bars] == [comparison.rate(variant, each).value for variant, each in order]
    written = {text.get_position()[0]: text.get_text() for text in ax.texts}
    for bar, (variant, each) in zip(bars, order, strict=True):
        assert written[bar.get_x() + bar.get_width() / 2] == f"{comparison.share(variant, each).value:.0%}"


def test_hindsight_takes_the_better_size_and_one_tree_that_of_its_costs(comparison):
    gpu, server = COSTS
    for task in ("copy", "new", None):
        for variant in study.SINGLES:
            rates = {}
            for size in (2, 20):
                runs = [
                    replay(own.trace, _singles()[variant, size]) for own in _recordings() if task in (None, own.task)
                ]
                rates[size] = sum(len(run.tokens) - 1 for run in runs) / sum(cost_of(run, server) for run in runs)
            assert comparison.best_size(variant, server, task) == max(rates, key=rates.get)
            assert comparison.rate(variant, server, task).value == pytest.approx(max(rates.values()))
    assert comparison.best_size("PLD", gpu, "copy") == 20
    assert comparison.best_size(study.TREE, server) == "server" and comparison.best_size(study.TREE, gpu) == "gpu"


def test_a_ratio_is_that_of_the_rates_and_no_share_is_above_one(comparison):
    for costs in COSTS:
        single = comparison.best_single(costs)
        assert all(comparison.rate(single, costs).value >= comparison.rate(name, costs).value for name in study.SINGLES)
        expected = comparison.rate(study.TREE, costs).value / comparison.rate(single, costs).value
        assert comparison.ratio(study.TREE, single, costs).value == pytest.approx(expected)
        assert 0 < comparison.share(study.TREE, costs).value <= 1
    rows = comparison.gains(COSTS[0], ["copy", "new"])
    assert [row["task"] for row in rows] == ["copy", "new", "all mixed"]
    rows = study.target_verdicts({"greedy": comparison}, COSTS, ["copy", "new"])
    assert len(rows) == len(COSTS) * len(study.TARGETS)
    assert rows[-1]["target"] == study.REACHED and rows[-1]["ratio"] == comparison.share(study.TREE, COSTS[1])


def test_costs_of_a_whole_size_ask_for_that_many_nodes():
    for size in (1, 4, 7):
        run = replay(_recordings()[0].trace, OneTree(_sources(), study.costs_for_size(size)))
        assert max(step.drafted for step in run.steps) == size


def test_steps_and_a_draft_models_tokens_have_a_cost(comparison):
    costs = PassCosts({1: 1.0}, step=0.25, drafted_token=0.5)
    rows = study.variant_rows(_recordings(), _singles(), _sources())
    asked = study.Comparison(rows.assign(asked=4)).best(costs)
    assert (asked.cost == 1.25 * asked.passes + 2.0).all()


def test_turns_of_a_prompt_are_drawn_together_so_that_two_that_are_alike_say_no_more_than_one():
    recordings = _recordings()
    twice = [replace(recording, turn=turn) for recording in recordings for turn in (0, 1)]
    once, both = (_comparison(some).rate("PLD", COSTS[1]) for some in (recordings, twice))
    assert both == pytest.approx(once, rel=0.1) and both.high - both.low > 0.9 * (once.high - once.low)


@pytest.mark.parametrize(("ratios", "verdict"), [
    ([(1.2, 1.1, 1.3), (1.3, 1.05, 1.4)], "met"), ([(1.2, 1.1, 1.3), (0.9, 0.8, 0.95)], "missed"),
    ([(1.2, 1.1, 1.3), (1.0, 0.9, 1.2)], "not resolved"), ([(1.2, math.nan, math.nan)], "not resolved"),
])  # fmt: skip
def test_a_mark_is_judged_by_whole_intervals(ratios, verdict):
    intervals = [Interval(*ratio) for ratio in ratios]
    given = SimpleNamespace(  # a comparison whose ratios and shares are given: the worst of them decides
        best_single=lambda costs, task: "PLD",
        ratio=lambda ours, theirs, costs, task=None: intervals[task or 0],
        share=lambda variant, costs: intervals[0],
    )
    rows = study.target_verdicts({"greedy": given}, COSTS[:1], range(len(ratios)))
    assert [row["target"] for row in rows] == list(study.TARGETS)
    assert rows[0]["verdict"] == verdict and rows[0]["ratio"] in intervals


def test_nodes_are_given_to_the_sources_that_proposed_them():
    """With one source all nodes are its own; a source that proposes the other's beginning has fewer, with the same outcomes."""
    traces = _traces()
    sources = {"a": PromptLookup(3, 8, variant="transformers"), "b": PromptLookup(3, 2, variant="transformers")}
    judged = node_outcomes(traces, sources)
    parts = by_source(judged, TreeProbabilities.unfitted(("a", "b")))
    nodes = sum(len(rows) for rows in judged.features)
    assert len(parts["a"][0]) == nodes > len(parts["b"][0]) > 0
    for source, (predicted, _) in parts.items():
        assert len(predicted) and ((predicted >= 0) & (predicted <= 1)).all(), source


def test_rows_of_judged_nodes_give_the_calibration_error_of_all_nodes_together():
    sources = {"a": PromptLookup(3, 8, variant="transformers"), "b": PromptLookup(3, 2, variant="transformers")}
    weights = TreeProbabilities.unfitted(("a", "b"))
    rows = study.node_outcome_rows(_recordings(), sources, weights).assign(set="all")
    errors = study.calibration(rows).set_index("source").error
    curves = study.reliability_curves(rows)["all"]
    for source, (predicted, hit) in by_source(node_outcomes(_traces(), sources), weights).items():
        bins = [np.minimum((predicted * study.BINS).astype(int), study.BINS - 1) == i for i in range(study.BINS)]
        gaps = [abs(predicted[own].mean() - hit[own].mean()) * own.sum() for own in bins if own.any()]
        assert errors[source] == pytest.approx(sum(gaps) / len(hit)) and errors[source] > 0
        assert curves[source][0] == pytest.approx([predicted[own].mean() for own in bins if own.any()])
        assert curves[source][1] == pytest.approx([hit[own].mean() for own in bins if own.any()])


def test_a_comparison_is_the_same_from_rows_that_were_written_and_read(comparison, tmp_path):
    drafters = _singles() | {(study.TREE, each.name): OneTree(_sources(), each) for each in COSTS}
    rows = study.variant_rows(_recordings(), drafters, _sources())
    row_files.write("08/greedy", rows, {"models": {}, "stores": {}}, tmp_path)
    again = study.Comparison(row_files.read("08/greedy", tmp_path)[0])
    for each, variant in itertools.product(COSTS, (*study.SINGLES, study.TREE)):
        assert again.rate(variant, each) == comparison.rate(variant, each)
        assert again.share(variant, each) == comparison.share(variant, each)
        assert again.best_size(variant, each) == comparison.best_size(variant, each)


def test_methods_that_search_the_store_are_all_but_those_that_read_the_text():
    rows = study.variant_rows(_recordings(1), _singles(), _sources())
    apart = set(rows.method) - set(study.methods_with_store(_singles(), COSTS))
    assert apart == {f"{name}, {size}" for name in ("PLD", "PLD+ (h)") for size in (2, 20)}


SOURCES = {"PLD": PromptLookup(3, 10, variant="transformers"), "short": PromptLookup(1, 4)}


@pytest.mark.parametrize("seed", range(15))
def test_the_least_cost_is_that_of_the_cheapest_of_all_ways(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 8))
    longest = rng.integers(0, 4, count)
    costs = PassCosts({1: 1.0, 2: float(rng.uniform(0.5, 2)), 4: float(rng.uniform(0.5, 4))}, step=0.1)
    curve = costs.curve(count + 1) + 0.1
    ways = []
    for drafted in itertools.product(range(4), repeat=count - 1):
        place, cost = 0, 0.0
        for n in drafted:
            if place == count - 1:
                break
            if n > longest[place] or place + 1 + n > count - 1:
                cost = np.inf
                break
            place, cost = place + 1 + n, cost + curve[n]
        if place == count - 1:
            ways.append(cost)
    assert study.least_cost(longest, costs) == pytest.approx(min(ways))


def test_acceptable_tokens_are_those_that_a_draft_at_that_position_has_right():
    for trace in _traces(3):
        longest = study.acceptable(trace, list(SOURCES.values()))
        for place in range(len(trace.tokens) - 1):
            # A run that begins here: its first step is this position's.
            here = made_up(trace.prompt + trace.tokens[:place], trace.tokens[place:]).trace
            steps = [replay(here, source).steps[0].accepted for source in SOURCES.values()]
            # The last token is always the target's own, so a run's draft may be one shorter.
            assert longest[place] - 1 <= max(steps) <= longest[place]


def test_no_run_of_the_sources_costs_less_than_hindsight():
    costs = CURVES["cpu"]
    for trace in _traces():
        bound = study.least_cost(study.acceptable(trace, list(SOURCES.values())), costs)
        for drafter in (*SOURCES.values(), OneTree(SOURCES, costs)):
            assert cost_of(replay(trace, drafter), costs) >= bound - 1e-9


def test_selection_rules_choose_by_match_and_by_expected_acceptance():
    long, short = DraftTree.chain([1, 2, 3, 4]), DraftTree.chain([5])
    drafts = {"a": long, "b": short, "rest": DraftTree.chain([7])}
    assert longest_match({"a": 6, "b": 5, "rest": 0}, drafts) == "a"
    assert longest_match({"a": 4, "b": 2, "rest": 9}, drafts) == "rest"
    assert highest_score({"a": 1, "b": 9, "rest": 0}, drafts) == "a"
    doubtful = {"a": long.annotated(scores=[0.5, 0.4, 0.3, 0.2]), "b": short, "rest": EMPTY}
    assert highest_score({"a": 1, "b": 9, "rest": 0}, doubtful) == "rest"


def test_selection_verifies_one_source_at_a_time_goes_by_the_match_of_suffixes_and_forgets_with_them():
    suffix, trace = SuffixDecoding(), _traces(2)[1]
    run = replay(trace, Selection(SOURCES | {"last": PromptLookup(2, 3)}, longest_match))
    assert run.tokens == trace.tokens
    assert all(step.tree.is_chain for step in run.steps) and len(run.steps) < len(trace.tokens) - 1
    selection = Selection({"suffix": suffix, "last": PromptLookup(1, 3)}, longest_match)

    def steps():
        return [(step.tree.tokens, step.path) for step in replay(trace, selection).steps]

    first, second = steps(), steps()
    # The second time the whole answer is known: its copies begin sooner.
    assert len(second) < len(first) and suffix.match >= SAM_MATCH
    selection.reset()
    assert steps() == first


def test_fitted_probabilities_predict_better_than_the_rough_ones():
    traces = _traces(12)
    fitted = fit(traces[:8], SOURCES, "copies")
    judged = node_outcomes(traces[8:], SOURCES)

    def surprise(probabilities) -> float:
        chance, hit = study.predictions(judged, probabilities)
        return float(-np.log(np.where(hit, chance, 1 - chance)).mean())

    assert surprise(fitted) < surprise(OneTree(SOURCES, CURVES["gpu"]).probabilities)
    assert fitted.fitted_on == "copies"


CPU = CURVES["cpu"]
TEXTS = [f"def add_{i}(a, b):\n    return a + b\n" for i in range(6)]


def test_answers_are_spread_rows_are_those_of_replays_and_absent_sets_are_named(tokenizer, tmp_path, monkeypatch):
    def missing() -> list[Reply]:
        raise MissingData("not here")

    replies = [Reply(str(i), "made", TEXTS[i % 6], TEXTS[(i + 1) % 6]) for i in range(10)]
    replies.append(Reply("x", "made", "asked", ""))  # an empty answer is left out
    assert [one.prompt for one in study.spread(replies, 2)] == [replies[0].prompt, replies[5].prompt]
    assert len(study.spread(replies, 99)) == 10
    monkeypatch.setattr(study, "SETS", {"here": lambda: replies[:6], "elsewhere": missing})
    build_from_texts(tmp_path / "store", TEXTS, tokenizer, progress=False)
    store = SuffixIndex.open(tmp_path / "store")
    sources = partial(study.tokens_alone, store)
    drafters = study.variants(sources, [CPU], (2, 8), TreeProbabilities.unfitted(list(sources())), unions=False)
    asked = study.large_prompts(4)
    assert {prompt.task for prompt in asked} == {"here"} and len(asked) == 4
    comparison = study.Comparison(study.large_model_rows(tokenizer, asked, drafters, sources()))
    assert set(comparison.rows.task) == {"here"}
    traces = [recording.trace for recording in record_replies(study.spread(replies[:6], 4), tokenizer)]
    for name in study.ROWS:
        runs, size = [], comparison.best_size(name, CPU)
        assert size in ((2, 8) if name != study.TREE else ("cpu",))
        for trace in traces:
            drafters[name, size].reset()
            runs.append(replay(trace, drafters[name, size]))
        spent = sum(cost_of(run, CPU) for run in runs)
        speedup = sum(len(run.tokens) - 1 for run in runs) / spent
        assert comparison.rate(name, CPU).value == pytest.approx(speedup)
        assert 0 < comparison.share(name, CPU).value <= 1 + 1e-9
