"""Drafting with a small model: until a rule says stop, or a fixed number of tokens (SpecDec)."""

from __future__ import annotations

import math
import sys

import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.checks import one_of, whole_number
from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.decoding.sampling import DRAFT, Sampling, invert_cdfs, not_numbers, unchecked_distribution
from specdec_lib.decoding.served_models import (
    UnsupportedModel,
    check_paired,
    context_limit,
    decoder_config,
    exact_length,
    input_device,
    recurrent_layers,
    unwrapped,
)
from specdec_lib.decoding.target import Target, check_model
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters.stopping import QUANTITIES, FixedLength, Round, StoppingRule
from specdec_lib.heads.acceptance import NO_STATES, AcceptanceHead
from specdec_lib.models.draft_vocabulary import DraftVocabulary, checked_vocabulary, draft_vocabulary


class AdaptiveDraftModel(Drafter):
    """Draft with a small model of the target's tokenizer until a rule says stop.

    Greedy where the target is greedy. Otherwise tokens are drawn under the target's temperature, top-p and top-k, and come with
    the distribution they were drawn from, so that verification is by rejection sampling (Leviathan et al. 2023; Chen et al.
    2023). The output does not depend on the rule (:mod:`specdec_lib.drafters.stopping`).

    Parameters
    ----------
    model : PreTrainedModel
        The draft model, in evaluation mode.
    rule : StoppingRule
        Asked before each token from ``min_tokens`` on.
    min_tokens, max_tokens : int
        Tokens drafted at least and at most, where the limits of the generation allow.
    head : AcceptanceHead, optional
        Of this model; for rules that need the acceptance.
    runtime : Runtime, optional
        How this model's passes are run; eagerly without one. Past its capacity nothing is drafted.
    vocabulary : DraftVocabulary, optional
        Which of the target's tokens the model knows; by default what its folder says
        (:mod:`specdec_lib.models.draft_vocabulary`), else all of them under the same ids.

    Raises
    ------
    UnsupportedModel
        A ValueError: the draft model cannot be served. That it shares no tokenizer with the target is a ValueError once a
        generation starts.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import AdaptiveDraftModel
    >>> from specdec_lib.drafters.stopping import Confidence
    >>> drafter = AdaptiveDraftModel(draft, Confidence(threshold=0.4), max_tokens=8)
    >>> run = generate(model, prompt, drafter, max_new_tokens=24)
    >>> [step.drafted for step in run.steps]
    [2, 1, 1, 1, 1, 6, 4, 1, 1]
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
        vocabulary: DraftVocabulary | None = None,
    ):
        min_tokens, max_tokens = whole_number("min_tokens", min_tokens, 0), whole_number("max_tokens", max_tokens, 1)
        if min_tokens > max_tokens:
            raise ValueError(f"min_tokens is {min_tokens}, max_tokens {max_tokens}; expected min_tokens <= max_tokens")
        if not isinstance(unwrapped(model), PreTrainedModel):
            raise TypeError(f"model is a {type(model).__name__}; expected a causal language model, as load_model gives")
        for need in rule.needs:
            one_of(f"needs of {type(rule).__name__} has a value that", need, QUANTITIES)
        check_model(model)
        if any(recurrent_layers(model)):
            raise UnsupportedModel(
                f"{type(unwrapped(model)).__name__} has layers with one state of the whole text, which a rejected draft cannot be "
                "dropped from; draft with a model that has attention alone"
            )
        self._score, own, self._needs = None, Capture(), set(rule.needs)
        if "acceptance" in rule.needs:
            if head is None:
                raise ValueError(f"{type(rule).__name__} needs an acceptance head; pass head=AcceptanceHead.load(path)")
            head.check(model)
            self._score = head.scorer(input_device(model))
            self._needs |= {"confidence"} if head.sees_confidence else set()
            own = Capture(layers=(decoder_config(model).num_hidden_layers,))
        self.model, self.rule, self.head, self.runtime = model, rule, head, runtime
        self.vocabulary = draft_vocabulary(model) if vocabulary is None else checked_vocabulary(model, vocabulary)
        self.min_tokens, self.max_tokens = min_tokens, max_tokens
        self._own = own
        self._target: Target | None = None
        self._cached: list[int] = []
        self._drafted: list[int] = []
        self._round: Round | None = None
        self._longest = 0
        #: A pass is under way, or one failed and may have left NaN in the buffers.
        self._unsure = False

    def reset(self) -> None:
        self.rule.reset()

    def start(self, context: Context) -> None:
        self._known = self._paired(context)
        check_model(self.model)  # again, if it was changed
        self.finish()
        self._target = Target(self.model, 0, self._own, len(context.tokens) + 256, self.runtime)
        self._cached, self._round = [], None
        # Past its own context or window the draft model is silent: the target goes on alone.
        room = getattr(self.runtime, "capacity", None)
        self._longest = min(
            (n for n in (context_limit(self.model), exact_length(self.model), room) if n), default=sys.maxsize
        )
        # What is cached of the prompt belongs to the prefill, as the target's does.
        known = context.tokens[:-1]
        if len(known) < self._longest:
            self._unsure = True
            with torch.inference_mode():
                self._target.extend(self._known.to_draft(known))
            self._cached, self._unsure = known, False
        self.rule.start()

    def _paired(self, context: Context) -> DraftVocabulary:
        """The draft's tokens that the target has; ValueError if the two share no tokenizer."""
        known = self.vocabulary
        if known.shared:
            check_paired(self.model, context.token_ids)
        elif known.largest >= context.token_ids:
            raise ValueError(
                f"the draft model has {known.largest + 1} token ids, the target {context.token_ids}: they must share one tokenizer"
            )
        return known.within(context.vocabulary)

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
        self._round = Round(len(context.tokens))
        known = context.tokens[len(self._cached) :]
        self._unsure = True
        with torch.inference_mode():
            own, rows = self._draft(self._known.to_draft(known), context.sampling, most, self._round)
            self._drafted = self._known.to_target(own)
            self._cached += (known + self._drafted)[: self._target.length - len(self._cached)]
            probabilities = self._known.spread(torch.stack(rows), context.vocabulary) if rows else None
        self._unsure = False
        return DraftTree.chain(self._drafted, probabilities)

    def _draft(
        self, feed: list[int] | torch.Tensor, sampling: Sampling, most: int, seen: Round
    ) -> tuple[list[int], list[torch.Tensor]]:
        """Tokens as the draft's own ids, and the distributions that they were drawn from where the target samples.

        The host reads the tokens at the end, and before only what the rule looks at. The token that the rule may be asked about
        next is chosen before it is asked, and left out where it says stop; what the rule is told does not depend on that token.
        """
        drafted, rows, judged = [], [], bool(self._needs or self.rule.check_newest)
        while seen.count < most:
            asked, check_newest = seen.count >= self.min_tokens, self.rule.check_newest and seen.count > 0
            if asked and not check_newest and self.rule.stop(seen):
                break
            token, row = self._choose(self._target.extend(feed)[: len(self._known)], sampling, seen)
            values = self._values(token, row, seen) if judged else {"token": token}
            if "acceptance" in values:
                seen.acceptance.append(values["acceptance"])
            if asked and check_newest and self.rule.stop(seen):
                break
            for name in ("confidence", "entropy"):
                if name in values:
                    getattr(seen, name).append(values[name])
            drafted.append(values["token"])
            rows += [] if sampling.greedy else [row]
            seen.count += 1
            feed = token.clamp(min=0)[None]
        read = drafted if judged or not drafted else torch.stack(drafted).tolist()
        if read and min(read) < 0:
            raise not_numbers()
        return [int(token) for token in read], rows

    def _values(self, token: torch.Tensor, row: torch.Tensor | None, seen: Round) -> dict[str, float]:
        """The token and what the rule needs to know after a pass, read back from the device at once."""
        queued = {"token": token}
        # The first pass of a round ends with the last emitted token, which is not judged.
        if seen.count and self._score is not None:
            confidence = seen.confidence[-1] if seen.confidence else 0.5
            queued["acceptance"] = self._score(self._target.last_hidden(self._own.layers[0]), confidence)
        if "confidence" in self._needs:
            queued["confidence"] = row.gather(0, token.clamp(min=0)[None])[0]
        if "entropy" in self._needs:
            queued["entropy"] = torch.special.entr(row).sum()
        read = torch.stack([torch.as_tensor(value, device=token.device).double() for value in queued.values()]).tolist()
        values = dict(zip(queued, read, strict=True))
        if math.isnan(values.get("acceptance", 0.0)):
            raise not_numbers(NO_STATES)
        if values["token"] < 0:
            raise not_numbers()
        return values

    def _choose(
        self, logits: torch.Tensor, sampling: Sampling, seen: Round
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The next token, on the device and -1 where the logits are no numbers, and what it was chosen by where needed."""
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
            # A token rejected is never emitted in its place, neither when greedy nor from the residual.
            for ours, theirs in zip(self._drafted, emitted, strict=False):
                if ours != theirs:
                    break
                accepted += 1
            self.rule.verified(self._round, accepted)
        self._drafted, self._round = [], None

    def _roll_back(self, tokens: list[int]) -> None:
        """Keep the cached positions that agree with what was emitted, the last token excepted."""
        start = common = min(len(self._cached), len(tokens) - 1)
        # Only drafted tokens can differ: look at the last few.
        for i in range(max(0, common - self.max_tokens), common):
            if self._cached[i] != tokens[i]:
                start = i
                break
        del self._cached[start:]
        self._target.truncate(start)


class DraftModel(AdaptiveDraftModel):
    """Draft a fixed number of tokens with a small model (SpecDec; Leviathan et al. 2023).

    Parameters
    ----------
    model, runtime, vocabulary
        As for :class:`AdaptiveDraftModel`.
    num_tokens : int
        Tokens drafted (K).

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import DraftModel
    >>> run = generate(model, prompt, DraftModel(draft, num_tokens=4), max_new_tokens=24)
    >>> run.tokens == generate(model, prompt, max_new_tokens=24).tokens
    True
    >>> round(run.stats["acceptance_rate"], 2)
    0.45
    """

    def __init__(
        self,
        model: PreTrainedModel,
        num_tokens: int = 4,
        runtime: Runtime | None = None,
        vocabulary: DraftVocabulary | None = None,
    ):
        self.num_tokens = whole_number("num_tokens", num_tokens, 1)
        rule = FixedLength(self.num_tokens)
        super().__init__(model, rule, max_tokens=self.num_tokens, runtime=runtime, vocabulary=vocabulary)
