"""How a draft is proposed. A new method is one file here and one line in :data:`REGISTRY`."""

from .draft_model import AdaptiveDraftModel, DraftModel
from .dresd import Dresd
from .prompt_lookup import PromptLookup
from .prompt_lookup_plus import PromptLookupAttention, PromptLookupHidden
from .rest import Rest
from .specdec_pp import SpecDecPP

#: Drafters by the name the book gives them.
REGISTRY = {
    "PLD": PromptLookup,
    "PLD+ (h)": PromptLookupHidden,
    "PLD+ (a)": PromptLookupAttention,
    "REST": Rest,
    "DReSD": Dresd,
    "SpecDec": DraftModel,
    "SpecDec++": SpecDecPP,
}

__all__ = [
    "REGISTRY",
    "AdaptiveDraftModel",
    "DraftModel",
    "Dresd",
    "PromptLookup",
    "PromptLookupAttention",
    "PromptLookupHidden",
    "Rest",
    "SpecDecPP",
]
