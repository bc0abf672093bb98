"""When to stop drafting, as arithmetic over one pass of the draft model.

A greedy draft from any place of a recorded output follows the recorded tokens up to the draft model's next
mistake and a branch of its own behind it. So one pass over the output and one over all branches at once
give every draft from every place, with the confidence, entropy and state at each token; what a stopping
rule does is then a matter of counting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.replay import Trace
from specdec_lib.decoding.served_models import context_limit, decoder_config, exact_length
from specdec_lib.decoding.target import Target
from specdec_lib.drafters.stopping import Round, StoppingRule
from specdec_lib.heads.acceptance import AcceptanceHead, Examples


@dataclass(frozen=True)
class DraftPass:
    """What the draft model says along one recorded greedy output of n tokens.

    Entry ``k`` of an array of length n + 1 is about the draft model's first choice behind the prompt and
    ``k`` tokens. A branch begins with such a choice where it is not the recorded token, or behind the last
    one, and goes on greedily.

    Attributes
    ----------
    trace : Trace
    longest : float
        Positions the draft model serves.
    miss : int array, shape (n + 1,)
        The next place, from ``k`` on, where a branch begins.
    branch : int array, shape (n + 1,)
        Index of the branch that begins at ``k``, -1 where none does.
    confidence, entropy : float array, shape (n + 1,)
        Of the first choice, and of its distribution at temperature 1 (nats).
    states : float tensor, shape (n, d)
        State at each recorded token.
    branch_confidence, branch_entropy : float array, shape (branches, depth)
    branch_states : float tensor, shape (branches, depth - 1, d)
    """

    trace: Trace
    longest: float
    miss: np.ndarray
    branch: np.ndarray
    confidence: np.ndarray
    entropy: np.ndarray
    states: torch.Tensor
    branch_confidence: np.ndarray
    branch_entropy: np.ndarray
    branch_states: torch.Tensor

    @property
    def agreement(self) -> np.ndarray:
        """Whether the first choice is the recorded token, bool, shape (n,)."""
        return self.branch[:-1] < 0

    def examples(self) -> Examples:
        """States and labels as they are met in greedy decoding: each first choice behind the recorded
        tokens."""
        firsts = torch.where(
            torch.from_numpy(self.agreement)[:, None],
            self.states,
            self.branch_states[:, 0][torch.from_numpy(self.branch[:-1])],
        )
        return Examples(
            firsts, torch.from_numpy(self.agreement).float(), torch.from_numpy(self.confidence[:-1]).float()
        )


def _about(logits: torch.Tensor) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """First choice, its probability and the entropy, for each row."""
    rows = logits.float().softmax(-1)
    confidence, choice = rows.max(-1)
    return choice, confidence.double().cpu().numpy(), torch.special.entr(rows).sum(-1).double().cpu().numpy()


@torch.inference_mode()
def draft_along(trace: Trace, draft: PreTrainedModel, depth: int = 20) -> DraftPass:
    """Run the draft model over a recorded output and over its own continuations behind each of its mistakes.

    Parameters
    ----------
    trace : Trace
        Greedy.
    draft : PreTrainedModel
    depth : int
        Longest draft asked for later.

    Raises
    ------
    ValueError
        If the trace was sampled or ``depth`` is below 2.
    """
    if not trace.sampling.greedy:
        raise ValueError("the trace was sampled; drafts are known in advance for greedy decoding only")
    if depth < 2:
        raise ValueError(f"depth is {depth}; expected 2 or more")
    prompt, tokens = trace.prompt, trace.tokens
    start, count, last = len(prompt), len(trace.tokens), decoder_config(draft).num_hidden_layers
    longest = min((n for n in (context_limit(draft), exact_length(draft)) if n), default=math.inf)
    with Target(draft, 0, Capture(layers=(last,)), capacity=start + count * (depth + 1)) as model:
        if start > 1:
            model.extend(prompt[:-1])
        causal = torch.ones((count + 1, start + count), dtype=torch.bool).tril(start - 1)
        logits = model.extend_rows([prompt[-1], *tokens], range(start - 1, start + count), causal)
        choice, confidence, entropy = _about(logits)
        wrong = torch.ones(count + 1, dtype=torch.bool)
        wrong[:-1] = choice[:-1].cpu() != torch.tensor(tokens)
        begins = wrong.nonzero()[:, 0]
        per_step = [(confidence[begins.numpy()], entropy[begins.numpy()])]
        branch_states = []
        feed = choice[begins.to(choice.device)]
        chain = torch.arange(start + count)[None] < (start + begins)[:, None]
        own = torch.eye(len(begins), dtype=torch.bool)
        for step in range(depth - 1):
            # Past the model's last position nothing is drafted; what is computed there is never read.
            at = (start + begins + step).clamp(max=int(min(longest, 2**31)) - 1)
            visible = torch.cat([chain, own.repeat(1, step + 1)], dim=1)
            feed, *about = _about(model.extend_rows(feed.tolist(), at.tolist(), visible))
            per_step.append(tuple(about))
            branch_states.append(model.hidden(last)[-len(begins) :].float().cpu().clone())
        states = model.hidden(last)[start : start + count].float().cpu().clone()
    branch = np.full(count + 1, -1)
    branch[begins.numpy()] = np.arange(len(begins))
    miss = begins.numpy()[np.searchsorted(begins.numpy(), np.arange(count + 1))]
    return DraftPass(
        trace,
        longest,
        miss,
        branch,
        confidence,
        entropy,
        states,
        *(np.stack(parts, axis=1) for parts in zip(*per_step, strict=True)),
        torch.stack(branch_states, dim=1),
    )


@dataclass(frozen=True)
class Judged:
    """A pass with what one acceptance head says about its tokens.

    Attributes
    ----------
    chain : float array, shape (n,)
        Predicted acceptance at each recorded token.
    branch : float array, shape (branches, depth - 1)
    """

    passed: DraftPass
    chain: np.ndarray
    branch: np.ndarray

    @classmethod
    def of(cls, passed: DraftPass, head: AcceptanceHead) -> Judged:
        """Ask ``head`` about every token of the pass."""
        device = next(head.parameters()).device
        pairs = (
            (passed.states, passed.confidence[:-1]),
            (passed.branch_states, passed.branch_confidence[:, :-1]),
        )
        return cls(
            passed,
            *(
                head.probability(states.to(device), torch.from_numpy(sure).float().to(device)).double().cpu().numpy()
                for states, sure in pairs
            ),
        )


@dataclass(frozen=True)
class Tally:
    """Counts of one generation after the prefill: N tokens, N_target calls, drafted and accepted tokens, and N_draft
    passes.

    The draft model makes one pass for each drafted token, and one more in each round that stopped after its newest
    token was judged.
    """

    tokens: int
    calls: int
    drafted: int
    accepted: int
    passes: int

    def seconds(self, draft: float, target: float) -> float:
        """Time by equation 2.1, for the seconds of one pass of each model."""
        return draft * self.passes + target * self.calls


def rounds(
    passed: DraftPass | Judged,
    rule: StoppingRule,
    min_tokens: int = 1,
    max_tokens: int = 20,
) -> Iterator[tuple[Round, int, int]]:
    """The rounds that decoding with this rule would have had, as
    :class:`specdec_lib.drafters.draft_model.AdaptiveDraftModel` does.

    Yields
    ------
    drafted : Round
    accepted : int
        Drafted tokens that the target emits.
    emitted : int
        Those and, unless the output ends with one of them, the target's own.
    """
    judged = passed if isinstance(passed, Judged) else None
    passed = judged.passed if judged else passed
    limits, start, count = passed.trace.limits, len(passed.trace.prompt), len(passed.trace.tokens)
    if "acceptance" in rule.needs and judged is None:
        raise ValueError(f"{type(rule).__name__} needs predictions of acceptance; give Judged.of(pass, head)")
    if max_tokens > passed.branch_confidence.shape[1]:
        raise ValueError(
            f"max_tokens is {max_tokens}, but drafts were followed to {passed.branch_confidence.shape[1]} tokens"
        )
    rule.start()
    done, told = 1, None
    while done < count:
        room = min(limits.max_new_tokens - done, (limits.context or math.inf) - start - done)
        if told is not None and room > 1:
            rule.verified(*told)
            told = None
        drafted = Round(start + done)
        most = min(max_tokens, room - 1, passed.longest - start - done)
        _draft(drafted, passed, judged, done, rule, min_tokens, most)
        accepted = int(min(drafted.count, passed.miss[done] - done))
        emitted = accepted + (done + accepted < count)
        if most >= 1:
            told = (drafted, accepted)
        yield drafted, accepted, emitted
        done += emitted


def _draft(
    drafted: Round,
    passed: DraftPass,
    judged: Judged | None,
    done: int,
    rule: StoppingRule,
    least: int,
    most: float,
) -> None:
    """Fill ``drafted`` until the rule says stop."""
    miss = int(passed.miss[done])
    row = passed.branch[miss]

    def read(chain: np.ndarray, branch: np.ndarray, index: int) -> float:
        return chain[done + index] if done + index < miss else branch[row, index - (miss - done)]

    while drafted.count < most:
        newest = drafted.count - 1
        if judged is not None:
            behind = 0 if rule.check_newest and drafted.count >= least else 1
            while len(drafted.acceptance) < drafted.count - behind:
                drafted.acceptance.append(read(judged.chain, judged.branch, len(drafted.acceptance)))
        if drafted.count >= least and rule.stop(drafted):
            return
        newest += 1
        drafted.confidence.append(read(passed.confidence, passed.branch_confidence, newest))
        drafted.entropy.append(read(passed.entropy, passed.branch_entropy, newest))
        drafted.count += 1


def play(passed: DraftPass | Judged, rule: StoppingRule, min_tokens: int = 1, max_tokens: int = 20) -> Tally:
    """Counts of :func:`rounds`."""
    tokens = calls = drafted = accepted = passes = 0
    for part, kept, emitted in rounds(passed, rule, min_tokens, max_tokens):
        tokens, calls, accepted = tokens + emitted, calls + 1, accepted + kept
        drafted += part.count
        passes += part.count + (rule.check_newest and 0 < part.count == len(part.acceptance))
    return Tally(tokens, calls, drafted, accepted, passes)


def rates(tallies: Sequence[Tally]) -> tuple[float, float]:
    """Verification rate and discard rate of generations pooled (section 2)."""
    tokens = sum(t.tokens for t in tallies)
    return sum(t.calls for t in tallies) / tokens, sum(t.drafted - t.accepted for t in tallies) / tokens


def throughputs(tallies: Sequence[Tally], draft: float, target: float) -> np.ndarray:
    """Tokens per second of each generation by equation 2.1, for the seconds of one pass of each model.

    Table 1 of the paper is their mean over prompts.
    """
    return np.array([t.tokens / t.seconds(draft, target) for t in tallies if t.tokens])


def ratio_interval(
    ours: np.ndarray,
    theirs: np.ndarray,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Ratio of two means over the same prompts, in the same order, with its percentile bootstrap interval over
    prompts."""
    if len(ours) != len(theirs) or not len(ours):
        raise ValueError(f"{len(ours)} and {len(theirs)} values; expected the same prompts, one at least")
    picks = np.random.default_rng(seed).integers(len(ours), size=(samples, len(ours)))
    drawn = ours[picks].mean(1) / theirs[picks].mean(1)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(ours.mean() / theirs.mean()), float(low), float(high)
