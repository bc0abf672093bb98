"""Recorded answers of large models, on which drafters that work on tokens alone are replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from specdec_lib.chapters.ch08_one_tree import study
from specdec_lib.chapters.ch08_one_tree.ladder import Selection, highest_score, longest_match
from specdec_lib.chapters.ch08_one_tree.study import ARCTIC, SAM, TREE, Ladder, Size
from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.contract import Drafter
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.drafters.prompt_lookup import PromptLookup
from specdec_lib.drafters.rest import Rest
from specdec_lib.drafters.suffix_decoding import SuffixDecoding
from specdec_lib.drafters.tree_probabilities import TreeProbabilities
from specdec_lib.experiments.diagnosis import Answer, recorded
from specdec_lib.experiments.published_sets import MissingData
from specdec_lib.experiments.published_sets.replies import Reply, alpaca_eval_replies, codegen_replies, mt_bench_replies

SUFFIX = "SuffixDecoding"
#: By name of the table: what gives the answers.
SETS: dict[str, Callable[[], list[Reply]]] = {
    "Vicuna-7B, MT-Bench": lambda: mt_bench_replies(run="plain"),
    "Vicuna-13B, AlpacaEval": lambda: alpaca_eval_replies("vicuna-13b-v1.3"),
    "CodeGen-16B, HumanEval": codegen_replies,
}
#: The rows of the table; all but the last have their size chosen in hindsight.
RUNGS = ("PLD", "REST", SUFFIX, SAM, ARCTIC, TREE)


def sources(store: SuffixIndex, size: int = 64) -> dict[str, Drafter]:
    """The sources that tokens alone tell what to draft, each with drafts of ``size`` tokens; the last is what a selection
    rule falls back on."""
    return {
        SUFFIX: SuffixDecoding(most=size),
        "REST": Rest(store, choices=size, min_ngram=1),
        "PLD": PromptLookup(3, size, variant="transformers"),
    }


def rungs(
    store: SuffixIndex, prices: Sequence[PassPrices], sizes: Sequence[int], weights: TreeProbabilities
) -> dict[tuple[str, Size], Drafter]:
    """The drafters of :data:`RUNGS`, by rung and size; ``weights`` are for :func:`sources`."""
    made: dict[tuple[str, Size], Drafter] = {}
    for size in sizes:
        for name, source in sources(store, size).items():
            made[name, size] = source
        made[SAM, size] = Selection(sources(store, size), longest_match)
        made[ARCTIC, size] = Selection(sources(store, size), highest_score)
    for each in prices:
        made[TREE, each.name] = OneTree(sources(store), each, weights)
    return made


def spread(replies: Sequence[Reply], count: int) -> list[Answer]:
    """At most ``count`` answers that have a text, evenly spread over a set."""
    written = [reply for reply in replies if reply.text]
    return [Answer(reply.prompt, reply.text) for reply in written[:: max(1, len(written) // count)][:count]]


class Replayed(NamedTuple):
    """Ladders by set, and the sets that are not on this machine."""

    ladders: Mapping[str, Ladder]
    absent: tuple[str, ...]


def replayed(
    tokenizer: PreTrainedTokenizerBase,
    store: SuffixIndex,
    drafters: Mapping[tuple[str, Size], Drafter],
    count: int,
) -> Replayed:
    """Replay drafters of :func:`rungs` on ``count`` answers of each set; the bound's sources read ``store``."""
    ladders, absent = {}, []
    for name, load in SETS.items():
        try:
            answers = spread(load(), count)
        except MissingData:
            absent.append(name)
            continue
        recordings = [one for one in recorded(answers, tokenizer) if len(one.trace.tokens) > 1]
        ladders[name] = study.measure(recordings, drafters, list(sources(store).values()))
    return Replayed(ladders, tuple(absent))
