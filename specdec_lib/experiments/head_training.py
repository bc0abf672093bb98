"""Record a target's answers and train heads that draft (Medusa, Hydra, EAGLE) on them."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.acceptance_training import TASKS, parted, training_prompts
from specdec_lib.experiments.statistics import Counts, pooled_rate
from specdec_lib.files import write_atomic
from specdec_lib.heads.answers import record_answers
from specdec_lib.heads.draft_training import HeadTraining, Loss, Text, judge, read_by, train_heads
from specdec_lib.heads.drafting import KINDS, DraftHead, Ends
from specdec_lib.models.fingerprint import fingerprint

#: Beside the files of the heads: how often each kind was right on held-out answers.
SUMMARY = "accuracies.json"


def train_kinds(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: Path,
    out: Path,
    kinds: Sequence[str] = tuple(KINDS),
    settings: HeadTraining = HeadTraining(),
    *,
    tasks: Sequence[str] = TASKS,
    per_task: int = 80,
    max_new_tokens: int = 128,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: bool = True,
) -> dict[str, DraftHead]:
    """Train heads of some kinds on one recording of greedy answers, and write ``<kind>.safetensors`` and :data:`SUMMARY`.

    A tenth of the answers is held out, to choose the epoch and to measure accuracies. ``data`` is the folder of the answers
    and of checkpoints, where a later call goes on; ``options`` are, by kind, for its ``for_target``.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"kind is {unknown[0]!r}; expected one of {', '.join(KINDS)}")
    texts, held_out = _answered(target, tokenizer, data, settings.seed, tasks, per_task, max_new_tokens, progress)
    out.mkdir(parents=True, exist_ok=True)
    made = {}
    for kind in kinds:
        began = time.perf_counter()
        head = _new(kind, target, settings.seed, (options or {}).get(kind, {}))
        train_heads(head, target, texts, held_out, settings, data / f"{kind}.checkpoint", progress)
        head.story |= {
            "tasks": list(tasks),
            "prompts_per_task": per_task,
            "max_new_tokens": max_new_tokens,
            "seconds": time.perf_counter() - began,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": target.device.type,
        }
        head.save(out / f"{kind}.safetensors")
        _summarise(out / SUMMARY, head, fingerprint(target))
        made[kind] = head
    return made


def _answered(
    target, tokenizer, data, seed, tasks, per_task, max_new_tokens, progress
) -> tuple[list[Text], list[Text]]:
    """Answers to train on and held-out ones, recorded where they are not in ``data`` yet."""
    prompts = training_prompts(tokenizer, tasks, per_task)
    answers = record_answers(target, prompts, data, Sampling(), max_new_tokens, PromptLookup(), progress=progress)
    texts, held_out = (read_by(target, part, progress) for part in parted(answers))
    return texts, held_out


def compare_losses(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: Path,
    kind: str = "medusa",
    settings: HeadTraining = HeadTraining(),
    *,
    tasks: Sequence[str] = TASKS,
    per_task: int = 80,
    max_new_tokens: int = 128,
    options: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train heads of one kind with each loss, on the same answers and from the same weights, and write no heads.

    Gives, by loss, ``epoch_kept`` and, for each depth on held-out answers, ``top1`` and ``top10``, how often the first choice
    and one of the first ten were right, and ``distance``, the mean total variation distance from the target; under
    ``intervals`` the ends of their 95 % intervals over the held-out answers.
    """
    texts, held_out = _answered(target, tokenizer, data, settings.seed, tasks, per_task, max_new_tokens, progress)
    found = {}
    for loss in get_args(Loss):
        head = _new(kind, target, settings.seed, options or {})
        own = replace(settings, loss=loss)
        train_heads(head, target, texts, held_out, own, data / f"{kind}-{loss}.checkpoint", progress)
        found[loss] = {
            "epoch_kept": head.story["epoch_kept"],
            "top1": [row[0] for row in head.story["accuracies"]],
            "top10": [round(sum(row), 4) for row in head.story["accuracies"]],
            "distance": judge(head, Ends(target), held_out).distances,
            "intervals": _intervals(head, Ends(target), held_out),
        }
    return {
        "kind": kind,
        "target": fingerprint(target),
        "answers": len(texts),
        "held_out": len(held_out),
        "epochs": settings.epochs,
        "rate": head.story["training"]["rate"],
        "losses": found,
    }


def _intervals(head: DraftHead, ends: Ends, held_out: Sequence[Text]) -> dict[str, list[list[float] | None]]:
    """Ends of the intervals of a head's ``top1``, ``top10`` and ``distance`` over answers, for each depth; None without."""
    counted = [judge(head, ends, [text]) for text in held_out]
    places = np.array([one.places for one in counted])
    above = {
        "top1": np.array([one.right[:, 0] for one in counted]),
        "top10": np.array([one.right.sum(1) for one in counted]),
        "distance": np.array([one.distance for one in counted]),
    }
    found = {
        name: [pooled_rate(Counts(values[:, depth], places[:, depth])) for depth in range(places.shape[1])]
        for name, values in above.items()
    }
    return {
        name: [[round(rate.low, 4), round(rate.high, 4)] if rate.known else None for rate in rates]
        for name, rates in found.items()
    }


def _new(kind: str, target: PreTrainedModel, seed: int, options: Mapping[str, Any]) -> DraftHead:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return KINDS[kind].for_target(target, **options)


def _summarise(path: Path, head: DraftHead, target: str) -> None:
    """Write a kind's accuracies beside those of the other kinds of the same target."""
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kinds = held.get("kinds", {}) if held.get("target") == target else {}
    kinds[head.kind] = {
        "parameters": sum(weights.numel() for weights in head.parameters()),
        "predictions": head.story["predictions"],
        "epochs": head.story["epoch_kept"],
        "loss": head.story["training"]["loss"],
        "top1": [row[0] for row in head.story["accuracies"]],
        "top10": [round(sum(row), 4) for row in head.story["accuracies"]],
    }
    write_atomic(path, json.dumps({"target": target, "kinds": kinds}, indent=1, sort_keys=True) + "\n")
