"""Chapter 3: DReSD's own setting, Code Alpaca's prompts with a store of evolved instructions and their answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_sets.replies import Reply, chat_texts
from specdec_lib.experiments.data.reply_texts import mixed_texts

#: Share of an asked question's words from which on a record counts as made from it.
SHARED = 0.75


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))


def store_texts(asked: Sequence[Prompt]) -> stores.Texts:
    """The two rounds of Evol-Instruct-Code at hand, worded as DReSD's code asks, without the records that were made from the
    prompts: Evol-Instruct starts from Code Alpaca, and such a record repeats most words of its question."""
    questions = [_words(prompt.meta["instruction"]) for prompt in asked]

    def others() -> Iterator[Reply]:
        for record in chain(chat_texts("evol-code-1"), chat_texts("evol-code-2")):
            (question,) = record.questions
            said = _words(question)
            if all(len(words & said) < SHARED * len(words) for words in questions):
                yield Reply(record.id, record.model, f"Question: {question}\nAnswer:\n", record.text, record.questions)

    return mixed_texts(others(), [])
