"""DReSD and REST on the same stores of growing size, and on stores that differ in whose text they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import measures
from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters import Dresd, Rest
from specdec_lib.experiments import stores
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import Recording
from specdec_lib.experiments.retrieval import Remembered, remembered
from specdec_lib.experiments.statistics import Interval

#: Neighbours that the released code looks up.
NEIGHBOURS = 50
#: Longest stored answer, in tokens.
ANSWER = 64
#: REST as the released code of DReSD runs it.
AS_DRESD_RAN_IT: dict[str, Any] = {"max_ngram": 64, "min_ngram": 3, "selection": "released", "rows": 10}
#: Versions of REST that DReSD is compared with.
VERSIONS = ("REST", "REST, n from 1", "REST, as DReSD ran it")
#: What is compared with stores of every size, where the other methods need only the largest.
LEADING = ("REST", "REST, n from 1", "DReSD")


class UnfilteredDresd(Dresd):
    """DReSD without its filter (section 3.5): neighbours count whatever token follows them, and that token's own
    successors are drafted."""

    def _survivors(self, positions: np.ndarray, token: int) -> np.ndarray:
        return positions[positions >= 0]


#: What is compared, by name: what makes the drafter from the sparse and the dense index.
METHODS: dict[str, Callable[[SuffixIndex, Any], Drafter]] = {
    "REST": lambda sparse, dense: Rest(sparse),
    "REST, n from 1": lambda sparse, dense: Rest(sparse, min_ngram=1),
    "REST, as DReSD ran it": lambda sparse, dense: Rest(sparse, **AS_DRESD_RAN_IT),
    "REST, 6 deep": lambda sparse, dense: Rest(sparse, length=6, choices=60),
    "REST, n from 1, 6 deep": lambda sparse, dense: Rest(sparse, min_ngram=1, length=6, choices=60),
    "REST, as DReSD ran it, 6 deep": lambda sparse, dense: Rest(sparse, length=6, **AS_DRESD_RAN_IT),
    "DReSD": lambda sparse, dense: Dresd(dense, 10, 6, NEIGHBOURS),
    "DReSD, no filter": lambda sparse, dense: UnfilteredDresd(dense, 10, 6, NEIGHBOURS),
}


def _counts(
    recordings: Sequence[Recording], methods: Sequence[str], sparse: SuffixIndex, dense: Any, **labels: Any
) -> pd.DataFrame:
    drafters = {name: METHODS[name](sparse, dense) for name in methods}
    return measures.outputs(recordings, drafters).assign(stored=sparse.store.count, **labels)


def size_counts(
    model: PreTrainedModel,
    index: SuffixIndex,
    recorded: Mapping[str, Sequence[Recording]],
    sizes: Sequence[int],
    methods: Sequence[str] = tuple(METHODS),
    smaller: Sequence[str] = LEADING,
    **labels: Any,
) -> pd.DataFrame:
    """The results on the first ``sizes`` tokens of a store, whose states ``model`` computes once.

    ``recorded`` has recordings with the target's last states by way of decoding. Sizes that the store does not reach are left
    out, and the largest is then all of it. ``methods`` are those of the largest size, ``smaller`` those of the others.
    """
    held = index.store.count
    wanted = sorted({*(size for size in sizes if size < 0.95 * held), min(held, max(sizes))})
    states = stores.dense_states(model, stores.first_part(index, wanted[-1]))
    found = []
    for size in wanted:
        part = stores.first_part(index, size)
        dense = stores.dense_index(stores.first_states(states, part), part)
        names = methods if size == wanted[-1] else smaller
        for way, recordings in recorded.items():
            looked_up = remembered(dense, recordings, NEIGHBOURS)
            found.append(_counts(recordings, names, part, looked_up, way=way, **labels))
    return pd.concat(found, ignore_index=True)


# Whose text: the 2 x 2 x 2 design --------------------------------------------------------------------------------

#: The axes of section 5.3; a cell of the design says for each whether the store is aligned.
AXES = ("prompt", "response", "sampling")
#: Sampled answers to a prompt in the store that Figure 8 asks about; the cells of the design have one.
SEVERAL = 3


def alignment_counts(
    target: PreTrainedModel,
    other: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    recorded: Mapping[str, Mapping[str, Sequence[Recording]]],
    asked: Mapping[str, Sequence[Prompt]],
    samplings: Mapping[str, Sampling | None],
) -> pd.DataFrame:
    """Results with stores of one answer a prompt: to prompts of each group, by the target or by another model, decoded in each
    way; and with stores of :data:`SEVERAL` sampled answers of the target to the prompts of the first group. ``answers`` says how
    many a row's store has.

    ``recorded`` is by way of decoding and group of prompts, ``asked`` by group; the stored prompts are not the recorded ones.
    """
    if len({len(some) for some in asked.values()}) > 1:
        counts = {group: len(some) for group, some in asked.items()}
        raise ValueError(f"the groups have {counts} prompts to be answered; expected as many of each")
    cells = [*product(asked, (True, False), samplings, (1,))]
    cells += [(next(iter(asked)), True, way, SEVERAL) for way, how in samplings.items() if how is not None]
    found = []
    for kind, response, written, answers in cells:
        writer, how = target if response else other, samplings[written]
        answered = stores.response_store(writer, tokenizer, asked[kind], how, answers, ANSWER).store
        order = np.random.default_rng(0).permutation(len(answered))  # the shortest prompts came first
        index = stores.document_store("answers", [answered.document(i) for i in order], tokenizer)
        dense = stores.dense_index(stores.dense_states(target, index), index)
        for (way, by_group), group in product(recorded.items(), asked):
            labels = {"way": way, "group": group, "prompt_aligned": group == kind, "response_aligned": response}
            labels |= {"sampling_aligned": way == written, "answers": answers}
            looked_up = Remembered(dense, by_group[group], NEIGHBOURS)
            found.append(_counts(by_group[group], LEADING, index, looked_up, **labels))
    return pd.concat(found, ignore_index=True)


def alignment_effects(frame: pd.DataFrame) -> dict[str, Interval]:
    """What each alignment multiplies tokens per pass by, of one method and way of decoding with stores of one answer a prompt.

    By axis: the geometric mean of the ratio with the alignment over without, over the four pairs of stores that differ in it
    alone. ``without_<axis>``: this alignment poor and the others good, over all good. ``product``: what all three gain over
    none, over the product of what each gains alone; 1 where they multiply.
    """
    cells = {cell: rows for cell, rows in frame.groupby([f"{axis}_aligned" for axis in AXES])}

    def flipped(cell: tuple[bool, ...], place: int) -> tuple[bool, ...]:
        return (*cell[:place], not cell[place], *cell[place + 1 :])

    good, poor = (True,) * 3, (False,) * 3
    found = {}
    for place, axis in enumerate(AXES):
        pairs = [(rows, cells[flipped(cell, place)]) for cell, rows in cells.items() if cell[place]]
        found[axis] = measures.geometric_mean(pairs)
        found[f"without_{axis}"] = measures.ratio(cells[flipped(good, place)], cells[good])
    alone = [cells[flipped(poor, place)] for place in range(3)]
    found["product"] = measures.of_rates(
        [cells[good], cells[poor], *alone], lambda all_good, none, *one: all_good * none**2 / np.prod(one, axis=0)
    )
    return found
