"""Drafting with a small model: until a rule says stop, or a fixed number of tokens (SpecDec)."""

from __future__ import annotations

import sys

import torch
from transformers import PreTrainedModel

from ..decoding.contract import Capture, Context, Drafter
from ..decoding.runtime import Runtime
from ..decoding.sampling import DRAFT, distribution, invert_cdf, most_likely
from specdec_lib.decoding.served_models import context_limit, decoder_config, exact_length, vocabulary_size
from ..decoding.target import Target, check_model
from ..decoding.tree import EMPTY, DraftTree
from ..heads.acceptance import AcceptanceHead
from .stopping import FixedLength, Round, StoppingRule


class AdaptiveDraftModel(Drafter):
    """Draft with a small model of the same vocabulary until a rule says stop.

    Greedy where the target is greedy. Otherwise tokens are drawn under the target's temperature, top-p and
    top-k, and come with the distribution they were drawn from, so that verification is by rejection
    sampling (Leviathan et al. 2023; Chen et al. 2023). The output does not depend on the rule
    (:mod:`specdec_lib.drafters.stopping`).

    Parameters
    ----------
    model : PreTrainedModel
        The draft model.
    rule : StoppingRule
        Asked before each token from ``min_tokens`` on.
    min_tokens, max_tokens : int
        Tokens drafted at least and at most, where the limits of the generation allow.
    head : AcceptanceHead, optional
        Of this model; for rules that need the acceptance.
    runtime : Runtime, optional
        How this model's passes are run; eagerly without one. Past its capacity nothing is drafted.

    Raises
    ------
    ValueError
        If ``min_tokens`` is below 0 or above ``max_tokens``, or ``max_tokens`` below 1; if the rule needs a
        head and there is none, or the head is another model's; at the start of a generation, if the
        target's vocabulary differs.
    """

    #: Verified by rejection sampling where the target samples.
    replays = "greedy"

    def __init__(
        self,
        model: PreTrainedModel,
        rule: StoppingRule,
        min_tokens: int = 1,
        max_tokens: int = 20,
        head: AcceptanceHead | None = None,
        runtime: Runtime | None = None,
    ):
        for name, value, least in (("min_tokens", min_tokens, 0), ("max_tokens", max_tokens, 1)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is {value!r}; expected a whole number, {least} or more")
        if min_tokens > max_tokens:
            raise ValueError(
                f"min_tokens is {min_tokens} and max_tokens {max_tokens}; expected min_tokens <= max_tokens"
            )
        if not isinstance(model, PreTrainedModel):
            raise TypeError(
                f"model is a {type(model).__name__}; expected a causal language model of transformers "
                "(specdec_lib.load_model gives one)"
            )
        check_model(model)
        self._score, own, self._needs = None, Capture(), set(rule.needs)
        if "acceptance" in rule.needs:
            if head is None:
                raise ValueError(
                    f"{type(rule).__name__} needs an acceptance head; pass "
                    "head=AcceptanceHead.load(path, model)"
                )
            head.check(model)
            self._score = head.scorer(model.device)
            self._needs |= {"confidence"} if head.sees_confidence else set()
            own = Capture(layers=(decoder_config(model).num_hidden_layers,))
        self.model, self.rule, self.head, self.runtime = model, rule, head, runtime
        self.min_tokens, self.max_tokens = min_tokens, max_tokens
        self._own = own
        self._target: Target | None = None
        self._cached: list[int] = []
        self._drafted: list[int] = []
        self._round: Round | None = None
        self._longest = 0

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.model).__name__}, {type(self.rule).__name__}, "
            f"min_tokens={self.min_tokens}, max_tokens={self.max_tokens})"
        )

    def reset(self) -> None:
        self.rule.reset()

    def start(self, context: Context) -> None:
        own = vocabulary_size(self.model)
        if own != context.vocabulary:
            raise ValueError(
                f"the draft model has {own} token ids, the target {context.vocabulary}: they must share one "
                "tokenizer"
            )
        self.finish()
        self._target = Target(self.model, 0, self._own, len(context.tokens) + 256, self.runtime)
        self._cached, self._round = [], None
        # Past its own context or window the draft model is silent: the target goes on alone.
        room = self.runtime.capacity if self.runtime is not None else None
        self._longest = min(
            (n for n in (context_limit(self.model), exact_length(self.model), room) if n), default=sys.maxsize
        )
        # What is cached of the prompt belongs to the prefill, as the target's does.
        known = context.tokens[:-1]
        if len(known) < self._longest:
            with torch.inference_mode():
                self._target.extend(known)
            self._cached = known
        self.rule.start()

    def finish(self) -> None:
        """Give the draft model and its runtime back."""
        if self._target is not None:
            self._target.close()
            self._target = None

    def propose(self, context: Context, limit: int) -> DraftTree:
        self._tell(context.tokens)
        most = min(self.max_tokens, limit, self._longest - len(context.tokens))
        if most < 1:
            return EMPTY
        self._roll_back(context.tokens)
        drafted, rows = self._drafted, []
        self._round = seen = Round(len(context.tokens))
        logits, feed = None, context.tokens[len(self._cached) :]
        with torch.inference_mode():
            while len(drafted) < most:
                if len(drafted) >= self.min_tokens:
                    if logits is None and drafted and self.rule.check_newest:
                        logits = self._forward(feed, seen)
                    if self.rule.stop(seen):
                        break
                if logits is None:
                    logits = self._forward(feed, seen)
                token = self._choose(logits, context.sampling, seen, rows)
                drafted.append(token)
                logits, feed = None, [token]
        return DraftTree.chain(drafted, torch.stack(rows) if rows else None)

    def _forward(self, feed: list[int], seen: Round) -> torch.Tensor:
        logits = self._target.extend(feed)
        self._cached += feed
        # The first pass of a round ends with the last emitted token, which is not judged.
        if self._score is not None and seen.count:
            confidence = seen.confidence[-1] if seen.confidence else 0.5
            seen.acceptance.append(self._score(self._target.last_hidden(self._own.layers[0]), confidence))
        return logits

    def _choose(self, logits: torch.Tensor, sampling, seen: Round, rows: list[torch.Tensor]) -> int:
        """The next draft token; notes what the rule needs and, in ``rows``, the distribution it was drawn
        from."""
        needs = self._needs
        if sampling.greedy:
            token = most_likely(logits[None])[0]
            row = logits.float().softmax(-1) if "confidence" in needs or "entropy" in needs else None
        else:
            row = distribution(logits, sampling)
            rows.append(row)
            # The salt tells drafts of one position in different rounds apart.
            token = invert_cdf(row, sampling.uniform(seen.position + seen.count, DRAFT, salt=seen.position))
        if "confidence" in needs:
            seen.confidence.append(float(row[token]))
        if "entropy" in needs:
            seen.entropy.append(float(torch.special.entr(row).sum()))
        seen.count += 1
        return token

    def _tell(self, tokens: list[int]) -> None:
        """Report to the rule how much of the last draft was accepted, as the emitted tokens show."""
        if self._round is not None:
            emitted = tokens[self._round.position :]
            accepted = 0
            # A token refused is never emitted in its place, neither when greedy nor from the residual.
            for ours, theirs in zip(self._drafted, emitted, strict=False):
                if ours != theirs:
                    break
                accepted += 1
            self.rule.verified(self._round, accepted)
        self._drafted, self._round = [], None

    def _roll_back(self, tokens: list[int]) -> None:
        """Keep the cached positions that agree with what was emitted, the last token excepted."""
        common = min(len(self._cached), len(tokens) - 1)
        start = self._agreed(tokens, common)
        del self._cached[start:]
        self._target.truncate(start)

    def _agreed(self, tokens: list[int], common: int) -> int:
        # Only drafted tokens can differ: look at the last few.
        first = max(0, common - self.max_tokens)
        for i in range(first, common):
            if self._cached[i] != tokens[i]:
                return i
        return common


class DraftModel(AdaptiveDraftModel):
    """Draft ``num_tokens`` tokens with a small model of the same vocabulary.

    Parameters
    ----------
    model : PreTrainedModel
        The draft model.
    num_tokens : int
        Tokens drafted (K).
    runtime : Runtime, optional
        How this model's passes are run; eagerly without one.

    Raises
    ------
    ValueError
        If ``num_tokens`` is below 1; at the start of a generation, if the target's vocabulary differs.
    """

    def __init__(self, model: PreTrainedModel, num_tokens: int = 4, runtime: Runtime | None = None):
        super().__init__(model, FixedLength(num_tokens), max_tokens=num_tokens, runtime=runtime)
        self.num_tokens = num_tokens

    def __repr__(self) -> str:
        return f"DraftModel({type(self.model).__name__}, num_tokens={self.num_tokens})"
