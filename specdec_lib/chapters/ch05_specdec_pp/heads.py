"""Heads of many settings trained on one set of answers, what they know of the tokens that decoding meets, and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from specdec_lib.chapters.ch05_specdec_pp.draft_pass import DraftPass
from specdec_lib.chapters.ch05_specdec_pp.theory.threshold import true_refusal
from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.decoding.target import Target
from specdec_lib.experiments.acceptance_training import parted
from specdec_lib.experiments.all_cores import on_all_cores
from specdec_lib.experiments.statistics import ratio_of_means
from specdec_lib.heads.acceptance import AcceptanceHead, Examples
from specdec_lib.heads.acceptance_data import Response, examples, label
from specdec_lib.heads.training import Training, train
from specdec_lib.models.fingerprint import fingerprint


@dataclass(frozen=True)
class Variant:
    """Setting of one head: w_rej, D, r (None for unmixed prefixes), and the ``seed`` of its first weights and of the order
    of the examples."""

    reject_weight: float = 6.0
    depth: int = 3
    mixing: float | None = None
    tied: bool = True
    sees_confidence: bool = False
    seed: int = 0

    def __str__(self) -> str:
        mixing = "none" if self.mixing is None else f"{self.mixing:g}"
        return f"w = {self.reject_weight:g}, D = {self.depth}{'' if self.tied else ' untied'}, r = {mixing}"


class Workshop:
    """Trains heads on one set of responses; each variant and each mixture is made once.

    Parameters
    ----------
    draft : PreTrainedModel
    responses : sequence of Response
    epochs : int
    """

    def __init__(self, draft: PreTrainedModel, responses: Sequence[Response], epochs: int = 6):
        self.draft, self.responses, self.epochs = draft, list(responses), epochs
        self._own = fingerprint(draft)
        self._examples: dict[float | None, tuple[Examples, Examples]] = {}
        self._heads: dict[Variant, AcceptanceHead] = {}

    def examples(self, mixing: float | None) -> tuple[Examples, Examples]:
        """Examples to train on and held-out ones."""
        if mixing not in self._examples:
            parts = parted(self.responses)
            self._examples[mixing] = tuple(examples(self.draft, part, mixing) for part in parts)
        return self._examples[mixing]

    def heads(self, variants: Sequence[Variant]) -> dict[str, AcceptanceHead]:
        """The trained heads by the names of their settings; those that are not there yet are trained on all cores."""
        return {str(variant): head for variant, head in zip(variants, self._all(variants), strict=True)}

    def head(self, variant: Variant = Variant()) -> AcceptanceHead:
        """The trained head."""
        return self._all([variant])[0]

    def reseeded(self, head: AcceptanceHead, seeds: int) -> list[AcceptanceHead]:
        """A head that was trained here, and the same setting with further training seeds: ``seeds`` heads in all."""
        variant = next(own for own, trained in self._heads.items() if trained is head)
        return self._all([replace(variant, seed=seed) for seed in range(variant.seed, variant.seed + seeds)])

    def _all(self, variants: Sequence[Variant]) -> list[AcceptanceHead]:
        missing = [variant for variant in dict.fromkeys(variants) if variant not in self._heads]
        for variant in missing:
            self.examples(variant.mixing)  # once, before the process is copied
        trained = on_all_cores([partial(self._train, variant) for variant in missing])
        self._heads.update(zip(missing, trained, strict=True))
        return [self._heads[variant] for variant in variants]

    def _train(self, variant: Variant) -> AcceptanceHead:
        return train(
            *self.examples(variant.mixing),
            Training(variant.reject_weight, self.epochs, seed=variant.seed),
            variant.depth,
            variant.tied,
            draft=self._own,
            sees_confidence=variant.sees_confidence,
            progress=False,
        )


def relabelled(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    answers: Sequence[Response],
    temperature: float = 0.0,
    labels: str = "decoding",
) -> list[Response]:
    """The same answers labelled for decoding at a temperature, or as the released code does (``labels="raw"``), on all cores."""
    return on_all_cores(
        [
            partial(label, target, draft, r.prompt.tolist(), r.tokens.tolist(), Sampling(temperature, seed=i), labels)
            for i, r in enumerate(answers)
        ]
    )


def met(passes: Sequence[DraftPass], heads: Mapping[str, AcceptanceHead], reject_weight: float) -> pd.DataFrame:
    """The drafted tokens that decoding meets, one a row.

    Returns
    -------
    DataFrame
        ``output`` (its place), ``accepted`` (probability, 0 or 1 where decoding is greedy), ``confidence`` of the draft
        model, and by head the predicted acceptance, without the weight that the loss gives to refusals.
    """
    parts = []
    for place, found in enumerate(passed.examples() for passed in passes):
        own = {"output": place, "accepted": found.acceptance.double(), "confidence": found.confidence.double()}
        for name, head in heads.items():
            own[name] = reweighted(head.probability(found.states, found.confidence), reject_weight)
        parts.append(pd.DataFrame(own))
    return pd.concat(parts, ignore_index=True)


def reweighted(predicted: np.ndarray | torch.Tensor, reject_weight: float) -> np.ndarray:
    """Acceptance probabilities without the weight that the loss gives to refusals."""
    return 1 - true_refusal(1 - np.asarray(predicted, float), reject_weight)


@torch.inference_mode()
def head_cost(
    draft: PreTrainedModel, head: AcceptanceHead, prompt: Sequence[int], steps: int = 200, repeats: int = 5
) -> dict[str, Any]:
    """Time of a step of the draft model, of the head, and of keeping the state for it, medians in seconds.

    Returns
    -------
    dict
        ``draft``: one token without capture; ``capture``: what keeping the state adds; ``head``: one call. The device's
        own time on a GPU. ``share``: capture and head over a step of the draft model, from the medians of each repeat,
        with its interval over the repeats.
    """
    last = decoder_config(draft).num_hidden_layers
    score = head.scorer(draft.device)
    marks: dict[str, list[tuple]] = {"bare": [], "kept": [], "head": []}
    token = prompt[-1]
    with (
        Target(draft, 0, capacity=len(prompt) + repeats * steps + 64) as bare,
        Target(draft, 0, Capture((last,)), len(prompt) + repeats * steps + 64) as kept,
    ):
        clock = clock_of(bare.devices)
        for model in (bare, kept):
            model.extend(list(prompt))
        for _ in range(repeats * steps):
            for name, model in (("bare", bare), ("kept", kept)):
                began = clock.mark()
                model.extend([token])
                marks[name].append((began, clock.mark()))
            began = clock.mark()
            score(kept.last_hidden(last), 0.5)
            marks["head"].append((began, clock.mark()))
            for model in (bare, kept):
                model.truncate(len(prompt))
    clock.settle()
    spent = {
        name: np.array([clock.seconds(*pair) for pair in pairs]).reshape(repeats, -1) for name, pairs in marks.items()
    }
    middle = {name: float(np.median(own)) for name, own in spent.items()}
    bare, kept, scored = (np.median(spent[name], axis=1) for name in ("bare", "kept", "head"))
    return {
        "draft": middle["bare"],
        "capture": max(0.0, middle["kept"] - middle["bare"]),
        "head": middle["head"],
        "share": ratio_of_means(kept - bare + scored, bare),
    }
