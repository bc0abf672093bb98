"""The batched optimiser against torch's own."""

from __future__ import annotations

import pytest
import torch

from specdec_lib.chapters.a1_pocket_models.muon import BatchedMuon

SHAPES = [(32, 32), (32, 32), (64, 32), (64, 32), (32, 64)]


@pytest.mark.parametrize(
    "options", [{"adjust_lr_fn": "match_rms_adamw"}, {"nesterov": False}, {"weight_decay": 0.0}], ids=str
)
def test_each_step_is_that_of_torch_bit_for_bit(options):
    torch.manual_seed(0)
    theirs = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    ours = [torch.nn.Parameter(parameter.detach().clone()) for parameter in theirs]
    reference, batched = torch.optim.Muon(theirs, lr=0.01, **options), BatchedMuon(ours, lr=0.01, **options)
    for step in range(4):
        for one, other in zip(theirs, ours, strict=True):
            one.grad = torch.randn_like(one) * 10.0**-step
            other.grad = one.grad.clone()
        reference.step()
        batched.step()
        assert all(torch.equal(one, other) for one, other in zip(theirs, ours, strict=True))


def test_its_state_is_that_of_torch():
    parameter = torch.nn.Parameter(torch.randn(4, 4))
    parameter.grad = torch.randn(4, 4)
    batched = BatchedMuon([parameter])
    batched.step()
    reference = torch.optim.Muon([torch.nn.Parameter(torch.zeros(4, 4))])
    reference.load_state_dict(batched.state_dict())
    (state,) = reference.state.values()
    assert torch.equal(state["momentum_buffer"], batched.state[parameter]["momentum_buffer"])


def test_a_parameter_without_a_gradient_stays_as_it_is():
    first, second = (torch.nn.Parameter(torch.randn(4, 4)) for _ in range(2))
    second.grad, before = torch.randn(4, 4), first.detach().clone()
    BatchedMuon([first, second]).step()
    assert torch.equal(first, before)
