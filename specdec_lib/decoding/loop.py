"""The decoding loop: draft, verify, commit, emit. One loop serves real runs and replays, which differ in their verifier.

A replay needs no model: the output does not depend on the drafter, so the recorded tokens of a plain run decide exactly what any
draft would have had accepted, and the recorded states and attention rows are what the drafter would have been shown. The target's
outputs after rejected nodes are not on record: a drafter that depends on them cannot be replayed, and says so (``replays`` of
:class:`specdec_lib.Drafter`).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from specdec_lib.decoding.acceptance import exact_match, rejection, rejection_at_once
from specdec_lib.decoding.clock import HostClock
from specdec_lib.decoding.contract import Capture, Context, Drafter, check_drafter
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
    """Where a generation ends.

    Examples
    --------
    >>> from specdec_lib.decoding.loop import Limits
    >>> Limits(max_new_tokens=32, eos=frozenset({tokenizer.eos_token_id}), context=512).max_new_tokens
    32
    """

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
    """Knows the target's tokens: :class:`ModelVerifier` asks a model for them, :class:`TraceVerifier` a recorded run.

    Examples
    --------
    One that knows the whole text beforehand:

    >>> from specdec_lib import Context, Sampling
    >>> from specdec_lib.decoding.acceptance import exact_match
    >>> from specdec_lib.decoding.loop import Limits, Verifier, decode
    >>> from specdec_lib.drafters import PromptLookup
    >>> text = [5, 6, 7, 8, 5, 6, 7, 8, 9]
    >>> class Known(Verifier):
    ...     def first(self, context):
    ...         return text[len(context.tokens)]
    ...     def verify(self, tree, context):
    ...         self.passed = self.clock.mark()
    ...         coming = text[len(context.tokens):]
    ...         return exact_match(tree, lambda node, path: coming[len(path)], ())
    >>> context = Context(text[:5], 5, 10, Sampling())
    >>> run = decode(Known(), PromptLookup(num_tokens=2), context, Limits(max_new_tokens=4))
    >>> run.tokens, [step.accepted for step in run.steps]
    ([6, 7, 8, 9], [2])
    """

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
    """Verifies by running the target.

    Parameters
    ----------
    target : Target
    sampling : Sampling
        Bound to the prompt.
    eos : frozenset of int
        Tokens that end the output.
    processors : callable, optional
        transformers' logits processors, applied to each node visited with the tokens that lead to it.
    topk : int
        Most likely tokens after each node that are kept as ``outputs``; 0 for none.
    prompt : bool
        Whether the outputs after each token of the prompt are shown in the context.

    Examples
    --------
    >>> from specdec_lib import Context, DraftTree, Sampling
    >>> from specdec_lib.decoding.loop import ModelVerifier
    >>> from specdec_lib.decoding.target import Target
    >>> context = Context(list(prompt), len(prompt), 4096, Sampling())
    >>> with Target(model, longest=64) as target:
    ...     verifier = ModelVerifier(target=target, sampling=context.sampling)
    ...     context.tokens.append(verifier.first(context))
    ...     path, token = verifier.verify(DraftTree.chain([0, 0]), context)
    >>> path
    []
    """

    target: Target
    sampling: Sampling
    eos: frozenset[int] = frozenset()
    processors: Processors | None = None
    topk: int = 0
    prompt: bool = False

    @torch.inference_mode()
    def first(self, context: Context) -> int:
        if self.prompt:
            best: list[QueuedTopK] = []
            logits = self.target.extend(context.tokens, lambda rows: best.append(QueuedTopK(rows, self.topk)))
            context.prompt_outputs = np.concatenate([rows.arrays()[0] for rows in best])
        else:
            logits = self.target.extend(context.tokens)
        return choose(self._processed(logits, context.tokens), self.sampling, len(context.tokens))

    @torch.inference_mode()
    def verify(self, tree: DraftTree, context: Context) -> tuple[list[int], int | None]:
        root = context.tokens[-1]
        logits = self.target.verify(root, tree)
        self.passed = self.clock.mark()
        best = QueuedTopK(logits, self.topk) if self.topk else None
        if tree.auxiliary is not None:
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
            if at_once and tree.is_chain:
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

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        self.target.commit(path)

    def _processed(self, row: torch.Tensor, tokens: list[int], path: Sequence[int] = ()) -> torch.Tensor:
        if self.processors is None:
            return row
        prefix = torch.tensor([[*tokens, *path]], device=row.device)
        return self.processors(prefix, row[None].float())[0]


@dataclass
class Trace:
    """A recorded run of plain decoding, as :func:`specdec_lib.record` makes it and :func:`specdec_lib.replay` reads it.

    Examples
    --------
    >>> from specdec_lib import LAST, Capture, record
    >>> trace = record(model, prompt, max_new_tokens=8, capture=Capture(layers=(LAST,)))
    >>> len(trace.tokens), trace.finish_reason
    (8, 'length')
    >>> trace.hidden[LAST].shape == (len(prompt) + 7, model.config.hidden_size)
    True
    """

    prompt: list[int]
    tokens: list[int]
    sampling: Sampling
    vocabulary: int
    limits: Limits
    finish_reason: str
    #: States of the layers asked for, by their names, shape (T, d); T is one less than prompt and new tokens together.
    hidden: dict[int, torch.Tensor] = field(default_factory=dict, repr=False)
    heads: tuple[tuple[int, int], ...] = ()
    #: Row of the last cached token, shape (heads, t), when ``t`` tokens were cached, from t = len(prompt) on.
    attention: list[torch.Tensor] = field(default_factory=list, repr=False)
    #: Number of token ids of the target's tokenizer, where it is known, as :class:`Context` has it.
    token_ids: int | None = None


@dataclass
class TraceVerifier(Verifier):
    """Verifies by looking the recorded tokens up.

    Parameters
    ----------
    trace : Trace

    Examples
    --------
    >>> from specdec_lib import Context, DraftTree, Sampling, record
    >>> from specdec_lib.decoding.loop import TraceVerifier
    >>> trace = record(model, prompt, max_new_tokens=8)
    >>> verifier = TraceVerifier(trace=trace)
    >>> context = Context([*prompt, trace.tokens[0]], len(prompt), trace.vocabulary, Sampling())
    >>> path, token = verifier.verify(DraftTree.chain(trace.tokens[1:4]), context)
    >>> path, token == trace.tokens[4]
    ([0, 1, 2], True)
    """

    trace: Trace

    def first(self, context: Context) -> int:
        return self.trace.tokens[0]

    def verify(self, tree: DraftTree, context: Context) -> tuple[list[int], int | None]:
        self.passed = self.clock.mark()
        done = len(context.tokens) - context.prompt_length
        coming = self.trace.tokens[done : done + tree.depth + 1]
        return exact_match(
            tree, lambda node, path: coming[len(path)] if len(path) < len(coming) else None, self.trace.limits.eos
        )


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
    """Generate until a limit is met: what :func:`specdec_lib.generate` and :func:`specdec_lib.replay` call.

    Parameters
    ----------
    verifier : Verifier
    drafter : Drafter or None
        None decodes plainly, one token per pass.
    context : Context
        Its tokens are the prompt; the new ones are appended to them.
    limits : Limits
    on_tokens : callable, optional
        Called with each block of new tokens, a list of int, as it is emitted.

    Returns
    -------
    Generation

    Raises
    ------
    RuntimeError
        If another generation has the drafter.

    Examples
    --------
    >>> from specdec_lib import Context, Sampling, record
    >>> from specdec_lib.decoding.loop import TraceVerifier, decode
    >>> trace = record(model, prompt, max_new_tokens=8)
    >>> context = Context(list(prompt), len(prompt), trace.vocabulary, Sampling())
    >>> decode(TraceVerifier(trace=trace), None, context, trace.limits).tokens == trace.tokens
    True
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
                drafted = tree.tokens if tree.auxiliary is None else tree.tokens + tree.auxiliary.tokens
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


def _check_captured(trace: Trace, capture: Capture) -> None:
    layers = [layer for layer in capture.layers if layer not in trace.hidden]
    heads = [head for head in capture.heads if head not in trace.heads]
    for missing, what, there in (
        (layers, f"hidden states of layers {layers}", [*trace.hidden]),
        (heads, f"attention rows of heads {heads}", [*trace.heads]),
    ):
        if missing:
            raise ValueError(f"the drafter needs {what}, the trace has {there}; record with capture=drafter.capture")


def replay(trace: Trace, drafter: Drafter | None) -> Generation:
    """What decoding with a drafter would have done, step by step, without the model.

    A step is one pass: it emits the longest path of the draft that the recording continues with, and one token of the target's
    own. Tokens per pass are all new tokens but the first, which the prompt's pass gave, over the steps. Of the times only the
    drafter's are measured.

    Parameters
    ----------
    trace : Trace
    drafter : Drafter or None
        None replays plain decoding.

    Returns
    -------
    Generation

    Raises
    ------
    ValueError
        If the trace lacks what the drafter needs, or the drafter cannot be replayed on it
        (``replays`` of :class:`specdec_lib.Drafter`).

    Examples
    --------
    >>> from specdec_lib import record, replay
    >>> from specdec_lib.drafters import PromptLookup
    >>> trace = record(model, prompt, max_new_tokens=24)
    >>> for num_tokens in (2, 10):
    ...     run = replay(trace, PromptLookup(num_tokens=num_tokens))
    ...     print(num_tokens, round(run.stats["tokens_per_forward"], 2))
    2 2.3
    10 4.6
    """
    if drafter is not None:
        check_drafter(drafter)
        if drafter.replays == "never" or drafter.capture.topk:
            raise ValueError(f"{drafter!r} cannot be replayed: no recording has the outputs it needs; use generate()")
        if drafter.replays == "greedy" and not trace.sampling.greedy:
            raise ValueError(f"the trace was sampled and {drafter!r} is verified by rejection; replay a greedy trace")
        _check_captured(trace, drafter.capture)
    prompt, sampling = list(trace.prompt), trace.sampling.for_prompt(trace.prompt)
    context = Context(prompt, len(prompt), trace.vocabulary, sampling, token_ids=trace.token_ids)
    context.hidden = lambda layer: trace.hidden[layer][: len(context.tokens) - 1]
    chosen = [] if drafter is None else [trace.heads.index(head) for head in drafter.capture.heads]
    context.attention = lambda: trace.attention[len(context.tokens) - 1 - len(trace.prompt)][chosen]
    limits = trace.limits
    if trace.finish_reason not in ("eos", "length", "context"):
        # Stop strings and criteria are not kept with a trace; where they ended it is.
        count = len(trace.tokens)
        limits = replace(limits, stop=lambda new: len(new) == count, stop_reason=trace.finish_reason)
    return decode(TraceVerifier(trace), drafter, context, limits)
