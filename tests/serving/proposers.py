"""Proposers that the engines of the tests load by their names."""

from specdec_lib.drafters import PromptLookup, PromptLookupHidden
from specdec_lib.vllm import proposer

Refused = proposer(lambda: PromptLookupHidden(1))


def Biased(vllm_config):
    """PLD, in an engine whose rejection sampler accepts every draft."""
    from vllm.v1.sample import rejection_sampler

    honest = rejection_sampler.rejection_sample

    def biased(draft_token_ids, num_draft_tokens, *given, **named):
        out = honest(draft_token_ids, num_draft_tokens, *given, **named)
        start = 0
        for row, count in enumerate(num_draft_tokens):
            out[row, :count] = draft_token_ids[start : start + count]
            start += count
        return out

    rejection_sampler.rejection_sample = biased
    return proposer(lambda: PromptLookup(3, 6, variant="transformers"))(vllm_config)
