"""Record a target's answers and train heads that draft (Medusa, Hydra, EAGLE) on them."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.acceptance_training import TASKS, parted, training_prompts
from specdec_lib.files import write_atomic
from specdec_lib.heads.answers import record_answers
from specdec_lib.heads.draft_training import HeadTraining, read_by, train_heads
from specdec_lib.heads.drafting import KINDS, DraftHead
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

    A tenth of the answers is held out, to choose the epoch and to measure accuracies. ``data`` is the folder of the answers,
    where a later call goes on; ``options`` are, by kind, for its ``for_target``.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"kind is {unknown[0]!r}; expected one of {', '.join(KINDS)}")
    prompts = training_prompts(tokenizer, tasks, per_task)
    answers = record_answers(target, prompts, data, Sampling(), max_new_tokens, PromptLookup(), progress=progress)
    texts, held_out = (read_by(target, part, progress) for part in parted(answers))
    out.mkdir(parents=True, exist_ok=True)
    made = {}
    for kind in kinds:
        began = time.perf_counter()
        head = _new(kind, target, settings.seed, (options or {}).get(kind, {}))
        train_heads(head, target, texts, held_out, settings, progress)
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
        "top1": [row[0] for row in head.story["accuracies"]],
        "top10": [round(sum(row), 4) for row in head.story["accuracies"]],
    }
    write_atomic(path, json.dumps({"target": target, "kinds": kinds}, indent=1, sort_keys=True) + "\n")
