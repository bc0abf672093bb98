"""When to stop drafting, as arithmetic over one pass of the draft model.

A greedy draft from any place of a recorded output follows the recorded tokens up to the draft model's next
mistake and a branch of its own after it. So one pass over the output and one over all branches at once
give every draft from every place, with the confidence, entropy and state at each token; what a stopping
rule does is then a matter of counting.

A sampled output can be treated alike. Verification by rejection sampling couples the drafted token Y ~ q and the
emitted token X ~ p: they are equal with probability min(p, q), and otherwise Y follows max(q - p, 0) and X
max(p - q, 0), independently. Here X is recorded, so Y is drawn given X (:func:`coupled_draft`). A rule decides by what
was drafted before, which says nothing of X beyond its distribution p; so the counts have the distribution that they
have in decoding, for every rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.loop import Trace
from specdec_lib.decoding.sampling import ACCEPT, DRAFT, RESIDUAL, Sampling, distribution, invert_cdfs
from specdec_lib.decoding.served_models import context_limit, decoder_config, exact_length
from specdec_lib.decoding.target import Target
from specdec_lib.drafters.stopping import Round, StoppingRule
from specdec_lib.heads.acceptance import AcceptanceHead, Examples
from specdec_lib.models.draft_vocabulary import DraftVocabulary, draft_vocabulary


@dataclass(frozen=True)
class DraftPass:
    """What the draft model says along one recorded output of n tokens.

    Entry ``k`` of an array of length n + 1 is about the token that the draft model chooses, or draws, after the prompt and
    ``k`` tokens. A branch begins with such a token where it is not the recorded one, or after the last one, and goes on
    greedily, or sampled as the output is. ``miss`` is the next place, from ``k`` on, where a branch begins, ``branch`` the
    index of the one that begins at ``k``, -1 where none does. ``confidence`` is the probability of the first token, ``entropy``
    (nats) that of the distribution it comes from: at temperature 1 where decoding is greedy. ``acceptance``, of length n, is
    min(1, p / q), the probability that the target accepts the first token; 0 or 1 where decoding is greedy. ``states`` (n, d)
    are those at each recorded token, ``branch_states`` (branches, depth - 1, d). The draft model serves ``longest`` positions.
    """

    trace: Trace
    longest: float
    miss: np.ndarray
    branch: np.ndarray
    confidence: np.ndarray
    entropy: np.ndarray
    acceptance: np.ndarray
    states: torch.Tensor
    branch_confidence: np.ndarray
    branch_entropy: np.ndarray
    branch_states: torch.Tensor

    @property
    def agreement(self) -> np.ndarray:
        """Whether the first token is the recorded one, bool, shape (n,)."""
        return self.branch[:-1] < 0

    def examples(self) -> Examples:
        """States and labels as they are met in decoding: each first token after the recorded
        ones."""
        firsts = torch.where(
            torch.from_numpy(self.agreement)[:, None],
            self.states,
            self.branch_states[:, 0][torch.from_numpy(self.branch[:-1])],
        )
        return Examples(
            firsts, torch.from_numpy(self.acceptance).float(), torch.from_numpy(self.confidence[:-1]).float()
        )


def _about(row: torch.Tensor, chosen: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Probability of the chosen token and entropy, for each row of probabilities."""
    confidence = row.gather(1, chosen[:, None])[:, 0]
    return confidence.double().cpu().numpy(), torch.special.entr(row).sum(-1).double().cpu().numpy()


def coupled_draft(
    p: torch.Tensor, q: torch.Tensor, tokens: torch.Tensor, sampling: Sampling, first: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens Y of the draft model given X, those that the target emits at the same places, and min(1, p(Y) / q(Y)).

    ``p`` and ``q``, float64 of shape (n, vocabulary), are the laws of target and draft model, ``tokens`` X, and ``first`` the
    position of its first. Y is distributed as ``q`` and equal to X with probability min(p, q).
    """
    accept, residual = (
        [sampling.uniform(first + i, stream) for i in range(len(tokens))] for stream in (ACCEPT, RESIDUAL)
    )
    of_p, of_q = (rows.gather(1, tokens[:, None])[:, 0] for rows in (p, q))
    kept = torch.tensor(accept, dtype=p.dtype) * of_p < of_q
    surplus = (q - p).clamp(min=0)
    surplus = torch.where(surplus.sum(-1, keepdim=True) > 0, surplus, q)  # equal distributions have no surplus
    drafted = torch.where(kept, tokens, invert_cdfs(surplus, residual))
    of_p, of_q = (rows.gather(1, drafted[:, None])[:, 0] for rows in (p, q))
    return drafted, (of_p / of_q).clamp(max=1.0)


class _Choice:
    """How the draft model's tokens along an output are chosen, as ids of its own vocabulary: greedily, or drawn given the
    target's."""

    def __init__(self, trace: Trace, known: DraftVocabulary, target: PreTrainedModel | None):
        self.trace, self.known, self.start = trace, known, len(trace.prompt)
        self.sampling = None if trace.sampling.greedy else trace.sampling.for_prompt(trace.prompt)
        if self.sampling is not None:
            ids = torch.tensor([[*trace.prompt, *trace.tokens]], device=target.device)
            logits = target(ids, use_cache=False).logits[0, self.start - 1 : -1, : trace.vocabulary]
            self.p = distribution(logits.float().cpu(), self.sampling)

    def rows(self, logits: torch.Tensor) -> torch.Tensor:
        """Probabilities that tokens are chosen by."""
        logits = logits[..., : len(self.known)].float().cpu()
        return logits.softmax(-1) if self.sampling is None else distribution(logits, self.sampling)

    def along(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens after the prompt and each recorded token; of all but the last, whether they are the recorded ones, and their
        acceptance."""
        tokens = torch.tensor(self.trace.tokens)
        if self.sampling is None:
            choice = row.argmax(-1)
            agreed = self.known.ids[choice[:-1]] == tokens
            return choice, agreed, agreed.double()
        q = self.known.spread(row[:-1], self.trace.vocabulary)
        drafted, acceptance = coupled_draft(self.p, q, tokens, self.sampling, self.start)
        last = invert_cdfs(row[-1:], [self.sampling.uniform(self.start + len(tokens), DRAFT)])
        own = torch.tensor(self.known.to_draft(drafted.tolist()))
        return torch.cat([own, last]), drafted == tokens, acceptance

    def branching(self, row: torch.Tensor, begins: torch.Tensor, step: int) -> torch.Tensor:
        """The next token of each branch."""
        if self.sampling is None:
            return row.argmax(-1)
        # The salt tells branches that cross one position apart.
        places = [self.start + begin for begin in begins.tolist()]
        return invert_cdfs(row, [self.sampling.uniform(at + step, DRAFT, salt=at) for at in places])


def draft_along(
    trace: Trace, draft: PreTrainedModel, depth: int = 20, target: PreTrainedModel | None = None
) -> DraftPass:
    """Run the draft model over a recorded output and over its own continuations after each of its mistakes.

    ``depth`` is the longest draft asked for later. A sampled trace needs the target that was recorded.
    """
    (found,) = draft_along_all([trace], draft, depth, target)
    return found


@torch.inference_mode()
def draft_along_all(
    traces: Sequence[Trace], draft: PreTrainedModel, depth: int = 20, target: PreTrainedModel | None = None
) -> list[DraftPass]:
    """:func:`draft_along` some outputs at once, which reads a large draft model's weights less often: they lie one after the other
    in one cache, and none attends to another."""
    if target is None and not all(trace.sampling.greedy for trace in traces):
        raise ValueError("the trace was sampled; give the target, whose probabilities say what it accepts")
    if depth < 2:
        raise ValueError(f"depth is {depth}; expected 2 or more")
    last = decoder_config(draft).num_hidden_layers
    longest = min((n for n in (context_limit(draft), exact_length(draft)) if n), default=math.inf)
    known = [draft_vocabulary(draft).within(trace.vocabulary) for trace in traces]
    choosers = [_Choice(trace, own, target) for trace, own in zip(traces, known, strict=True)]
    starts, counts = [len(trace.prompt) for trace in traces], [len(trace.tokens) for trace in traces]
    sizes = [start + count for start, count in zip(starts, counts, strict=True)]
    firsts = [sum(sizes[:place]) for place in range(len(sizes))]  # where each text begins in the cache
    room = sum(start + count * (depth + 1) for start, count in zip(starts, counts, strict=True))
    with Target(draft, 0, Capture(layers=(last,)), capacity=room) as model:
        texts = [own.to_draft([*t.prompt, *t.tokens]) for own, t in zip(known, traces, strict=True)]
        causal = torch.block_diag(*(torch.ones((size, size)).tril() for size in sizes)).bool()
        places = [place for size in sizes for place in range(size)]
        logits = model.extend_rows([token for text in texts for token in text], places, causal)
        along = []  # by output: confidence, entropy, acceptance, and where branches begin
        feed, chain = [], []
        for first, start, count, chooser in zip(firsts, starts, counts, choosers, strict=True):
            row = chooser.rows(logits[first + start - 1 : first + start + count])
            choice, agreed, acceptance = chooser.along(row)
            wrong = torch.ones(count + 1, dtype=torch.bool)
            wrong[:-1] = ~agreed
            begins = wrong.nonzero()[:, 0]
            along.append((*_about(row, choice), acceptance, begins))
            feed.append(choice[begins])
            at = torch.arange(sum(sizes))[None]
            chain.append((at >= first) & (at < (first + start + begins)[:, None]))
        seen = torch.cat(chain)
        own = torch.eye(len(seen), dtype=torch.bool)
        begun = [len(begins) for *_, begins in along]
        positions = torch.cat([start + begins for start, (*_, begins) in zip(starts, along, strict=True)])
        per_step = [[(sure[begins.numpy()], doubt[begins.numpy()])] for sure, doubt, _, begins in along]
        branch_states = []
        for step in range(1, depth):
            # Past the model's last position nothing is drafted; what is computed there is never read.
            at = (positions + step - 1).clamp(max=int(min(longest, 2**31)) - 1)
            visible = torch.cat([seen, own.repeat(1, step)], dim=1)
            logits = model.extend_rows(torch.cat(feed).tolist(), at.tolist(), visible)
            for place, (part, chooser) in enumerate(zip(logits.split(begun), choosers, strict=True)):
                row = chooser.rows(part)
                feed[place] = chooser.branching(row, along[place][-1], step)
                per_step[place].append(_about(row, feed[place]))
            branch_states.append(model.hidden(last)[-len(own) :].float().cpu().clone())
        states = model.hidden(last)[: sum(sizes)].float().cpu().clone()
    found, followed = [], torch.stack(branch_states, dim=1).split(begun)
    for place, trace in enumerate(traces):
        sure, doubt, acceptance, begins = along[place]
        starting = firsts[place] + starts[place]
        branch = np.full(counts[place] + 1, -1)
        branch[begins.numpy()] = np.arange(len(begins))
        miss = begins.numpy()[np.searchsorted(begins.numpy(), np.arange(counts[place] + 1))]
        found.append(
            DraftPass(
                trace,
                longest,
                miss,
                branch,
                sure,
                doubt,
                acceptance.double().numpy(),
                states[starting : starting + counts[place]],
                *(np.stack(parts, axis=1) for parts in zip(*per_step[place], strict=True)),
                followed[place],
            )
        )
    return found


@dataclass(frozen=True)
class HeadPredictions:
    """A pass with the acceptance that one head predicts: at each recorded token, shape (n,), and along the branches, shape
    (branches, depth - 1)."""

    passed: DraftPass
    chain: np.ndarray
    branch: np.ndarray

    @classmethod
    def of(cls, passed: DraftPass, head: AcceptanceHead) -> HeadPredictions:
        """Ask ``head`` about every token of the pass."""
        device = next(head.parameters()).device
        pairs = ((passed.states, passed.confidence[:-1]), (passed.branch_states, passed.branch_confidence[:, :-1]))
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
    passes: one for each drafted token, and one more in each round that stopped after its newest token was judged."""

    tokens: int
    calls: int
    drafted: int
    accepted: int
    passes: int


def rounds(
    passed: DraftPass | HeadPredictions, rule: StoppingRule, min_tokens: int = 1, max_tokens: int = 20
) -> Iterator[tuple[Round, int, int]]:
    """The rounds that decoding with :class:`specdec_lib.drafters.draft_model.AdaptiveDraftModel` and this rule would have had:
    what was drafted, how many of these tokens the target emits, and these with the target's own, unless one ends the output."""
    judged = passed if isinstance(passed, HeadPredictions) else None
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
    judged: HeadPredictions | None,
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


def play(passed: DraftPass | HeadPredictions, rule: StoppingRule, min_tokens: int = 1, max_tokens: int = 20) -> Tally:
    """Counts of :func:`rounds`."""
    tokens = calls = drafted = accepted = passes = 0
    for part, kept, emitted in rounds(passed, rule, min_tokens, max_tokens):
        tokens, calls, accepted = tokens + emitted, calls + 1, accepted + kept
        drafted += part.count
        passes += part.count + (rule.check_newest and 0 < part.count == len(part.acceptance))
    return Tally(tokens, calls, drafted, accepted, passes)
