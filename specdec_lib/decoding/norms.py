"""RMS norms of a model as one operation each, while a pass over buffers in place runs.

Transformers composes the norm of eight operations. Recorded as a graph each is a kernel that the next one waits for,
and in a pass over few tokens such kernels take as long as a third of the products.
"""

from __future__ import annotations

import threading
import weakref

import torch
from torch import nn
from torch.nn.functional import rms_norm

from specdec_lib.decoding import attention

_CHANGING = threading.RLock()
_USERS: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet] = weakref.WeakKeyDictionary()
_FUSED: dict[type, type] = {}
#: Names of the attribute that is added to the mean square, in the classes of transformers.
_EPSILON = ("variance_epsilon", "eps", "epsilon")


def _epsilon(module: nn.Module) -> float | None:
    return next((getattr(module, name) for name in _EPSILON if isinstance(getattr(module, name, None), float)), None)


def is_plain(module: nn.Module) -> bool:
    """Whether a module is the RMS norm that torch has as one operation: tried, because names do not tell."""
    weight = getattr(module, "weight", None)
    if "RMSNorm" not in type(module).__name__ or weight is None or weight.ndim != 1 or _epsilon(module) is None:
        return False
    # As small as the epsilon's root, so that where it is added shows.
    states = torch.linspace(-1, 1.5, 2 * len(weight), device=weight.device).reshape(2, -1) * 1e-3
    try:
        own = module(states).float()
    except (RuntimeError, TypeError, ValueError):
        return False  # it takes more than states
    one = rms_norm(states, weight.shape, weight.float(), _epsilon(module))
    return own.shape == one.shape and torch.allclose(own, one, rtol=1e-4, atol=1e-7)


def _fused(kind: type) -> type:
    """The class of norms with the same attributes that run as one operation within a pass in place."""
    if kind not in _FUSED:

        def forward(self, hidden_states, *args, **kwargs):
            running = None if torch.compiler.is_compiling() else attention.RUNNING.forward
            if running is None or not running.in_place or hidden_states.dtype != self.weight.dtype:
                return kind.forward(self, hidden_states, *args, **kwargs)
            return rms_norm(hidden_states, self.weight.shape, self.weight, _epsilon(self))

        # A class of its own, not a function on the module: copies of the model then compute with their own weights.
        _FUSED[kind] = type(
            kind.__name__,
            (kind,),
            {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__},
        )
    return _FUSED[kind]


def install(model: nn.Module, user: object) -> None:
    """Fuse the RMS norms of a model in its passes in place, as long as ``user`` lives.

    In float32 the results agree to rounding. In half precision the weight is multiplied before the result is rounded,
    where transformers rounds first: one unit in the last place at most.
    """
    with _CHANGING, torch.no_grad():
        users = _USERS.setdefault(model, weakref.WeakSet())
        if not list(users):
            plain: dict[type, bool] = {}
            for module in model.modules():
                kind = type(module)
                if "RMSNorm" in kind.__name__ and kind not in _FUSED.values():
                    if kind not in plain:
                        plain[kind] = is_plain(module)
                    if plain[kind]:
                        module.__class__ = _fused(kind)
        users.add(user)
        weakref.finalize(user, _restore, weakref.ref(model)).atexit = False


def _restore(model: weakref.ref[nn.Module]) -> None:
    model = model()
    with _CHANGING:
        if model is not None and not list(_USERS.get(model, ())):
            own = {fused: kind for kind, fused in _FUSED.items()}
            for module in model.modules():
                if type(module) in own:
                    module.__class__ = own[type(module)]
