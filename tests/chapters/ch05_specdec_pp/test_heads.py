"""Heads are asked about the tokens that decoding meets, and timed by the right clock."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_lib import load_model
from specdec_lib.chapters.ch05_specdec_pp import heads
from specdec_lib.chapters.ch05_specdec_pp.draft_pass import draft_along
from specdec_lib.chapters.ch05_specdec_pp.heads import met, reweighted
from specdec_lib.decoding.generate import record
from tests.chaos import CountingClock, head_of
from tests.families import perturbed, prompt


def test_the_heads_of_a_pair_come_with_it_and_serve_its_draft_model_alone():
    (model, _), (small, _) = load_model("pocket", "cpu"), load_model("pocket-draft", "cpu")
    paper, seeing = heads.shipped(model, small)
    assert paper and seeing
    assert not any(head.sees_confidence for head in paper) and all(head.sees_confidence for head in seeing)
    with pytest.raises(ValueError, match="holds no heads of this draft model; train some"):
        heads.shipped(model, model)


def test_tokens_are_those_that_decoding_meets_with_what_heads_say_of_them(llama):
    small = perturbed(llama)
    head = head_of(small)
    passes = [draft_along(record(llama, prompt(s, 8), max_new_tokens=9), small) for s in range(2)]
    found = met(passes, {"one": head}, 6.0)
    assert found.accepted.tolist() == np.concatenate([p.agreement for p in passes]).astype(float).tolist()
    assert found.output.tolist() == [place for place, p in enumerate(passes) for _ in p.agreement]
    own = passes[1].examples()
    said = reweighted(head.probability(own.states, own.confidence), 6.0)
    assert found.one[found.output == 1].tolist() == pytest.approx(said.tolist())
    assert found.confidence[found.output == 1].tolist() == pytest.approx(own.confidence.tolist())


def test_reweighting_undoes_the_weight_of_the_loss():
    p = np.linspace(0.01, 0.99, 9)
    np.testing.assert_allclose(reweighted(p / (p + 6 * (1 - p)), 6), p)
    np.testing.assert_allclose(reweighted(torch.from_numpy(p), 1), p)


def test_the_cost_of_a_head_is_timed_by_the_clock_of_the_drafts_devices(llama, monkeypatch):
    asked = []
    monkeypatch.setattr(heads, "clock_of", lambda devices: asked.append(set(devices)) or CountingClock(0.5))
    spent = heads.head_cost(llama, head_of(llama), prompt(1, 9), 2, 2)
    assert spent == {"draft": 0.5, "capture": 0.0, "head": 0.5, "share": (1.0, 1.0, 1.0)} and asked == [{llama.device}]
