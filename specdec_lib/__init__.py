"""Speculative decoding, reproduced: any drafter, one verifier, any causal language model of transformers."""
from .decoding.contract import LAST, Capture, Context, Drafter, WrappedDrafter
from .decoding.generate import generate, record
from specdec_lib.decoding.served_models import UnsupportedModel
from .decoding.outputs import Outputs
from .decoding.replay import Trace, replay
from .decoding.runtime import Runtime
from .decoding.sampling import Sampling
from specdec_lib.decoding.results import Generation
from .decoding.transformers_generate import custom_generate
from .decoding.tree import DraftTree, Passengers
from .models.loading import load_model

__version__ = "0.1.0"
__all__ = ["LAST", "Capture", "Context", "DraftTree", "Drafter", "Generation", "Outputs", "Passengers", "Runtime", "Sampling",
           "Trace", "UnsupportedModel", "WrappedDrafter", "custom_generate", "generate", "load_model", "record", "replay"]
