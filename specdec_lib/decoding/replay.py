"""Record a plain run once; replay any drafter on it without the model.

The output does not depend on the drafter, so the recorded tokens decide exactly what any draft would have had accepted,
and the recorded states and attention rows are what the drafter would have been shown. The target's outputs after rejected
nodes are not on record: a drafter that depends on outputs cannot be replayed, and says so (``replays`` of
:class:`specdec_lib.Drafter`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from specdec_lib.decoding.acceptance import exact_match
from specdec_lib.decoding.contract import Capture, Context, Drafter, check_drafter
from specdec_lib.decoding.loop import Limits, Verifier, decode
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.tree import DraftTree


@dataclass
class Trace:
    """A recorded run of plain decoding."""

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
    """Verifies by looking the recorded tokens up."""

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
    """What decoding with ``drafter`` (plain decoding without one) would have done, step by step, without the model.

    Of the times only the drafter's are measured. ValueError if the trace lacks what the drafter needs, or the drafter cannot be
    replayed on it (``replays`` of :class:`specdec_lib.Drafter`).
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
