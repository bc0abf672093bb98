"""Induction heads against a reading of section 4.2.1 on attention that transformers itself gives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib import Capture, generate, record
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.heads.induction import InductionHeads, every_head, identify, induction_heads, origin
from specdec_lib.models.fingerprint import fingerprint
from tests import families


@settings(max_examples=200)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=30), st.data())
def test_origin_has_the_longest_common_suffix(text, data):
    length = data.draw(st.integers(1, len(text) - 1))
    position = data.draw(st.integers(length, len(text) - 1))
    upto = text[: position + 1]
    overlaps = [sum(text[: p + 1][-n:] == upto[-n:] for n in range(1, p + 2)) for p in range(length)]
    best = max(range(length), key=lambda p: (overlaps[p], p))
    assert origin(text, position, length) == (best if overlaps[best] else None)


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
    for each in (found, induction_heads(model, known)):
        assert each.copied == copied > 0 and each.fingerprint == fingerprint(model)
        assert np.allclose(each.peaks, peaks / copied, atol=0.02)
        assert np.allclose(each.attention, weight / copied, atol=1e-4)


RANKED = InductionHeads(np.array([[0.5, 0.0], [0.5, 0.9]]), np.array([[0.1, 0.9], [0.2, 0.0]]), 10, "x")
ONE_HEAD = Capture(heads=((0, 1),))


@pytest.mark.parametrize("call, words", [
    (lambda m: identify(m, []), "no prompts"),
    (lambda m: identify(m, [[5] * 9, [5] * families.CONTEXT]), "prompt 1 has 128 tokens and the model's context"),
    (lambda m: induction_heads(m, [record(m, [5] * 70, max_new_tokens=4, capture=ONE_HEAD)]), "1 heads, not all 8: use every"),
    (lambda m: RANKED.top(0), "count is 0"),
    (lambda m: RANKED.top(4), "count is 4"),
])  # fmt: skip
def test_what_cannot_be_found_is_refused_before_anything_is_decoded(llama, monkeypatch, call, words):
    monkeypatch.setattr("specdec_lib.heads.induction.record", None)
    with pytest.raises(ValueError, match=words):
        call(llama)


def test_ranking_is_by_peaks_then_attention():
    assert RANKED.ranked() == [(1, 1), (1, 0), (0, 0)]
    assert RANKED.top(2) == [(1, 1), (1, 0)]


def test_fingerprint_sees_weights_and_not_the_type_they_are_loaded_in():
    model = families.build("llama")
    rounded = families.build("llama").to(torch.bfloat16)
    assert fingerprint(rounded) == fingerprint(families.build("llama").to(torch.bfloat16).float())
    assert fingerprint(model) == fingerprint(families.build("llama"))
    assert fingerprint(model) != fingerprint(families.build("llama", seed=1))
