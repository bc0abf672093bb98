"""Speculative decoding with a small draft model and a fixed number of tokens (SpecDec)."""
from __future__ import annotations

import sys

import torch
from transformers import PreTrainedModel

from ..decoding.contract import Capture, Context
from ..decoding.sampling import DRAFT, distribution, invert_cdf, most_likely
from ..decoding.target import Target, check_model, context_limit, exact_length, vocabulary_size
from ..decoding.tree import EMPTY, DraftTree


class DraftModel:
    """Draft ``num_tokens`` tokens with a small model of the same vocabulary.

    Greedy where the target is greedy. Otherwise tokens are drawn under the target's temperature, top-p and top-k, and
    come with the distribution they were drawn from, so that verification is by rejection sampling (Leviathan et al.
    2023; Chen et al. 2023).

    Parameters
    ----------
    model : PreTrainedModel
        The draft model.
    num_tokens : int
        Tokens drafted (K).

    Raises
    ------
    ValueError
        If ``num_tokens`` is below 1; at the start of a generation, if the target's vocabulary differs.
    """

    capture = Capture()
    #: Verified by rejection sampling where the target samples.
    samples = True

    def __init__(self, model: PreTrainedModel, num_tokens: int = 4):
        if not isinstance(num_tokens, int) or num_tokens < 1:
            raise ValueError(f"num_tokens is {num_tokens!r}; expected a whole number, 1 or more")
        if not isinstance(model, PreTrainedModel):
            raise TypeError(f"model is a {type(model).__name__}; expected a causal language model of transformers "
                            "(specdec_lib.load_model gives one)")
        check_model(model)
        self.model, self.num_tokens = model, num_tokens
        self._target: Target | None = None
        self._cached: list[int] = []
        self._longest = 0

    def __repr__(self) -> str:
        return f"DraftModel({type(self.model).__name__}, num_tokens={self.num_tokens})"

    def start(self, context: Context) -> None:
        own = vocabulary_size(self.model)
        if own != context.vocabulary:
            raise ValueError(f"the draft model has {own} token ids, the target {context.vocabulary}: they must share one "
                             "tokenizer")
        if self._target is not None:
            self._target.close()
        self._target = Target(self.model, 0, capacity=len(context.tokens) + 256)
        self._cached = []
        # Past its own context or window the draft model is silent: the target goes on alone.
        self._longest = min((n for n in (context_limit(self.model), exact_length(self.model)) if n), default=sys.maxsize)

    def propose(self, context: Context, limit: int) -> DraftTree:
        count = min(self.num_tokens, limit, self._longest - len(context.tokens))
        if count < 1:
            return EMPTY
        self._roll_back(context.tokens)
        sampling, position = context.sampling, len(context.tokens)
        drafted: list[int] = []
        rows: list[torch.Tensor] = []
        with torch.inference_mode():
            feed = context.tokens[len(self._cached):]
            for _ in range(count):
                logits = self._target.extend(feed)
                self._cached += feed
                if sampling.greedy:
                    token = most_likely(logits[None])[0]
                else:
                    rows.append(distribution(logits, sampling))
                    # The salt tells drafts of one position in different rounds apart.
                    token = invert_cdf(rows[-1], sampling.uniform(position + len(drafted), DRAFT, salt=position))
                drafted.append(token)
                feed = [token]
        return DraftTree.chain(drafted, torch.stack(rows) if rows else None)

    def _roll_back(self, tokens: list[int]) -> None:
        """Keep the cached positions that agree with what was emitted, the last token excepted."""
        common = min(len(self._cached), len(tokens) - 1)
        start = self._agreed(tokens, common)
        del self._cached[start:]
        self._target.truncate(start)

    def _agreed(self, tokens: list[int], common: int) -> int:
        # Only drafted tokens can differ: look at the last few.
        first = max(0, common - self.num_tokens)
        for i in range(first, common):
            if self._cached[i] != tokens[i]:
                return i
        return common
