"""What a head costs is told by the clock of the devices that work."""

from __future__ import annotations

from specdec_lib.chapters.ch05_specdec_pp import head_study
from tests.chaos import CountingClock, head_of
from tests.families import prompt


def test_the_cost_of_a_head_is_timed_by_the_clock_of_the_drafts_devices(llama, monkeypatch):
    asked = []
    monkeypatch.setattr(head_study, "clock_of", lambda devices: asked.append(set(devices)) or CountingClock(0.5))
    spent = head_study.head_cost(llama, head_of(llama), prompt(1, 9), 2, 2)
    assert spent == {"draft": 0.5, "capture": 0.0, "head": 0.5, "share": (1.0, 1.0, 1.0)} and asked == [{llama.device}]
