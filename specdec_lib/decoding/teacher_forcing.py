"""Record a run whose tokens are known: one pass over the prompt and one over the answer, not one per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.generate import Run, as_token_list, end_tokens, to_cpu
from specdec_lib.decoding.loop import Limits, Trace
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import context_limit
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.lazy import former_names

__getattr__ = former_names(__name__, Forced="TeacherForced")


class TeacherForced(NamedTuple):
    """A trace of given tokens, and the tokens that the model would have written, up to the first one that differs.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.decoding.teacher_forcing import record_known
    >>> tokens = generate(model, prompt, max_new_tokens=8).tokens
    >>> forced = record_known(model, prompt, [*tokens[:5], 0], "length", max_new_tokens=6)
    >>> forced.written == tokens[:6]
    True
    """

    trace: Trace
    written: list[int]


def record_known(
    model: PreTrainedModel,
    prompt: Sequence[int],
    tokens: Sequence[int],
    finish_reason: str,
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    capture: Capture = Capture(),
) -> TeacherForced:
    """Record what :func:`specdec_lib.record` would, given the tokens that it would write: one pass instead of one for each token.

    States and attention rows are those of plain decoding up to rounding: one pass over many tokens adds in another order than
    one over a single token.

    Parameters
    ----------
    model : PreTrainedModel
    prompt, tokens : sequence of int
        ``tokens`` has at least one.
    finish_reason : str
        Why the output ended, as :class:`specdec_lib.Generation` has it.
    sampling : Sampling, optional
    max_new_tokens : int
        No fewer than the tokens given.
    capture : Capture

    Returns
    -------
    Forced

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.decoding.teacher_forcing import record_known
    >>> run = generate(model, prompt, max_new_tokens=8)
    >>> forced = record_known(model, prompt, run.tokens, run.finish_reason, max_new_tokens=8)
    >>> forced.written == forced.trace.tokens == run.tokens
    True
    """
    if not 0 < len(tokens) <= max_new_tokens:
        raise ValueError(f"{len(tokens)} tokens are given; expected 1 to max_new_tokens, which is {max_new_tokens}")
    limits = Limits(max_new_tokens, end_tokens(model, None), context_limit(model))
    run = Run(model, prompt, sampling, limits)
    tokens, context = as_token_list(tokens, run.context.vocabulary), run.context
    before, count, tree = context.prompt_length, context.prompt_length + len(tokens), DraftTree.chain(tokens[1:])
    if limits.context is not None and count > limits.context:
        raise ValueError(f"prompt and tokens are {count} and the model's context is {limits.context}; shorten them")
    with run.verifier(replace(capture, topk=0, prompt=False)) as verifier:
        target = verifier.target
        first = verifier.first(context)
        rows = [to_cpu(target.attention())] if capture.heads else []
        context.tokens.append(tokens[0])
        path, other = verifier.verify(tree, context)
        verifier.commit(range(len(tree)))
        if capture.heads:
            # Row i of each head is that of token i, which attends to the prompt and the tokens up to itself.
            heads = torch.stack([row.cpu() for row in target.rows.held()])
            rows += [to_cpu(heads[:, i, : before + i + 1]) for i in range(len(tokens) - 1)]
        # The last token was not passed through the target by plain decoding.
        states = {layer: to_cpu(target.hidden(layer)[: count - 1]) for layer in capture.layers}
    trace = Trace(
        prompt=context.tokens[:before],
        tokens=tokens,
        sampling=sampling or Sampling(),
        vocabulary=context.vocabulary,
        limits=limits,
        finish_reason=finish_reason,
        hidden=states,
        heads=tuple(capture.heads),
        attention=rows,
        token_ids=context.token_ids,
    )
    if first != tokens[0]:
        return TeacherForced(trace, [first])
    agreed = tokens[: 1 + len(path)]
    return TeacherForced(
        trace, agreed if len(agreed) == len(tokens) else [*agreed, *([] if other is None else [other])]
    )
