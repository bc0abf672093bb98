"""The choice of the layer from replays, and what drafting costs."""

import pytest

from specdec_lib import Capture, record
from specdec_lib.decoding.target import Target
from specdec_lib.drafters import PromptLookup, PromptLookupHidden
from specdec_lib.experiments import draft_costs, metrics, recorded_runs
from specdec_lib.experiments import input_guided as guided
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import Recording
from tests import families
from tests.chaos import CountingClock


def recordings(model, capture=Capture()):
    out = []
    for i, task in enumerate(("code editing", "summarisation", "code editing")):
        trace = record(model, families.prompt(i, 30, 9), max_new_tokens=20, eos_token_id=[], capture=capture)
        out.append(Recording(Prompt(f"p{i}", task, ("text",)), 0, trace))
    return out


def test_the_best_layer_has_the_largest_rate_and_is_the_lowest_of_those(library):
    known = recordings(library["llama"], Capture((0, 1, 2)))
    found = guided.best_layer(known, lambda i: PromptLookupHidden(i, 4), range(3))
    runs = [recorded_runs.replay_all(known, PromptLookupHidden(i, 4)) for i in range(3)]
    rates = [metrics.pooled(own)["tokens_per_forward"] for own in runs]
    assert found == rates.index(max(rates))


def test_drafting_costs_have_a_row_a_length_and_drafter_and_count_memory():
    tokens = [i % 40 for i in range(400)]
    rows = draft_costs.drafting(
        {"PLD": PromptLookup(), "h": PromptLookupHidden(1, 5)}, tokens, [100, 200], width=16, steps=20
    )
    assert [(row["tokens"], row["method"]) for row in rows] == [(n, m) for n in (100, 200) for m in ("PLD", "h")]
    assert {row["method"]: row["bytes_per_token"] for row in rows} == {"PLD": 0, "h": 16 * 4}
    assert all(row["median_ms"] > 0 for row in rows)
    assert all(len(row["all_ms"]) == 20 for row in rows)
    with pytest.raises(ValueError, match="tokens holds 400; expected 420"):
        draft_costs.drafting({"PLD": PromptLookup()}, tokens, [400], steps=20)


def test_passes_with_and_without_capture_take_turns_by_the_clock_of_the_models_devices(library, monkeypatch):
    """Other work on the machine then falls on both: timed one after the other, a pass that keeps states seemed the faster."""
    order, asked, verify = [], [], Target.verify

    def noted(target, root, tree):
        order.append(target.capture)
        return verify(target, root, tree)

    monkeypatch.setattr(Target, "verify", noted)
    monkeypatch.setattr(draft_costs, "clock_of", lambda devices: asked.append(set(devices)) or CountingClock(0.5))
    captures = {"none": Capture(), "layer": Capture((1,))}
    rows = draft_costs.capturing(library["llama"], captures, [20], draft=4, repeats=3)
    assert order == [*captures.values()] * 5 and asked == [{library["llama"].device}]
    assert [row["median_ms"] for row in rows] == [500, 500]


def test_a_ratio_of_times_is_one_of_means():
    ratio = draft_costs.time_ratio([1, 2, 3, 2], [4, 4])
    assert ratio.value == 0.5 and 0.25 <= ratio.low < 0.5 < ratio.high <= 0.75
    assert draft_costs.time_ratio([3, 3], [1, 1, 1]) == (3, 3, 3)
