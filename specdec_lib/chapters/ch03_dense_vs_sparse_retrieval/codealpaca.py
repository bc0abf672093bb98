"""Chapter 3: DReSD's own setting, Code Alpaca's prompts with a store of evolved instructions and their answers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import chain

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import growing_stores as retrieval
from specdec_lib.datastores import SuffixIndex
from specdec_lib.datastores.states import States
from specdec_lib.decoding.contract import LAST, Capture, Drafter
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters import DraftModel, Dresd, PromptLookup
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_sets.files import MissingData
from specdec_lib.experiments.data.published_sets.replies import chat_texts
from specdec_lib.experiments.data.tasks import load_task
from specdec_lib.experiments.runs.recorded_runs import replay_each
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.runs.results import table
from specdec_lib.experiments.runs.retrieval import CachedNeighbours

#: Tokens of an output, as in the paper (section 5), and of the stores.
LONGEST, SIZES = 128, (50_000, 200_000, 1_000_000)
#: The paper's prompts, of which the first are sampled too, as often as there are seeds.
PROMPTS, SAMPLED, SEEDS = 100, 24, 3
#: DReSD's best shapes (section 5.4), and single drafts, as number x length; its plain name has the shape matched to REST's.
SHAPES = {f"DReSD, {number} x {length}": (number, length) for number, length in ((3, 20), (10, 10), (1, 6), (1, 20))}
#: Rows of methods that search the states of a store, and those that search its text.
DENSE = ("DReSD", "DReSD, no filter", *SHAPES)
SPARSE = tuple(name for name in retrieval.METHODS if name not in DENSE)
#: Time that a search among the states counts with, in passes of plain decoding. The paper prints none. It is a generous one: with
#: the 28 ms of a pass in REST's paper 1.4 ms, and an approximate search of a million states takes tens of microseconds here.
SEARCH = 0.05
#: Share of an asked question's words from which on a record counts as made from it.
SHARED = 0.75


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))


def store_texts(asked: Sequence[Prompt]) -> stores.Texts:
    """The two rounds of Evol-Instruct-Code at hand, worded as DReSD's code asks and mixed, without the records that were made from
    the prompts: Evol-Instruct starts from Code Alpaca, and such a record repeats most words of its question."""
    questions = [_words(prompt.meta["instruction"]) for prompt in asked]
    kept = set()
    for record in chain(chat_texts("evol-code-1"), chat_texts("evol-code-2")):
        (question,) = record.questions
        said = _words(question)
        if all(len(words & said) < SHARED * len(words) for words in questions):
            kept.add(f"Question: {question.strip()}\nAnswer:\n{record.text}")
    texts = sorted(kept, key=lambda text: hashlib.sha256(text.encode()).hexdigest())
    return stores.Texts(lambda: iter(texts), stores.key_of(*texts))


def prompts_and_store(tokenizer: PreTrainedTokenizerBase) -> tuple[list[Prompt], SuffixIndex | None]:
    """The paper's prompts and the largest store; no prompts and None where the data sets are not on this machine."""
    try:
        asked = load_task("codealpaca", limit=PROMPTS, seed=42)
        every = stores.text_store("evolved", tokenizer, 2_000_000, store_texts(asked))  # all of it
    except MissingData:
        return [], None
    return asked, stores.first_part(every, SIZES[-1])


def ways(some: Sequence[Prompt], sampled: Sequence[Prompt]) -> list[tuple[Sampling | None, Sequence[Prompt]]]:
    """How prompts are decoded, each with the prompts: greedily, and those of ``sampled`` with each seed too."""
    also = [prompt for prompt in some if prompt in sampled]
    return [(None, some), *((Sampling(0.7, top_p=0.95, seed=seed), also) for seed in range(SEEDS))]


def searched(index: SuffixIndex | None, states: States | None) -> dict[str, tuple[str | None, Sequence[str]]]:
    """Checksum of the largest store, with the methods that search its text, and of its ``states``, with those that search them.

    States take hours, and other processors and precisions give others, whose neighbours may differ."""
    if index is None:
        return {}
    embedded = None if states is None else states.manifest["files"]["states.npy"]["sha256"]
    return {"evolved": (index.store.digest, SPARSE), "states": (embedded, DENSE)}


def counts(
    model: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    some: Sequence[Prompt],
    sampled: Sequence[Prompt],
    index: SuffixIndex,
    states: States | None,
    sizes: Sequence[int] = SIZES,
) -> pd.DataFrame:
    """Rows of all methods on prompts, with the first ``sizes`` tokens of a store; ``stored`` is 0 for a method that searches none.

    Prompts of ``sampled`` are sampled too; a draft model is replayed greedily alone. Without ``states`` of the largest of these
    stores :data:`DENSE` is left out.
    """
    capture = Capture() if states is None else Capture(layers=(LAST,))
    found = []
    for how, asked in ways(some, sampled):
        recordings = record_once(model, tokenizer, asked, how, LONGEST, capture)
        searching_none: dict[str, Drafter] = {"PLD": PromptLookup(num_tokens=10)}
        if how is None:
            searching_none["SpecDec"] = DraftModel(draft, 4)
        found.append(table(recordings, replay_each(recordings, searching_none)).assign(stored=0))
        for size in sizes:
            part = stores.first_part(index, size)
            drafters = {name: retrieval.METHODS[name](part, None) for name in SPARSE}
            if states is not None:
                dense = CachedNeighbours(stores.dense_index(stores.first_states(states, part), part), recordings)
                drafters |= {name: retrieval.METHODS[name](part, dense) for name in DENSE if name not in SHAPES}
                drafters |= {name: Dresd(dense, *shape, retrieval.NEIGHBOURS) for name, shape in SHAPES.items()}
            found.append(table(recordings, replay_each(recordings, drafters)).assign(stored=part.store.count))
    return pd.concat(found, ignore_index=True)


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows as the rates of this chapter need them."""
    return retrieval.with_prompt_names(rows).assign(store="evolved", group="code")


def with_search_cost(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of DReSD with a cost, each of whose passes pays for a search too."""
    return rows.assign(cost=rows.cost + SEARCH * rows.passes)


def of_largest(rows: pd.DataFrame) -> pd.DataFrame:
    """The named rows with the largest store, and those of methods that search none."""
    return rows[rows.stored.isin([0, rows.stored.max()])]
