"""Proposers that the engines of the tests load by their names."""

import json
import os
from pathlib import Path

from specdec_lib import Drafter, DraftTree
from specdec_lib.drafters import PromptLookupHidden
from specdec_lib.vllm import SETTINGS, Proposer, proposer

Refused = proposer(lambda: PromptLookupHidden(1))


class Own(Drafter):
    """What followed the last token's first occurrence, as someone might write it: its state would not survive a shallow copy."""

    def __init__(self):
        self.seen = []

    def start(self, context):
        self.seen.clear()

    def propose(self, context, limit):
        self.seen += context.tokens[len(self.seen) :]
        place = self.seen.index(self.seen[-1])
        return DraftTree.chain(self.seen[place + 1 : place + 1 + limit])


class Chosen:
    """The proposer that the file ``CHOICE`` names, a new one when it changes, so that one engine serves many tests.

    The file holds the settings of :func:`specdec_lib.vllm.Proposer`, or ``{"own": true}``. With ``"biased"`` the engine's
    rejection sampler accepts every draft.
    """

    def __init__(self, vllm_config):
        self.config, self.text, self.biased = vllm_config, "", False
        self._choose()

    def _choose(self):
        text = Path(os.environ["CHOICE"]).read_text()
        if text != self.text:
            settings = json.loads(text)
            self.text, self.biased = text, settings.pop("biased", False)
            os.environ[SETTINGS] = json.dumps(settings)
            self.made = proposer(Own)(self.config) if "own" in settings else Proposer(self.config)

    def load_model(self, *given, **named):
        from vllm.v1.sample import rejection_sampler

        self.made.load_model(*given, **named)
        honest = rejection_sampler.rejection_sample

        def sampled(draft_token_ids, num_draft_tokens, *given, **named):
            out = honest(draft_token_ids, num_draft_tokens, *given, **named)
            start = 0
            for row, count in enumerate(num_draft_tokens):
                if self.biased:
                    out[row, :count] = draft_token_ids[start : start + count]
                start += count
            return out

        rejection_sampler.rejection_sample = sampled

    def propose(self, *given, **named):
        self._choose()
        return self.made.propose(*given, **named)
