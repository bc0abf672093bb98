"""Layers for a few rows give the products of plain ones."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from specdec_lib import generate
from specdec_lib.models import few_rows
from specdec_lib.models.few_rows import FewRows, serve, serves
from specdec_lib.models.fingerprint import fingerprint
from tests.families import build, prompt


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 15, 70])
def test_the_product_is_that_of_the_plain_layer(rows, bias, threads, monkeypatch):
    monkeypatch.setattr(few_rows, "SHARE", 96)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    layer = nn.Linear(96, 131, bias=bias)
    states = torch.randn(1, rows, 96)
    with torch.no_grad():
        plain = layer(states)
        torch.testing.assert_close(serve(layer)(states), plain, rtol=1e-5, atol=1e-5)
        assert type(layer) is FewRows
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(twin(states), layer(states))
        layer.weight.data.add_(0.1)  # it is packed again, though nothing but the values tells of this
        torch.testing.assert_close(layer(states), F.linear(states, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)
        layer.weight.mul_(2)
        torch.testing.assert_close(layer(states), F.linear(states, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)
        layer.weight.data = layer.weight.data.t().contiguous().t()  # lies otherwise in memory
        torch.testing.assert_close(layer(states), F.linear(states, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)


def test_numbers_that_are_none_are_kept():
    layer, states = serve(nn.Linear(96, 8, bias=False)), torch.randn(3, 96)
    states[1, 5], states[2, 7] = torch.nan, torch.inf
    with torch.inference_mode():
        assert layer(states).isfinite().all(-1).tolist() == [True, False, False]


def test_gradients_and_other_types_go_through_the_plain_layer():
    layer, states = serve(nn.Linear(8, 8)), torch.randn(2, 8, requires_grad=True)
    layer(states).sum().backward()
    assert states.grad is not None and layer.weight.grad is not None
    half = copy.deepcopy(layer).to(torch.bfloat16)
    with torch.inference_mode():
        assert half(torch.ones(1, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_model_that_is_served_is_the_same_and_writes_the_same(monkeypatch, tmp_path):
    model = build("llama-gqa")
    assert not serves(model)
    monkeypatch.setattr(few_rows, "SMALLEST", 0)
    assert serves(model) and not serves(copy.deepcopy(model).to(torch.bfloat16))
    before, ids = fingerprint(model), prompt(3, 12)
    plain = generate(model, ids, None, max_new_tokens=20, eos_token_id=[]).tokens
    serve(model)
    assert fingerprint(model) == before
    assert generate(model, ids, None, max_new_tokens=20, eos_token_id=[]).tokens == plain
    model.save_pretrained(tmp_path)
    assert fingerprint(type(model).from_pretrained(tmp_path)) == before
