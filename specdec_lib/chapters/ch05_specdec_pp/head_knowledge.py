"""What acceptance heads know of the tokens that decoding meets, compared with the draft model's own probability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.head_study import knows, met, reweighted
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import Study
from specdec_lib.heads.acceptance import AcceptanceHead, Examples

#: The held-out part of what heads are trained on.
MIXTURE = "training mixture, held out"
#: No head at all: the probability that the draft model gave the token.
CONFIDENCE = "confidence"


class Said(NamedTuple):
    """Predicted acceptance of tokens, and whether they were accepted."""

    predicted: np.ndarray
    accepted: np.ndarray


def met_by_set(study: Study) -> dict[str, Examples]:
    """The drafted tokens that decoding meets in the outputs of each set."""
    names = dict.fromkeys(study.groups.tolist())
    return {
        name: met([one for one, group in zip(study.passes, study.groups, strict=True) if group == name])
        for name in names
    }


def predictions(
    tokens: Mapping[str, Examples], heads: Mapping[str, AcceptanceHead], reject_weight: float
) -> dict[str, dict[str, Said]]:
    """By set and head the predictions, and those of the draft model's own probability.

    Parameters
    ----------
    tokens : mapping
        By set.
    heads : mapping
        By name; their loss weighed refusals by ``reject_weight``, which is undone.
    reject_weight : float
    """
    made: dict[str, dict[str, Said]] = {}
    for name, found in tokens.items():
        accepted = found.acceptance.numpy().astype(float)
        made[name] = {
            kind: Said(reweighted(head.probability(found.states, found.confidence), reject_weight), accepted)
            for kind, head in heads.items()
        }
        made[name][CONFIDENCE] = Said(found.confidence.numpy().astype(float), accepted)
    return made


def table(said: Mapping[str, Mapping[str, Said]], tokens: Mapping[str, Examples]) -> list[dict[str, Any]]:
    """One row a set and prediction: ``where``, ``what`` and :func:`~.head_study.knows`."""
    return [
        {"where": name, "what": kind, **knows(one.predicted, tokens[name])}
        for name, kinds in said.items()
        for kind, one in kinds.items()
    ]


def values(rows: list[dict[str, Any]], inside: str, names: Mapping[str, str]) -> dict[str, Any]:
    """What is recorded of a table, by name.

    Parameters
    ----------
    rows : list of dict
        Of :func:`table`.
    inside : str
        The set of the kind that heads are trained on.
    names : mapping
        By prediction the beginning of what is recorded: ``{"head": "head_auc"}`` gives ``head_auc_code``.
    """
    known = {(row["where"], row["what"]): row for row in rows}
    made: dict[str, Any] = {
        f"{names[what]}_{where}": row["auc"]
        for (where, what), row in known.items()
        if where != MIXTURE and what in names
    }
    return made | {
        "head_auc_mixture": known[MIXTURE, "head"]["auc"],
        "head_ece_mixture": known[MIXTURE, "head"]["ece"],
        "head_ece_met": known[inside, "head"]["ece"],
        "head_auc_gain_plain": f"{known[inside, 'head']['auc']:.3f}",
        "head_auc_gain_confidence": f"{known[inside, CONFIDENCE]['auc']:.3f}",
    }
