"""Record a run whose tokens are known: one pass over the prompt and one over the answer, not one a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture, Context
from specdec_lib.decoding.generate import as_token_list, end_tokens
from specdec_lib.decoding.loop import Limits, ModelVerifier
from specdec_lib.decoding.outputs import Outputs
from specdec_lib.decoding.replay import Trace
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import context_limit, vocabulary_size
from specdec_lib.decoding.target import Target, check_model
from specdec_lib.decoding.tree import DraftTree


class Forced(NamedTuple):
    """A trace of given tokens, and what the model would have written itself: those up to the first other token, that one
    included. ``written`` are the given tokens where the model agrees with all of them."""

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
) -> Forced:
    """Record what :func:`specdec_lib.record` would, given the tokens that it would write.

    States, attention rows and most likely tokens are those of plain decoding up to rounding: one pass over many tokens
    adds in another order than one over a single token.

    Parameters
    ----------
    model, sampling, max_new_tokens, capture
        As for :func:`specdec_lib.record`.
    prompt, tokens : sequence of int
        The new tokens, at least one, with the end token where one was reached.
    finish_reason : str
        Why the run ended.

    Raises
    ------
    ValueError
        If prompt or tokens are none, hold ids outside of the vocabulary, or do not fit ``max_new_tokens`` or the model's context.
    """
    if not 0 < len(tokens) <= max_new_tokens:
        raise ValueError(f"{len(tokens)} tokens are given; expected 1 to max_new_tokens, which is {max_new_tokens}")
    check_model(model)
    eos, limit, vocabulary = end_tokens(model, None), context_limit(model), vocabulary_size(model)
    sampling = sampling or Sampling()
    prompt, tokens = as_token_list(prompt, vocabulary), as_token_list(tokens, vocabulary)
    if limit is not None and len(prompt) + len(tokens) > limit:
        raise ValueError(
            f"prompt and tokens are {len(prompt) + len(tokens)} and the model's context is {limit}; shorten them"
        )
    before, tree = len(prompt), DraftTree.chain(tokens[1:])
    with (
        torch.inference_mode(),
        Target(model, before + len(tokens), capture, before + len(tokens) + 1) as target,
    ):
        bound = sampling.for_prompt(prompt)
        verifier = ModelVerifier(target, bound, eos, None, clock_of(target.devices), capture.topk)
        first = verifier.first(Context(list(prompt), before, vocabulary, bound))
        outputs = [verifier.outputs]
        rows = [target.attention().cpu().clone()] if capture.heads else []
        path, other = verifier.verify(tree, Context([*prompt, tokens[0]], before, vocabulary, bound))
        outputs.append(verifier.outputs)
        target.commit(range(len(tree)))
        if capture.heads:
            # Row i of each head is that of token i, which attends to the prompt and the tokens up to itself.
            heads = torch.stack([row.cpu() for row in target.rows.held()])
            rows += [heads[:, i, : before + i + 1].clone() for i in range(len(tokens) - 1)]
        # The last token was not passed through the target by plain decoding.
        states = {layer: target.hidden(layer)[: before + len(tokens) - 1].cpu().clone() for layer in capture.layers}
    known = None
    if capture.topk:
        known = Outputs(*(np.concatenate([getattr(part, name) for part in outputs]) for name in ("tokens", "logprobs")))
    limits = Limits(max_new_tokens, eos, limit)
    trace = Trace(
        prompt, tokens, sampling, vocabulary, limits, finish_reason, states, tuple(capture.heads), rows, known
    )
    if first != tokens[0]:
        return Forced(trace, [first])
    agreed = tokens[: 1 + len(path)]
    return Forced(trace, agreed if len(agreed) == len(tokens) else [*agreed, *([] if other is None else [other])])
