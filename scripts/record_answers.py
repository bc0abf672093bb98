"""Record what SmolLM2 writes to the book's prompts, many at a time, and commit the tokens.

Greedy for every prompt, and sampled (temperature 1, and 0.7 with top-p 0.95) for some, with three seeds. A batch writes, and each
prompt alone verifies its own output (:mod:`specdec_lib.experiments.batched`). What is kept is not decoded again.
"""

from __future__ import annotations

import argparse
import time

from specdec_lib import Sampling, load_model, paths
from specdec_lib.decoding.generate import end_tokens
from specdec_lib.experiments import prompts, recordings
from specdec_lib.experiments.batched import decode_together
from specdec_lib.experiments.recorded_runs import render

LENGTH, BATCH, SAMPLED = 256, 32, 8  # new tokens; prompts of a batch; prompts of each task that are sampled
SAMPLINGS = [Sampling(), *(Sampling(*how, seed=seed) for how in ((1.0,), (0.7, 0.95)) for seed in range(3))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("choose", "report"), action="append")
    options = parser.parse_args()
    model, tokenizer = load_model("smollm2")
    weights, (end,) = recordings.identity(model), end_tokens(model, None)
    begun = time.monotonic()
    for half in options.half or ("report", "choose"):
        for sampling in SAMPLINGS:
            asked = prompts.load(half, per_task=None if sampling.greedy else SAMPLED)
            said = {prompt: [] for prompt in asked}
            for turn in range(max(len(prompt.turns) for prompt in asked)):
                left = [prompt for prompt in asked if len(prompt.turns) > turn]
                contexts = {prompt: render(prompt, tokenizer, said[prompt]) for prompt in left}
                missing = [p for p in left if recordings.kept(weights, sampling, contexts[p]) is None]
                missing.sort(key=lambda prompt: len(contexts[prompt]))
                for first in range(0, len(missing), BATCH):
                    batch = missing[first : first + BATCH]
                    own = [contexts[prompt] for prompt in batch]
                    for ids, run in zip(own, decode_together(model, own, [sampling] * len(own), LENGTH, end), strict=True):
                        recordings.keep(weights, sampling, ids, run.tokens, run.finish_reason)
                    print(f"{half}, {sampling}: turn {turn}, {time.monotonic() - begun:.0f} s", flush=True)
                for prompt in left:
                    answer = recordings.kept(weights, sampling, contexts[prompt])
                    said[prompt].append(tokenizer.decode(answer.tokens, skip_special_tokens=True))
    about = {"command": "python scripts/record_answers.py", "prompts": "data/prompts and HumanEval"}
    target = paths.RECORDINGS.with_name("smollm2.npz")
    print(f"{recordings.commit(recordings.folder(), target, [weights], about, add=True)} outputs in {target.name}")


if __name__ == "__main__":
    main()
