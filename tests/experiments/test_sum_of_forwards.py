"""Sums of forwards against direct counts, the oracle and the regression against other ways to the same."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib.experiments import sum_of_forwards
from specdec_lib.experiments.draft_costs import ForwardTimes, speed_ratio


@given(st.integers(1, 500), st.integers(0, 500), st.integers(1, 500))
def test_the_latency_is_the_time_of_all_forwards_a_token(n, n_discarded, n_target):
    n_draft = n + n_discarded - n_target
    direct = 0.25 * n_draft + 3.0 * n_target
    assert sum_of_forwards.latency(0.25, 3.0, n_discarded / n, n_target / n) == pytest.approx(direct / n)


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
    assert sum_of_forwards.oracle_calls(np.array(agreement, dtype=bool)) == fewest_calls(tuple(agreement))


def test_the_regression_finds_the_times_the_runs_were_made_of():
    rng = np.random.default_rng(0)
    forwards = rng.integers(1, 200, (50, 2))
    exact = sum_of_forwards.fit_forward_times(forwards, forwards @ [0.02, 0.11])
    assert exact.seconds == pytest.approx((0.02, 0.11)) and exact.r_squared == pytest.approx(1.0)
    noise = rng.normal(0, 1.0, 50)
    noisy = sum_of_forwards.fit_forward_times(forwards, forwards @ [0.02, 0.11] + noise)
    # The normal equations, solved by themselves.
    expected = np.linalg.inv(forwards.T @ forwards) @ forwards.T @ (forwards @ [0.02, 0.11] + noise)
    assert noisy.seconds == pytest.approx(tuple(expected))
    assert 0.9 < noisy.r_squared < 1.0
    with pytest.raises(ValueError, match="several draft lengths"):
        sum_of_forwards.fit_forward_times(np.array([[4, 1], [8, 2], [12, 3]]), np.array([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
        sum_of_forwards.fit_forward_times(np.ones((3, 2)), np.ones(4))


def run(tokens, drafted):
    return SimpleNamespace(tokens=[0] * tokens, steps=[SimpleNamespace(drafted=number) for number in drafted])


def test_the_speed_ratio_prices_every_forward_of_either_model():
    times = ForwardTimes(draft=1.0, target=10.0, verify=12.0)
    recordings = [SimpleNamespace(task="t", prompt=SimpleNamespace(id=name)) for name in ("a", "b", "c")]
    ours = [run(10, [4, 4]), run(8, [4, 4]), run(12, [4, 4, 4])]
    theirs = [run(10, [8]), run(8, [8, 8]), run(12, [8, 8])]
    # 30 tokens each: ours cost 7 passes and 28 drafted tokens, theirs 5 and 40.
    ratio = speed_ratio(ours, theirs, times, recordings)
    assert ratio.value == pytest.approx((5 * 10 + 40) / (7 * 10 + 28)) and ratio.low <= ratio.value <= ratio.high
