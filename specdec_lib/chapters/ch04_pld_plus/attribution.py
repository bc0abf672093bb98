"""Attribution by copying (PLD+, appendix D): which tokens of an output were copied, and from where.

A draft that the target accepts was copied from a known position. Accepted spans of at least a given length
attribute their tokens to that position; all other tokens are taken to be the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from specdec_lib.chapters.ch04_pld_plus.alignment import Alignment
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.replay import replay
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.teacher_forcing import record_known

#: What scores are the ratio of (:func:`specdec_lib.experiments.results.rate`): whether copied tokens are told from others, and
#: the share of the found ones that are attributed to their origin.
PRECISION, RECALL, F1 = ("found", "attributed"), ("found", "copied"), ("found", "either")
RIGHT_PLACE = ("exact", "located")


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


def count(truth: Alignment, positions: np.ndarray) -> dict[str, int]:
    """Compare the positions of :func:`attributed` with the truth, in numbers of tokens of the answer.

    ``copied``; ``attributed`` to a position; ``found``, those that are both; ``located``, found ones whose one origin is known;
    ``exact``, located ones that are attributed to it. An end token after the answer is left out.
    """
    if len(positions) < len(truth.answer):
        raise ValueError(
            f"{len(positions)} positions for an answer of {len(truth.answer)} tokens; expected one for each"
        )
    positions = np.asarray(positions)[: len(truth.answer)]
    said, found = positions >= 0, (positions >= 0) & truth.copied
    located = found & (truth.origin >= 0)
    return {
        "copied": int(truth.copied.sum()),
        "attributed": int(said.sum()),
        "found": int(found.sum()),
        "located": int(located.sum()),
        "exact": int((located & (positions == truth.origin)).sum()),
    }


def count_each(
    model: PreTrainedModel, truths: Mapping[str, Sequence[Alignment]], drafter: Drafter, least: Sequence[int]
) -> pd.DataFrame:
    """Attribute known answers at each least span: a row per answer and ``least``, with the counts of :func:`count`.

    The model is made to say each answer. ``task`` is the name of the set of answers in ``truths``, ``prompt`` the number of the
    answer.
    """
    rows = []
    for task, answers in truths.items():
        for number, truth in enumerate(answers):
            drafter.reset()  # cold: an answer is not attributed by what another one taught
            said = record_known(model, truth.prompt, truth.answer, "length", None, len(truth.answer), drafter.capture)
            run = replay(said.trace, drafter)
            for span in least:
                counts = count(truth, attributed(run, span))
                either = (counts["attributed"] + counts["copied"]) / 2
                rows.append({"task": task, "prompt": number, "least": span, **counts, "either": either})
    return pd.DataFrame(rows)
