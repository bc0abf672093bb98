"""Prompts of the five input-guided tasks of PLD+ (section 5.1), made from held-out text or of the paper's sets, and the choice
of PLD+'s layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from specdec_lib.experiments import made_tasks
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import Recording, metric, replay_all
from specdec_lib.experiments.tasks import load_task

#: Mechanical tasks of each of the paper's tasks. Replacement of words in a paragraph is divided by length.
MECHANICAL: dict[str, tuple[str, ...]] = {
    "summarisation": ("quote-lines", "outline"),
    "code editing": ("rename", "remove-docstring"),
    "short text editing": ("replace-word",),
    "long text editing": ("replace-word",),
    "multi-turn": ("two-turn",),
}
TASKS = tuple(MECHANICAL)
#: Tasks on whose prompts heads and layer are chosen: their answers copy.
CALIBRATION = ("rename", "remove-docstring", "quote-lines", "replace-word")
#: Longest paragraph of short text editing, shortest of long text editing, in characters.
SHORT, LONG = 220, 300


def _fits(task: str, prompt: Prompt) -> bool:
    text = len(prompt.reference or "")
    return {"short text editing": text <= SHORT, "long text editing": text >= LONG}.get(task, True)


def mechanical_prompts(per_task: int, seed: int = 0) -> list[Prompt]:
    """``per_task`` held-out prompts of each of the five tasks, under the paper's names of them.

    Raises
    ------
    ValueError
        If ``per_task`` is below 1, or the held-out text gives fewer.
    """
    if per_task < 1:
        raise ValueError(f"per_task is {per_task}; expected 1 or more")
    out = []
    for task, kinds in MECHANICAL.items():
        found: list[Prompt] = []
        for i, kind in enumerate(kinds):
            share = (per_task + len(kinds) - 1 - i) // len(kinds)
            limit = 12 * share + 24 if kind == "replace-word" else share
            made = load_task(kind, limit=limit, seed=seed)
            found += [prompt for prompt in made if _fits(task, prompt)][:share]
        if len(found) < per_task:
            raise ValueError(
                f"per_task is {per_task}, but there are only {len(found)} prompts of {task}; ask for fewer"
            )
        out += [replace(prompt, task=task) for prompt in found]
    return out


def many_prompts(per_task: int, seeds: Iterable[int], without: Iterable[Prompt] = ()) -> list[Prompt]:
    """Prompts of :func:`mechanical_prompts` for every seed, each once; the seed is part of a prompt's id.

    A prompt that an earlier seed gave, or whose text is in ``without``, is left out, so that a seed may give somewhat
    fewer than ``per_task`` of a task.
    """
    used = {_body(prompt) for prompt in without}
    found: dict[tuple[str, ...], Prompt] = {}
    for seed in seeds:
        for prompt in mechanical_prompts(per_task, seed):
            if _body(prompt) not in used:
                found.setdefault(prompt.turns, replace(prompt, id=f"{prompt.id}, seed {seed}"))
    return list(found.values())


def first_of_each(prompts: Sequence[Any], per_task: int) -> list[Any]:
    """The first ``per_task`` prompts, or recordings, of each task, tasks in order of first appearance."""
    tasks = dict.fromkeys(prompt.task for prompt in prompts)
    return [prompt for task in tasks for prompt in [p for p in prompts if p.task == task][:per_task]]


def calibration_prompts(
    tasks: Sequence[str], per_task: int, seed: int = 1, split: str = "heldout", without: Iterable[Prompt] = ()
) -> list[Prompt]:
    """Prompts to choose heads and layer on: ``per_task`` of each task, without those whose text is in ``without``.

    ``split`` is the side of the standard library that mechanical tasks are made from. ValueError if a task is unknown
    or there are not so many other prompts.
    """
    if per_task < 1:
        raise ValueError(f"per_task is {per_task}; expected 1 or more prompts of each task")
    used = {_body(prompt) for prompt in without}
    prompts = []
    for task in tasks:
        if task not in made_tasks.TASKS:
            prompts += load_task(task, limit=per_task, seed=seed)
            continue
        new, asked = [], per_task
        while len(new) < per_task:
            try:
                made = load_task(task, limit=asked, seed=seed, split=split)
            except ValueError as error:
                raise ValueError(
                    f"per_task is {per_task}, but there are not so many other prompts of {task!r}: {error}"
                ) from None
            new = [prompt for prompt in made if _body(prompt) not in used]
            asked += per_task - len(new)
        prompts += new
    return prompts


def _body(prompt: Prompt) -> str:
    """The text below a mechanical prompt's instruction; the whole of one that has none."""
    return prompt.text.partition("\n\n")[2] if prompt.chat else prompt.text


def right_so_far(recordings: Sequence[Recording], tokenizer: PreTrainedTokenizerBase) -> float:
    """Share of the outputs to prompts of one turn that are the reference, or its beginning where they were cut.

    NaN without such prompts.
    """
    judged = []
    for recording in recordings:
        prompt, trace = recording.prompt, recording.trace
        if len(prompt.turns) == 1 and prompt.reference is not None:
            text = tokenizer.decode(trace.tokens, skip_special_tokens=True)
            ended = trace.finish_reason == "eos"
            judged.append(text == prompt.reference if ended else prompt.reference.startswith(text))
    return sum(judged) / len(judged) if judged else float("nan")


def best_layer(recordings: Sequence[Recording], make: Any, layers: Iterable[int]) -> int:
    """The layer whose drafter ``make(layer)`` gives most tokens per forward; the lowest among equals."""
    found = {layer: metric(replay_all(recordings, make(layer)), "tokens_per_forward") for layer in layers}
    return max(found, key=lambda layer: (found[layer], -layer))
