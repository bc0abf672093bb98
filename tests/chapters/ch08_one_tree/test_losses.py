"""The split of a loss: by hand, by its sum, and as the study keeps it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from specdec_lib import Sampling
from specdec_lib.chapters.ch08_one_tree import losses, marks, study
from specdec_lib.chapters.ch08_one_tree.hindsight import acceptable, costs_to_go, least_cost
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.loop import Limits
from specdec_lib.decoding.replay import Trace, replay
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_prices import CURVES, PassPrices
from specdec_lib.experiments import result_files
from specdec_lib.experiments.priced_runs import price_of
from specdec_lib.experiments.recorded_runs import load_pair
from specdec_lib.experiments.statistics import Interval
from tests.chapters.ch08_one_tree.test_tree_study import PRICES, _ladder, _recordings, _sources


class _Scripted(Drafter):
    """Sends the given drafts, one a step."""

    replays = "any"

    def __init__(self, drafts: list[DraftTree]):
        self.drafts = drafts

    def start(self, context) -> None:
        self._coming = iter(self.drafts)

    def propose(self, context, limit: int) -> DraftTree:
        return next(self._coming)


def test_each_step_is_laid_to_what_went_wrong_in_it():
    """Seven tokens, 1 to 7; a pass over w tokens costs (w + 1) / 2."""
    prices = PassPrices({1: 1.0, 3: 2.0})
    longest = np.array([2, 1, 0, 2, 1, 0, 0])
    assert costs_to_go(longest, prices).tolist() == [4.0, 3.5, 3.0, 2.0, 1.5, 1.0, 0.0]
    drafts = [
        # After token 1 hindsight takes 2 and 3 as well: the branch ends too soon, and 90 is sent for nothing.
        DraftTree([2, 90], [-1, -1]),
        # After token 3 no source has anything right; the draft before was right to its end.
        DraftTree.chain([91, 92]),
        # After token 4 a source has 5 and 6, and 93 is sent.
        DraftTree.chain([93]),
        # After token 5 a source has 6, and nothing is sent: the fourth step.
        DraftTree.chain([]),
        DraftTree.chain([]),
    ]
    trace = Trace([50], [1, 2, 3, 4, 5, 6, 7], Sampling(), 100, Limits(7), "length")
    run = replay(trace, _Scripted(drafts))
    assert losses.split(run, longest, prices) == {
        losses.SHORT_EARLY: 0.5,
        losses.SHORT: 0.5,
        losses.WRONG: 1.0,
        losses.LONG_AFTER: 1.0,
        losses.LONG: 0.5,
    }
    assert price_of(run, prices) - least_cost(longest, prices) == 3.5


@pytest.mark.parametrize("prices", CURVES.values(), ids=lambda prices: prices.name)
def test_the_parts_sum_to_what_a_run_paid_above_the_bound(prices):
    sources = _sources()
    for recording in _recordings():
        longest = acceptable(recording.trace, list(sources.values()))
        for drafter in (*sources.values(), OneTree(sources, prices), OneTree(sources, study.whole(12))):
            run = replay(recording.trace, drafter)
            parts = losses.split(run, longest, prices)
            assert sum(parts.values()) == pytest.approx(price_of(run, prices) - least_cost(longest, prices))
            assert min(parts.values()) > -1e-9


@pytest.fixture(scope="module")
def found() -> list[dict]:
    """Losses on made recordings, with the sources of :mod:`test_tree_study` as those of one tree."""
    sources = _sources()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "without_draft_model", lambda pair: sources)
        return losses.rows({"greedy": _ladder(_recordings())}, SimpleNamespace(tree_probabilities=None), PRICES, jobs=1)


def test_parts_and_the_share_of_the_bound_make_up_the_price(found):
    lost, ladder = losses.Losses(found), _ladder(_recordings())
    assert lost.runs() == [("greedy", each.name) for each in PRICES]
    for each in PRICES:
        for rung in (study.TREE, study.REFITTED):
            parts = lost.parts("greedy", each.name, rung)
            share = lost.get("greedy", each.name, losses.SHARE, rung).value
            assert sum(part.value for part in parts.values()) + share == pytest.approx(1.0)
        assert lost.get("greedy", each.name, losses.SHARE) == ladder.share(study.TREE, each)
        # What the bound is ahead of a single source, and that source's share of the bound, are one another's inverse.
        for single in study.SINGLES:
            ahead = lost.get("greedy", each.name, f"over {single}", losses.BOUND).value
            assert ahead * lost.get("greedy", each.name, losses.SHARE, single).value == pytest.approx(1.0)
        assert lost.best_single("greedy", each.name) == ladder.best_single(each)


def test_weights_fitted_on_the_answers_are_others_than_those_given(found):
    lost = losses.Losses(found)
    assert any(
        lost.get("greedy", each.name, losses.SHARE) != lost.get("greedy", each.name, losses.SHARE, study.REFITTED)
        for each in PRICES
    )


def test_kept_losses_come_back_for_the_same_weights_alone(found, tmp_path, monkeypatch):
    monkeypatch.setattr(marks, "identity", lambda target: {"target": target})
    path = tmp_path / "losses.csv"
    assert losses.kept("this one", path) is None
    marks.write(path, found, {"commit": "c", "date": "d", "machine": "m", "command": "c", "target": "this one"})
    assert losses.kept("this one", path).rows == found
    assert losses.kept("another", path) is None


def test_the_shipped_losses_are_those_of_the_shipped_weights():
    """After training, `python -m specdec_lib one-tree` makes them again."""
    about, _ = result_files.read(losses.RESULTS)
    assert {name: about[name] for name in ("target", "tree")} == marks.identity(load_pair("pocket", "pocket")[0])
    lost = losses.Losses(marks.read(losses.RESULTS).rows)
    assert lost.runs() == [(answers, prices) for answers in ("greedy", "sampled") for prices in CURVES]
    for answers, prices in lost.runs():
        parts = lost.parts(answers, prices)
        share = lost.get(answers, prices, losses.SHARE).value
        assert sum(part.value for part in parts.values()) + share == pytest.approx(1.0)


def _made(share: float, over: float, fitted: float) -> losses.Losses:
    """Losses of made numbers, the same for greedy and sampled answers and at two prices."""
    rows = []

    def add(prices: str, drafter: str, measure: str, value: float) -> None:
        row = {"prices": prices, "drafter": drafter, "measure": measure}
        rows.extend(
            row | {"answers": answers, "ratio": Interval(value, value - 0.01, value + 0.01)}
            for answers in ("greedy", "sampled")
        )

    for prices in ("cpu", "server"):
        for drafter, reached in ((study.TREE, share), (study.REFITTED, fitted)):
            for place, part in enumerate(losses.PARTS):
                add(prices, drafter, part, (1 - reached) * (0.6 if place == 2 else 0.1))
            add(prices, drafter, losses.SHARE, reached)
            add(prices, drafter, "over PLD+ (h)", over)
        for single, reached in zip(study.SINGLES, (0.5, 0.6, 0.2), strict=True):
            add(prices, single, losses.SHARE, reached)
        add(prices, losses.BOUND, "over PLD+ (h)", 1.25)
        add(prices, losses.BOUND, losses.COPIED, 0.7)
        add(prices, study.TREE, losses.KEPT_WEIGHTS, 1.02)
    return losses.Losses(rows)


def test_the_page_says_of_each_mark_what_the_numbers_say():
    values = losses.page_values(_made(0.7, 1.2, 0.8))
    assert values["bound_reached"].startswith("70%") and values["bound_fitted"].startswith("80%")
    assert values["bound_lost"] == pytest.approx(0.3)
    assert values["bound_wrong"].startswith("18.0%") and values["ahead_needed"] == pytest.approx(1.1 / 1.25)
    assert values["single_cpu_share"] == 0.6 and values["copied_share"] == 0.7
