"""Speculative decoding, reproduced: any drafter, one verifier, any causal language model of transformers."""
from .decoding.contract import Capture
from .decoding.generate import generate, record
from specdec_lib.decoding.served_models import UnsupportedModel
from .decoding.replay import Trace, replay
from .decoding.runtime import Runtime
from .decoding.sampling import Sampling
from specdec_lib.decoding.results import Generation
from .decoding.transformers_generate import custom_generate
from .decoding.tree import DraftTree
from .models.loading import load_model

__version__ = "0.1.0"
__all__ = ["Capture", "DraftTree", "Generation", "Runtime", "Sampling", "Trace", "UnsupportedModel", "custom_generate", "generate",
           "load_model", "record", "replay"]
