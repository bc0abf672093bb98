"""What rules of released codes are worth that this library does otherwise: both on the same prompts, greedy, in tokens per pass.

Writes ``data/results/cpu/released.csv``, which the pages of the methods show.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path

import numpy as np

from specdec_lib import load_model, paths, report
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.drafters import Lookahead, TokenRecycling
from specdec_lib.drafters.eagle import Eagle
from specdec_lib.drafters.medusa import Medusa
from specdec_lib.experiments import input_guided, prompts, results
from specdec_lib.experiments.recorded_runs import replay_each, run_each_again
from specdec_lib.experiments.recordings import record_once
from specdec_lib.experiments.workbench import ModelPair

#: Trees of the released codes: how many children a node has, by the ranks on the way to it, those of a leaf left out.
MEDUSA = {"": 10, "0": 10, "1": 7, "2": 3, "3": 2} | dict.fromkeys("456789", 1)
MEDUSA |= {"00": 10, "01": 3, "02": 2, "10": 2, "20": 1, "000": 2} | dict.fromkeys(("03", "04", "05", "06", "07"), 1)
EAGLE = {"": 4, "0": 3, "1": 2, "2": 2, "3": 1, "00": 3, "01": 2, "02": 2, "10": 1, "000": 3, "0000": 2}


def shape_of(children: Mapping[str, int]) -> list[tuple[int, int]]:
    """A tree as drafters with heads take it: each node's parent and rank, level by level."""
    nodes: list[tuple[int, int]] = []
    places = {"": -1}
    for way in sorted(children, key=lambda way: (len(way), way)):
        for rank in range(children[way]):
            places[f"{way}{rank}"] = len(nodes)
            nodes.append((places[way], rank))
    return nodes


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--target", default="smollm2", choices=("smollm2", "pocket"))
    parser.add_argument("--prompts", type=int, default=1, help="of each of PLD+'s tasks")
    parser.add_argument("--max-new-tokens", type=int, default=40)
    parser.add_argument("--out", type=Path, default=paths.DATA / "results" / "cpu", help="folder")
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load_model(options.target, "cpu", "float32")
    pair = ModelPair(model, None, tokenizer)
    medusa, eagle = pair.draft_heads("medusa"), pair.draft_heads("eagle")
    asked = prompts.load("report", input_guided.TASKS, options.prompts)
    recordings = record_once(model, tokenizer, asked, None, options.max_new_tokens, Capture((LAST,)))
    runs = replay_each(
        recordings,
        {
            "medusa": Medusa(model, medusa),
            "medusa as released": Medusa(model, medusa, shape_of(MEDUSA)),
            "eagle": Eagle(model, eagle),
            "eagle as released": Eagle(model, eagle, shape_of(EAGLE)),
        },
    )
    live = {
        "lookahead": Lookahead(),
        "lookahead as released": Lookahead(full_match=False),
        "recycling": TokenRecycling(),
    }
    runs |= run_each_again(model, recordings, live, {"recycling": "warm"})
    rows = results.table(recordings, runs)
    rows["verified"] = rows.widths.map(lambda passes: int(np.arange(len(passes)) @ passes))
    counted = {
        f"{name}_over_released": results.ratio(rows, name, f"{name} as released")
        for name in ("medusa", "eagle", "lookahead")
    }
    counted["recycling_width"] = results.rate(rows[rows.method == "recycling"], ("verified", "passes"))
    counted["recycling_full_width"] = 1 + sum(live["recycling"].levels)
    with chdir(options.out):
        report.save("released", counted | {"outputs": len(recordings), "tokens": options.max_new_tokens})


if __name__ == "__main__":
    main(sys.argv[1:])
