"""Speculative decoding, reproduced: any drafter, one verifier, any causal language model of transformers."""

from specdec_lib.lazy import names_of

__version__ = "1.0.0"
__getattr__, __dir__, __all__ = names_of(
    __name__,
    {
        "LAST": "decoding.contract",
        "Capture": "decoding.contract",
        "Context": "decoding.contract",
        "Drafter": "decoding.contract",
        "WrappedDrafter": "decoding.contract",
        "DraftTree": "decoding.tree",
        "AuxiliaryTokens": "decoding.tree",
        "Generation": "decoding.results",
        "Outputs": "decoding.outputs",
        "Runtime": "decoding.runtime",
        "Sampling": "decoding.sampling",
        "Trace": "decoding.loop",
        "UnsupportedModel": "decoding.served_models",
        "custom_generate": "decoding.transformers_generate",
        "generate": "decoding.generate",
        "load_model": "models.loading",
        "record": "decoding.generate",
        "replay": "decoding.loop",
    },
    former={"Passengers": "AuxiliaryTokens"},
)
