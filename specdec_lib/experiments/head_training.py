"""Record a target's answers, and train on them the acceptance head of SpecDec++ and the heads that draft: Medusa, Hydra, EAGLE."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.data.prompt import render
from specdec_lib.experiments.data.tasks import choosing_prompts
from specdec_lib.files import named
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.acceptance_data import examples, generate_data
from specdec_lib.heads.answers import record_answers
from specdec_lib.heads.draft_training import HeadTraining, texts_with_states, train_heads
from specdec_lib.heads.drafting import KINDS, DraftHead
from specdec_lib.heads.training import Training, train
from specdec_lib.models.fingerprint import fingerprint

#: Tokens of the longest prompt to train on.
LONGEST = 700


class PromptSettings(NamedTuple):
    """Which prompts are answered, so many of each task, and how long an answer is at most, in tokens."""

    tasks: Sequence[str]
    per_task: int
    max_new_tokens: int


def training_prompts(tokenizer: PreTrainedTokenizerBase, tasks: Sequence[str], per_task: int) -> list[list[int]]:
    """First turns of prompts of at most :data:`LONGEST` tokens to train on, the tasks in turn."""
    by_task = [[render(p, tokenizer) for p in choosing_prompts([task], per_task)] for task in tasks]
    turns = [group[i] for i in range(per_task) for group in by_task if i < len(group)]
    return [ids for ids in turns if len(ids) <= LONGEST]


def split_held_out(responses: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Responses to train on, and those held out to choose the epoch by: at least one, by a fixed permutation, because every n-th
    one misses some of the tasks that :func:`training_prompts` takes in turn."""
    drawn = np.random.default_rng(0).permutation(len(responses))
    held_out = set(drawn[: max(1, round(len(responses) / 10))].tolist())
    return (
        [r for i, r in enumerate(responses) if i not in held_out],
        [r for i, r in enumerate(responses) if i in held_out],
    )


def _about(asked: PromptSettings, began: float, model: PreTrainedModel) -> dict[str, Any]:
    """The facts about the training that are kept with a head."""
    return {
        "tasks": list(asked.tasks),
        "prompts_per_task": asked.per_task,
        "max_new_tokens": asked.max_new_tokens,
        "seconds": time.perf_counter() - began,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": model.device.type,
    }


def train_acceptance_heads(
    models: tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase],
    folder: Path,
    settings: Training,
    asked: PromptSettings,
    labels: str,
    mixing: float | None,
    sees_confidence: bool,
    seeds: int,
) -> tuple[list[AcceptanceHead], int, int]:
    """Record responses of the target in ``folder``, which goes on where it was interrupted, and fit ``seeds`` heads to them; also
    the numbers of tokens that they are fitted to and of prompts. ``models`` are target, draft and tokenizer.

    All are fitted to the same examples: the seed of ``settings`` draws the prompts and the mixtures, it and those after it
    choose the first weights and the order of the examples.
    """
    target, draft, tokenizer = models
    prompts = training_prompts(tokenizer, asked.tasks, asked.per_task)
    responses = generate_data(target, draft, prompts, folder, Sampling(), labels, asked.max_new_tokens, PromptLookup())
    fit, chosen_by = (examples(draft, part, mixing, settings.seed) for part in split_held_out(responses))
    about, own, trained = json.loads((named(folder) / "about.json").read_text()), fingerprint(draft), []
    for seed in range(settings.seed, settings.seed + seeds):
        began = time.perf_counter()
        head = train(fit, chosen_by, replace(settings, seed=seed), draft=own, sees_confidence=sees_confidence)
        head.story |= {"data": about, "mixing": mixing, "mean_acceptance": float(fit.acceptance.mean())}
        head.story |= _about(asked, began, draft)
        trained.append(head)
    return trained, len(fit), len(prompts)


def train_kinds(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: Path,
    out: Path,
    settings: HeadTraining,
    asked: PromptSettings,
    kinds: Mapping[str, Mapping[str, Any]],
) -> dict[str, DraftHead]:
    """Train heads of some kinds on one recording of greedy answers, and write ``<kind>.safetensors``.

    A tenth of the answers is held out, to choose the epoch and to measure accuracies. ``data`` is the folder of the answers,
    where a later call goes on; ``kinds`` has by kind the options of its ``for_target``.
    """
    prompts = training_prompts(tokenizer, asked.tasks, asked.per_task)
    answers = record_answers(target, prompts, data, Sampling(), asked.max_new_tokens, PromptLookup())
    texts, held_out = (texts_with_states(target, part) for part in split_held_out(answers))
    out.mkdir(parents=True, exist_ok=True)
    made = {}
    for kind, options in kinds.items():
        began = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            head = KINDS[kind].for_target(target, **options)
        train_heads(head, target, texts, held_out, settings)
        head.story |= _about(asked, began, target)
        head.save(out / f"{kind}.safetensors")
        made[kind] = head
    return made
