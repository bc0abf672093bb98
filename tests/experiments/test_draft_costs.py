"""What a draft costs: the speed-up of one set of runs over another by equation 2.3."""

from types import SimpleNamespace

import pytest

from specdec_lib.experiments.draft_costs import ForwardTimes, speed_ratio


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
