"""Packed layers give the products of plain ones."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from specdec_lib import generate
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.models.packing import PackedLinear, can_pack, pack
from tests.families import build, prompt


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 70])
def test_the_product_is_that_of_the_plain_layer(rows, bias):
    layer = nn.Linear(96, 130, bias=bias)
    states = torch.randn(2, rows, 96)
    with torch.no_grad():
        plain = layer(states)
        torch.testing.assert_close(pack(layer)(states), plain, rtol=1e-5, atol=1e-5)
        assert type(layer) is PackedLinear and layer.weight.shape == (130, 96) and layer.weight.t().is_contiguous()
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(twin(states), layer(states))
        layer.weight.mul_(2)  # it is packed again
        torch.testing.assert_close(layer(states), F.linear(states, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)


def test_from_two_rows_on_a_row_does_not_depend_on_the_others():
    layer, states = pack(nn.Linear(576, 1536)), torch.randn(16, 576)
    with torch.inference_mode():
        whole = layer(states)
        assert all(torch.equal(layer(states[:rows]), whole[:rows]) for rows in (2, 3, 8))


def test_gradients_and_other_types_go_through_the_plain_layer():
    layer, states = pack(nn.Linear(8, 8)), torch.randn(2, 8, requires_grad=True)
    layer(states).sum().backward()
    assert states.grad is not None and layer.weight.grad is not None
    half = copy.deepcopy(layer).to(torch.bfloat16)
    with torch.inference_mode():
        assert half(torch.ones(1, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_packed_model_is_the_same_model_and_writes_the_same(monkeypatch, tmp_path):
    model = build("llama-gqa")
    assert not can_pack(model)
    monkeypatch.setattr("specdec_lib.models.packing.SMALLEST", 0)
    assert can_pack(model) and not can_pack(copy.deepcopy(model).to(torch.bfloat16))
    before, ids = fingerprint(model), prompt(3, 12)
    plain = generate(model, ids, None, max_new_tokens=20, eos_token_id=[]).tokens
    pack(model)
    assert fingerprint(model) == before
    assert generate(model, ids, None, max_new_tokens=20, eos_token_id=[]).tokens == plain
    model.save_pretrained(tmp_path)
    assert fingerprint(type(model).from_pretrained(tmp_path)) == before
