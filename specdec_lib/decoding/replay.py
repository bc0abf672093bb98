"""Record a plain run once; replay any drafter on it without the model.

The output does not depend on the drafter, so the recorded tokens decide exactly what any drafter would have had
accepted, and the recorded states and attention rows are what it would have been shown.
"""
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .acceptance import exact_match
from .clock import HostClock
from .contract import Capture, Context, Drafter
from specdec_lib.files import replacing
from .loop import Limits, decode
from .sampling import Sampling
from specdec_lib.decoding.results import Generation
from .tree import DraftTree


@dataclass
class Trace:
    """A recorded run of plain decoding.

    Attributes
    ----------
    prompt, tokens : list of int
        The prompt; the new tokens.
    sampling : Sampling
    vocabulary : int
    limits : Limits
        Those of the run; a replay meets the same ones.
    finish_reason : str
    hidden : dict of int to tensor, shape (T, d)
        States of the layers asked for, by the names they were asked for; T is one less than prompt and new
        tokens together.
    heads : tuple of (int, int)
    attention : list of tensor, shape (heads, t)
        Row of the last cached token when ``t`` tokens were cached, from t = len(prompt) on.
    """

    prompt: list[int]
    tokens: list[int]
    sampling: Sampling
    vocabulary: int
    limits: Limits
    finish_reason: str
    hidden: dict[int, torch.Tensor] = field(default_factory=dict, repr=False)
    heads: tuple[tuple[int, int], ...] = ()
    attention: list[torch.Tensor] = field(default_factory=list, repr=False)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, aside and renamed."""
        tensors = {f"hidden.{layer}": states.contiguous() for layer, states in self.hidden.items()}
        tensors |= {f"attention.{i}": rows.contiguous() for i, rows in enumerate(self.attention)}
        tensors["tokens"] = torch.tensor(self.prompt + self.tokens, dtype=torch.int64)
        about = {"prompt_length": len(self.prompt), "sampling": asdict(self.sampling), "vocabulary": self.vocabulary,
                 "finish_reason": self.finish_reason, "heads": self.heads, "rows": len(self.attention),
                 "max_new_tokens": self.limits.max_new_tokens, "eos": sorted(self.limits.eos), "context": self.limits.context}
        with replacing(path) as aside:
            save_file(tensors, aside, metadata={"trace": json.dumps(about)})

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what :meth:`save` wrote.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If the file is not a trace, or a damaged one.
        """
        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {})["trace"])
                tokens = file.get_tensor("tokens").tolist()
                hidden = {int(k.removeprefix("hidden.")): file.get_tensor(k) for k in file.keys()
                          if k.startswith("hidden.")}
                rows = [file.get_tensor(f"attention.{i}") for i in range(about["rows"])]
            cut = about["prompt_length"]
            return cls(tokens[:cut], tokens[cut:], Sampling(**about["sampling"]), about["vocabulary"],
                       Limits(about["max_new_tokens"], frozenset(about["eos"]), about["context"]),
                       about["finish_reason"], hidden, tuple((b, h) for b, h in about["heads"]), rows)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no trace: expected a file written by Trace.save "
                             f"({type(error).__name__}: {error})") from None


@dataclass
class TraceVerifier:
    """Verifies by looking the recorded tokens up."""

    trace: Trace
    clock: HostClock = field(default_factory=HostClock)
    passed: float = 0.0

    def first(self, context: Context) -> int:
        return self.trace.tokens[0]

    def verify(self, tree: DraftTree, context: Context) -> tuple[list[int], int | None]:
        self.passed = self.clock.mark()
        done = len(context.tokens) - context.prompt_length
        coming = self.trace.tokens[done: done + tree.depth + 1]
        return exact_match(tree, lambda node, path: coming[len(path)] if len(path) < len(coming) else None,
                           self.trace.limits.eos)

    def commit(self, path: Sequence[int]) -> None:
        pass


def _check_captured(trace: Trace, capture: Capture) -> None:
    missing = [layer for layer in capture.layers if layer not in trace.hidden]
    if missing:
        raise ValueError(f"the drafter needs hidden states of layers {missing}, the trace has {sorted(trace.hidden)}; "
                         "record with capture=drafter.capture")
    missing = [head for head in capture.heads if head not in trace.heads]
    if missing:
        raise ValueError(f"the drafter needs attention rows of heads {missing}, the trace has "
                         f"{list(trace.heads)}; record with capture=drafter.capture")


def replay(trace: Trace, drafter: Drafter | None) -> Generation:
    """What decoding with ``drafter`` would have done, step by step, without the model.

    Parameters
    ----------
    trace : Trace
        From :func:`specdec_lib.record`.
    drafter : Drafter
        ``None`` replays plain decoding.

    Returns
    -------
    Generation
        The steps of the real run; of the times only the drafter's are measured, the others are the loop's own.

    Raises
    ------
    ValueError
        If the trace lacks states the drafter needs, or was sampled and the drafter's tokens come with probabilities:
        rejection sampling emits other tokens than the recorded ones.
    """
    if drafter is not None:
        _check_captured(trace, drafter.capture)
        if not trace.sampling.greedy and getattr(drafter, "samples", False):
            raise ValueError("the trace was sampled and this drafter is verified by rejection sampling, which emits other "
                             "tokens than plain decoding; replay a greedy trace, or run it with generate()")
    context = Context(list(trace.prompt), len(trace.prompt), trace.vocabulary, trace.sampling.for_prompt(trace.prompt))
    context.hidden = lambda layer: trace.hidden[layer][: len(context.tokens) - 1]
    chosen = [] if drafter is None else [trace.heads.index(head) for head in drafter.capture.heads]
    context.attention = lambda: trace.attention[len(context.tokens) - 1 - len(trace.prompt)][chosen]
    limits = trace.limits
    if trace.finish_reason not in ("eos", "length", "context"):
        # Stop strings and criteria are not kept with a trace; where they ended it is.
        count = len(trace.tokens)
        limits = Limits(limits.max_new_tokens, limits.eos, limits.context, lambda new: len(new) == count,
                        trace.finish_reason)
    return decode(TraceVerifier(trace), drafter, context, limits)
