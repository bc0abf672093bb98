"""How a draft is proposed. A new method is one file here and one line in :data:`REGISTRY`."""
from .draft_model import DraftModel
from .prompt_lookup import PromptLookup
from .rest import Rest

#: Drafters by the name the book gives them.
REGISTRY = {"PLD": PromptLookup, "REST": Rest, "SpecDec": DraftModel}

__all__ = ["REGISTRY", "DraftModel", "PromptLookup", "Rest"]
