"""Chapter 3: what documents that stand in a store twice do to the retrieval of states and to drafts (DReSD, footnote 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import codealpaca
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import growing_stores as retrieval
from specdec_lib.datastores import SuffixIndex
from specdec_lib.datastores.states import States
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.runs.retrieval import CachedNeighbours

#: Tokens of Code Alpaca's store of which one document in so many is stored a second time; one state in so many is looked up.
SIZE, EVERY, LOOKED_UP = codealpaca.SIZES[1], 10, 50
#: The two stores, as rows name them.
ONCE, TWICE = "each document once", "a tenth twice"
#: What stands for the whole store, where rows are of its documents and not of an output.
WHOLE = Prompt("evolved", "store", ("",))


def with_copies(
    index: SuffixIndex, states: States, tokenizer: PreTrainedTokenizerBase, every: int
) -> tuple[SuffixIndex, States]:
    """A store that has one document in ``every`` again at its end, and its states: a copy has those of the document."""
    documents = [index.store.document(i) for i in range(len(index.store))]
    again = range(0, len(documents), every)
    twice = stores.document_store("twice", [*documents, *(documents[i] for i in again)], tokenizer)
    ends = np.cumsum([len(document) - 1 for document in documents])  # a document's last token has no state
    copied = [np.arange(ends[i] - len(documents[i]) + 1, ends[i]) for i in again]
    starts = twice.store.starts
    positions = [np.arange(start, stop) + 1 for start, stop in zip(starts[:-1], starts[1:] - 2, strict=True)]
    return twice, replace(
        states,
        positions=np.concatenate(positions),
        states=states.states[np.concatenate([np.arange(ends[-1]), *copied])],
        path=states.path.with_name(f"{states.path.name}-twice-{every}"),
        manifest=None,
    )


def counts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    some: Sequence[Prompt],
    sampled: Sequence[Prompt],
    index: SuffixIndex,
    states: States,
) -> pd.DataFrame:
    """Rows of both methods with a tenth of the documents twice, on prompts that are also replayed with each document once."""
    part = stores.first_part(index, SIZE)
    twice, copied = with_copies(part, stores.first_states(states, part), tokenizer, EVERY)
    dense, found = stores.dense_index(copied, twice), []
    for how, asked in codealpaca.ways(some, sampled):
        recordings = record_once(model, tokenizer, asked, how, codealpaca.LONGEST, Capture(layers=(LAST,)))
        looked_up = CachedNeighbours(dense, recordings, retrieval.NEIGHBOURS)
        found.append(retrieval.method_counts(recordings, ("REST", "DReSD"), twice, looked_up))
    return pd.concat(found, ignore_index=True)


def ranks(index: SuffixIndex, states: States, tokenizer: PreTrainedTokenizerBase) -> pd.DataFrame:
    """Rows of the documents of both stores: of how many states each looked itself up, and the sum of their reciprocal ranks
    (equation 4)."""
    part = stores.first_part(index, SIZE)
    first = stores.first_states(states, part)
    frames = []
    for name, (held, kept) in {ONCE: (part, first), TWICE: with_copies(part, first, tokenizer, EVERY)}.items():
        dense, asked = stores.dense_index(kept, held), slice(None, None, LOOKED_UP)
        wanted = kept.positions[asked]
        found = dense.search(kept.states[asked].astype(np.float32), retrieval.NEIGHBOURS)[1] == wanted[:, None]
        rank = np.where(found.any(1), 1 / (1 + found.argmax(1)), 0.0)
        document = np.searchsorted(held.store.starts, wanted, "right") - 1
        sums = pd.DataFrame({"document": document, "rank": rank, "states": 1}).groupby("document", as_index=False).sum()
        frames.append(sums.assign(method=name, stored=held.store.count))
    rows = pd.concat(frames, ignore_index=True)
    return rows.assign(task=WHOLE.task, prompt=WHOLE.id, turn=0, seed=0, temperature=0.0)
