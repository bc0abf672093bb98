"""Acceptance heads compared: recorded prompts, heads of many settings, what they know and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
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
from specdec_lib.experiments.calibration import expected_calibration_error, ranking_accuracy
from specdec_lib.experiments.statistics import ratio_of_means
from specdec_lib.heads.acceptance import AcceptanceHead, Examples
from specdec_lib.heads.acceptance_data import Response, examples, label
from specdec_lib.heads.training import Training, train
from specdec_lib.models.fingerprint import fingerprint


@dataclass(frozen=True)
class Variant:
    """Setting of one head: w_rej, D, r (None for unmixed prefixes), the ``share`` of the examples it is trained on,
    the first ones in the order of the responses, and the ``seed`` of its first weights and of the order of the
    examples."""

    reject_weight: float = 6.0
    depth: int = 3
    mixing: float | None = None
    tied: bool = True
    sees_confidence: bool = False
    labels: str = "decoding"
    share: float = 1.0
    seed: int = 0


class Workshop:
    """Trains heads on one set of responses; each variant and each mixture is made once.

    Parameters
    ----------
    draft : PreTrainedModel
    responses : sequence of Response
        Labelled for greedy decoding.
    epochs, seed : int
    target : PreTrainedModel, optional
        Labels the same answers anew, for variants of other labels.
    """

    def __init__(
        self,
        draft: PreTrainedModel,
        responses: Sequence[Response],
        epochs: int = 10,
        seed: int = 0,
        target: PreTrainedModel | None = None,
    ):
        self.draft, self.epochs, self.seed, self.target = draft, epochs, seed, target
        self._responses = {"decoding": list(responses)}
        self._own = fingerprint(draft)
        self._examples: dict[tuple[float | None, str], tuple[Examples, Examples]] = {}
        self._heads: dict[Variant, AcceptanceHead] = {}

    def responses(self, labels: str = "decoding") -> list[Response]:
        """The answers with labels of a kind."""
        if labels not in self._responses:
            self._responses[labels] = [
                label(
                    self.target,
                    self.draft,
                    r.prompt.tolist(),
                    r.tokens.tolist(),
                    Sampling(seed=self.seed + i),
                    labels,
                )
                for i, r in enumerate(self._responses["decoding"])
            ]
        return self._responses[labels]

    def examples(self, mixing: float | None, labels: str = "decoding") -> tuple[Examples, Examples]:
        """Examples to train on and held-out ones."""
        if (mixing, labels) not in self._examples:
            self._examples[mixing, labels] = tuple(
                examples(self.draft, part, mixing, self.seed) for part in parted(self.responses(labels))
            )
        return self._examples[mixing, labels]

    def head(self, variant: Variant = Variant()) -> AcceptanceHead:
        """The trained head."""
        return self.heads([variant])[0]

    def heads(self, variants: Sequence[Variant]) -> list[AcceptanceHead]:
        """The trained heads; those that are not there yet are trained on all cores."""
        missing = [variant for variant in dict.fromkeys(variants) if variant not in self._heads]
        for variant in missing:
            self.examples(variant.mixing, variant.labels)  # once, before the process is copied
        trained = on_all_cores([partial(self._train, variant) for variant in missing])
        self._heads.update(zip(missing, trained, strict=True))
        return [self._heads[variant] for variant in variants]

    def _train(self, variant: Variant) -> AcceptanceHead:
        fit, held_out = self.examples(variant.mixing, variant.labels)
        return train(
            fit[: max(1, round(variant.share * len(fit)))],
            held_out,
            Training(variant.reject_weight, self.epochs, seed=self.seed + variant.seed),
            variant.depth,
            variant.tied,
            draft=self._own,
            sees_confidence=variant.sees_confidence,
            progress=False,
        )

    def reseeded(self, head: AcceptanceHead, seeds: int) -> list[AcceptanceHead]:
        """A head that was trained here, and the same setting with further training seeds: ``seeds`` heads in all."""
        variant = next(own for own, trained in self._heads.items() if trained is head)
        return self.heads([replace(variant, seed=seed) for seed in range(variant.seed, variant.seed + seeds)])


def met(passes: Sequence[DraftPass]) -> Examples:
    """States, labels and confidences as decoding meets them, of several passes together."""
    parts = [passed.examples() for passed in passes]
    return Examples(*(torch.cat([getattr(p, name) for p in parts]) for name in ("states", "acceptance", "confidence")))


def knows(predicted: np.ndarray | torch.Tensor, found: Examples) -> dict[str, float]:
    """How well predictions rank the tokens and how far they are off.

    Returns
    -------
    dict
        ``auc``, ``ece``, ``predicted`` and ``accepted`` (means).
    """
    predicted, label = np.asarray(predicted, float), found.acceptance.numpy().astype(float)
    return {
        "auc": ranking_accuracy(predicted, label),
        "ece": expected_calibration_error(predicted, label),
        "predicted": float(predicted.mean()),
        "accepted": float(label.mean()),
    }


def reweighted(predicted: np.ndarray | torch.Tensor, reject_weight: float) -> np.ndarray:
    """Acceptance probabilities without the weight that the loss gives to refusals."""
    return 1 - true_refusal(1 - np.asarray(predicted, float), reject_weight)


@torch.inference_mode()
def head_cost(
    draft: PreTrainedModel,
    head: AcceptanceHead,
    prompt: Sequence[int],
    steps: int = 200,
    repeats: int = 5,
) -> dict[str, Any]:
    """Time of a step of the draft model, of the head, and of keeping the state for it, medians in seconds.

    Parameters
    ----------
    draft, head
    prompt : sequence of int
    steps : int
        Steps a repeat.
    repeats : int

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
