"""Chapter 3: whose answers to store, the target's own to Alpaca's prompts or those that Alpaca comes with (DReSD, section 5.3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import codealpaca
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import growing_stores as retrieval
from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.data.published_sets.files import MissingData
from specdec_lib.experiments.data.tasks import load_task
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.runs.retrieval import CachedNeighbours

#: Prompts whose answers are stored, none of which is replayed.
ANSWERED = 100
#: Rows by store and method: whose answers it has.
OWN, THEIRS = "target", "Alpaca"
PARTS = tuple((answers, method) for answers in (OWN, THEIRS) for method in ("REST", "DReSD"))
#: Those for which the target has to answer prompts, or to read a store.
LONG = tuple((answers, method) for answers, method in PARTS if answers == OWN or method == "DReSD")


def asked() -> tuple[list[Prompt], list[Prompt]]:
    """The prompts that are replayed, and those whose answers are stored; none where the data set is not on this machine."""
    try:
        every = load_task("alpaca", limit=codealpaca.PROMPTS + ANSWERED)
    except MissingData:
        return [], []
    return every[: codealpaca.PROMPTS], every[codealpaca.PROMPTS :]


def answer_store(
    whose: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, answered: Sequence[Prompt]
) -> SuffixIndex:
    """Prompts with the answers that come with them, or with the target's own greedy ones: a store that is cut so as to be no larger
    than the other."""
    ends = [tokenizer.eos_token_id]
    theirs = sorted(
        ((render(one, tokenizer), tokenizer(one.reference, add_special_tokens=False)["input_ids"]) for one in answered),
        key=lambda pair: len(pair[0]),
    )
    documents = [prompt + [*answer, *ends][: codealpaca.LONGEST] for prompt, answer in theirs]
    if whose == THEIRS:
        return stores.document_store("alpaca", retrieval.mixed(documents), tokenizer)
    own = stores.response_store(model, tokenizer, answered, max_new_tokens=codealpaca.LONGEST).store
    index = stores.document_store("alpaca", retrieval.mixed([own.document(i) for i in range(len(own))]), tokenizer)
    return stores.first_part(index, sum(map(len, documents)))


def counts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    some: Sequence[Prompt],
    sampled: Sequence[Prompt],
    answered: Sequence[Prompt],
    parts: Collection[tuple[str, str]] = PARTS,
) -> pd.DataFrame:
    """Rows of parts of :data:`PARTS` on prompts, those of ``sampled`` sampled too; ``answers`` says whose a store has."""
    dense = any(method == "DReSD" for _, method in parts)
    recorded = [
        record_once(model, tokenizer, replayed, how, codealpaca.LONGEST, Capture(layers=(LAST,) if dense else ()))
        for how, replayed in codealpaca.ways(some, sampled)
    ]
    found = []
    for whose in dict.fromkeys(answers for answers, _ in parts):
        index = answer_store(whose, model, tokenizer, answered)
        methods = [method for answers, method in parts if answers == whose]
        embedded = stores.dense_index(stores.dense_states(model, index), index) if "DReSD" in methods else None
        for recordings in recorded:
            looked_up = embedded and CachedNeighbours(embedded, recordings, retrieval.NEIGHBOURS)
            found.append(retrieval.method_counts(recordings, methods, index, looked_up, answers=whose))
    return pd.concat(found, ignore_index=True)
