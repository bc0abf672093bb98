"""Recorded outputs of large models, and the texts of the stores that REST is replayed against.

No store holds an answer to a question that is replayed, whoever gave it, and the chat store no text by a model of a
replayed family: it is other models' and people's text, as UltraChat is to Vicuna.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from pathlib import Path

from specdec_lib.experiments import stores
from specdec_lib.experiments.package_files import PackageFiles, package_files
from specdec_lib.experiments.published_sets.replies import (
    CHAT_SETS,
    OASST_REPORTS,
    Reply,
    alpaca_eval_replies,
    arena_hard_replies,
    chat_texts,
    codegen_replies,
    mt_bench_replies,
    oasst_replies,
    wizardcoder_replies,
)

#: Models of AlpacaEval whose families are not replayed.
OTHER_MODELS = (
    "alpaca-7b",
    "gpt-3.5-turbo-0613",
    "gpt4",
    "guanaco-7b",
    "oasst-sft-pythia-12b",
    "text_davinci_003",
    "ultralm-13b",
    "wizardlm-13b-v1.2",
)
#: The model of the sampling reports that is replayed, and those of the reports that are not of its family.
OASST_REPLAYED = "llama2-70b"
OASST_OTHERS = tuple(name for name in OASST_REPORTS if not name.startswith("llama2"))


@dataclass(frozen=True)
class Case:
    """Outputs of one model on one set of prompts: ``kind`` is chat or code, ``decoding`` greedy or sampled; ``stores`` reads the
    text of each store, by the store's name."""

    name: str
    kind: str
    decoding: str
    replies: list[Reply]
    stores: dict[str, Callable[[], stores.Texts | PackageFiles]] = field(default_factory=dict)


def plain(question: str) -> str:
    """The letters and digits of a question, by which two wordings of it count as one."""
    return "".join(c for c in question.lower() if c.isalnum())


def mixed_texts(replies: Iterable[Reply], asked: Iterable[str]) -> stores.Texts:
    """Prompts with answers in an order that mixes their sources, each once, without answers to ``asked``."""
    forbidden = {plain(question) for question in asked}
    whole = {
        f"{reply.prompt} {reply.text}".strip()
        for reply in replies
        if not forbidden.intersection(map(plain, reply.questions))
    }
    order = {hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(): text for text in whole}
    key = hashlib.sha256("".join(sorted(order)).encode()).hexdigest()
    return stores.Texts(lambda: (order[name] for name in sorted(order)), key)


def chat_replies() -> Iterable[Reply]:
    """All chat and instruction text at hand that is not by a replayed family of models."""
    return chain(
        chain.from_iterable(map(chat_texts, CHAT_SETS)),
        chain.from_iterable(map(alpaca_eval_replies, OTHER_MODELS)),
        chain.from_iterable(oasst_replies(name, "all") for name in OASST_OTHERS),
        arena_hard_replies(),
    )


def cases(packages: Sequence[Path] = ()) -> list[Case]:
    """The replayed outputs with the texts of their stores.

    ``packages`` are folders of wheels whose Python files are text of the store of code, with those of the installed
    packages. A file that is not there, or not what it should be, raises MissingData or BadRecord.
    """
    eighths = {model: alpaca_eval_replies(model)[::8] for model in ("vicuna-13b-v1.5", "llama-2-7b-chat-hf")}
    reports = {way: oasst_replies(OASST_REPLAYED, way)[::2] for way in ("greedy", "nucleus9")}
    chats = [
        ("Vicuna-7B v1.5, MT-Bench", "greedy", mt_bench_replies()),
        ("Vicuna-13B v1.5, AlpacaEval", "sampled", eighths["vicuna-13b-v1.5"]),
        ("Llama-2-7B-chat, AlpacaEval", "sampled", eighths["llama-2-7b-chat-hf"]),
        ("Llama-2-70B OASST, greedy", "greedy", reports["greedy"]),
        ("Llama-2-70B OASST, sampled", "sampled", reports["nucleus9"]),
    ]
    asked = [question for _, _, replies in chats for reply in replies for question in reply.questions]

    def chat() -> stores.Texts:
        return mixed_texts(chat_replies(), asked)

    def answers(model: str) -> Callable[[], stores.Texts]:
        return lambda: mixed_texts(alpaca_eval_replies(model), asked)

    own = {
        "Vicuna-7B v1.5, MT-Bench": "vicuna-7b-v1.5",
        "Llama-2-7B-chat, AlpacaEval": "llama-2-7b-chat-hf",
    }
    found: list[Case] = []
    for name, decoding, replies in chats:
        more = {"its own answers": answers(own[name]), "GPT-4's answers": answers("gpt4")} if name in own else {}
        found.append(Case(name, "chat", decoding, replies, {"chat": chat, **more}))
    # Two cases and their variants ask for the same files, which take a while to find.
    code = cache(partial(package_files, packages)) if packages else stores.package_texts
    for name, decoding, replies in (
        ("WizardCoder-15B, HumanEval", "greedy", wizardcoder_replies()),
        ("CodeGen-16B, HumanEval", "sampled", codegen_replies(samples=1)),
    ):
        found.append(Case(name, "code", decoding, replies, {"code": code}))
    # Greedy ones first: what the papers report is there soonest.
    return sorted(found, key=lambda case: case.decoding)
