"""Record a plain run once; replay any drafter on it without the model.

The output does not depend on the drafter, so the recorded tokens decide exactly what any draft would have had accepted,
and the recorded states, attention rows and most likely tokens are what the drafter would have been shown of the tokens
emitted. Of rejected nodes and passengers nothing is recorded: a drafter that depends on those cannot be replayed, and says
so (``replays`` of :class:`specdec_lib.Drafter`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from specdec_lib.decoding.acceptance import exact_match
from specdec_lib.decoding.clock import HostClock
from specdec_lib.decoding.contract import Capture, Context, Drafter, check_drafter
from specdec_lib.decoding.loop import Limits, decode
from specdec_lib.decoding.outputs import Outputs
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
    #: The target's most likely tokens after each position of prompt and new tokens together.
    outputs: Outputs | None = field(default=None, repr=False)
    #: Number of token ids of the target's tokenizer, where it is known, as :class:`Context` has it.
    token_ids: int | None = None


@dataclass
class TraceVerifier:
    """Verifies by looking the recorded tokens up; shows the ``topk`` most likely ones of each position."""

    trace: Trace
    topk: int = 0
    clock: HostClock = field(default_factory=HostClock)
    passed: float = 0.0
    outputs: Outputs | None = None

    def first(self, context: Context) -> int:
        if self.topk:
            known, count = self.trace.outputs.top(self.topk), context.prompt_length
            self.outputs = Outputs(known.tokens[:count], known.logprobs[:count])
        return self.trace.tokens[0]

    def verify(self, tree: DraftTree, context: Context) -> tuple[list[int], int | None]:
        self.passed = self.clock.mark()
        done = len(context.tokens) - context.prompt_length
        coming = self.trace.tokens[done : done + tree.depth + 1]
        path, token = exact_match(
            tree, lambda node, path: coming[len(path)] if len(path) < len(coming) else None, self.trace.limits.eos
        )
        if self.topk:
            self.outputs = self._recorded(tree, path, len(context.tokens) - 1, context.tokens[-1])
        return path, token

    def _recorded(self, tree: DraftTree, path: list[int], position: int, root: int) -> Outputs:
        """Recorded outputs of the root, at ``position``, and the accepted nodes; other rows are -1 and NaN."""
        known = self.trace.outputs.top(self.topk)
        tokens = np.full((tree.width, self.topk), -1, np.int64)
        logprobs = np.full((tree.width, self.topk), np.nan, np.float32)
        rows = [0, *(node + 1 for node in path)]
        tokens[rows] = known.tokens[position : position + len(rows)]
        logprobs[rows] = known.logprobs[position : position + len(rows)]
        count = len(tree) + 1
        return Outputs(tokens[:count], logprobs[:count], tokens[count:], logprobs[count:], root)

    def commit(self, path: Sequence[int]) -> None:
        pass


def _check_captured(trace: Trace, capture: Capture) -> None:
    known = 0 if trace.outputs is None else trace.outputs.k
    layers = [layer for layer in capture.layers if layer not in trace.hidden]
    heads = [head for head in capture.heads if head not in trace.heads]
    for missing, what, there in (
        (layers, f"hidden states of layers {layers}", [*trace.hidden]),
        (heads, f"attention rows of heads {heads}", [*trace.heads]),
        (capture.topk > known, f"the {capture.topk} most likely tokens of each position", known),
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
        if drafter.replays == "never":
            raise ValueError(
                f"{drafter!r} cannot be replayed (replays='never'): no recording has the outputs it needs; run it with generate()"
            )
        if drafter.replays == "greedy" and not trace.sampling.greedy:
            raise ValueError(
                f"the trace was sampled and {drafter!r} is verified by rejection sampling (replays='greedy'); replay a greedy trace"
            )
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
    topk = 0 if drafter is None else drafter.capture.topk
    return decode(TraceVerifier(trace, topk), drafter, context, limits)
