"""What acceptance heads know of the tokens that decoding meets, and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from specdec_lib.chapters.ch05_specdec_pp.draft_pass import DraftPass
from specdec_lib.chapters.ch05_specdec_pp.theory import true_refusal
from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.decoding.target import Target
from specdec_lib.experiments.statistics import ratio_of_means
from specdec_lib.experiments.workbench import companions
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.models.fingerprint import fingerprint


def shipped(target: PreTrainedModel, draft: PreTrainedModel) -> tuple[list[AcceptanceHead], list[AcceptanceHead]]:
    """The acceptance heads that come with a pair, one a training seed: those of the paper, and those that see the draft model's
    probability too; ValueError for heads of another draft model."""
    folder = companions(target) / "head"
    heads = [AcceptanceHead.load(path) for path in sorted(folder.glob("acceptance*.safetensors"))]
    if not heads or any(head.draft != fingerprint(draft) for head in heads):
        raise ValueError(f"{folder} holds no heads of this draft model; train some with scripts/train_companions.py")
    return [head for head in heads if not head.sees_confidence], [head for head in heads if head.sees_confidence]


def met(passes: Sequence[DraftPass], heads: Mapping[str, AcceptanceHead], reject_weight: float) -> pd.DataFrame:
    """The drafted tokens that decoding meets, one a row: ``output`` (its place), ``accepted`` (probability, 0 or 1 where
    decoding is greedy), ``confidence`` of the draft model, and by head the predicted acceptance, without the loss's weight of
    refusals."""
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

    ``draft``: one token without capture; ``capture``: what keeping the state adds; ``head``: one call. ``share``: capture and
    head over a step of the draft model, from the medians of each repeat, with its interval over the repeats.
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
