"""Hindsight by enumeration, selection rules by hand, prices by sums."""

import itertools
from functools import partial

import numpy as np
import pytest

from specdec_lib.chapters import one_tree
from specdec_lib.chapters.one_tree import SAM_MATCH, Selection, highest_score, judged_on, longest_match
from specdec_lib.datastores import SuffixIndex, build_from_texts
from specdec_lib.decoding.replay import Trace, replay
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_prices import CURVES, PassPrices
from specdec_lib.drafters.prompt_lookup import PromptLookup
from specdec_lib.drafters.suffix_decoding import SuffixDecoding
from specdec_lib.drafters.tree_probabilities import TreeProbabilities
from specdec_lib.experiments.pass_costs import price_of
from specdec_lib.experiments.published_sets import MissingData
from specdec_lib.experiments.published_sets.replies import Reply
from tests.experiments.made import made_up


def _texts(count: int = 6) -> list[Trace]:
    """Answers that copy parts of their prompts."""
    rng = np.random.default_rng(0)
    traces = []
    for _ in range(count):
        prompt = rng.integers(5, 40, 30).tolist()
        answer = prompt[3:15] + rng.integers(5, 40, 4).tolist() + prompt[10:25] + rng.integers(5, 40, 3).tolist()
        traces.append(made_up(prompt, answer).trace)
    return traces


SOURCES = {"PLD": PromptLookup(3, 10, variant="transformers"), "short": PromptLookup(1, 4)}


@pytest.mark.parametrize("seed", range(15))
def test_the_least_cost_is_that_of_the_cheapest_of_all_ways(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 8))
    longest = rng.integers(0, 4, count)
    prices = PassPrices({1: 1.0, 2: float(rng.uniform(0.5, 2)), 4: float(rng.uniform(0.5, 4))}, step=0.1)
    curve = prices.curve(count + 1) + 0.1
    costs = []
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
            costs.append(cost)
    assert one_tree.least_cost(longest, prices) == pytest.approx(min(costs))


def test_acceptable_tokens_are_those_that_a_draft_at_that_position_has_right():
    for trace in _texts(3):
        longest = one_tree.acceptable(trace, list(SOURCES.values()))
        for place in range(len(trace.tokens) - 1):
            # A run that begins here: its first step is this position's.
            here = made_up(trace.prompt + trace.tokens[:place], trace.tokens[place:]).trace
            steps = [replay(here, source).steps[0].accepted for source in SOURCES.values()]
            # The last token is always the target's own, so a run's draft may be one shorter.
            assert longest[place] - 1 <= max(steps) <= longest[place]


def test_no_run_of_the_sources_costs_less_than_hindsight():
    prices = CURVES["cpu"]
    for trace in _texts():
        bound = one_tree.least_cost(one_tree.acceptable(trace, list(SOURCES.values())), prices)
        for drafter in (*SOURCES.values(), OneTree(SOURCES, prices)):
            assert price_of(replay(trace, drafter), prices) >= bound - 1e-9


def test_selection_rules_choose_by_match_and_by_expected_acceptance():
    long, short = DraftTree.chain([1, 2, 3, 4]), DraftTree.chain([5])
    drafts = {"a": long, "b": short, "rest": DraftTree.chain([7])}
    assert longest_match({"a": 6, "b": 5, "rest": 0}, drafts) == "a"
    assert longest_match({"a": 4, "b": 2, "rest": 9}, drafts) == "rest"
    assert highest_score({"a": 1, "b": 9, "rest": 0}, drafts) == "a"
    doubtful = {"a": long.annotated(scores=[0.5, 0.4, 0.3, 0.2]), "b": short, "rest": EMPTY}
    assert highest_score({"a": 1, "b": 9, "rest": 0}, doubtful) == "rest"


def test_selection_verifies_one_source_at_a_time_goes_by_the_match_of_suffixes_and_forgets_with_them():
    suffix, trace = SuffixDecoding(), _texts(1)[0]
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
    traces = _texts(12)
    fitted = one_tree.fit(traces[:8], SOURCES, "copies")
    judged = judged_on(traces[8:], SOURCES)

    def surprise(probabilities) -> float:
        chance, hit = one_tree.predictions(judged, probabilities)
        return float(-np.log(np.where(hit, chance, 1 - chance)).mean())

    assert surprise(fitted) < surprise(OneTree(SOURCES, CURVES["gpu"]).probabilities)
    assert fitted.fitted_on == "copies"


TEXTS = [f"def add_{i}(a, b):\n    return a + b\n" for i in range(6)]
PRICES = [CURVES["cpu"]]


def test_answers_are_spread_rows_are_those_of_replays_and_absent_sets_are_named(tokenizer, tmp_path, monkeypatch):
    def missing() -> list[Reply]:
        raise MissingData("not here")

    replies = [Reply(str(i), "made", TEXTS[i % 6], TEXTS[(i + 1) % 6]) for i in range(10)]
    replies.append(Reply("x", "made", "asked", ""))  # an empty answer is left out
    assert [one.prompt for one in one_tree.spread(replies, 2)] == [replies[0].prompt, replies[5].prompt]
    assert len(one_tree.spread(replies, 99)) == 10
    monkeypatch.setattr(one_tree, "SETS", {"here": lambda: replies[:6], "elsewhere": missing})
    build_from_texts(tmp_path / "store", TEXTS, tokenizer, progress=False)
    store = SuffixIndex.open(tmp_path / "store")
    sources = partial(one_tree.tokens_alone, store)
    drafters = one_tree.rungs(sources, PRICES, (2, 8), TreeProbabilities.unfitted(list(sources())), unions=False)
    ladders, absent = one_tree.of_large_models(tokenizer, drafters, sources(), 4)
    assert absent == ["elsewhere"] and list(ladders) == ["here"]
    ladder = ladders["here"]
    traces = [recording.trace for recording in ladder.recordings]
    for name in one_tree.ROWS:
        runs, size = [], ladder.best_size(name, PRICES[0])
        assert size in ((2, 8) if name != one_tree.TREE else ("cpu",))
        for trace in traces:
            drafters[name, size].reset()
            runs.append(replay(trace, drafters[name, size]))
        spent = sum(price_of(run, PRICES[0]) for run in runs)
        speedup = sum(len(run.tokens) - 1 for run in runs) / spent
        assert ladder.rate(name, PRICES[0]).value == pytest.approx(speedup)
        assert 0 < ladder.share(name, PRICES[0]).value <= 1 + 1e-9
