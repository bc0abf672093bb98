"""Chapter 3: DReSD and REST with stores of the same text, measured by their rates as the stores grow.

A frame has one row for each output (:func:`specdec_lib.experiments.runs.results.table`). Outputs of one prompt are drawn together.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import paths
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.package_files import PackageFiles, package_files
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.released_sampling import rows as released_rows
from specdec_lib.datastores import ShardedSuffixIndex, SuffixIndex
from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.loop import replay
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters import Dresd, PromptLookup, Rest
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_numbers import pass_costs, published
from specdec_lib.experiments.data.published_sets.files import MissingData
from specdec_lib.experiments.data.published_sets.replies import (
    Reply,
    alpaca_eval_replies,
    codegen_replies,
    mt_bench_replies,
    oasst_replies,
    wizardcoder_replies,
)
from specdec_lib.experiments.data.reply_texts import chat_replies, mixed_texts
from specdec_lib.experiments.runs.recorded_runs import Recording, replay_each
from specdec_lib.experiments.runs.results import ACCEPTANCE, PER_PASS, SPEED, of_rates, table, with_cost
from specdec_lib.experiments.runs.retrieval import CachedNeighbours, KeepsMatches, cached_neighbours, record_replies
from specdec_lib.experiments.statistics.intervals import Counts, Interval, pooled_rate, ratio_of_rates

# Rates, with one bootstrap over all prompts ----------------------------------------------------------------------

#: Rates, as the columns whose sums they are the ratio of; tokens a pass, acceptance and speed are those of ``results``.
LENGTH, DRAFTING = ("accepted", "drafts"), ("drafts", "passes")
NODES, PER_NODE = ("drafted", "drafts"), ("accepted", "drafted")
CHARACTERS = ("characters", "passes")
#: What a setting is: a store of some size, how the outputs were decoded, and the kind of prompts.
SETTING = ("stored", "store", "way", "group")


def outputs(recordings: Sequence[Recording], drafters: Mapping[Any, Drafter | None]) -> pd.DataFrame:
    """The results table of drafters that are replayed on recordings, as :func:`with_prompt_names` gives it."""
    return with_prompt_names(table(recordings, replay_each(recordings, drafters)))


def with_prompt_names(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with each prompt named by its task too, as the rates of this chapter need it, and the way of decoding."""
    way = np.where(rows.temperature == 0, "greedy", "nucleus")
    return rows.assign(prompt=rows.task + " " + rows.prompt, way=way)


def by_way_and_method(rows: pd.DataFrame) -> dict[str, dict[str, pd.DataFrame]]:
    """Named rows by way of decoding and method."""
    return {way: dict(list(part.groupby("method"))) for way, part in rows.groupby("way")}


def rate(frame: pd.DataFrame, value: tuple[str, str] = PER_PASS) -> Interval:
    """A ratio of sums over the outputs."""
    return of_rates([frame], lambda only: only, value)


def ratio(ours: pd.DataFrame, theirs: pd.DataFrame, value: tuple[str, str] = PER_PASS) -> Interval:
    """The ratio of two frames' rates."""
    return of_rates([ours, theirs], operator.truediv, value)


def geometric_mean(pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]], value: tuple[str, str] = PER_PASS) -> Interval:
    """The geometric mean of the ratios of several pairs of frames."""

    def of_ratios(*rates: Any) -> Any:
        return np.exp(sum(np.log(a / b) for a, b in zip(rates[::2], rates[1::2], strict=True)) / len(pairs))

    return of_rates([frame for pair in pairs for frame in pair], of_ratios, value)


def settings(
    frame: pd.DataFrame, ours: str, theirs: str, by: Sequence[str] = SETTING
) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """The rows of two methods, one pair for each value of the columns ``by``."""
    first, second = (dict(list(frame[frame.method == method].groupby(list(by)))) for method in (ours, theirs))
    return [(rows, second[setting]) for setting, rows in first.items()]


def speed(frame: pd.DataFrame, cost: Mapping[int, float]) -> Interval:
    """Speed-up over plain decoding at a cost of the passes."""
    return rate(with_cost(frame, cost), SPEED)


def speed_ratio(ours: pd.DataFrame, theirs: pd.DataFrame, cost: Mapping[int, float]) -> Interval:
    """The ratio of two frames' speeds at one cost of the passes."""
    return ratio(*(with_cost(frame, cost) for frame in (ours, theirs)), SPEED)


# Sizes of the store ----------------------------------------------------------------------------------------------


def by_size(frame: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """The rows of each size of the store, the smallest first."""
    return {int(size): rows for size, rows in frame.groupby("stored")}


def largest(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the largest store."""
    return frame[frame.stored == frame.stored.max()]


def largest_of_each(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the largest store of each kind of text."""
    return frame[frame.stored == frame.groupby("store").stored.transform("max")]


def steps(frame: pd.DataFrame) -> list[Interval]:
    """Ratio of tokens per pass with each size of the store to that with the next smaller one."""
    parts = list(by_size(frame).values())
    return [ratio(larger, smaller) for smaller, larger in zip(parts, parts[1:], strict=False)]


def extrapolate_to_size(frame: pd.DataFrame, size: float, then: Callable[[Any], Any] = lambda rate: rate) -> Interval:
    """What a line in the logarithm of the store's size, fitted by least squares, gives for another size.

    Every bootstrap sample is fitted again. The interval says nothing of whether the rate goes on along the line. ``then`` is
    applied to the rate, such as a division by the cost of a pass.
    """
    parts = by_size(frame)
    if len(parts) < 2:
        raise ValueError(f"a line through {len(parts)} size; expected two sizes or more")

    def powers(tokens: float) -> np.ndarray:
        return np.array([1.0, np.log10(tokens)])

    weights = powers(size) @ np.linalg.pinv(np.stack([powers(stored) for stored in parts]))
    return of_rates(list(parts.values()), lambda *rates: then(sum(w * r for w, r in zip(weights, rates, strict=True))))


# DReSD and REST on the same stores of growing size ---------------------------------------------------------------

#: Neighbours that the released code looks up.
NEIGHBOURS = 50
#: Longest stored answer, in tokens.
ANSWER = 64
#: REST as the released code of DReSD runs it.
AS_DRESD_RAN_IT: dict[str, Any] = {"max_ngram": 64, "min_ngram": 3, "selection": "released", "rows": 10}
#: Versions of REST that DReSD is compared with.
VERSIONS = ("REST", "REST, n from 1", "REST, as DReSD ran it")
#: How the page names two of them: by the shortest match that they draft after.
SHOWN = {"REST": "REST (two tokens)", "REST, n from 1": "REST (one token)"}
#: Sizes of the stores that both methods search, in tokens.
DENSE_SIZES = (4_000, 12_000, 50_000, 200_000, 1_000_000)
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


def method_counts(
    recordings: Sequence[Recording], methods: Sequence[str], sparse: SuffixIndex, dense: Any, **labels: Any
) -> pd.DataFrame:
    """Rows of methods of :data:`METHODS` on recordings; ``dense`` may be None where none of them searches states."""
    drafters = {name: METHODS[name](sparse, dense) for name in methods}
    rows = table(recordings, replay_each(recordings, drafters))
    return rows.assign(stored=sparse.store.count, **labels)


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
            looked_up = cached_neighbours(dense, recordings, NEIGHBOURS)
            found.append(method_counts(recordings, names, part, looked_up, way=way, **labels))
    return pd.concat(found, ignore_index=True)


# Whose text: the 2 x 2 x 2 design --------------------------------------------------------------------------------

#: The axes of section 5.3; a cell of the design says for each whether the store is aligned.
AXES = ("prompt", "response", "sampling")
#: Sampled answers to a prompt in the store that Figure 8 asks about; the cells of the design have one.
SEVERAL = 3


class Answered(NamedTuple):
    """The store of a cell of the design: answers to prompts of a group, the target's or another model's, decoded in a way, and
    how many of each prompt."""

    group: str
    targets: bool
    way: str
    answers: int

    @property
    def name(self) -> str:
        return f"{self.group}, {'target' if self.targets else 'other model'}, {self.way}, {self.answers}"


def cells(groups: Collection[str], samplings: Mapping[str, Sampling | None]) -> dict[str, Answered]:
    """The stores of the design by name. A store has one answer per prompt, decoded in one of the ways, or :data:`SEVERAL` sampled
    answers of the target to each prompt of the first group."""
    found = [Answered(*each) for each in product(groups, (True, False), samplings, (1,))]
    found += [Answered(next(iter(groups)), True, way, SEVERAL) for way, how in samplings.items() if how is not None]
    return {each.name: each for each in found}


def mixed(documents: Sequence[Any]) -> list[Any]:
    """Documents of a store in which the shortest prompts come first, in another order."""
    return [documents[i] for i in np.random.default_rng(0).permutation(len(documents))]


def alignment_counts(
    target: PreTrainedModel,
    other: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    recorded: Mapping[str, Mapping[str, Sequence[Recording]]],
    asked: Mapping[str, Sequence[Prompt]],
    samplings: Mapping[str, Sampling | None],
    design: Mapping[str, Answered],
) -> pd.DataFrame:
    """Results with the stores of some cells of the design (:func:`cells`); ``answers`` counts the answers to each
    prompt in the store of a row.

    ``recorded`` is by way of decoding and group of prompts, ``asked`` by group; the stored prompts are not the recorded ones.
    """
    if len({len(some) for some in asked.values()}) > 1:
        counts = {group: len(some) for group, some in asked.items()}
        raise ValueError(f"the groups have {counts} prompts to be answered; expected as many of each")
    found = []
    for name, (kind, response, written, answers) in design.items():
        writer, how = target if response else other, samplings[written]
        answered = stores.response_store(writer, tokenizer, asked[kind], how, answers, ANSWER).store
        documents = [answered.document(i) for i in range(len(answered))]
        index = stores.document_store("answers", mixed(documents), tokenizer)
        dense = stores.dense_index(stores.dense_states(target, index), index)
        for (way, by_group), group in product(recorded.items(), asked):
            labels = {"way": way, "group": group, "prompt_aligned": group == kind, "response_aligned": response}
            labels |= {"sampling_aligned": way == written, "answers": answers, "cell": name}
            looked_up = CachedNeighbours(dense, by_group[group], NEIGHBOURS)
            found.append(method_counts(by_group[group], LEADING, index, looked_up, **labels))
    return pd.concat(found, ignore_index=True)


def cell(
    design: pd.DataFrame, way: str, method: str, group: str = "code", answers: int = 1, **alignment: bool
) -> pd.DataFrame:
    """Rows of the outputs with one of the stores; an axis that is not named is aligned."""
    rows = design[(design.way == way) & (design.method == method)]
    rows = rows[(rows.group == group) & (rows.answers == answers)]
    for axis in AXES:
        rows = rows[rows[f"{axis}_aligned"] == alignment.get(axis, True)]
    return rows


def alignment_ratio(
    design: pd.DataFrame,
    way: str,
    method: str,
    axis: str,
    group: str = "code",
    value: tuple[str, str] = PER_PASS,
) -> Interval:
    """A rate with the store that is aligned in every way over that with the one that differs in this axis."""
    return ratio(cell(design, way, method, group), cell(design, way, method, group, **{axis: False}), value)


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
        found[axis] = geometric_mean(pairs)
        found[f"without_{axis}"] = ratio(cells[flipped(good, place)], cells[good])
    alone = [cells[flipped(poor, place)] for place in range(3)]
    found["product"] = of_rates(
        [cells[good], cells[poor], *alone], lambda all_good, none, *one: all_good * none**2 / np.prod(one, axis=0)
    )
    return found


# DReSD's shapes, and REST by itself ------------------------------------------------------------------------------

#: Lengths of DReSD's ten drafts, and numbers of its drafts of ten tokens (Figure 7).
LENGTHS, NUMBERS = (1, 2, 4, 6, 10, 20), (1, 3, 5, 10, 20)
#: The shapes that the paper takes greedily and sampled, and the one that its authors match to REST's, as number x length.
DEEP, WIDE, MATCHED = "3 x 20", "10 x 10", "10 x 6"
#: Longest suffixes that REST looks up, and numbers of its nodes (REST, Figures 3 and 12).
SUFFIXES, TREE_NODES = (1, 2, 4, 6, 8, 16), (8, 16, 32, 64, 128, 256)
PUBLISHED = "as published"
#: What is tried of REST on the largest of its stores.
REST_VARIANTS: dict[str, dict[str, Any]] = {
    "n from 1": {"min_ngram": 1},
    "released selection": {"selection": "released"},
    "random selection, 8 x 8": {"selection": "random", "length": 8},
    "as DReSD ran it": AS_DRESD_RAN_IT,
    **{
        f"suffixes up to {n}, {how}": {"max_ngram": n, "min_ngram": min(2, n), "subsample": how}
        for n in SUFFIXES
        for how in ("lexicographic", "uniform")
    },
    **{f"{nodes} nodes": {"choices": nodes} for nodes in TREE_NODES},
}


def shape_counts(recordings: Sequence[Recording], sparse: SuffixIndex, dense: DenseIndex) -> pd.DataFrame:
    """Rows of DReSD in several shapes, named as ``10 x 6``, of REST on the same store, of prompt lookup, and of ``both``: its
    drafts in one tree with DReSD's, where a wide pass costs no more."""
    looked_up = CachedNeighbours(dense, recordings)
    shapes = {(10, length) for length in LENGTHS} | {(number, 10) for number in NUMBERS} | {(3, 20)}
    drafters = {f"{number} x {length}": Dresd(looked_up, number, length) for number, length in sorted(shapes)}
    drafters |= {"REST": Rest(sparse), "REST, n from 1": Rest(sparse, min_ngram=1), "PLD": PromptLookup(num_tokens=10)}
    sources = {"DReSD": drafters[MATCHED], "PLD": drafters["PLD"]}
    drafters["both"] = OneTree(sources, PassCosts({1: 1.0, 256: 1.0}), rate=0.0)
    return table(recordings, replay_each(recordings, drafters))


def store_counts(recordings: Sequence[Recording], parts: Sequence[SuffixIndex]) -> pd.DataFrame:
    """Rows of REST with stores of growing size, and of its variants with the largest; ``row_tokens`` are those of its drafts
    written as rows, one a leaf, as the released code does."""
    drafters: dict[tuple[str, int], Drafter] = {(PUBLISHED, part.store.count): Rest(part) for part in parts}
    biggest = parts[-1]
    drafters |= {(name, biggest.store.count): Rest(biggest, **how) for name, how in REST_VARIANTS.items()}
    return pd.concat(
        [
            table(recordings, {method: runs}).assign(
                stored=stored,
                row_tokens=[sum(len(row) for s in run.steps for row in released_rows(s.tree)) for run in runs],
            )
            for (method, stored), runs in replay_each(recordings, drafters).items()
        ],
        ignore_index=True,
    )


# What is said of all settings ------------------------------------------------------------------------------------


def dresd_over(rows: pd.DataFrame, version: str) -> dict[str, Interval]:
    """DReSD over a version of REST, the mean over settings: ``rate``, of acceptance, and ``length``, accepted tokens a draft, both
    over REST's drafts of 6 tokens; ``drafting``, passes with a draft, and ``tpf``, tokens per pass."""
    deep = settings(rows, "DReSD", f"{version}, 6 deep")
    whole = settings(rows, "DReSD", version)
    return {
        "rate": geometric_mean(deep, ACCEPTANCE),
        "length": geometric_mean(deep, LENGTH),
        "drafting": geometric_mean(whole, DRAFTING),
        "tpf": geometric_mean(whole),
    }


def dresd_leads(rows: pd.DataFrame, version: str) -> list[Interval]:
    """DReSD's tokens per pass over those of a version of REST in every setting."""
    return [ratio(*pair) for pair in settings(rows, "DReSD", version)]


def at_end(rows: pd.DataFrame, version: str, which: str) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """Pairs of DReSD and a version of REST, one per way of decoding, with the smallest (``"min"``) or the largest (``"max"``) store
    of other people's code."""
    text = rows[rows.store == "packages"]
    return settings(text[text.stored == text.stored.agg(which)], "DReSD", version, ["way"])


def lead_change(rows: pd.DataFrame, version: str) -> Interval:
    """DReSD's lead over a version of REST with the largest of these stores over that with the smallest."""
    frames = [frame for which in ("max", "min") for pair in at_end(rows, version, which) for frame in pair]

    def change(*rates: Any) -> Any:
        last, first = np.split(np.log(np.divide(rates[::2], rates[1::2])), 2)
        return np.exp((last - first).mean(axis=0))

    return of_rates(frames, change)


def speed_at_step_cost(rows: pd.DataFrame, step: float) -> Interval:
    """Speed-up where every pass costs as much, in plain passes."""
    return of_rates([rows], lambda tokens: tokens / step)


# REST on recorded outputs of large models ------------------------------------------------------------------------
#
# No store holds an answer to a question that is replayed, whoever gave it, and the chat store no text by a model of a replayed
# family: it is other models' and people's text, as UltraChat is to Vicuna.

#: Sizes of the stores, in tokens of the tokenizer in use; the largest only where there is as much text.
SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 20_000_000)
#: Sizes of stores of shards, where downloaded packages lie in the folder ``packages`` of the data sets.
LARGE_SIZES = (40_000_000, 100_000_000, 200_000_000)
#: Longest replayed output, in tokens.
LONGEST = 4000
#: What is tried on the largest store next to the published settings.
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{nodes} nodes": {"choices": nodes} for nodes in (8, 16, 32, 48, 128, 192, 256)},
    **{f"suffixes up to {n}": {"max_ngram": n} for n in (2, 4, 6, 32)},
    "random selection": {"selection": "random", "length": 8},
    "matches from one token": {"min_ngram": 1},
    "released selection": {"selection": "released"},
    "as DReSD ran it": AS_DRESD_RAN_IT,
}
#: The cases that stand for the papers' settings; variants are tried on the greedy ones.
CHAT, CODE, CODE_SAMPLED = "Vicuna-7B v1.5, MT-Bench", "WizardCoder-15B, HumanEval", "CodeGen-16B, HumanEval"
#: Chats whose recorded answers are sampled; none is to the prompts of MT-Bench.
CHATS_SAMPLED = ("Llama-2-70B OASST, sampled", "Vicuna-13B v1.5, AlpacaEval", "Llama-2-7B-chat, AlpacaEval")
#: Bytes a token of a released datastore: 2 of the token, 4 of the suffix array.
RELEASED_BYTES = 6
#: Matches of each chunk that the released code looks at.
RELEASED_MATCHES = 5000


#: The model of the sampling reports that is replayed.
OASST_REPLAYED = "llama2-70b"


@dataclass(frozen=True)
class Case:
    """Outputs of one model on one set of prompts: ``kind`` is chat or code, ``decoding`` greedy or sampled; ``stores`` reads the
    text of each store, by the store's name."""

    name: str
    kind: str
    decoding: str
    replies: list[Reply]
    stores: dict[str, Callable[[], stores.Texts | PackageFiles]] = field(default_factory=dict)


#: Stores of one model's answers, with which a check makes rows again, and those of other text, which takes longer to read.
OWN_TEXT, GPT4_TEXT = "its own answers, as many tokens", "GPT-4's answers, as many tokens"
ANSWERS, LARGER = (OWN_TEXT, GPT4_TEXT), ("chat", "chat, as many tokens", "code")
#: A prompt that stands for each case where rows are made.
CASES = [
    Prompt(name, name, ("",))
    for name in (
        *(CHAT, "Llama-2-70B OASST, greedy", CODE, "Vicuna-13B v1.5, AlpacaEval", "Llama-2-7B-chat, AlpacaEval"),
        *("Llama-2-70B OASST, sampled", CODE_SAMPLED),
    )
]


def recorded_cases(packages: Sequence[Path] = ()) -> list[Case]:
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

    own = {"Vicuna-7B v1.5, MT-Bench": "vicuna-7b-v1.5", "Llama-2-7B-chat, AlpacaEval": "llama-2-7b-chat-hf"}
    found: list[Case] = []
    for name, decoding, replies in chats:
        more = {"its own answers": answers(own[name]), "GPT-4's answers": answers("gpt4")} if name in own else {}
        found.append(Case(name, "chat", decoding, replies, {"chat": chat, **more}))
    # Two cases and their variants ask for the same files, which take a while to find.
    code = cache(partial(package_files, packages)) if packages else stores.package_texts
    for name, decoding, replies in (
        ("WizardCoder-15B, HumanEval", "greedy", wizardcoder_replies()),
        ("CodeGen-16B, HumanEval", "sampled", codegen_replies()),
    ):
        found.append(Case(name, "code", decoding, replies, {"code": code}))
    # Greedy ones first: what the papers report is there soonest.
    return sorted(found, key=lambda case: case.decoding)


def _question(reply: Reply) -> str:
    """What turns of one question have in common."""
    text = (reply.questions or (reply.id,))[0]
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def replay_counts(case: Case, drafter: Rest, tokenizer: PreTrainedTokenizerBase) -> pd.DataFrame:
    """Counts of the replays of REST on a case, a row per prompt; turns of one question are one prompt.

    Next to the columns of the results table: ``characters``; ``matched_2``, ``matched_10`` and ``matched_17``, the steps whose
    longest suffix has 2 to 9, 10 to 16 and more tokens; ``cut``, the steps with more matches than the released code reads.
    """
    prompt_of = {reply.id: _question(reply) for reply in case.replies}
    keeping, rows = KeepsMatches(drafter), []
    for recording in record_replies(case.replies, tokenizer, LONGEST):
        keeping.matches.clear()
        run = replay(recording.trace, keeping)
        lengths = np.array([match.length for match in keeping.matches])
        spans = np.array([match.stop - match.start for match in keeping.matches])
        rows.append(
            table([recording], {PUBLISHED: [run]})[["tokens", "passes", "drafts", "drafted", "widths"]].assign(
                prompt=prompt_of[recording.prompt.id],
                characters=len(tokenizer.decode(run.tokens[1:])),
                matched_2=((lengths >= 2) & (lengths < 10)).sum(),
                matched_10=((lengths >= 10) & (lengths <= 16)).sum(),
                matched_17=(lengths > 16).sum(),
                cut=((spans > RELEASED_MATCHES) & (lengths > 1)).sum(),
            )
        )
    found = pd.concat(rows)
    wide = max(map(len, found.widths))
    found["widths"] = [np.pad(widths, (0, wide - len(widths))) for widths in found.widths]
    found = found.groupby("prompt", sort=False).sum().reset_index()
    # The outputs are other models', and at what temperature they were sampled is not told.
    output = {"task": case.name, "turn": 0, "seed": 0, "temperature": 0.0 if case.decoding == "greedy" else math.nan}
    return found.assign(kind=case.kind, decoding=case.decoding, **output)


def case_counts(case: Case, tokenizer: PreTrainedTokenizerBase, sizes: Sequence[int] = SIZES) -> pd.DataFrame:
    """Counts of one case with growing stores of its kind, equally large ones of answers, and the variants.

    Sizes of which there is not as much text are left out, and the largest is then all there is.
    """

    def counted(index: Any, store: str = case.kind, variant: str = PUBLISHED) -> pd.DataFrame:
        drafter = Rest(index, **VARIANTS.get(variant, {}))
        return replay_counts(case, drafter, tokenizer).assign(store=store, method=variant, stored=index.store.count)

    growing = list(_growing(case, tokenizer, sizes))
    found = [counted(index) for index in growing]
    if answers := answer_stores(case, tokenizer):
        size = min(index.store.count for index in answers.values())
        found.append(counted(stores.first_part(growing[-1], size), f"{case.kind}, as many tokens"))
        found += [counted(index, name) for name, index in answers.items()]
    if case.name in (CHAT, CODE):
        found += [counted(growing[-1], variant=name) for name in VARIANTS]
    return pd.concat(found, ignore_index=True)


def answer_stores(case: Case, tokenizer: PreTrainedTokenizerBase) -> dict[str, SuffixIndex]:
    """The stores of a case that hold one model's answers, as many tokens of each, by name."""
    whole = {
        f"{name}, as many tokens": stores.text_store("at-scale-answers", tokenizer, max(SIZES), texts())
        for name, texts in case.stores.items()
        if name != case.kind
    }
    size = min((index.store.count for index in whole.values()), default=0)
    return {name: stores.first_part(index, size) for name, index in whole.items()}


def _growing(
    case: Case, tokenizer: PreTrainedTokenizerBase, sizes: Sequence[int]
) -> Iterator[SuffixIndex | ShardedSuffixIndex]:
    """The stores of a case, the smallest first; each holds the one before it. Text that can be cut fills shards."""
    texts, sizes = case.stores[case.kind](), sorted(sizes)
    shard = stores.SHARD_TOKENS
    if isinstance(texts, PackageFiles) and sizes[-1] > shard:
        shards = stores.text_shards("packages", tokenizer, sizes[-1], texts, shard, progress=True)
        for size in sizes:
            if size < 0.95 * shard:
                yield stores.first_part(shards.shards[0], size)
            else:
                yield shards.first(min(len(shards.shards), -(-size // shard)))
        return
    largest = stores.text_store(f"at-scale-{case.kind}", tokenizer, sizes[-1], texts)
    for size in [size for size in sizes if size < 0.95 * largest.store.count]:
        yield stores.first_part(largest, size)
    yield largest


def count_recorded_outputs(
    tokenizer: PreTrainedTokenizerBase, some: Sequence[Prompt], searched: Collection[str]
) -> pd.DataFrame:
    """Rows of some cases, which prompts stand for (:data:`CASES`), with all of their stores: hours, and the published data sets.
    Rows of some questions (:func:`questions_with_answers`) are with those of ``searched`` that hold one model's answers."""
    wheels = paths.datasets_root() / "packages"
    packages, sizes = ([wheels], (*SIZES, *LARGE_SIZES)) if wheels.is_dir() else ([], SIZES)
    cases, found = {case.name: case for case in recorded_cases(packages=packages)}, []
    for one in some:
        case = cases[one.task]
        if one in CASES:
            found.append(case_counts(case, tokenizer, sizes))
            continue
        asked = replace(case, replies=[reply for reply in case.replies if _question(reply) == one.id])
        for name, index in answer_stores(case, tokenizer).items():
            if name in searched:
                rows = replay_counts(asked, Rest(index), tokenizer)
                found.append(rows.assign(store=name, method=PUBLISHED, stored=index.store.count))
    return pd.concat(found, ignore_index=True)


def questions_with_answers() -> list[Prompt]:
    """The questions of the cases that have stores of one model's answers; none where the data sets are not on this machine."""
    try:
        cases = [case for case in recorded_cases() if len(case.stores) > 1]
    except MissingData:
        return []
    asked = {(_question(reply), case.name): reply.prompt for case in cases for reply in case.replies}
    return [Prompt(name, case, (text,)) for (name, case), text in asked.items()]


def case_rows(counts: pd.DataFrame, case: str, store: str | None = None, variant: str = PUBLISHED) -> pd.DataFrame:
    """Rows of one case, by default with the growing store of its kind; ``matched`` are steps with a match of two tokens
    or more."""
    rows = counts[(counts.task == case) & (counts.method == variant)]
    rows = rows[rows.store == (rows.kind if store is None else store)]
    return rows.assign(matched=rows.matched_2 + rows.matched_10 + rows.matched_17)


def sampled_chats(counts: pd.DataFrame) -> pd.DataFrame:
    """Rows of all chats with sampled answers, by default with the growing store."""
    return pd.concat([case_rows(counts, case) for case in CHATS_SAMPLED])


def with_stores_in_proportion(
    ours: pd.DataFrame, theirs: pd.DataFrame, proportion: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of two cases: theirs with their largest store, ours with the store that is ``proportion`` times as large, to a tenth."""
    theirs = largest(theirs)
    off = {size: abs(size / (proportion * theirs.stored.max()) - 1) for size in ours.stored.unique()}
    nearest = min(off, key=off.__getitem__)
    if off[nearest] >= 0.1:
        raise ValueError(f"no store of ours is {proportion:g} times as large as the largest of theirs, to a tenth")
    return ours[ours.stored == nearest], theirs


def released_tokens(gigabytes: float, ratio: float = 1.0) -> float:
    """Tokens in a released datastore of a size; ``ratio``: tokens of ours for one of theirs."""
    return gigabytes * 1e9 / RELEASED_BYTES * ratio


class Growth(NamedTuple):
    """How much a larger store gives, as ratios to the smallest one: speed over plain decoding, and that over tokens per pass."""

    speed: Interval
    speed_over_tokens: Interval


def growth_of_speed(rows: pd.DataFrame, cost: Mapping[int, float]) -> Growth:
    """What the largest store gives over the smallest, at a cost of the passes (REST, Table 2)."""
    smallest, largest_store = (with_cost(rows[rows.stored == end(rows.stored)], cost) for end in (min, max))
    return Growth(ratio(largest_store, smallest, SPEED), ratio(largest_store, smallest, ("passes", "cost")))


def own_pass_costs() -> dict[int, float]:
    """The cost of a pass on REST's own card, which follows from its Table 2: ``data/published/pass_costs.csv``."""
    return next(curve for who, curve in pass_costs().items() if who.source == "REST")


def own_step_cost() -> float:
    """REST's own cost of a step in passes of plain decoding, the mean over the stores of its table 2: mean generated length
    times time per token, over the time per token of plain decoding."""
    paper = {key: float(row["value"]) for key, row in published("rest").items() if row["value"] != "not available"}
    sizes = ("09gb", "44gb", "87gb", "14gb", "27gb")
    return (
        float(np.mean([paper[f"rest-t2-{s}-m"] * paper[f"rest-t2-{s}-ms"] for s in sizes]))
        / paper["rest-t1-he-greedy-7b-ar"]
    )


def in_llama_tokens(rows: pd.DataFrame, authors: Mapping[str, Interval]) -> pd.DataFrame:
    """Rows of chat with tokens of Llama's tokenizer: the characters emitted over those of a token in the authors' answers.

    SmolLM2's tokens are a little longer than Llama's, so the token that the target adds to every pass counts as a little more
    than one.
    """
    return rows.assign(tokens=rows.characters / authors["characters_per_token"].value)


def authors_questions() -> list[Prompt]:
    """The questions that the result files of REST's authors answer; none where the data sets are not on this machine."""
    try:
        replies = mt_bench_replies()
    except MissingData:
        return []
    asked = {reply.id.partition("-")[0]: reply.questions for reply in replies}
    return [Prompt(number, "mt_bench", questions) for number, questions in asked.items()]


def authors_rows(some: Sequence[Prompt]) -> pd.DataFrame:
    """Rows of the answers in the result files of REST's authors, of Vicuna-7B on MT-Bench: ``tokens`` and ``characters`` after the
    first token, ``passes`` and ``seconds``, with REST and ``plain``."""
    rows, asked = [], {one.id for one in some}
    for method in ("REST", "plain"):
        for reply in mt_bench_replies(run=method):
            question, _, turn = reply.id.partition("-")
            if question not in asked:
                continue
            output = {"task": "mt_bench", "prompt": question, "turn": int(turn), "seed": 0, "temperature": 0.0}
            counted = {"tokens": reply.tokens - 1, "passes": reply.steps, "seconds": reply.seconds}
            characters = len(reply.text) * (reply.tokens - 1) / reply.tokens
            rows.append(output | {"method": method} | counted | {"characters": characters})
    return pd.DataFrame(rows)


def authors_run(rows: pd.DataFrame) -> dict[str, Interval]:
    """What :func:`authors_rows` say, with intervals over questions: ``tokens`` and ``characters`` a pass, ``characters_per_token``,
    the ``speed_up`` and the cost of a ``step`` in plain passes."""
    ours, plain_runs = (rows[rows.method == method].reset_index() for method in ("REST", "plain"))
    if not ours[["prompt", "turn"]].equals(plain_runs[["prompt", "turn"]]):
        raise ValueError("the result files with REST and without answer other turns; get them again")
    prompts = ours.prompt.tolist()
    with_rest, without = Counts(ours.tokens, ours.seconds), Counts(plain_runs.tokens, plain_runs.seconds)
    return {
        "tokens": pooled_rate(Counts(ours.tokens, ours.passes), prompts),
        "characters": pooled_rate(Counts(ours.characters, ours.passes), prompts),
        "characters_per_token": pooled_rate(Counts(ours.characters, ours.tokens), prompts),
        "speed_up": ratio_of_rates(with_rest, without, prompts),
        "step": ratio_of_rates(
            Counts(ours.seconds, ours.passes), Counts(plain_runs.seconds, plain_runs.tokens), prompts
        ),
    }
