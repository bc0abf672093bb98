"""The numbers that appendix A1 records, and the aims that it judges."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from specdec_lib.chapters.a1_pocket_models import training_rows
from specdec_lib.experiments import corpus, edit_tasks, made_tasks
from specdec_lib.experiments.recorded_runs import Answer
from specdec_lib.files import replacing

Values = dict[str, Any]
_OF_THE_RECIPE = ("task_share", "muon_rate", "adamw_rate", "warmup_steps", "last_share", "length", "long_length")
_KEPT = ("task", "prompts", "target", "right", "looped")


class Aim(NamedTuple):
    """What was aimed for: ``value`` between ``low`` and ``high``."""

    of: str
    what: str
    value: float
    low: float
    high: float

    @property
    def reached(self) -> bool:
        """Whether the value lies between the ends, which count."""
        return self.low <= self.value <= self.high


def tokens_before(story: Mapping[str, Any]) -> int:
    """Tokens that the weights had seen before the run that ``training.json`` tells of."""
    return (story.get("start") or {}).get("tokens", 0)


def tokens_seen(story: Mapping[str, Any]) -> int:
    """Tokens that the weights have seen in all."""
    return tokens_before(story) + story["curve"][-1]["tokens"]


def training(about: Mapping[str, Any]) -> Values:
    """What the target was trained on and how, by its ``training.json``."""
    text, seen = about["corpus"], tokens_seen(about)
    return {
        "python": about["python"],
        "text_tokens": text["tokens"],
        "documents": text["documents"],
        "conversations": text["conversations"],
        "modules": text["stdlib_modules"],
        "packages": len(text["packages"]),
        "heldout_packages": ", ".join(text["heldout_packages"]),
        "run_chars": text["run_chars"],
        "heldout_percent": corpus.HELDOUT_PERCENT,
        **{name: about["recipe"][name] for name in _OF_THE_RECIPE},
        "answer_weight": training_rows.ANSWER_WEIGHT,
        "tokens_seen": seen / 1e6,
        "tokens_a_parameter": seen / about["parameters"],
    }


def abilities(answers: Mapping[str, Sequence[Answer]], first: Mapping[str, Any]) -> Values:
    """What the pair did with the prompts of all tasks; ``first`` tells of the first edition."""
    everything = [answer for own in answers.values() for answer in own]
    return {
        "first_tokens": first["tokens"] / 1e6,
        "outputs": len(everything),
        "agreement": float(np.concatenate([answer.agreement for answer in everything]).mean()),
        "answers_right": mean(answer.right for task in made_tasks.MAKERS for answer in answers[task]),
        "looped_share": mean(answer.looped for answer in everything),
    }


def keep(file: Path, target: str, tokens: int, seed: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what the target with this fingerprint can do, for an edition that comes after it."""
    told = {"target": target, "tokens": tokens, "seed": seed}
    told["rows"] = [{name: row[name] for name in _KEPT} for row in rows]
    with replacing(file) as new:
        new.write_text(json.dumps(told, indent=1) + "\n")


def aims_by_task(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str], tokens: float, answers: float) -> list[Aim]:
    """Aims of some tasks: which share of the answers' tokens is right at least, and which of the answers."""
    by_task = {row["task"]: row for row in rows}
    wanted = [Aim(task, "tokens right", by_task[task]["target"], tokens, 1.0) for task in tasks]
    return wanted + [Aim(task, "answers right", by_task[task]["right"], answers, 1.0) for task in tasks]


def editing_aims(rows: Sequence[Mapping[str, Any]], tokens: float, answers: float) -> list[Aim]:
    """The same aims for all editing tasks."""
    return aims_by_task(rows, list(edit_tasks.MAKERS), tokens, answers)


def loop_aim(rows: Sequence[Mapping[str, Any]], most: float) -> Aim:
    """The aim of code completions: few end in a loop."""
    (looped,) = (row["looped"] for row in rows if row["task"] == "code-completion")
    return Aim("code-completion", "ends in a loop", looped, 0.0, most)


def window_aims(about: Mapping[str, Any]) -> list[Aim]:
    """Aims of the held-out texts: a longer window does not raise the loss. None where the losses are not told."""
    losses = about.get("heldout_loss", {})
    short, long = (losses.get(str(about["recipe"][name]), {}) for name in ("length", "long_length"))
    what = "loss in the longer window over that in the shorter one"
    return [Aim(text, what, long[text] / short[text], 0.0, 1.0) for text in short]
