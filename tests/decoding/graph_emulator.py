"""A CUDA graph on the CPU: the operations of a pass are kept with their tensors, and done again on the same memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: What a GPU cannot record, because the host reads or sends values: the start of the name of such operations.
HOST = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.item", "aten.is_nonzero", "aten.equal",
        "aten._unique", "aten.unique", "aten.lift_fresh")  # fmt: skip


class _Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.done: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(func)
        by_mask = name.startswith("aten.index") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for index in (args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ())
        )
        if name.startswith(HOST) or by_mask:
            raise RuntimeError(f"{name} cannot be recorded: the host would wait for the device")
        out = func(*args, **kwargs)
        self.done.append((func, args, kwargs, out))
        return out


class EmulatedGraph:
    """Recorded operations; what the pass computed with the tensors of its time is computed from what they hold now."""

    def __init__(self, done: list[tuple]):
        self.done = done

    def replay(self) -> None:
        for func, args, kwargs, out in self.done:
            again = func(*args, **kwargs)
            if func._schema.is_mutable:
                continue
            for new, old in zip(tree_leaves(again), tree_leaves(out), strict=True):
                if isinstance(new, torch.Tensor) and new.data_ptr() != old.data_ptr():
                    assert new.shape == old.shape, (func, new.shape, old.shape)
                    old.copy_(new)


class EmulatedRecorder:
    """Records passes on the CPU; ``operations`` are the names of what each graph does, in order."""

    def __init__(self):
        self.operations: list[list[str]] = []

    def __call__(self, run: Callable[[], torch.Tensor]) -> tuple[EmulatedGraph, torch.Tensor]:
        for _ in range(2):
            run()
        with _Watch() as watch:
            result = run()
        self.operations.append([str(func) for func, *_ in watch.done])
        return EmulatedGraph(watch.done), result
