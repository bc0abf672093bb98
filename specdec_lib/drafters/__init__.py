"""How a draft is proposed. A new method is one file here and one row in :data:`specdec_lib.methods.METHODS`."""

from specdec_lib.drafters.draft_model import AdaptiveDraftModel, DraftModel
from specdec_lib.drafters.dresd import Dresd
from specdec_lib.drafters.lookahead import Lookahead
from specdec_lib.drafters.prompt_lookup import PromptLookup
from specdec_lib.drafters.prompt_lookup_plus import PromptLookupAttention, PromptLookupHidden
from specdec_lib.drafters.rest import Rest
from specdec_lib.drafters.sam_decoding import SamDecoding
from specdec_lib.drafters.specdec_pp import SpecDecPP
from specdec_lib.drafters.suffix_decoding import SuffixDecoding
from specdec_lib.drafters.token_recycling import TokenRecycling

__all__ = [
    "AdaptiveDraftModel",
    "DraftModel",
    "Dresd",
    "Lookahead",
    "PromptLookup",
    "PromptLookupAttention",
    "PromptLookupHidden",
    "Rest",
    "SamDecoding",
    "SpecDecPP",
    "SuffixDecoding",
    "TokenRecycling",
]
