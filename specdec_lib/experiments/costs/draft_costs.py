"""What a draft costs and what it could save: the sums of SpecDec++ over recorded prompts.

Section and equation numbers are those of SpecDec++ (Huang et al. 2024).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.generate import generate
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import vocabulary_size
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters.draft_model import AdaptiveDraftModel
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_costs import MERGING, PassCosts
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.runs.metrics import pooled_metrics
from specdec_lib.experiments.runs.recorded_runs import Runs
from specdec_lib.experiments.statistics.intervals import Interval, interval_of_sums


def ends_inside(run: Generation) -> bool:
    """Whether the last round of a run ended the text inside its draft, so that it has no token of the target's own."""
    return bool(run.steps) and len(run.steps[-1].tokens) == run.steps[-1].accepted


def count_imbalance(run: Generation) -> int:
    """By how much N_draft + N_target differs from N + N_discarded (section 2).

    Each round emits its accepted tokens and one of the target's own, so the two sums are equal, but for a last
    round of the kind of :func:`ends_inside`. That round is allowed for, so anything but 0 is a fault of the
    counting.
    """
    drafted, accepted = sum(s.drafted for s in run.steps), sum(s.accepted for s in run.steps)
    emitted = len(run.tokens) - 1
    return drafted + len(run.steps) - (emitted + drafted - accepted) - ends_inside(run)


class ForwardTimes(NamedTuple):
    """Seconds of one forward, medians over the repeats: the draft model and the target over one token, and the target
    over a draft and the token before it (``verify``)."""

    draft: float
    target: float
    verify: float


def forward_times(plain: Sequence[Runs], drafted: Sequence[Runs]) -> ForwardTimes:
    """Times of the forwards from timed runs of plain decoding and of a draft model, one entry per repeat."""
    counts = [sum(step.drafted for run in runs for step in run.steps) for runs in drafted]
    if not all(counts):
        raise ValueError("no draft was verified in the timed runs; time longer outputs")
    target, verify = (
        [m["verify_seconds"] / m["calls"] for m in map(pooled_metrics, repeats)] for repeats in (plain, drafted)
    )
    draft = [pooled_metrics(runs)["draft_seconds"] / count for runs, count in zip(drafted, counts, strict=True)]
    return ForwardTimes(median(draft), median(target), median(verify))


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


@torch.inference_mode()
def capture_times(
    model: PreTrainedModel, captures: Mapping[str, Capture], lengths: Sequence[int], draft: int = 10, repeats: int = 20
) -> list[dict[str, float]]:
    """Time of the target's pass over a draft with and without capture, for contexts of ascending ``lengths``.

    Each row has ``tokens``, ``capture`` (its name), ``median_ms`` and ``all_ms`` of the pass and the reading of what was kept;
    the device's own time on a GPU.
    """
    rows, tree = [], DraftTree.chain([1 + i % 7 for i in range(draft)])
    vocabulary = vocabulary_size(model)
    with ExitStack() as opened:
        targets = {
            name: opened.enter_context(Target(model, max(lengths) + draft + 1, capture))
            for name, capture in captures.items()
        }
        clock = clock_of(next(iter(targets.values())).devices)
        for length in lengths:
            for target in targets.values():
                target.extend([(7 * i + 3) % vocabulary for i in range(target.length, length)])
            marks: dict[str, list[tuple]] = {name: [] for name in targets}
            # In turns: other work on the machine falls on all of them.
            for _ in range(repeats + 2):
                for name, target in targets.items():
                    began = clock.mark()
                    target.verify(5, tree)
                    for layer in captures[name].layers:
                        target.hidden(layer)
                    if captures[name].heads:
                        target.attention()
                    marks[name].append((began, clock.mark()))
            clock.settle()
            for name, pairs in marks.items():
                spent = [1e3 * clock.seconds(*pair) for pair in pairs[2:]]
                rows.append({"tokens": length, "capture": name, "median_ms": float(np.median(spent)), "all_ms": spent})
    return rows


def time_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Mean of measured times divided by the mean of others, which were measured apart: each is drawn by itself."""
    a, b = np.asarray(ours), np.asarray(theirs)
    none = [np.zeros(len(b)), np.zeros(len(a))]
    columns = [np.concatenate(pair) for pair in ((a, none[0]), (np.ones(len(a)), none[0]))]
    columns += [np.concatenate(pair) for pair in ((none[1], b), (none[1], np.ones(len(b))))]
    return interval_of_sums(lambda x, n, y, m: (x / n) / (y / m), columns)


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
