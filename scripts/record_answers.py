"""Record what SmolLM2 writes to the book's prompts, many at a time, and commit the tokens.

Greedy for every prompt, and sampled (temperature 1, and 0.7 with top-p 0.95) for some, with three seeds. A batch writes, and each
prompt alone verifies its own output (:mod:`specdec_lib.experiments.batched`). What is kept is not decoded again.
"""

from __future__ import annotations

import argparse
import time
from itertools import product

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
    for half, sampling in product(options.half or ("report", "choose"), SAMPLINGS):
        asked = prompts.load(half, per_task=None if sampling.greedy else SAMPLED)
        said: list[list[str]] = [[] for _ in asked]
        for turn in range(max(len(prompt.turns) for prompt in asked)):
            left = [i for i, prompt in enumerate(asked) if len(prompt.turns) > turn]
            contexts = {i: render(asked[i], tokenizer, said[i]) for i in left}
            keys = {i: recordings.key_of(weights, sampling, contexts[i]) for i in left}
            missing = sorted((i for i in left if recordings.kept(keys[i]) is None), key=lambda i: len(contexts[i]))
            for first in range(0, len(missing), BATCH):
                batch = missing[first : first + BATCH]
                runs = decode_together(model, [contexts[i] for i in batch], [sampling] * len(batch), LENGTH, end)
                for i, run in zip(batch, runs, strict=True):
                    recordings.keep(keys[i], recordings.Answer(run.tokens, run.finish_reason), weights)
                done = f"{min(first + BATCH, len(missing))} of {len(missing)}, {time.monotonic() - begun:.0f} s"
                print(f"{half}, {sampling}, turn {turn}: {done}", flush=True)
            for i in left:
                said[i].append(tokenizer.decode(recordings.kept(keys[i]).tokens, skip_special_tokens=True))
    about = {"command": "python scripts/record_answers.py", "prompts": "data/prompts and HumanEval"}
    target = paths.RECORDINGS.with_name("smollm2.npz")
    print(f"{recordings.commit(recordings.folder(), target, [weights], about, add=True)} outputs in {target.name}")


if __name__ == "__main__":
    main()
