"""Heads of many settings: trained once, asked about the tokens that decoding meets, timed by the right clock."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_lib import paths
from specdec_lib.chapters.ch05_specdec_pp import heads
from specdec_lib.chapters.ch05_specdec_pp.draft_pass import draft_along
from specdec_lib.chapters.ch05_specdec_pp.heads import Variant, Workshop, met, relabelled, reweighted
from specdec_lib.decoding.generate import record
from specdec_lib.experiments import recorded_runs
from specdec_lib.heads.acceptance_data import load_data
from tests.chaos import CountingClock, head_of
from tests.families import perturbed, prompt

DATA = paths.POCKET / "head" / "data"


@pytest.fixture(scope="module")
def pocket():
    return recorded_runs.load_pair("pocket", "pocket-draft", "cpu", "float32")


def test_a_workshop_makes_each_head_once_and_by_its_variant(pocket):
    draft = pocket[1]
    shop = Workshop(draft, load_data(DATA, draft)[:12], epochs=1)
    one = shop.head(Variant(depth=1))
    assert one is shop.head(Variant(depth=1)) and one.depth == 1
    assert shop.head(Variant(depth=0, sees_confidence=True)).sees_confidence
    assert shop.head(Variant(depth=2, tied=False)).tied is False
    assert list(shop.heads([Variant(depth=1, mixing=0.15)])) == ["w = 6, D = 1, r = 0.15"]
    first, again = (shop.reseeded(one, 3) for _ in range(2))
    assert first[0] is one and all(a is b for a, b in zip(first, again, strict=True))
    assert len({head.out.bias.item() for head in first}) == 3


def test_the_same_answers_are_labelled_anew(pocket):
    model, draft, _ = pocket
    answers = load_data(DATA, draft)[:6]
    for again in (relabelled(model, draft, answers, labels="raw"), relabelled(model, draft, answers, temperature=1.0)):
        assert [r.tokens.tolist() for r in again] == [r.tokens.tolist() for r in answers]
        soft = np.concatenate([r.acceptance for r in again])
        assert ((soft > 0.01) & (soft < 0.99)).any()


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
