"""The sums of the measurements, on times that are given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specdec_lib import DraftTree, Generation
from specdec_lib.decoding.results import Step
from specdec_lib.report import benchmarks


def test_the_overhead_is_told_by_step_of_what_two_runs_of_transformers_differ_in(monkeypatch):
    """One token a step: a run of n tokens more than another has n steps more, whatever came from the prefill."""
    run = Generation([5] * 9, [Step(DraftTree.chain([]), (), (5,), 0.0, 0.002, 0.0)] * 8, "length", 128, 1.0)
    monkeypatch.setattr(benchmarks, "generate", lambda *args, **kwargs: run)
    monkeypatch.setattr(benchmarks, "_bare_forward", lambda *args: 1.5)
    monkeypatch.setattr(benchmarks, "_bare_forward_transformers", lambda *args: 2.5)
    # 30 s of what comes once, then 4 ms a token.
    lengths = iter([32, 128] * 2)

    def timed(call):
        count = next(lengths)
        return 30 + 0.004 * count, SimpleNamespace(shape=(1, 128 + count))

    monkeypatch.setattr(benchmarks, "_seconds", timed)
    (row,) = benchmarks.loop_overhead(2)
    assert row["value"] == pytest.approx(2 - 1.5)
    assert row["peer_value"] == pytest.approx(4 - 2.5)
