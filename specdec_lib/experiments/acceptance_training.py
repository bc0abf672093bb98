"""Record data for an acceptance head (SpecDec++) and train it."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.prompts import TASKS
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.experiments.tasks import choosing_prompts
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.acceptance_data import Response, examples, generate_data
from specdec_lib.heads.training import Training, train
from specdec_lib.models.fingerprint import fingerprint

#: Tokens of the longest prompt to train on.
LONGEST = 700


def training_prompts(tokenizer: PreTrainedTokenizerBase, tasks: Sequence[str], per_task: int) -> list[list[int]]:
    """First turns of prompts of at most :data:`LONGEST` tokens to train on (:func:`choosing_prompts`), the tasks in turn."""
    by_task = [[render(p, tokenizer) for p in choosing_prompts([task], per_task)] for task in tasks]
    turns = [group[i] for i in range(per_task) for group in by_task if i < len(group)]
    return [ids for ids in turns if len(ids) <= LONGEST]


def parted(responses: Sequence[Response]) -> tuple[list[Response], list[Response]]:
    """Responses to train on, and those held out to choose the epoch by.

    At least one is held out, by a fixed permutation, because every n-th one misses some of the tasks that
    :func:`training_prompts` takes in turn.
    """
    drawn = np.random.default_rng(0).permutation(len(responses))
    held_out = set(drawn[: max(1, round(len(responses) / 10))].tolist())
    return (
        [r for i, r in enumerate(responses) if i not in held_out],
        [r for i, r in enumerate(responses) if i in held_out],
    )


class TrainedHead(NamedTuple):
    """A head that was trained, with the tokens it was fitted to and the prompts that they come from, counted."""

    head: AcceptanceHead
    tokens: int
    prompts: int


def train_heads(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    settings: Training,
    *,
    tasks: Sequence[str] = TASKS,
    per_task: int = 60,
    max_new_tokens: int = 128,
    labels: str = "decoding",
    mixing: float | None = 0.15,
    sees_confidence: bool = False,
    seeds: int = 1,
) -> list[TrainedHead]:
    """Record responses of the target in ``folder``, which goes on where it was interrupted, and fit ``seeds`` heads to them.

    All are fitted to the same examples: the seed of ``settings`` draws the prompts and the mixtures, it and those after it
    choose the first weights and the order of the examples.
    """
    prompts = training_prompts(tokenizer, tasks, per_task)
    responses = generate_data(target, draft, prompts, folder, Sampling(), labels, max_new_tokens, PromptLookup())
    fit, chosen_by = (examples(draft, part, mixing, settings.seed) for part in parted(responses))
    about, own, trained = json.loads((folder / "about.json").read_text()), fingerprint(draft), []
    for seed in range(settings.seed, settings.seed + seeds):
        began = time.perf_counter()
        head = train(fit, chosen_by, replace(settings, seed=seed), draft=own, sees_confidence=sees_confidence)
        head.story |= {
            "data": about,
            "tasks": list(tasks),
            "prompts_per_task": per_task,
            "mixing": mixing,
            "mean_acceptance": float(fit.acceptance.mean()),
            "seconds": time.perf_counter() - began,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": draft.device.type,
        }
        trained.append(TrainedHead(head, len(fit), len(prompts)))
    return trained
