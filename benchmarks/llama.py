"""What drafters of this library give in llama.cpp, on the GGUF file of SmolLM2: with its own prompt lookup and ours, in turns.

``make bench-llama`` installs ``llama-cpp-python``. Writes ``data/results/cpu/llama.csv``.
Seconds are those that the thread ran, as in ``benchmarks/seconds.py``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import seconds
from specdec_lib import Context, Drafter, Sampling, report
from specdec_lib.drafters import PromptLookup, SuffixDecoding
from specdec_lib.experiments.statistics.intervals import median_interval
from specdec_lib.models import smollm2
from specdec_lib.wheels import fetch

#: Most tokens of a draft.
MOST = 10


def drafts(drafter: Drafter, vocabulary: int) -> Any:
    """The page's lines: a drafter whose drafts are chains, as llama.cpp calls one."""
    from llama_cpp.llama_speculative import LlamaDraftModel

    class Drafts(LlamaDraftModel):
        def __init__(self):
            self.context = Context([], 0, vocabulary, Sampling())

        def __call__(self, input_ids, /, **_):
            ids, known = input_ids.tolist(), self.context.tokens
            if not known or ids[: len(known)] != known:  # another prompt
                self.context = Context(ids, len(ids), vocabulary, Sampling())
                drafter.start(self.context)
            self.context.tokens += ids[len(self.context.tokens) :]
            return np.array(drafter.propose(self.context, MOST).tokens, dtype=np.intc)

    return Drafts()


def ways(file: Path, new: int, vocabulary: int) -> dict[str, seconds.Run]:
    """By their words in the table's keys."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    made = {
        "plain": None,
        "lookup": LlamaPromptLookupDecoding(3, MOST),
        "pld": drafts(PromptLookup(3, MOST), vocabulary),
        "suffix": drafts(SuffixDecoding(chains=True), vocabulary),
    }
    return {name: seconds.of_llama(file, drafter, new) for name, drafter in made.items()}


def numbers_of(rate: seconds.ByRound, tokens: dict[tuple[str, str], Sequence[int]]) -> dict[str, Any]:
    """Medians of the rounds, ratios within a round, and whether the tokens are those of llama.cpp without drafts."""
    found: dict[str, Any] = {}
    for kind, way in rate:
        found[f"{kind}_{way}_tokens_per_s"] = median_interval(rate[kind, way])
        if way != "plain":
            pairs = zip(rate[kind, way], rate[kind, "plain"], strict=True)
            found[f"{kind}_{way}_over_plain"] = median_interval([ours / plain for ours, plain in pairs])
            found[f"{kind}_{way}_same_tokens"] = list(tokens[kind, way]) == list(tokens[kind, "plain"])
    return found


def main(
    rounds: Annotated[int, typer.Option(help="Of turns.")] = 6,
    tokens: Annotated[int, typer.Option(help="New tokens of an answer.")] = 64,
    kinds: Annotated[str, typer.Option(help="Of prompts.")] = "rename,chat",
    out: Annotated[Path, typer.Option(help="Folder of the table.")] = Path("data/results/cpu"),
) -> None:
    """Measure what drafters of this library give in llama.cpp."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2.folder())
    asked = {kind: ids for kind, ids in seconds.chosen(tokenizer).items() if kind in kinds.split(",")}
    made = ways(fetch(smollm2.FILE), tokens, len(tokenizer))
    load = os.getloadavg()[0]
    rate, _, said = seconds.speeds(made, asked, rounds)
    os.chdir(out)
    about = {"rounds": rounds, "tokens": tokens, "load": load}
    report.save("llama", about, numbers_of(rate, said))


if __name__ == "__main__":
    typer.run(main)
