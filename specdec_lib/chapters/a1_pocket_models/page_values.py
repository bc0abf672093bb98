"""The numbers that appendix A1 records, and the aims that it judges."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean as mean_of
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from specdec_lib.chapters.a1_pocket_models import training_rows
from specdec_lib.chapters.a1_pocket_models.wrong_tokens import (
    COPIED,
    EDITED,
    FirstWrong,
    Forced,
    by_source,
    gains,
    missing,
    proportion,
    share,
    tokens_right,
)
from specdec_lib.experiments import corpus, edit_tasks, made_tasks, stores
from specdec_lib.experiments.judged_answers import JudgedAnswer
from specdec_lib.experiments.metrics import greedy_agreement
from specdec_lib.experiments.statistics import Counts, Interval, mean, pooled_rate, ratio_of_means
from specdec_lib.files import replacing

Values = dict[str, Any]
_OF_THE_RECIPE = ("task_share", "muon_rate", "adamw_rate", "warmup_steps", "last_share", "length", "long_length")
#: Tokens that the target was to see, and the least.
TOKENS_WANTED, TOKENS_LEAST = 150_000_000, 60_000_000
_KEPT = ("task", "prompts", "target", "right", "looped")


class Aim(NamedTuple):
    """What was aimed for: ``value``, which has an interval, between ``low`` and ``high``."""

    of: str
    what: str
    value: Interval
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``"reached"`` if the whole interval lies between the ends, ``"below"`` or ``"above"`` if it lies outside of them, and
        ``"not resolved"`` if it has an end on either side or is not known.
        """
        if not self.value.known:
            return "not resolved"
        if self.low <= self.value.low and self.value.high <= self.high:
            return "reached"
        return "below" if self.value.high < self.low else "above" if self.value.low > self.high else "not resolved"


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
        "conversations": text["conversations"],
        "modules": text["stdlib_modules"],
        "packages": len(text["packages"]),
        "heldout_packages": ", ".join(text["heldout_packages"]),
        "run_chars": text["run_chars"],
        "shared_runs": stores.SHARED_RUNS,
        "heldout_percent": corpus.HELDOUT_PERCENT,
        **{name: about["recipe"][name] for name in _OF_THE_RECIPE},
        "answer_weight": training_rows.ANSWER_WEIGHT,
        "tokens_seen": seen / 1e6,
        "tokens_a_parameter": seen / about["parameters"],
    }


def stop(about: Mapping[str, Any]) -> Values:
    """How fast the last run of the target was, by the checkpoints of its curve, and how its loss on held-out text fell.

    The loss is the mean of the texts. ``heldout_middle`` and ``heldout_constant`` are means of three checkpoints: those next to
    the middle of the steps at a constant rate, and the last three of these steps. ``heldout_end`` is that of the weights.
    """
    curve = [{"tokens": 0, "seconds": 0.0}, *about["curve"]]
    rates = [(b["tokens"] - a["tokens"]) / (b["seconds"] - a["seconds"]) for a, b in pairwise(curve)]
    overall = curve[-1]["tokens"] / curve[-1]["seconds"]
    losses = {row["step"]: mean_of(row["heldout"].values()) for row in about["curve"] if row.get("heldout")}
    middle, constant = _constant_rate(about)
    steps = sorted(losses)
    at = steps.index(middle)
    return {
        "tokens_wanted": TOKENS_WANTED / 1e6,
        "tokens_least": TOKENS_LEAST / 1e6,
        "steps_done": about["curve"][-1]["step"],
        "slowest": min(rates),
        "fastest": max(rates),
        "hours_missing": max(0.0, (TOKENS_WANTED - tokens_seen(about)) / overall / 3600),
        "heldout_middle": mean_of(losses[step] for step in steps[max(0, at - 1) : at + 2]),
        "heldout_constant": mean_of([losses[step] for step in steps if step <= constant][-3:]),
        "heldout_end": losses[steps[-1]],
    }


def _constant_rate(about: Mapping[str, Any]) -> tuple[int, int]:
    """The checkpoint nearest to the middle of the steps at a constant rate, and the last one of these steps."""
    last = (1 - about["recipe"]["last_share"]) * about["steps"]
    constant = [row["step"] for row in about["curve"] if row["step"] <= last]
    return min(constant, key=lambda step: abs(step - constant[-1] / 2)), constant[-1]


def abilities(answers: Mapping[str, Sequence[JudgedAnswer]]) -> Values:
    """What the pair did with the prompts of all tasks."""
    everything = [answer for own in answers.values() for answer in own]
    made = [answer for task in made_tasks.MAKERS for answer in answers[task]]
    agreement, right = agreement_of(everything), proportion([answer.right for answer in made])
    looped = proportion([answer.looped for answer in everything])
    return {
        "outputs": len(everything),
        "agreement": agreement.value,
        "agreement_text": f"{agreement:.1%}",
        "answers_right": right.value,
        "answers_right_text": f"{right:.0%}",
        "looped_share": looped.value,
        "looped_text": f"{looped:.0%}",
    }


def agreement_of(answers: Sequence[JudgedAnswer], draft: PreTrainedModel | None = None) -> Interval:
    """Share of the target's tokens that a draft model would have chosen, with its interval over answers; without ``draft``
    that of the draft which the answers were written with."""
    each = [one.agreement if draft is None else greedy_agreement(draft, one.asked, one.tokens) for one in answers]
    return pooled_rate(Counts([int(agreed.sum()) for agreed in each], [len(agreed) for agreed in each]))


def first_edition(first: Mapping[str, Any]) -> Values:
    """What is said of the first edition: the tokens it saw, its loops and the length of the outputs they were looked for in."""
    return {
        "first_tokens": first["tokens"] / 1e6,
        "first_loops": f"{first_loops(first):.0%}",
        "first_loop_length": first["loop_tokens"],
    }


def first_loops(first: Mapping[str, Any]) -> Interval:
    """Share of the first edition's code completions that ended in a loop, with its interval over prompts."""
    (row,) = (row for row in first["rows"] if row["task"] == "code-completion")
    looped = round(row["looped"] * row["prompts"])
    return proportion([True] * looped + [False] * (row["prompts"] - looped))


def keep(file: Path, target: str, tokens: int, seed: int, loop_tokens: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what the target with this fingerprint can do, for an edition that comes after it."""
    told = {"target": target, "tokens": tokens, "seed": seed, "loop_tokens": loop_tokens}
    told["rows"] = [{name: number(row[name]) for name in _KEPT} for row in rows]
    with replacing(file) as new:
        new.write_text(json.dumps(told, indent=1) + "\n")


def number(value: Any) -> Any:
    """A value without its interval."""
    return value.value if isinstance(value, Interval) else value


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
    """Aim of the held-out texts: a longer window does not raise the loss, with an interval over the texts. None where the
    losses are not told."""
    losses = about.get("heldout_loss", {})
    short, long = (losses.get(str(about["recipe"][name]), {}) for name in ("length", "long_length"))
    if not short:
        return []
    ratio = ratio_of_means([long[text] for text in short], list(short.values()))
    return [Aim("held-out texts", "loss in the longer window over that in the shorter one", ratio, 0.0, 1.0)]


def models(
    told: Mapping[str, Mapping[str, Any]], agreement: Mapping[str, Interval], lengths: Sequence[str]
) -> list[dict[str, Any]]:
    """The target and its drafts, one row a model: tokens seen, agreement with the target, and perplexity on held-out text.

    Parameters
    ----------
    told : mapping
        By model: its ``training.json``.
    agreement : mapping
        By draft model.
    lengths : sequence of str
        Of the windows.

    Returns
    -------
    list of dict
        ``model``, ``parameters``, ``tokens``, ``agreement`` (None for the target), and by length the perplexity: the geometric
        mean over texts, with its interval over texts.
    """
    rows = []
    for part, story in told.items():
        row = {"model": part, "parameters": story["parameters"], "tokens": tokens_seen(story)}
        row["agreement"] = agreement.get(part)
        for length in lengths:
            losses = list(story.get("heldout_loss", {}).get(length, {}).values())
            row[length] = Interval(*np.exp(mean(losses)).tolist()) if losses else None
        rows.append(row)
    return rows


def why_missed(
    wrong: Sequence[FirstWrong], read: Sequence[Forced], about: Mapping[str, Any], tasks: Sequence[str]
) -> Values:
    """Where the answers to some tasks go wrong, and whether their accuracy was still rising.

    Parameters
    ----------
    wrong : sequence of FirstWrong
        Of all tasks.
    read : sequence of Forced
        Right answers that the target read.
    about : mapping
        The target's ``training.json``.
    tasks : sequence of str

    Returns
    -------
    dict of str to str
        ``edited``: share of first wrong tokens at an edited place; ``missing``: the same of tokens missed under teacher forcing;
        ``copies_right`` and ``edits_right``: shares of tokens right; ``gain``: :func:`last_gain`.
    """
    return {
        "edited": f"{share([one for one in wrong if one.task in tasks], EDITED):.0%}",
        "missing": f"{missing(read, tasks, EDITED):.0%}",
        "copies_right": f"{tokens_right(read, tasks, [COPIED]):.0%}",
        "edits_right": f"{tokens_right(read, tasks, EDITED):.0%}",
        "gain": f"{last_gain(about, tasks):.1%}",
    }


def last_gain(about: Mapping[str, Any], tasks: Sequence[str]) -> Interval:
    """Mean gain in accuracy of some tasks over the second half of the steps at a constant rate, with its interval over tasks."""
    return gains(about["curve"], tasks, *_constant_rate(about))


def single_tokens(completions: Sequence[JudgedAnswer]) -> Values:
    """Share of outputs that are the end token alone, and share of the others that end in a loop, as texts."""
    longer = [one for one in completions if len(one.tokens) > 1]
    return {
        "ended_at_once": f"{proportion([len(one.tokens) == 1 for one in completions]):.0%}",
        "loops_of_others": f"{proportion([one.looped for one in longer]):.0%}",
    }


def loop_sources(completions: Sequence[JudgedAnswer]) -> Values:
    """Of the packages that gave two prompts or more: how many there are, and how many have an output that ends in a loop."""
    several = [rate for rate, prompts in by_source(completions).values() if prompts > 1]
    return {"loop_packages": sum(rate.value > 0 for rate in several), "loop_packages_asked": len(several)}
