"""The decoding loop: draft, verify, commit, emit. One loop serves real runs and replays, which differ in their verifier."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from specdec_lib.decoding.acceptance import exact_match, rejection, rejection_at_once
from specdec_lib.decoding.clock import HostClock
from specdec_lib.decoding.contract import Context, Drafter
from specdec_lib.decoding.outputs import Outputs, QueuedTopK
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.decoding.sampling import (
    Sampling,
    choose,
    choose_each,
    distribution,
    most_likely,
    on_gpu,
    unchecked_distribution,
)
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import EMPTY, DraftTree

Processors = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Limits:
    """Where a generation ends."""

    max_new_tokens: int
    #: The first of these ends the output and is its last token.
    eos: frozenset[int] = frozenset()
    #: Longest sequence in tokens, prompt included.
    context: int | None = None
    #: ``stop(new_tokens)`` is true as soon as the output must end with its last token; asked once for each prefix.
    stop: Callable[[list[int]], bool] | None = None
    #: The finish reason where ``stop`` was true.
    stop_reason: str = "stop_string"


@dataclass(kw_only=True)
class Verifier(ABC):
    """Knows the target's tokens."""

    #: Measures device time separately from host time.
    clock: HostClock = field(default_factory=HostClock)
    #: When the last verification's forward pass ended, before its logits were used.
    passed: Any = None
    #: The most likely tokens after each node of the tree last verified; None where nobody asked.
    outputs: Outputs | None = None

    @abstractmethod
    def first(self, context: Context) -> int:
        """Take in the prompt and give the first new token."""

    @abstractmethod
    def verify(self, tree: DraftTree, context: Context) -> tuple[list[int], int | None]:
        """Nodes of ``tree`` that the target emits, and its own next token (None where the output ends before)."""

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of the tree last verified."""


@dataclass
class ModelVerifier(Verifier):
    """Verifies by running the target; ``topk`` most likely tokens after each node are kept as ``outputs``.

    ``processors`` are transformers' logits processors, applied to each node visited with the tokens that lead to it.
    """

    target: Target
    sampling: Sampling
    eos: frozenset[int] = frozenset()
    processors: Processors | None = None
    topk: int = 0

    def first(self, context: Context) -> int:
        logits = self.target.extend(context.tokens)
        return choose(self._processed(logits, context.tokens), self.sampling, len(context.tokens))

    def verify(self, tree: DraftTree, context: Context) -> tuple[list[int], int | None]:
        root = context.tokens[-1]
        logits = self.target.verify(root, tree)
        self.passed = self.clock.mark()
        best = QueuedTopK(logits, self.topk) if self.topk else None
        if tree.passengers is not None:
            logits = logits[: len(tree) + 1]
        outcome = self._accepted(logits, tree, context.tokens)
        if best is not None:
            tokens, logprobs = best.arrays()
            count = len(tree) + 1
            self.outputs = Outputs(tokens[:count], logprobs[:count], tokens[count:], logprobs[count:], root)
        return outcome

    def _accepted(self, logits: torch.Tensor, tree: DraftTree, tokens: list[int]) -> tuple[list[int], int | None]:
        """Nodes emitted and the target's own next token, from the logits after the root and each node."""
        sampling, position = self.sampling, len(tokens)
        # On a GPU the outcomes of all nodes are computed and read back at once: the host waits one time a step.
        at_once = self.processors is None and (sampling.greedy or on_gpu(logits))
        if tree.probabilities is not None and not sampling.greedy:
            if at_once:
                return rejection_at_once(tree, unchecked_distribution(logits, sampling), sampling, position, self.eos)
            return rejection(
                tree,
                lambda node, path: distribution(self._processed(logits[node + 1], tokens, path), sampling),
                sampling,
                position,
                self.eos,
            )
        if at_once:
            chosen = (
                most_likely(logits)
                if sampling.greedy
                else choose_each(logits, sampling, [position, *(position + depth for depth in tree.depths)])
            )
            return exact_match(tree, lambda node, path: chosen[node + 1], self.eos)
        return exact_match(
            tree,
            lambda node, path: choose(self._processed(logits[node + 1], tokens, path), sampling, position + len(path)),
            self.eos,
        )

    def commit(self, path: Sequence[int]) -> None:
        self.target.commit(path)

    def _processed(self, row: torch.Tensor, tokens: list[int], path: Sequence[int] = ()) -> torch.Tensor:
        if self.processors is None:
            return row
        prefix = torch.tensor([[*tokens, *path]], device=row.device)
        return self.processors(prefix, row[None].float())[0]


_CHANGING = threading.Lock()
_IN_USE: set[int] = set()


@contextmanager
def _alone(drafter: Drafter | None, vocabulary: int) -> Iterator[None]:
    """Reserve a drafter and those it calls for one generation; what they learned of another vocabulary is forgotten."""
    together = [] if drafter is None else [drafter]
    for each in together:
        together += each.inner()
    with _CHANGING:
        for each in together:
            if id(each) in _IN_USE:
                raise RuntimeError(f"{each!r} is in use by another generation; make a drafter for each")
        _IN_USE.update(map(id, together))
    try:
        for each in together:
            if each._vocabulary not in (None, vocabulary):
                each.reset()
            object.__setattr__(each, "_vocabulary", vocabulary)
        yield
    finally:
        with _CHANGING:
            _IN_USE.difference_update(map(id, together))


def decode(
    verifier: Verifier,
    drafter: Drafter | None,
    context: Context,
    limits: Limits,
    on_tokens: Callable[[list[int]], None] | None = None,
) -> Generation:
    """Generate until a limit is met; without a drafter one token a forward.

    The new tokens are appended to the context's, which are the prompt. RuntimeError if another generation has the drafter.
    """
    with _alone(drafter, context.vocabulary):
        clock = verifier.clock
        new: list[int] = []
        timed: list[tuple] = []
        reason: str | None = None

        def emit(block: list[int]) -> int:
            """Append what the limits allow of ``block``; the number appended."""
            nonlocal reason
            for count, token in enumerate(block, start=1):
                new.append(token)
                context.tokens.append(token)
                if token in limits.eos:
                    reason = "eos"
                elif limits.stop is not None and limits.stop(new):
                    reason = limits.stop_reason
                elif len(new) == limits.max_new_tokens:
                    reason = "length"
                elif len(context.tokens) == limits.context:
                    reason = "context"
                if reason is not None:
                    return count
            return len(block)

        began = clock.mark()
        token = verifier.first(context)
        emit([token])
        try:
            if drafter is not None and reason is None:
                drafter.start(context)  # a drafter that refuses the target does so before a token is shown
            filled = clock.mark()
            if on_tokens is not None:
                on_tokens([token])
            while reason is None:
                room = limits.max_new_tokens - len(new)
                if limits.context is not None:
                    room = min(room, limits.context - len(context.tokens))
                t0 = clock.mark()
                # The target adds a token of its own, so a draft is at most one shorter than what may still be emitted.
                tree = EMPTY
                if drafter is not None and room > 1:
                    tree = drafter.propose(context, room - 1)
                    if not isinstance(tree, DraftTree):
                        raise TypeError(f"propose() of {drafter!r} returned {tree!r}; expected a specdec_lib.DraftTree")
                    if len(context.tokens) != context.prompt_length + len(new):
                        raise RuntimeError(f"{drafter!r} changed the number of context.tokens; it may only read them")
                    tree = tree.truncated(room - 1)
                t1 = clock.mark()
                drafted = tree.tokens if tree.passengers is None else tree.tokens + tree.passengers.tokens
                if drafted and max(drafted) >= context.vocabulary:
                    raise ValueError(
                        f"{drafter!r} drafted token id {max(drafted)}, outside the target's vocabulary of "
                        f"{context.vocabulary}; was its data made with another tokenizer?"
                    )
                path, token = verifier.verify(tree, context)
                block = [tree.tokens[node] for node in path]
                if token is not None:
                    block.append(token)
                if not block:
                    raise RuntimeError(f"the trace ends after {len(new)} tokens without a reason: it was changed")
                emitted = emit(block)
                t2 = clock.mark()
                path = tuple(path[:emitted])
                verifier.commit(path)
                t3 = t4 = clock.mark()
                if drafter is not None:
                    drafter.verified(tree, path, verifier.outputs)
                    t4 = clock.mark()
                if tree.probabilities is not None:
                    # Megabytes a step with a large vocabulary, and of no use once the step is verified.
                    tree = tree.without_probabilities()
                timed.append((tree, path, tuple(block[:emitted]), t0, t1, verifier.passed, t2, t3, t4))
                if on_tokens is not None:
                    on_tokens(block[:emitted])
        finally:
            # What a drafter holds for one generation, such as a draft model's cache, it need not hold longer.
            if drafter is not None:
                drafter.finish()
        clock.settle()
        spent = clock.seconds
        steps = [
            Step(tree, path, tokens, spent(t0, t1) + spent(t3, t4), spent(t1, passed), spent(t2, t3), spent(passed, t2))
            for tree, path, tokens, t0, t1, passed, t2, t3, t4 in timed
        ]
        return Generation(new, steps, reason, context.prompt_length, spent(began, filled))
