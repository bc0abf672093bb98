"""Every method of the library on one pair of models: what a comparison of all of them runs."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.drafters import (
    AdaptiveDraftModel,
    DraftModel,
    Dresd,
    PromptLookup,
    PromptLookupAttention,
    PromptLookupHidden,
    Rest,
)
from specdec_lib.drafters.stopping import Confidence
from specdec_lib.experiments import stores

#: Tokens of the sparse and of the dense store.
SPARSE_TOKENS, DENSE_TOKENS = 100_000, 10_000


@dataclass(frozen=True)
class Bench:
    """A pair of models, and stores that are built when a method asks for them.

    Attributes
    ----------
    target, draft : PreTrainedModel
    tokenizer : PreTrainedTokenizerBase
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @cached_property
    def sparse(self) -> SuffixIndex:
        """A store of training-side standard library text."""
        return stores.text_store("stdlib", self.tokenizer, SPARSE_TOKENS)

    @cached_property
    def dense(self) -> SuffixIndex:
        """The first documents of the same text, with the target's states."""
        part = stores.first_part(self.sparse, DENSE_TOKENS)
        return stores.dense_index(stores.dense_states(self.target, part), part)

    @property
    def heads(self) -> list[tuple[int, int]]:
        """All heads of the last block: any heads must leave the output as it is."""
        config = decoder_config(self.target)
        return [(config.num_hidden_layers - 1, head) for head in range(config.num_attention_heads)]


#: Every method, and whether it equals plain decoding token for token where the target samples (a draft model
#: is then verified by rejection sampling: equal in distribution, which the tests check by chi-square).
METHODS: dict[str, tuple[Callable[[Bench], Drafter], bool]] = {
    "PLD": (lambda bench: PromptLookup(), True),
    "PLD (transformers' variant)": (lambda bench: PromptLookup(2, 10, variant="transformers"), True),
    "PLD+ (h)": (lambda bench: PromptLookupHidden(decoder_config(bench.target).num_hidden_layers // 2), True),
    "PLD+ (a)": (lambda bench: PromptLookupAttention(bench.heads), True),
    "REST": (lambda bench: Rest(bench.sparse), True),
    "DReSD": (lambda bench: Dresd(bench.dense), True),
    "SpecDec": (lambda bench: DraftModel(bench.draft, 4), False),
    "SpecDec, adaptive": (lambda bench: AdaptiveDraftModel(bench.draft, Confidence(0.4)), False),
}
