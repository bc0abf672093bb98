"""The record of widths holds every pass, and composes to the time that the passes themselves add up to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specdec_lib import DraftTree, Generation
from specdec_lib.chapters.ch06_gpu_benchmarks.composed_speedups import composed
from specdec_lib.decoding.results import Step
from specdec_lib.experiments.pass_widths import units, widths_by_task
from specdec_lib.methods import METHODS

CHAIN = Step(DraftTree.chain([1, 2, 3]), (0,), (1, 5), 0, 0, 0)
FORK = Step(DraftTree([1, 2, 3], [-1, -1, 1]), (1, 2), (2, 3, 5), 0, 0, 0)
BARE = Step(DraftTree.chain([]), (), (5,), 0, 0, 0)


def run(*steps: Step) -> Generation:
    return Generation([9, *(t for s in steps for t in s.tokens)], list(steps), "length", 1, 0.0)


RECORDINGS = [SimpleNamespace(task="editing"), SimpleNamespace(task="chat")]
RUNS = {"SpecDec": [run(CHAIN, CHAIN, BARE), run(FORK)], "plain": [run(BARE), run(BARE)]}


def test_widths_tokens_and_drafted_tokens_are_counted_by_task_and_plain_decoding_is_left_out():
    assert widths_by_task(RECORDINGS, RUNS, ["editing", "chat", "none"]) == {
        "editing": {"SpecDec": {"tokens": 5, "units": 6, "passes": [[1, 1], [4, 2]]}},
        "chat": {"SpecDec": {"tokens": 3, "units": 3, "passes": [[4, 1]]}},
        "none": {"SpecDec": {"tokens": 0, "units": 0, "passes": []}},
    }


def test_the_record_gives_the_composed_time():
    own = widths_by_task(RECORDINGS, RUNS, ["editing"])["editing"]["SpecDec"]
    times = {1: 1.0, 4: 1.75}
    spent = sum(count * times[width] for width, count in own["passes"]) + 0.25 * own["units"]
    assert spent == composed(RUNS["SpecDec"][:1], times, draft_token=0.25)


@pytest.mark.parametrize(("method", "count"), [("PLD", 1), ("SpecDec", 3), ("EAGLE", 2)])
def test_drafting_is_counted_by_steps_tokens_or_levels(method, count):
    assert units(METHODS[method], FORK) == count
