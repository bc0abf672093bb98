"""DReSD and REST on the same stores of growing size, and on stores that differ in whose text they hold.

The rows have one output's counts each, of which :mod:`.measures` makes rates, ratios and their intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import paths
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import measures, rest_at_scale
from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters import Dresd, Rest
from specdec_lib.experiments import stores
from specdec_lib.experiments.all_cores import on_all_cores
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import Recording, render
from specdec_lib.experiments.retrieval import Remembered, UnfilteredDresd, remembered
from specdec_lib.experiments.statistics import Interval
from specdec_lib.models.fingerprint import fingerprint

#: Sizes of the stores, in tokens.
SIZES = (16_000, 50_000, 200_000, 1_000_000)
#: Neighbours that the released code looks up.
NEIGHBOURS = 50
#: Longest stored answer, in tokens.
ANSWER = 96
#: What is compared with stores of every size, where the other methods need only the largest.
LEADING = ("REST", "REST, n from 1", "DReSD")
Make = Callable[[SuffixIndex, Any], Drafter]
#: What is compared, by name: greatest depth of a draft, and what makes the drafter from the sparse and the dense index.
METHODS: dict[str, tuple[int, Make]] = {
    "REST": (10, lambda sparse, dense: Rest(sparse)),
    "REST, n from 1": (10, lambda sparse, dense: Rest(sparse, min_ngram=1)),
    "REST, as DReSD ran it": (10, lambda sparse, dense: Rest(sparse, **rest_at_scale.AS_DRESD_RAN_IT)),
    "REST, 6 deep": (6, lambda sparse, dense: Rest(sparse, length=6, choices=60)),
    "REST, n from 1, 6 deep": (6, lambda sparse, dense: Rest(sparse, min_ngram=1, length=6, choices=60)),
    "REST, as DReSD ran it, 6 deep": (6, lambda sparse, dense: Rest(sparse, length=6, **rest_at_scale.AS_DRESD_RAN_IT)),
    "DReSD": (6, lambda sparse, dense: Dresd(dense, 10, 6, NEIGHBOURS)),
    "DReSD, 10 deep": (10, lambda sparse, dense: Dresd(dense, 10, 10, NEIGHBOURS)),
    "DReSD, no filter": (6, lambda sparse, dense: UnfilteredDresd(dense, 10, 6, NEIGHBOURS)),
}


def counts(
    recordings: Sequence[Recording], methods: Sequence[str], sparse: SuffixIndex, dense: Any, **labels: Any
) -> Iterator[dict[str, Any]]:
    """One row an output and method: ``method``, the greatest ``limit`` of its drafts' depth, and
    :func:`.measures.outputs`.

    ``dense`` is what :class:`~specdec_lib.drafters.dresd.Dresd` searches; ``labels`` are added to each row.
    """
    drafters = {name: METHODS[name][1](sparse, dense) for name in methods}
    for name, outputs in measures.outputs_each(recordings, drafters).items():
        for row in outputs.drop(columns="draft_seconds").to_dict("records"):
            yield {**labels, "method": name, "limit": METHODS[name][0], **row}


def size_counts(
    model: PreTrainedModel,
    index: SuffixIndex,
    recorded: Mapping[str, Sequence[Recording]],
    sizes: Sequence[int] = SIZES,
    methods: Sequence[str] = tuple(METHODS),
    smaller: Sequence[str] | None = None,
    **labels: Any,
) -> Iterator[dict[str, Any]]:
    """Counts of every method on the first ``sizes`` tokens of a store, whose states are computed once.

    Parameters
    ----------
    model : PreTrainedModel
        Whose states are searched.
    index : SuffixIndex
    recorded : mapping
        Recordings with the target's last states by way of decoding.
    sizes : sequence of int
        Sizes that the store does not reach are left out, and the largest is then all of it.
    methods : sequence of str
        Names in :data:`METHODS`.
    smaller : sequence of str, optional
        Those of the smaller sizes; all of ``methods`` without it.
    """
    held = index.store.count
    wanted = [*(size for size in sorted(sizes) if size < 0.95 * held), min(held, max(sizes))]
    states = stores.dense_states(model, stores.first_part(index, wanted[-1]), compute="bfloat16")
    # Documents stay whole, so two small sizes may be the same part.
    parts = {part.store.count: (size, part) for size in wanted for part in [stores.first_part(index, size)]}
    for size, part in parts.values():
        dense = stores.dense_index(stores.first_states(states, part), part, "cpu")
        for way, recordings in recorded.items():
            found = remembered(dense, recordings, NEIGHBOURS)
            names = methods if smaller is None or size == wanted[-1] else smaller
            yield from counts(recordings, names, part, found, way=way, stored=part.store.count, **labels)


def right_answers(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Prompts with the first :data:`ANSWER` tokens of their right answers, which no model wrote."""
    return [
        render(prompt, tokenizer) + tokenizer(prompt.reference, add_special_tokens=False)["input_ids"][:ANSWER]
        for prompt in prompts
    ]


def answer_store(
    writer: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    sampling: Sampling | None = None,
    seed: int = 0,
    samples: int = 1,
) -> SuffixIndex:
    """A store of prompts with ``samples`` answers each, of at most :data:`ANSWER` tokens, in an order that mixes the
    prompts.

    ``writer`` is the model whose answers these are; None for the right answers, of which there is one.
    """
    if writer is None:
        documents = right_answers(tokenizer, prompts)
    else:
        name = stores.key_of(fingerprint(writer), [prompt.turns for prompt in prompts], str(sampling), samples, ANSWER)
        path = paths.cache() / f"answers-{name[:16]}.jsonl"
        documents = stores.generate_responses(writer, tokenizer, prompts, path, sampling, samples, ANSWER, progress=False)
    order = np.random.default_rng(seed).permutation(len(documents))
    return stores.document_store("answers", [documents[i] for i in order], tokenizer)


# Whose text: the 2 x 2 x 2 design --------------------------------------------------------------------------------

#: The axes of section 5.3; a cell of the design says for each whether the store is aligned.
AXES = ("prompt", "response", "sampling")
#: Sampled answers to a prompt in the store that Figure 8 asks about; the cells of the design have one.
SEVERAL = 3
ALIGNMENT_METHODS = ("REST", "REST, n from 1", "DReSD")


def alignment_counts(
    target: PreTrainedModel,
    other: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    recorded: Mapping[str, Sequence[Recording]],
    kind: Sequence[Prompt],
    other_kind: Sequence[Prompt],
    samplings: Mapping[str, Sampling | None],
) -> list[dict[str, Any]]:
    """Counts with eight stores of one answer a prompt: prompts of the replayed kind or not, answers of the target or of
    another model, decoded as the replayed outputs or not; and with stores of :data:`SEVERAL` sampled answers of the target
    to prompts of the replayed kind. ``answers`` says how many a row's store has.

    Parameters
    ----------
    target, other : PreTrainedModel
    tokenizer
    recorded : mapping
        Recordings of ``target`` by way of decoding, of prompts like ``kind``.
    kind, other_kind : sequence of Prompt
        As many of each; no recorded prompt among them.
    samplings : mapping
        The sampling of each way of decoding.
    """
    if len(kind) != len(other_kind):
        raise ValueError(f"{len(kind)} prompts of the kind and {len(other_kind)} of another; expected as many of each")

    def counted(prompt: bool, response: bool, written: str, answers: int) -> list[dict[str, Any]]:
        asked, writer = kind if prompt else other_kind, target if response else other
        index = answer_store(writer, tokenizer, asked, samplings[written], samples=answers)
        dense = stores.dense_index(stores.dense_states(target, index, compute="bfloat16"), index, "cpu")
        rows: list[dict[str, Any]] = []
        for way, recordings in recorded.items():
            labels = {"way": way, "prompt_aligned": prompt, "response_aligned": response}
            labels |= {"sampling_aligned": way == written, "answers": answers, "stored": index.store.count}
            found = Remembered(dense, recordings, NEIGHBOURS)
            rows += counts(recordings, ALIGNMENT_METHODS, index, found, **labels)
        return rows

    cells = [*product((True, False), (True, False), samplings, (1,))]
    cells += [(True, True, way, SEVERAL) for way, how in samplings.items() if how is not None]
    return [row for rows in on_all_cores([partial(counted, *cell) for cell in cells]) for row in rows]


def alignment_effects(frame: pd.DataFrame) -> dict[str, Interval]:
    """What each alignment is worth, and whether the three multiply, in tokens per pass.

    Parameters
    ----------
    frame : DataFrame
        Of one method and way of decoding; stores of one answer a prompt.

    Returns
    -------
    dict
        By axis: the geometric mean of the ratio with the alignment over without, over the four pairs of stores that differ
        in it alone. ``without_<axis>``: this alignment poor and the others good, over all good. ``product``: what all three
        gain over none, over the product of what each gains alone; 1 where they multiply.
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
