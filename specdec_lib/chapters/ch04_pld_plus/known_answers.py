"""Answers of large models and of people: how much can the choice of the occurrence save there?

An answer's tokens decide what a copying method would have had accepted, whoever wrote them. We replay PLD, which takes the
first occurrence; the best occurrence in hindsight, which no rule can beat; and PLD+ (h) by the states of a model that only
reads the answer. The model that wrote it may know better what it copied, so this is a lower bound of PLD+.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.chapters.ch04_pld_plus.occurrences import replay_hindsight
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.served_models import context_limit
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.drafters import PromptLookup, PromptLookupHidden
from specdec_lib.experiments.overlap import overlap
from specdec_lib.experiments.published_sets.replies import (
    Reply,
    alpaca_eval_replies,
    codegen_replies,
    mt_bench_replies,
    wizardcoder_replies,
)
from specdec_lib.experiments.recorded_runs import Recording, replay_all
from specdec_lib.experiments.retrieval import record_replies
from specdec_lib.experiments.statistics import Interval, interval_of_sums
from specdec_lib.experiments.tasks import load_task
from specdec_lib.files import write_atomic

#: Draft lengths: that of PLD and that of PLD+ in the paper.
LENGTHS = (10, 70)
#: Fewest tokens of an answer that are replayed. A prompt that leaves the model no room for them is left out.
LEAST = 16
#: The sets of each of the paper's tasks, or the part of them whose texts are published with them.
PUBLISHED: dict[str, str] = {
    "summarisation": "spec-bench/summarization",
    "code editing": "codeeditorbench",
    "short text editing": "xatu/jfleg",
    "long text editing": "argrewrite",
    "multi-turn": "mt-bench",
}


def _edits(task: str) -> Callable[[], list[Reply]]:
    return lambda: [Reply(p.id, "human", p.text, p.reference) for p in load_task(task) if p.reference]


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
    "XATU, human": _edits("xatu"),
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
        (partial,) = replay_all([recording], PromptLookup(3, length, "transformers"))
        (hidden,) = replay_all([recording], PromptLookupHidden(layer, length))
        (best,) = replay_hindsight([recording], length)
        runs = {"partial": partial, "h": hidden, "best": best}
        passes |= {f"{name}_{length}": len(run.steps) for name, run in runs.items()}
    return passes


def measure(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    layer: int,
    count: int,
    sets: Mapping[str, Callable[[], list[Reply]]] = SETS,
) -> Iterator[dict[str, Any]]:
    """Replay the rules on at most ``count`` answers of a set, each up to the context of the model that reads it.

    Yields by answer ``set``, ``prompt`` (a number that the turns of one conversation share), ``tokens`` after the first,
    ``overlap``, and the passes after the prefill of every rule: ``pld_10`` is PLD as released (``pld_10_drafts`` of them with a
    draft), ``partial`` PLD with partial drafts, ``h`` PLD+ (h) with the states of ``layer`` and ``best`` the best occurrence in
    hindsight, each at 10 and at 70 draft tokens.
    """
    replies = spread_out(sets[name](), count)
    asked = {reply.questions or reply.id: None for reply in replies}
    number = {question: i for i, question in enumerate(asked)}
    by_prompt = {reply.id: number[reply.questions or reply.id] for reply in replies}
    for recording in fit(record_replies(replies, tokenizer), context_limit(model)):
        trace, prompt = recording.trace, recording.prompt
        count = len(trace.tokens)
        read = record_known(model, trace.prompt, trace.tokens, "length", None, count, Capture((layer,)))
        known = replace(recording, trace=replace(trace, hidden=read.trace.hidden))
        yield {
            "set": name,
            "prompt": by_prompt[prompt.id],
            "tokens": count - 1,
            "overlap": round(overlap(prompt.text, tokenizer.decode(trace.tokens)), 4),
            **_passes(known, layer),
        }


def keep(path: Path, rows: Iterable[Mapping[str, Any]], about: Mapping[str, str]) -> None:
    """Write rows as CSV below lines of the form ``# name: value``, which say where they come from."""
    head = "".join(f"# {name}: {value}\n" for name, value in about.items())
    write_atomic(path, head + pd.DataFrame(rows).to_csv(index=False))


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """What :func:`measure` gives as a results table: a row per answer and rule, ``task`` being the set."""
    answers = rows.rename(columns={"set": "task"})
    turn = answers.groupby(["task", "prompt"]).cumcount()
    rules = [name for name in answers if re.fullmatch(r"[a-z]+_\d+", name)]
    known = ["task", "prompt", "turn", "seed", "tokens", "overlap", "pld_10_drafts"]
    return answers.assign(turn=turn, seed=0).melt(known, rules, "method", "passes")


def prompt_words() -> Iterator[dict[str, Any]]:
    """Mean words in the user's turns of the paper's five sets (its Table 9)."""
    for task, name in PUBLISHED.items():
        whole = "xatu" if name.startswith("xatu/") else name  # the paper asks for all of its sources
        prompts = load_task(whole)
        words = [sum(len(turn.split()) for turn in p.turns) / len(p.turns) for p in prompts]
        yield {"task": task, "set": whole, "prompts": len(prompts), "value": sum(words) / len(words)}


def rank_correlation(x: pd.Series, y: pd.Series, prompts: Sequence[object]) -> Interval:
    """Spearman's rank correlation of two values of each output, with its interval over prompts.

    The ranks are those among all outputs, in each bootstrap sample too.
    """
    a, b = x.rank().to_numpy(), y.rank().to_numpy()

    def correlation(n, sa, sb, saa, sbb, sab):
        return (n * sab - sa * sb) / np.sqrt((n * saa - sa**2) * (n * sbb - sb**2))

    return interval_of_sums(correlation, [np.ones(len(a)), a, b, a * a, b * b, a * b], list(prompts))
