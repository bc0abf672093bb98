"""Muon over all matrices of one shape at once: the update of torch's own, in a few launches instead of hundreds."""

from __future__ import annotations

import torch
from torch.optim._muon import _adjust_lr


def orthogonalised(
    updates: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """Newton-Schulz iteration in bfloat16, as torch's Muon runs it on one matrix.

    Parameters
    ----------
    updates : float tensor, shape (n, rows, columns)

    Returns
    -------
    bfloat16 tensor of that shape
    """
    a, b, c = coefficients
    tall = updates.shape[1] > updates.shape[2]
    matrices = updates.bfloat16()
    if tall:
        matrices = matrices.mT
    # Each norm by itself: a norm over two dimensions adds up in another order.
    norms = torch.stack([matrix.norm() for matrix in matrices])
    matrices = matrices / norms.clamp(min=eps)[:, None, None]
    for _ in range(steps):
        gram = torch.bmm(matrices, matrices.mT)
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        matrices = torch.baddbmm(matrices, gram, matrices, beta=a)
    return matrices.mT if tall else matrices


class BatchedMuon(torch.optim.Muon):
    """torch's Muon, bit for bit, with matrices of one shape in one batch of products.

    State and arguments are those of ``torch.optim.Muon``, so either loads what the other saved.
    """

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Update all parameters that have a gradient."""
        if closure is not None:
            raise ValueError("closure is given; this optimiser evaluates none")
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                self._update(group, shape, parameters)

    def _update(self, group: dict, shape: torch.Size, parameters: list[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter.grad, memory_format=torch.preserve_format)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        gradients = [parameter.grad for parameter in parameters]
        momentum = group["momentum"]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        updates = torch._foreach_lerp(gradients, buffers, momentum) if group["nesterov"] else buffers
        directions = orthogonalised(torch.stack(updates), group["ns_coefficients"], group["ns_steps"], group["eps"])
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(
            parameters, list(directions.float().unbind()), alpha=-_adjust_lr(group["lr"], group["adjust_lr_fn"], shape)
        )
