"""Seconds of generations: what is counted, fitted and timed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specdec_lib import record, replay
from specdec_lib.chapters.ch05_specdec_pp import timing
from specdec_lib.chapters.ch05_specdec_pp.timing import fit_forward_times
from specdec_lib.drafters import PromptLookup
from tests.chaos import CountingClock
from tests.families import perturbed, prompt


def test_counts_and_widths_are_those_of_the_steps(llama):
    run = replay(record(llama, prompt(1, 25), max_new_tokens=30), PromptLookup(num_tokens=3))
    steps = [replace(s, draft_seconds=0.5, verify_seconds=1.0 + s.drafted, host_seconds=0.0) for s in run.steps]
    slow, quick = replace(run, steps=steps), replace(run, steps=[replace(s, draft_seconds=0.1) for s in steps])
    forwards, seconds = timing.forward_counts([slow])
    drafted = sum(s.drafted for s in steps)
    assert forwards.tolist() == [[drafted, len(steps)]]
    assert seconds == pytest.approx([sum(0.5 + 1.0 + s.drafted + s.commit_seconds for s in steps)])
    assert timing.seconds_by_width([slow]) == {w: float(w) for w in sorted({s.drafted + 1 for s in steps})}
    assert timing.fastest([[slow], [quick]]) == [quick]


def test_fits_have_intervals_and_sets_of_one_price_have_no_spread():
    rng = np.random.default_rng(3)
    counts = rng.integers(1, 30, (40, 2))
    exact = counts @ np.array([0.02, 0.1])
    assert timing.fit(counts, exact).r_squared.low == pytest.approx(1)
    noisy_seconds = exact * rng.lognormal(0, 0.3, 40)
    noisy, alone = timing.fit(counts, noisy_seconds), fit_forward_times(counts, noisy_seconds)
    assert noisy.r_squared.low < noisy.r_squared.value < noisy.r_squared.high < 1
    assert [one.value for one in noisy.seconds] == pytest.approx(alone.seconds)
    assert all(one.low <= one.value <= one.high for one in noisy.seconds)
    halves = [(counts[:20], exact[:20]), (counts[20:], exact[20:])]
    assert timing.spread_share(halves).value == pytest.approx(0, abs=1e-9)
    halves[1] = (counts[20:], counts[20:] @ np.array([0.04, 0.1]))
    assert timing.spread_share(halves).value == pytest.approx(np.std([0.02, 0.04], ddof=1) / 0.03)


def test_passes_alone_and_in_turns_are_timed_by_the_clock_of_the_devices(llama, monkeypatch):
    monkeypatch.setattr(timing, "clock_of", lambda devices: CountingClock(0.5))
    assert timing.alone_over_in_turns(llama, perturbed(llama), 3, 1, 8, 4) == (1.0, 1.0, 1.0)
