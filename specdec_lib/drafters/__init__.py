"""How a draft is proposed. A new method is one file here and one row in :data:`specdec_lib.methods.METHODS`.

It implements :class:`specdec_lib.decoding.contract.Drafter`; :mod:`specdec_lib.drafters.prompt_lookup` is a short example.
"""

from specdec_lib.lazy import names_of

__getattr__, __dir__, __all__ = names_of(
    __name__,
    {
        "AdaptiveDraftModel": "draft_model",
        "DraftModel": "draft_model",
        "Dresd": "dresd",
        "Lookahead": "lookahead",
        "PromptLookup": "prompt_lookup",
        "PromptLookupAttention": "prompt_lookup_plus",
        "PromptLookupHidden": "prompt_lookup_plus",
        "Rest": "rest",
        "SamDecoding": "sam_decoding",
        "SpecDecPP": "specdec_pp",
        "SuffixDecoding": "suffix_decoding",
        "TokenRecycling": "token_recycling",
    },
)
