"""How a draft is proposed. A new method is one file here and one row in :data:`specdec_lib.methods.METHODS`."""

from .draft_model import AdaptiveDraftModel, DraftModel
from .dresd import Dresd
from .prompt_lookup import PromptLookup
from .prompt_lookup_plus import PromptLookupAttention, PromptLookupHidden
from .rest import Rest
from .specdec_pp import SpecDecPP

__all__ = [
    "AdaptiveDraftModel",
    "DraftModel",
    "Dresd",
    "PromptLookup",
    "PromptLookupAttention",
    "PromptLookupHidden",
    "Rest",
    "SpecDecPP",
]
