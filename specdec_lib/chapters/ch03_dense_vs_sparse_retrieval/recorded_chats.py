"""Drafters replayed on recorded outputs of large models, against stores of other text that holds no answer to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from specdec_lib import paths
from specdec_lib.drafters import PromptLookup, Rest
from specdec_lib.experiments import stores
from specdec_lib.experiments.metrics import pooled
from specdec_lib.experiments.published_sets import MissingData
from specdec_lib.experiments.published_sets.replies import (
    CHAT_SETS,
    Reply,
    alpaca_eval_replies,
    chat_texts,
    codegen_replies,
    mt_bench_replies,
)
from specdec_lib.experiments.recorded_runs import replay_all
from specdec_lib.experiments.retrieval import (
    authors_rates,
    characters_per_forward,
    rank_correlation,
    record_replies,
)

#: Longest replayed output, in tokens of the tokenizer in use.
LONGEST = 4000

Texts = Callable[[], Sequence[str] | stores.Texts]


@dataclass(frozen=True)
class Case:
    """Outputs of one model on one set of prompts, the stores they are replayed against, by name, and all outputs of the
    authors' own run where there is one."""

    name: str
    replies: list[Reply]
    stores: dict[str, Texts]
    authors: list[Reply] = field(default_factory=list)


def _plain(question: str) -> str:
    return "".join(c for c in question.lower() if c.isalnum())


def _whole(stored: Iterable[Reply], replayed: Iterable[Reply] = ()) -> list[str]:
    """Prompts with answers, without those to a question that is replayed, whoever answered it."""
    asked = {_plain(question) for reply in replayed for question in reply.questions}
    return [f"{reply.prompt} {reply.text}" for reply in stored if not asked.intersection(map(_plain, reply.questions))]


def _chat(replayed: Iterable[Reply]) -> list[str]:
    return _whole((reply for name in CHAT_SETS for reply in chat_texts(name)), replayed)


def _vicuna(count: int) -> Case:
    """Vicuna-7B on MT-Bench; in-distribution text are its answers to AlpacaEval, and GPT-4's stand beside them."""
    everything = mt_bench_replies()
    replayed = everything[:count]
    return Case(
        "Vicuna-7B v1.5, MT-Bench",
        replayed,
        {
            "other chat": lambda: _chat(replayed),
            "its own answers to other prompts": lambda: _whole(alpaca_eval_replies("vicuna-7b-v1.5"), replayed),
            "GPT-4's answers to the same": lambda: _whole(alpaca_eval_replies("gpt4"), replayed),
        },
        everything,
    )


def _llama(count: int) -> Case:
    """Llama-2-7B-chat on every other AlpacaEval prompt; the stores hold answers to the ones between."""
    replayed = alpaca_eval_replies("llama-2-7b-chat-hf")[::2][:count]
    between = {
        f"{who} answers to other prompts": (lambda model=model: _whole(alpaca_eval_replies(model)[1::2], replayed))
        for who, model in (("its own", "llama-2-7b-chat-hf"), ("GPT-4's", "gpt4"))
    }
    return Case("Llama-2-7B-chat, AlpacaEval", replayed, {"other chat": lambda: _chat(replayed), **between})


def _codegen(count: int) -> Case:
    """CodeGen-16B on HumanEval; its own text are samples for the problems that are not replayed."""
    one, many = codegen_replies(samples=1), codegen_replies(samples=20)
    replayed = one[::2][:count]
    kept = {reply.id.split("-")[0] for reply in one[::2]}
    return Case(
        "CodeGen-16B, HumanEval",
        replayed,
        {
            "other people's Python": stores.package_texts,
            "its own samples for other problems": lambda: _whole(r for r in many if r.id.split("-")[0] not in kept),
        },
    )


CASES = (_vicuna, _llama, _codegen)


def cases(count: int) -> tuple[list[Case], str]:
    """The cases whose files are there, with ``count`` outputs each, and why others are not among them (empty if none is
    missing)."""
    if count < 1:
        return [], "no outputs were asked for"
    if paths.datasets_root() is None:
        return [], "SPECDEC_DATASETS names no folder of data sets"
    found, reasons = [], []
    for make in CASES:
        try:
            found.append(make(count))
        except MissingData as error:
            reasons.append(str(error).splitlines()[0])
    return found, " ".join(reasons)


def _row(runs: list, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
    return {
        "tokens_per_forward": pooled(runs)["tokens_per_forward"],
        "characters_per_forward": characters_per_forward(runs, tokenizer),
    }


def replay_case(case: Case, tokenizer: PreTrainedTokenizerBase, store_tokens: int) -> dict[str, Any]:
    """Replay REST with each store, and PLD, on the outputs of a case.

    Parameters
    ----------
    case : Case
    tokenizer : PreTrainedTokenizerBase
    store_tokens : int
        Largest store; stores of one model's answers are cut to the size of the smallest of them.

    Returns
    -------
    dict
        ``rows``: one dict a method and store with ``text``, ``method``, ``store``, ``tokens`` stored,
        ``tokens_per_forward``, ``characters_per_forward``; the authors' own run is a row where it was recorded.
        ``correlation``: rank correlation between our passes a character and the authors', over the outputs, for the
        first store; None where theirs were not recorded.
    """
    recordings = record_replies(case.replies, tokenizer, LONGEST)
    indexes = {name: stores.text_store("real", tokenizer, store_tokens, texts()) for name, texts in case.stores.items()}
    answers = [index.store.count for name, index in indexes.items() if "answers" in name]
    if len(answers) > 1:
        indexes = {
            name: stores.first_part(index, min(answers)) if "answers" in name else index
            for name, index in indexes.items()
        }
    rows, correlation = [], None
    known = {reply.id: reply for reply in case.replies if reply.steps}
    if case.authors:
        rows.append({"method": "REST, its authors' run", "store": "UltraChat, 12 GB", **authors_rates(case.authors)})
    for name, index in indexes.items():
        runs = replay_all(recordings, Rest(index))
        rows.append({"method": "REST", "store": name, "tokens": index.store.count, **_row(runs, tokenizer)})
        if known and correlation is None:
            correlation = _agreement(recordings, runs, known, tokenizer)
    rows.append({"method": "plain", "store": "no draft", **_row(replay_all(recordings, None), tokenizer)})
    rows.append(
        {"method": "PLD", "store": "prompt and output", **_row(replay_all(recordings, PromptLookup()), tokenizer)}
    )
    return {"rows": [{"text": case.name, **row} for row in rows], "correlation": correlation}


def _agreement(recordings: list, runs: list, known: dict[str, Reply], tokenizer: PreTrainedTokenizerBase) -> float:
    """Rank correlation of characters per forward, ours and the authors', over the outputs that we replay whole."""
    ours, theirs = [], []
    for recording, run in zip(recordings, runs, strict=True):
        reply = known.get(recording.prompt.id)
        if reply is not None and run.steps and len(recording.trace.tokens) < LONGEST:
            ours.append(characters_per_forward([run], tokenizer))
            theirs.append(len(reply.text) / reply.steps)
    return rank_correlation(ours, theirs)
