"""Drafting with a small model: until a rule says stop, or a fixed number of tokens (SpecDec)."""

from __future__ import annotations

import sys

import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.decoding.sampling import DRAFT, invert_cdfs, not_numbers, unchecked_distribution
from specdec_lib.decoding.served_models import (
    check_paired,
    context_limit,
    decoder_config,
    exact_length,
    unwrapped,
    vocabulary_size,
)
from specdec_lib.decoding.target import Target, check_model
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters.stopping import FixedLength, Round, StoppingRule
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.acceptance import not_numbers as no_states


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
        if not isinstance(unwrapped(model), PreTrainedModel):
            raise TypeError(
                f"model is a {type(model).__name__}; expected a causal language model of transformers "
                "(specdec_lib.load_model gives one)"
            )
        check_model(model)
        self._score, self._queued_score, own, self._needs = None, None, Capture(), set(rule.needs)
        if "acceptance" in rule.needs:
            if head is None:
                raise ValueError(
                    f"{type(rule).__name__} needs an acceptance head; pass head=AcceptanceHead.load(path, model)"
                )
            head.check(model)
            if model.device.type == "cpu":
                self._score = head.scorer(model.device)
            else:
                self._queued_score = head.queued_scorer(model.device)
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
        #: A pass is under way, or one failed and may have left in the buffers what is no number.
        self._unsure = False

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.model).__name__}, {type(self.rule).__name__}, "
            f"min_tokens={self.min_tokens}, max_tokens={self.max_tokens})"
        )

    def reset(self) -> None:
        self.rule.reset()

    def start(self, context: Context) -> None:
        check_paired(self.model, context.token_ids)
        self._ids, rows = context.vocabulary, vocabulary_size(self.model)
        self._last_row = rows - 1 if rows < context.vocabulary else None
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
            self._unsure = True
            with torch.inference_mode():
                self._extend(known)
            self._cached, self._unsure = known, False
        self.rule.start()

    def finish(self) -> None:
        """Give the draft model and its runtime back."""
        if self._target is not None:
            self._target.close(failed=self._unsure)
            self._target, self._unsure = None, False

    def propose(self, context: Context, limit: int) -> DraftTree:
        self._tell(context.tokens)
        most = min(self.max_tokens, limit, self._longest - len(context.tokens))
        if most < 1:
            return EMPTY
        self._roll_back(context.tokens)
        self._round = seen = Round(len(context.tokens))
        draft = self._judged if self._needs or self.rule.check_newest else self._unread
        self._unsure = True
        with torch.inference_mode():
            self._drafted, rows = draft(context, most, seen)
        self._unsure = False
        return DraftTree.chain(self._drafted, torch.stack(rows) if rows else None)

    def _extend(self, tokens: list[int] | torch.Tensor) -> torch.Tensor:
        if self._last_row is not None and isinstance(tokens, list):
            # What this model has no row for is read as another token: the draft is worse then, the output is not.
            tokens = [min(token, self._last_row) for token in tokens]
        return self._target.extend(tokens)

    def _unread(self, context: Context, most: int, seen: Round) -> tuple[list[int], list[torch.Tensor]]:
        """Draft by a rule that looks at no value: each token goes into the next pass on the device, unread.

        Returns the tokens, and the distributions that they were drawn from.
        """
        feed: list[int] | torch.Tensor = context.tokens[len(self._cached) :]
        known, queued, rows = list(feed), [], []
        while seen.count < most and not (seen.count >= self.min_tokens and self.rule.stop(seen)):
            token, row = self._choose(self._extend(feed), context.sampling, seen)
            queued.append(token)
            rows += [] if row is None else [row]
            seen.count += 1
            feed = token.clamp(min=0)[None]
        drafted = torch.stack(queued).tolist() if queued else []
        if drafted:
            if min(drafted) < 0:
                raise not_numbers()
            self._cached += known + drafted[:-1]
        return drafted, rows

    def _judged(self, context: Context, most: int, seen: Round) -> tuple[list[int], list[torch.Tensor]]:
        """Draft by a rule that looks at values: all that a pass gives is read at once.

        The token that the rule may be asked about next is chosen before it is asked, and left out where it says stop;
        what it is told does not depend on that token.
        """
        drafted, rows = [], []
        feed, newest = context.tokens[len(self._cached) :], None
        fed: list[int] | torch.Tensor = feed
        while len(drafted) < most:
            asked, check_newest = len(drafted) >= self.min_tokens, self.rule.check_newest and bool(drafted)
            if asked and not check_newest and self.rule.stop(seen):
                break
            logits = self._extend(fed)
            self._cached += feed
            token, row = self._choose(logits, context.sampling, seen)
            queued = {"token": token}
            # The first pass of a round ends with the last emitted token, which is not judged.
            if seen.count and self._score is not None:
                confidence = seen.confidence[-1] if seen.confidence else 0.5
                seen.acceptance.append(self._score(self._target.last_hidden(self._own.layers[0]), confidence))
            elif seen.count and self._queued_score is not None:
                queued["acceptance"] = self._queued_score(self._target.last_hidden(self._own.layers[0]), newest)
            if "confidence" in self._needs:
                queued["confidence"] = newest = row.gather(0, token.clamp(min=0)[None])[0]
            if "entropy" in self._needs:
                queued["entropy"] = torch.special.entr(row).sum()
            values = torch.stack([value.double() for value in queued.values()]).tolist()
            read = dict(zip(queued, values, strict=True))
            if "acceptance" in read:
                if read["acceptance"] != read["acceptance"]:
                    raise no_states()
                seen.acceptance.append(read["acceptance"])
            if read["token"] < 0:
                raise not_numbers()
            if asked and check_newest and self.rule.stop(seen):
                break
            drafted.append(int(read["token"]))
            for name in ("confidence", "entropy"):
                if name in read:
                    getattr(seen, name).append(read[name])
            rows += [] if context.sampling.greedy else [row]
            seen.count += 1
            feed, fed = drafted[-1:], token.clamp(min=0)[None]
        return drafted, rows

    def _choose(self, logits: torch.Tensor, sampling, seen: Round) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The next draft token, on the device and -1 where the logits are no numbers, and what it was chosen by where
        that is needed."""
        logits = logits[: self._ids]  # what the target has no id for is not drafted
        if sampling.greedy:
            largest, token = logits.max(-1)  # NaN counts as largest
            row = logits.float().softmax(-1) if {"confidence", "entropy"} & self._needs else None
            return torch.where(largest.isnan(), -1, token), row
        row = unchecked_distribution(logits, sampling)
        # The salt tells drafts of one position in different rounds apart.
        uniform = sampling.uniform(seen.position + seen.count, DRAFT, salt=seen.position)
        return torch.where(row[0].isnan(), -1, invert_cdfs(row[None], [uniform])[0]), row

    @property
    def confidence(self) -> list[float]:
        """Probability of each token of the last draft, where the rule needs it."""
        return [] if self._round is None else self._round.confidence[: len(self._drafted)]

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
