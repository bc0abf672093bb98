"""What passes and drafts cost: sums of forwards, published costs and timed passes against other ways to the same."""

from functools import cache
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib import Capture, paths
from specdec_lib.chapters import ch04_pld_plus as plus
from specdec_lib.chapters.ch05_specdec_pp import policies as chapter
from specdec_lib.decoding.target import Target
from specdec_lib.drafters import PromptLookup, PromptLookupHidden
from specdec_lib.experiments.costs import draft_costs
from specdec_lib.experiments.data.published_numbers import ClaimError, CostSource, pass_costs, published
from tests.chaos import CountingClock


@given(st.integers(1, 500), st.integers(0, 500), st.integers(1, 500))
def test_the_latency_is_the_time_of_all_forwards_a_token(n, n_discarded, n_target):
    n_draft = n + n_discarded - n_target
    direct = 0.25 * n_draft + 3.0 * n_target
    assert chapter.latency(0.25, 3.0, n_discarded / n, n_target / n) == pytest.approx(direct / n)


def fewest_calls(agreement: tuple[bool, ...]) -> int:
    """Fewest target calls over every choice of draft lengths, by trying them all."""
    n = len(agreement)

    @cache
    def calls(done: int) -> int:
        if done >= n:
            return 0
        best = n
        for length in range(n - done):  # the target adds one token, so more is never needed
            kept = 0
            while kept < length and agreement[done + kept]:
                kept += 1
            best = min(best, 1 + calls(done + kept + 1))
        return best

    return calls(0)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.booleans(), max_size=12))
def test_oracle_calls_equal_the_fewest_over_all_draft_lengths(agreement):
    assert chapter.oracle_calls(np.array(agreement, dtype=bool)) == fewest_calls(tuple(agreement))


def test_the_regression_finds_the_times_the_runs_were_made_of():
    rng = np.random.default_rng(0)
    forwards = rng.integers(1, 200, (50, 2))
    exact = chapter.fit_forward_times(forwards, forwards @ [0.02, 0.11])
    assert exact.seconds == pytest.approx((0.02, 0.11)) and exact.r_squared == pytest.approx(1.0)
    noise = rng.normal(0, 1.0, 50)
    noisy = chapter.fit_forward_times(forwards, forwards @ [0.02, 0.11] + noise)
    # The normal equations, solved by themselves.
    expected = np.linalg.inv(forwards.T @ forwards) @ forwards.T @ (forwards @ [0.02, 0.11] + noise)
    assert noisy.seconds == pytest.approx(tuple(expected))
    assert 0.9 < noisy.r_squared < 1.0
    with pytest.raises(ValueError, match="several draft lengths"):
        chapter.fit_forward_times(np.array([[4, 1], [8, 2], [12, 3]]), np.array([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
        chapter.fit_forward_times(np.ones((3, 2)), np.ones(4))


def test_a_ratio_of_times_is_one_of_means():
    ratio = plus.time_ratio([1, 2, 3, 2], [4, 4])
    assert ratio.value == 0.5 and 0.25 <= ratio.low < 0.5 < ratio.high <= 0.75
    assert plus.time_ratio([3, 3], [1, 1, 1])[:3] == (3, 3, 3)


def test_costs_from_the_papers_follow_from_their_printed_numbers():
    curves = pass_costs()
    for curve in curves.values():  # every step costs at least a pass over one token
        assert curve[1] == 1 and len(curve) >= 2 and min(curve.values()) == 1
    rest = {key: float(row["value"]) for key, row in published("rest").items() if row["value"] != "not available"}
    sizes = (f"rest-t2-{size}" for size in ("09gb", "44gb", "87gb", "14gb", "27gb"))
    passes = [rest[f"{size}-m"] * (rest[f"{size}-ms"] - rest[f"{size}-retrieval"]) for size in sizes]
    cost = mean(passes) / rest["rest-t1-he-greedy-7b-ar"]
    assert curves[CostSource("REST", "RTX A6000", "CodeLlama 7B")] == {1: 1.0, 65: pytest.approx(cost, abs=5e-4)}
    seconds = {key: row["value"] for key, row in published("specdec_pp").items()}
    ratio = float(seconds["specdec-pp-t-target"]) / float(seconds["specdec-pp-t-target-alone"])
    assert curves["SpecDec++", "2 x A100 80GB", "Llama-2-chat 70B"] == {1: 1.0, 9: pytest.approx(ratio, abs=5e-4)}


@pytest.mark.parametrize("row, message", [
    ("a,b,c,1,1.0,x", "line 2: width is '1'; expected a whole number above 1"),
    ("a,b,c,8,0,x", "line 2: relative_cost is '0'; expected a number above 0"),
    ("a,b,c,8,dear,x", "line 2: relative_cost is 'dear'; expected"), ("a,b,c,8,1.1,x\na,b,c,8,1.2,x", "width 8 of a repeats"),
])  # fmt: skip
def test_a_row_that_is_no_cost_is_refused(tmp_path, monkeypatch, row, message):
    monkeypatch.setattr(paths, "PUBLISHED", tmp_path)
    (tmp_path / "pass_costs.csv").write_text(f"source,device,model,width,relative_cost,where\n{row}\n")
    with pytest.raises(ClaimError, match=message):
        pass_costs()


def test_drafting_costs_have_a_row_a_length_and_drafter_and_count_memory():
    tokens = [i % 40 for i in range(400)]
    drafters = {"PLD": PromptLookup(), "h": PromptLookupHidden(1, 5)}
    rows = draft_costs.draft_times(drafters, tokens, [100, 200], width=16, steps=20)
    assert [(row["tokens"], row["method"]) for row in rows] == [(n, m) for n in (100, 200) for m in ("PLD", "h")]
    assert {row["method"]: row["bytes_per_token"] for row in rows} == {"PLD": 0, "h": 16 * 4}
    assert all(row["median_ms"] > 0 and len(row["all_ms"]) == 20 for row in rows)
    with pytest.raises(ValueError, match="tokens holds 400; expected 420"):
        draft_costs.draft_times({"PLD": PromptLookup()}, tokens, [400], steps=20)


def test_passes_with_and_without_capture_take_turns_by_the_clock_of_the_models_devices(library, monkeypatch):
    """Other work on the machine then falls on both: timed one after the other, a pass that keeps states seemed the faster."""
    order, asked, verify = [], [], Target.verify

    def noted(target, root, tree):
        order.append(target.capture)
        return verify(target, root, tree)

    monkeypatch.setattr(Target, "verify", noted)
    monkeypatch.setattr(plus, "clock_of", lambda devices: asked.append(set(devices)) or CountingClock(0.5))
    captures = {"none": Capture(), "layer": Capture((1,))}
    rows = plus.capture_times(library["llama"], captures, [20], draft=4, repeats=3)
    assert order == [*captures.values()] * 5 and asked == [{library["llama"].device}]
    assert [row["median_ms"] for row in rows] == [500, 500]
