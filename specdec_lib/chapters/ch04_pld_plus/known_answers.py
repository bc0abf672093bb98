"""Answers of large models and of people: how far the choice of the occurrence can carry a method that copies.

The pocket model cannot write such answers, but their tokens, whoever wrote them, decide what a copying method would have
had accepted. Replayed on each answer are PLD, which takes the first occurrence; the best occurrence in hindsight, which
no rule can beat; and PLD+ (h) by the states of a small model that only reads the answer. A model that wrote it knows
more of what it was copying, so that this is a lower bound of what PLD+ can do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.chapters.ch04_pld_plus.attribution import forced
from specdec_lib.chapters.ch04_pld_plus.hindsight import replay_hindsight
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.served_models import context_limit
from specdec_lib.drafters import PromptLookup, PromptLookupHidden
from specdec_lib.experiments import statistics
from specdec_lib.experiments.overlap import overlap
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.replies import (
    Reply,
    alpaca_eval_replies,
    codegen_replies,
    mt_bench_replies,
    wizardcoder_replies,
)
from specdec_lib.experiments.recorded_runs import Recording, replay_all
from specdec_lib.experiments.retrieval import record_replies
from specdec_lib.experiments.statistics import Counts, Interval
from specdec_lib.experiments.tasks import load_task

#: Draft lengths: that of PLD and that of PLD+ in the paper.
LENGTHS = (10, 70)
#: Fewest tokens of an answer that are replayed. A prompt that leaves the model no room for them is left out.
LEAST = 16


def _edits(task: str, **options: Any) -> Callable[[], list[Reply]]:
    def make() -> list[Reply]:
        prompts = load_task(task, **options)
        return [Reply(p.id, "human", p.text, p.reference) for p in prompts if p.reference]

    return make


def _by_problem(read: Callable[[], list[Reply]]) -> Callable[[], list[Reply]]:
    """Answers to HumanEval in an order that two models share: their files have orders and prompts of their own."""

    def problem(reply: Reply) -> str:
        asked = reply.prompt[reply.prompt.rindex("def ") :]
        return re.sub(r"\W", "", asked)[:40]  # name, parameters and first words, which both prompts have

    return lambda: sorted((replace(r, questions=(problem(r),)) for r in read()), key=lambda r: r.questions)


#: Sets of a base model and of a tuned one, to the same problems.
BASE, TUNED = "HumanEval, CodeGen-16B", "HumanEval, WizardCoder-15B"
#: Whose answers to what, by name.
SETS: dict[str, Callable[[], list[Reply]]] = {
    "MT-Bench, Vicuna-7B v1.5": mt_bench_replies,
    "AlpacaEval, Vicuna-7B v1.3": lambda: alpaca_eval_replies("vicuna-7b-v1.3"),
    "AlpacaEval, Llama-2-7B-chat": lambda: alpaca_eval_replies("llama-2-7b-chat-hf"),
    "Spec-Bench summaries, human": _edits("spec-bench/summarization"),
    "XATU, human": _edits("xatu", style="pld+"),
    "JFLEG, human": _edits("jfleg"),
    "ArgRewrite, human": _edits("argrewrite"),
    "EditEval, human": _edits("editeval"),
    "HumanEvalPack Python, human": _edits("humanevalpack/python"),
    "QuixBugs, human": _edits("quixbugs"),
    BASE: _by_problem(codegen_replies),
    TUNED: _by_problem(wizardcoder_replies),
}


def spread_out(replies: Sequence[Reply], count: int) -> list[Reply]:
    """At most ``count`` of the replies at equal distances, since neighbours in a file are often alike."""
    return [replies[i * len(replies) // count] for i in range(count)] if len(replies) > count else list(replies)


def fit(recordings: Sequence[Recording], context: int) -> list[Recording]:
    """The recordings cut to ``context`` tokens, without those whose prompt leaves fewer than :data:`LEAST`."""
    cut = []
    for recording in recordings:
        trace, room = recording.trace, context - len(recording.trace.prompt)
        tokens = trace.tokens[: max(room, 0)]
        if len(tokens) >= min(LEAST, len(trace.tokens)):
            limits = replace(trace.limits, max_new_tokens=len(tokens))
            cut.append(replace(recording, trace=replace(trace, tokens=tokens, limits=limits)))
    return cut


def _passes(recording: Recording, layer: int) -> dict[str, int]:
    """Passes after the prefill by rule and draft length, and those of PLD as released that verify a draft."""
    (released,) = replay_all([recording], PromptLookup(3, 10))
    passes = {"pld_10": len(released.steps), "pld_10_drafts": sum(bool(step.drafted) for step in released.steps)}
    for length in LENGTHS:
        rules = {
            "partial": PromptLookup(3, length, "transformers"),
            "suffix": PromptLookup(16, length, "transformers"),
            "h": PromptLookupHidden(layer, length),
        }
        passes |= {f"{name}_{length}": len(replay_all([recording], rule)[0].steps) for name, rule in rules.items()}
        passes[f"best_{length}"] = len(replay_hindsight([recording], length)[0].steps)
    return passes


def measure(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    layer: int,
    count: int,
    sets: Mapping[str, Callable[[], list[Reply]]] = SETS,
) -> Iterator[dict[str, Any]]:
    """Replay the rules on at most ``count`` answers of a set, each up to the model's context.

    Parameters
    ----------
    name : str
        Of ``sets``.
    model, tokenizer
        The small model that reads the answers.
    layer : int
        Whose states PLD+ (h) compares.
    count : int

    Yields
    ------
    dict
        An answer: ``set``, ``prompt`` (a number that the turns of one conversation share), ``tokens`` after the first,
        ``overlap``, and the passes after the prefill of every rule: ``pld_10`` is PLD as released (``pld_10_drafts`` of
        them with a draft), ``partial`` PLD with partial drafts, ``suffix`` the same with n-grams up to 16, ``h`` PLD+ (h)
        and ``best`` the best occurrence in hindsight, each at 10 and at 70 draft tokens.
    """
    replies = spread_out(sets[name](), count)
    asked = {reply.questions or reply.id: None for reply in replies}
    number = {question: i for i, question in enumerate(asked)}
    by_prompt = {reply.id: number[reply.questions or reply.id] for reply in replies}
    for recording in fit(record_replies(replies, tokenizer), context_limit(model)):
        trace, prompt = recording.trace, recording.prompt
        read = forced(model, trace.prompt, trace.tokens, Capture((layer,)))
        known = replace(recording, trace=replace(trace, hidden=read.hidden))
        yield {
            "set": name,
            "prompt": by_prompt[prompt.id],
            "tokens": len(trace.tokens) - 1,
            "overlap": round(overlap(prompt.text, tokenizer.decode(trace.tokens)), 4),
            **_passes(known, layer),
        }


def by_set(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Measured answers by set, those sets left out that have none, and ``"all"``."""
    found = {name: [row for row in rows if row["set"] == name] for name in SETS}
    return {name: own for name, own in found.items() if own} | {"all": list(rows)}


def tokens_per_pass(rows: Sequence[Mapping[str, Any]], rule: str) -> Interval:
    """Tokens per pass of a rule over the rows."""
    return statistics.pooled_rate(_counts(rows, rule), _prompts(rows))


def gain(rows: Sequence[Mapping[str, Any]], rule: str, base: str) -> Interval:
    """Tokens per pass of a rule divided by those of another one, over the same rows."""
    return statistics.ratio_of_rates(_counts(rows, rule), _counts(rows, base), _prompts(rows))


def base_over_tuned(rows: Sequence[Mapping[str, Any]]) -> Interval:
    """Tokens per pass of PLD on the base model's answers over those on the tuned one's, on the problems that both answered."""
    base, tuned = ({row["prompt"]: row for row in rows if row["set"] == name} for name in (BASE, TUNED))
    both = sorted(base.keys() & tuned.keys())
    counts = (_counts([own[prompt] for prompt in both], "pld_10") for own in (base, tuned))
    return statistics.ratio_of_rates(*counts, both)


def _counts(rows: Sequence[Mapping[str, Any]], rule: str) -> Counts:
    return Counts([row["tokens"] for row in rows], [row[rule] for row in rows])


def _prompts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    return [(row["set"], row["prompt"]) for row in rows]


def prompt_words(prompts: Sequence[Prompt]) -> Interval:
    """Mean number of words in the prompts' user turns (the paper's table 9)."""
    return statistics.mean([sum(len(turn.split()) for turn in p.turns) / len(p.turns) for p in prompts])
