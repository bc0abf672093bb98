"""Chat and instruction text by models of no replayed family, for the datastores that recorded answers are replayed on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import chain

from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.published_sets.replies import (
    CHAT_SETS,
    OASST_REPORTS,
    Reply,
    alpaca_eval_replies,
    arena_hard_replies,
    chat_texts,
    oasst_replies,
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
#: Models of OpenAssistant's sampling reports that are not of the replayed model's family.
OASST_OTHERS = tuple(name for name in OASST_REPORTS if not name.startswith("llama2"))


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
