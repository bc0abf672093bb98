"""Recorded answers of large models, on which drafters that work on tokens alone are replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from specdec_lib.datastores import SuffixIndex
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.experiments.diagnosis import Answer, TokensAlone, diagnose
from specdec_lib.experiments.published_sets import MissingData
from specdec_lib.experiments.published_sets.replies import Reply, alpaca_eval_replies, codegen_replies, mt_bench_replies

#: By name of the table: what gives the answers.
SETS: dict[str, Callable[[], list[Reply]]] = {
    "Vicuna-7B, MT-Bench": lambda: mt_bench_replies(run="plain"),
    "Vicuna-13B, AlpacaEval": lambda: alpaca_eval_replies("vicuna-13b-v1.3"),
    "CodeGen-16B, HumanEval": codegen_replies,
}


def predictions(
    tokenizer: PreTrainedTokenizerBase, store: SuffixIndex, prices: Sequence[PassPrices], count: int
) -> tuple[list[dict], list[str]]:
    """What the methods save on answers of each set, and the names of the sets that are not on this machine.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    store : SuffixIndex
        Of this tokenizer.
    prices : sequence of PassPrices
    count : int
        Answers of each set, evenly spread over it.
    """
    rows, absent = [], []
    for name, load in SETS.items():
        try:
            replies = [reply for reply in load() if reply.text]
        except MissingData:
            absent.append(name)
            continue
        answers = [Answer(reply.prompt, reply.text) for reply in replies[:: max(1, len(replies) // count)][:count]]
        for each in prices:
            found = diagnose(answers, TokensAlone(tokenizer, each, store), each, progress=False)
            rows += [
                {
                    "set": name,
                    "copied": found.text.copied,
                    "prices": each.name,
                    "method": one.method,
                    "tokens_per_pass": one.tokens_per_pass,
                    "speedup": one.speedup,
                }
                for one in found.predictions
            ]
    return rows, absent
