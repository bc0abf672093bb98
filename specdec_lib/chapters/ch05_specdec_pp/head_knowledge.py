"""What acceptance heads know of the tokens that decoding meets, compared with the draft model's own probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specdec_lib.chapters.ch05_specdec_pp.head_study import Workshop, knows, met, reweighted
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import Study
from specdec_lib.experiments.acceptance_training import parted
from specdec_lib.experiments.calibration import ranking_lead
from specdec_lib.experiments.statistics import Interval
from specdec_lib.heads.acceptance import AcceptanceHead, Examples
from specdec_lib.heads.acceptance_data import own_tokens

#: The held-out part of what heads are trained on.
MIXTURE = "training mixture, held out"
#: No head at all: the probability that the draft model gave the token.
CONFIDENCE = "confidence"


class Said(NamedTuple):
    """Predicted acceptance of tokens, whether they were accepted, and which output each is of."""

    predicted: np.ndarray
    accepted: np.ndarray
    outputs: np.ndarray


class Tokens(NamedTuple):
    """Drafted tokens, and which output each is of."""

    examples: Examples
    outputs: np.ndarray


def held_out(workshop: Workshop, mixing: float | None) -> Tokens:
    """The tokens that heads are not trained on, of the mixture that they are trained on."""
    own = own_tokens(parted(workshop.responses())[1], mixing, workshop.seed)
    return Tokens(workshop.examples(mixing)[1], np.repeat(range(len(own)), [tokens.sum() for tokens in own]))


def met_by_set(study: Study) -> dict[str, Tokens]:
    """The drafted tokens that decoding meets in the outputs of each set."""
    made = {}
    for name in dict.fromkeys(study.groups.tolist()):
        passes = [one for one, group in zip(study.passes, study.groups, strict=True) if group == name]
        made[name] = Tokens(met(passes), np.repeat(range(len(passes)), [len(one.agreement) for one in passes]))
    return made


def predictions(
    tokens: Mapping[str, Tokens], heads: Mapping[str, AcceptanceHead], reject_weight: float
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
    for name, (found, outputs) in tokens.items():
        accepted = found.acceptance.numpy().astype(float)
        made[name] = {
            kind: Said(reweighted(head.probability(found.states, found.confidence), reject_weight), accepted, outputs)
            for kind, head in heads.items()
        }
        made[name][CONFIDENCE] = Said(found.confidence.numpy().astype(float), accepted, outputs)
    return made


def lead(said: Mapping[str, Said], kind: str) -> Interval:
    """AUC of a prediction less that of the draft model's own probability, with its interval over outputs."""
    ours, theirs = said[kind], said[CONFIDENCE]
    return ranking_lead(ours.predicted, theirs.predicted, ours.accepted, ours.outputs.tolist())


def table(said: Mapping[str, Mapping[str, Said]], tokens: Mapping[str, Tokens]) -> list[dict[str, Any]]:
    """One row a set and prediction: ``where``, ``what``, :func:`~.head_study.knows` and :func:`lead`."""
    return [
        {
            "where": name,
            "what": kind,
            **knows(one.predicted, tokens[name].examples),
            "lead": None if kind == CONFIDENCE else lead(kinds, kind),
        }
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
    decoded = {where: row for (where, what), row in known.items() if what == "head" and where != MIXTURE}
    made: dict[str, Any] = {
        f"{names[what]}_{where}": row["auc"]
        for (where, what), row in known.items()
        if where != MIXTURE and what in names
    }
    return (
        made
        | {
            "head_auc_mixture": known[MIXTURE, "head"]["auc"],
            "head_ece_mixture": known[MIXTURE, "head"]["ece"],
            "head_auc_gain_plain": f"{known[inside, 'head']['auc']:.3f}",
            "head_auc_gain_confidence": f"{known[inside, CONFIDENCE]['auc']:.3f}",
            "head_why": why([row["lead"] for row in decoded.values()]),
        }
        | {f"said_lead_{where}": f"{row['lead']:.3f}" for where, row in decoded.items()}
        | {f"head_ece_{where}": row["ece"] for where, row in decoded.items()}
    )


def why(leads: Sequence[Interval]) -> str:
    """What the page says of the reason, as sentences that fit the differences in AUC."""
    if all(one.high < 0 for one in leads):
        return (
            "On every set the head ranks tokens worse than the probability that the draft model gave them. A likely reason: "
            "the head reads the state at the token, where the model computes what comes next. How likely the model found "
            "the token itself follows from the state one step earlier. A model with many layers may carry that along, but "
            "the pocket draft model has few. This probability costs nothing, so we gave it to the head."
        )
    if all(one.low > 0 for one in leads):
        return (
            "On every set the head ranks tokens better than the probability that the draft model gave them. So its state "
            "knows more than this probability. A head that sees both loses nothing."
        )
    return (
        "The head does not rank tokens worse on every set than the probability that the draft model gave them, nor better "
        "on every set. Which of the two to trust depends on the text. This probability costs nothing, so we gave it to "
        "the head."
    )
