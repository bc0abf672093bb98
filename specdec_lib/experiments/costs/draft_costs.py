"""Measured times of drafting: of one proposal after contexts of several lengths, and of a step without its pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.generate import generate
from specdec_lib.decoding.results import Step
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters.draft_model import AdaptiveDraftModel
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_costs import MERGING, PassCosts
from specdec_lib.experiments.data import stores


def long_text(tokenizer: PreTrainedTokenizerBase, vocabulary: int, length: int) -> list[int]:
    """At least ``length`` tokens of modules of the standard library, repeated where they are too few, each below
    ``vocabulary``."""
    text = "\n\n".join(list(stores.stdlib_modules().values())[:12])
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return [token % vocabulary for token in ids] * (1 + length // len(ids))


def draft_times(
    drafters: Mapping[str, Drafter], tokens: Sequence[int], lengths: Sequence[int], width: int = 320, steps: int = 200
) -> list[dict[str, float]]:
    """Time to propose against the length of the context, states and attention rows at hand; each proposal after the
    first sees one token more.

    The text is given and long enough for the largest length and all steps (else ValueError). States of ``width``
    numbers and rows are random: the time does not depend on their values. Each row has ``tokens``, ``method``,
    ``median_ms``, ``all_ms`` and ``bytes_per_token``, the memory that grows with the context, without the index of the
    prompt's tokens.
    """
    longest = max(lengths) + steps
    if len(tokens) < longest:
        raise ValueError(f"tokens holds {len(tokens)}; expected {longest}, the longest context and the steps from it")
    generator = torch.Generator().manual_seed(0)
    states, vocabulary = torch.randn(longest, width, generator=generator), max(tokens) + 1
    rows = []
    for length in lengths:
        for name, drafter in drafters.items():
            text = list(tokens[:length])
            context = Context(text, length, vocabulary, Sampling())
            weights = torch.rand(len(drafter.capture.heads), longest, generator=generator)
            context.hidden = lambda layer, text=text: states[: len(text) - 1]
            context.attention = lambda text=text, weights=weights: weights[:, : len(text) - 1]
            spent = _propose_times(drafter, context, tokens[length : length + steps])
            values = len(drafter.capture.layers) * width + len(drafter.capture.heads) * (drafter.num_tokens + 1)
            rows.append(
                {
                    "tokens": length,
                    "method": name,
                    "median_ms": float(np.median(spent)),
                    "all_ms": spent,
                    "bytes_per_token": values * states.element_size() if drafter.capture != Capture() else 0,
                }
            )
    return rows


@torch.inference_mode()
def _propose_times(drafter: Drafter, context: Context, coming: Sequence[int]) -> list[float]:
    """Milliseconds of a proposal after each of the coming tokens."""
    drafter.reset()  # cold: nothing is left of other lengths
    drafter.start(context)
    drafter.propose(context, 1_000)  # the index of the prompt, made once
    spent = []
    for token in coming:
        context.tokens.append(token)
        began = time.perf_counter()
        drafter.propose(context, 1_000)
        spent.append(1e3 * (time.perf_counter() - began))
    return spent


def drafting_costs(
    model: PreTrainedModel,
    alone: Mapping[str, Drafter],
    sources: Mapping[str, Drafter],
    prompt: Sequence[int],
    new_tokens: int,
    widths: Mapping[int, float],
) -> tuple[float, dict[str, float]]:
    """Measure the cost of a step's own work and of drafting after a prompt, from medians over the steps: ``step`` and ``drafting``
    of :class:`~specdec_lib.drafters.pass_costs.PassCosts`.

    ``alone`` are timed by themselves, but for a draft model, which is paid by the token. What a step of one tree over
    ``sources`` takes beyond their times is the cost of merging. ``widths`` has the milliseconds of a pass by its width.
    """

    def cost(drafter: Drafter | None, part: Callable[[Step], float]) -> float:
        for count in (min(8, new_tokens), new_tokens):  # the first steps of a process compile
            if drafter is not None:
                drafter.reset()  # what it learned from the answer before would be another drafter's cost
            # No end token: all drafters decode as far.
            run = generate(model, list(prompt), drafter, max_new_tokens=count, eos_token_id=[])
        return 1e3 * float(np.median([part(step) for step in run.steps])) / widths[1]

    step = cost(None, lambda step: step.commit_seconds + step.host_seconds)
    timed = {name: each for name, each in {**alone, **sources}.items() if not isinstance(each, AdaptiveDraftModel)}
    costs = {name: cost(drafter, lambda step: step.draft_seconds) for name, drafter in timed.items()}
    merged = {name: drafter for name, drafter in sources.items() if name in timed}
    if merged:
        spent = cost(OneTree(merged, PassCosts(widths)), lambda step: step.draft_seconds)
        costs[MERGING] = max(0.0, spent - sum(costs[name] for name in merged))
    return step, costs
