"""Write the prompts of the papers' own sets as one JSON list, for a machine that has the model but not the sets.

Some of the sets may not be passed on, so the file stays where it is used: scripts/record_answers.py --sets FILE.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specdec_lib import load_model
from specdec_lib.experiments import published_prompts
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.files import write_atomic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    _, tokenizer = load_model("smollm2")
    rows = []
    for name in published_prompts.SETS:
        own = []
        for prompt, samplings in published_prompts.load(name, tokenizer):
            sampled = dict.fromkeys((each.temperature, each.top_p) for each in samplings if not each.greedy)
            row = {"set": name, "task": prompt.task, "id": prompt.id, "turns": prompt.turns, "chat": prompt.chat}
            own.append(row | {"ids": render(prompt, tokenizer), "sampled": list(sampled)})
        tokens = sum(len(row["ids"]) for row in own) / len(own)
        print(f"{name}: {len(own)} prompts of {tokens:.0f} tokens in the mean", flush=True)
        rows += own
    write_atomic(options.out, json.dumps(rows))


if __name__ == "__main__":
    main()
