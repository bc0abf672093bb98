"""Attribution by copying (PLD+, appendix D): which tokens of an output were copied, and from where.

A draft that the target accepts was copied from a known position. Accepted spans of at least a given length
attribute their tokens to that position; all other tokens are taken to be the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.chapters.ch04_pld_plus.alignment import Alignment
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.generate import check_model
from specdec_lib.decoding.loop import Limits
from specdec_lib.decoding.outputs import QueuedTopK, joined
from specdec_lib.decoding.replay import Trace, replay
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import context_limit, vocabulary_size
from specdec_lib.decoding.target import Target
from specdec_lib.experiments import statistics


def attributed(run: Generation, least: int) -> np.ndarray:
    """Prompt position of each output token that was copied in an accepted span of ``least`` tokens or more; -1 where
    nothing is attributed, or it was copied from the output itself.

    ValueError for the run of a drafter that does not say where its drafts come from.
    """
    out = np.full(len(run.tokens), -1)
    place = 1  # the first token comes from the prefill
    for step in run.steps:
        source = step.tree.copied_from
        if source is None and len(step.tree):
            raise ValueError(f"{step.tree} does not say where it was copied from; expected a run of PLD or PLD+")
        if source is not None and step.accepted >= least:
            positions = source + np.arange(step.accepted)
            out[place : place + step.accepted] = np.where(positions < run.prompt_length, positions, -1)
        place += len(step.tokens)
    return out


@torch.inference_mode()
def forced(model: PreTrainedModel, prompt: Sequence[int], answer: Sequence[int], capture: Capture) -> Trace:
    """The trace of a model that says a given answer: what replay needs, from one pass over both.

    Parameters
    ----------
    model : PreTrainedModel
    prompt, answer : sequence of int
        Token ids.
    capture : Capture
        No attention rows: they are kept of the last position alone.

    Raises
    ------
    ValueError
        If either is empty, both do not fit the model's context, or attention rows are asked for.
    """
    text, limit = [*prompt, *answer], context_limit(model)
    if not len(prompt) or not len(answer):
        raise ValueError(f"prompt and answer have {len(prompt)} and {len(answer)} tokens; expected one or more each")
    if capture.heads:
        raise ValueError("attention rows are kept of the last position alone; attribute with hidden states")
    if limit is not None and len(text) > limit:
        raise ValueError(f"prompt and answer have {len(text)} tokens and the model's context is {limit}; shorten them")
    check_model(model)
    outputs = None
    with Target(model, len(text), capture) as target:
        if capture.topk:
            parts: list[QueuedTopK] = []
            target.extend(text, lambda logits: parts.append(QueuedTopK(logits, capture.topk)))
            outputs = joined(parts)
        else:
            target.extend(text[:-1])
        states = {layer: target.hidden(layer)[: len(text) - 1].cpu().clone() for layer in capture.layers}
    return Trace(
        list(prompt),
        list(answer),
        Sampling(),
        vocabulary_size(model),
        Limits(len(answer), frozenset(), limit),
        "length",
        states,
        outputs=outputs,
    )


class Counts(NamedTuple):
    """Tokens over any number of outputs.

    Attributes
    ----------
    copied : int
        Tokens that were copied.
    attributed : int
        Tokens attributed to a position.
    found : int
        Of these, copied ones.
    exact, locatable : int
        Of the found ones whose one origin is known, those attributed to it; all of the latter.
    """

    copied: int = 0
    attributed: int = 0
    found: int = 0
    exact: int = 0
    locatable: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def scores(self) -> dict[str, float]:
        """``precision``, ``recall``, ``f1`` of telling copied tokens; ``exact``: share at the right place, of
        the found ones whose one origin is known.

        NaN where a ratio has nothing below.
        """
        precision, recall = _ratio(self.found, self.attributed), _ratio(self.found, self.copied)
        return {
            "precision": precision,
            "recall": recall,
            "f1": _ratio(2 * self.found, self.attributed + self.copied),
            "exact": _ratio(self.exact, self.locatable),
        }


def _ratio(a: float, b: float) -> float:
    return a / b if b else float("nan")


def count(truth: Alignment, positions: np.ndarray) -> Counts:
    """Compare attributed positions with the truth, token by token.

    Parameters
    ----------
    truth : Alignment
    positions : int array, shape (n,)
        Of :func:`attributed`; a last token that the answer does not have (the end token) is left out.

    Raises
    ------
    ValueError
        If there are fewer positions than tokens in the answer.
    """
    if len(positions) < len(truth.answer):
        raise ValueError(
            f"{len(positions)} positions for an answer of {len(truth.answer)} tokens; expected one for each"
        )
    positions = np.asarray(positions)[: len(truth.answer)]
    said, found = positions >= 0, (positions >= 0) & truth.copied
    located = found & (truth.origin >= 0)
    return Counts(
        int(truth.copied.sum()),
        int(said.sum()),
        int(found.sum()),
        int((located & (positions == truth.origin)).sum()),
        int(located.sum()),
    )


def count_each(
    model: PreTrainedModel, truths: Sequence[Alignment], drafters: dict[str, Any], least: Sequence[int]
) -> dict[tuple[str, int], list[Counts]]:
    """Attribute known answers with each drafter at each least span: by both, the counts of each answer.

    The model is made to say each answer (:func:`forced`); drafters that read attention are refused.
    """
    each: dict[tuple[str, int], list[Counts]] = {(name, span): [] for name in drafters for span in least}
    capture = Capture()
    for drafter in drafters.values():
        capture = capture | drafter.capture
    for truth in truths:
        trace = forced(model, truth.prompt, truth.answer, capture)
        for name, drafter in drafters.items():
            drafter.reset()  # cold: an answer is not attributed by what another one taught
            run = replay(trace, drafter)
            for span in least:
                each[name, span].append(count(truth, attributed(run, span)))
    return each


def score(each: dict[tuple[str, int], list[Counts]]) -> list[dict[str, Any]]:
    """Rows of ``method``, ``least``, ``tokens`` and the scores of :meth:`Counts.scores` over all answers, and the first
    three of these with their intervals as ``precision_interval``, ``recall_interval`` and ``f1_interval``."""
    rows = []
    for (name, span), answers in each.items():
        total = sum(answers, Counts())
        found = [counted.found for counted in answers]
        below = {
            "precision": [counted.attributed for counted in answers],
            "recall": [counted.copied for counted in answers],
            "f1": [(counted.attributed + counted.copied) / 2 for counted in answers],
        }
        intervals = {f"{key}_interval": statistics.pooled_rate((found, values)) for key, values in below.items()}
        rows.append({"method": name, "least": span, "tokens": total.copied, **total.scores(), **intervals})
    return rows


def change(longer: Sequence[Counts], shorter: Sequence[Counts], below: str) -> statistics.Interval:
    """Found tokens over those ``below`` (``"attributed"`` for precision, ``"copied"`` for recall), less the same of other
    attributions of the same answers."""
    both = [([c.found for c in counted], [getattr(c, below) for c in counted]) for counted in (longer, shorter)]
    return statistics.difference_of_rates(*(statistics.Counts(*pair) for pair in both))
