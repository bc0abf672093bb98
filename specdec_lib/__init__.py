"""Speculative decoding, reproduced: any drafter, one verifier, any causal language model of transformers."""

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
__all__ = [
    "LAST",
    "Capture",
    "Context",
    "DraftTree",
    "Drafter",
    "Generation",
    "Outputs",
    "Passengers",
    "Runtime",
    "Sampling",
    "Trace",
    "UnsupportedModel",
    "WrappedDrafter",
    "custom_generate",
    "generate",
    "load_model",
    "record",
    "replay",
]
