"""Induction heads against a reading of section 4.2.1 on attention that transformers itself gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib import Capture, generate, record
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.heads.induction import InductionHeads, credited, every_head, identify, origin
from specdec_lib.models.fingerprint import fingerprint
from tests import families


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=30), st.data())
def test_origin_has_the_longest_common_suffix(text, data):
    length = data.draw(st.integers(1, len(text) - 1))
    position = data.draw(st.integers(length, len(text) - 1))
    by_scan = {}
    for place in range(length):
        overlap = 0
        while overlap <= place and text[place - overlap] == text[position - overlap]:
            overlap += 1
        if overlap:
            by_scan[place] = overlap
    expected = max(by_scan, key=lambda p: (by_scan[p], p)) if by_scan else None
    assert origin(text, position, length) == expected


@pytest.mark.parametrize("family", ["llama-gqa", "gpt-neox"])
def test_scores_are_those_of_eager_attention(library, family):
    model = library[family]
    prompts = [list(range(2, 80)), list(range(91, 10, -1))]
    found = identify(model, prompts, max_new_tokens=20, progress=False)
    peaks, weight, copied, known = np.zeros((2, 4)), np.zeros((2, 4)), 0, []
    for prompt in prompts:
        run = generate(model, prompt, max_new_tokens=20)
        capture = every_head(model) | Capture(layers=(1,))
        known.append(record_known(model, prompt, run.tokens, run.finish_reason, None, 20, capture).trace)
        text = [*prompt, *run.tokens]
        model.set_attn_implementation("eager")
        with torch.no_grad():
            rows = torch.stack(model(torch.tensor([text]), output_attentions=True).attentions)[:, 0].numpy()
        model.set_attn_implementation("sdpa")
        for position in range(len(prompt), len(text)):
            place = origin(text, position, len(prompt))
            if place is None or text[position] == model.config.eos_token_id:
                continue
            seen = rows[:, :, position - 1, :position]
            peaks += seen.argmax(-1) == place
            weight += seen[..., place]
            copied += 1
    for each in (found, credited(model, known)):
        assert each.copied == copied > 0 and each.fingerprint == fingerprint(model)
        assert np.allclose(each.peaks, peaks / copied, atol=0.02)
        assert np.allclose(each.attention, weight / copied, atol=1e-4)


LONG = [2 + i % 80 for i in range(families.CONTEXT)]


@pytest.mark.parametrize(
    "find, says",
    [
        (lambda model: identify(model, []), "no prompts"),
        (
            lambda model: identify(model, [LONG[:9], LONG], progress=False),
            "prompt 1 has 128 tokens and the model's context",
        ),
        (
            lambda model: credited(
                model, [record(model, LONG[:70], max_new_tokens=4, capture=Capture(heads=((0, 1),)))]
            ),
            "rows of 1 heads, not all 8: use every_head",
        ),
    ],
)
def test_what_nothing_can_be_found_in_is_refused(library, monkeypatch, find, says):
    monkeypatch.setattr("specdec_lib.heads.induction.record", None)
    with pytest.raises(ValueError, match=says):
        find(library["llama-gqa"])


def test_ranking_is_by_peaks_then_attention():
    heads = InductionHeads(np.array([[0.5, 0.0], [0.5, 0.9]]), np.array([[0.1, 0.9], [0.2, 0.0]]), 10, "x")
    assert heads.ranked() == [(1, 1), (1, 0), (0, 0)]
    assert heads.top(2) == [(1, 1), (1, 0)]
    for count in (0, 4):
        with pytest.raises(ValueError, match=f"count is {count}"):
            heads.top(count)


def test_fingerprint_sees_weights_and_not_the_type_they_are_loaded_in():
    model = families.build("llama")
    rounded = families.build("llama").to(torch.bfloat16)
    assert fingerprint(rounded) == fingerprint(families.build("llama").to(torch.bfloat16).float())
    assert fingerprint(model) == fingerprint(families.build("llama"))
    assert fingerprint(model) != fingerprint(families.build("llama", seed=1))
