"""Speculative decoding, reproduced: any drafter, one verifier, any causal language model of transformers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_lib.decoding.contract import LAST, Capture, Context, Drafter, WrappedDrafter
    from specdec_lib.decoding.generate import generate, record
    from specdec_lib.decoding.outputs import Outputs
    from specdec_lib.decoding.replay import Trace, replay
    from specdec_lib.decoding.results import Generation
    from specdec_lib.decoding.runtime import Runtime
    from specdec_lib.decoding.sampling import Sampling
    from specdec_lib.decoding.served_models import UnsupportedModel
    from specdec_lib.decoding.transformers_generate import custom_generate
    from specdec_lib.decoding.tree import DraftTree, Passengers
    from specdec_lib.models.loading import load_model

__version__ = "0.4.0"

#: Where each public name is. It is imported on first use, so that ``python -m specdec_lib --help`` needs no torch.
_HOMES = {
    "LAST": "decoding.contract",
    "Capture": "decoding.contract",
    "Context": "decoding.contract",
    "DraftTree": "decoding.tree",
    "Drafter": "decoding.contract",
    "Generation": "decoding.results",
    "Outputs": "decoding.outputs",
    "Passengers": "decoding.tree",
    "Runtime": "decoding.runtime",
    "Sampling": "decoding.sampling",
    "Trace": "decoding.replay",
    "UnsupportedModel": "decoding.served_models",
    "WrappedDrafter": "decoding.contract",
    "custom_generate": "decoding.transformers_generate",
    "generate": "decoding.generate",
    "load_model": "models.loading",
    "record": "decoding.generate",
    "replay": "decoding.replay",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
