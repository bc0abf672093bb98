"""Record what SmolLM2 writes to the book's prompts, many at a time, and commit the tokens; to Code Alpaca's too, where they are at
hand, since each build of chapter 3 asks some of them.

Greedy for every prompt, and sampled (temperature 1, and 0.7 with top-p 0.95) for some, with three seeds. On a processor a batch
writes, and each prompt alone verifies its own output (``batched.py``). On a GPU the tokens are those of
the batch; whoever reads them decodes a sample again and compares. What is kept is not decoded again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import published_prompts
import torch
import typer
from batched import decode_together, guesses
from transformers import PreTrainedTokenizerBase

from specdec_lib import Sampling, load_model, paths
from specdec_lib.commands import options
from specdec_lib.decoding.generate import end_tokens
from specdec_lib.experiments.data import prompts, tasks
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.data.published_sets.files import MissingData
from specdec_lib.experiments.runs import recordings

LENGTH, SAMPLED, SEEDS = 256, 8, 3  # new tokens; prompts of each task that are sampled
WARM = ((1.0,), (0.7, 0.95))
CODE, CODE_SAMPLED = 100, 24  # prompts of Code Alpaca that chapter 3 asks, and those of them that it samples


def asked(published: bool, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[Prompt, Sampling]]:
    """Every prompt with every way to decode it: the book's, or those of the papers' own sets."""
    if published:
        for name in published_prompts.SETS:
            for prompt, samplings in published_prompts.load(name, tokenizer):
                yield from ((prompt, sampling) for sampling in samplings)
        return
    for half in ("report", "choose"):
        yield from ((prompt, Sampling()) for prompt in prompts.load(half))
    for prompt in prompts.load("report", per_task=SAMPLED):
        yield from ((prompt, Sampling(*how, seed=seed)) for how in WARM for seed in range(SEEDS))
    try:
        code = tasks.load_task("codealpaca", limit=CODE, seed=42)
    except MissingData:
        return
    for place, prompt in enumerate(code):
        yield prompt, Sampling()
        if place < CODE_SAMPLED:
            yield from ((prompt, Sampling(0.7, top_p=0.95, seed=seed)) for seed in range(SEEDS))


def main(
    device: options.Device = "auto",
    room: Annotated[int, options.whole_number("tokens decoded side by side")] = 40_000,
    published: Annotated[bool, typer.Option("--published", help="prompts of the papers' own sets instead")] = False,
    out: Annotated[Path, options.OutputFile] = paths.RECORDINGS,
) -> None:
    """Record what SmolLM2 writes to the book's prompts, and commit the tokens."""
    model, tokenizer = load_model("smollm2", device, "float32")
    weights, (end,) = recordings.identity(model) | {"device": "cpu"}, end_tokens(model, None)
    jobs = list(asked(published, tokenizer))
    said: list[list[str]] = [[] for _ in jobs]
    begun = time.monotonic()
    about = {"command": "python scripts/record_answers.py"}
    about["decoded_on"] = torch.cuda.get_device_name() if model.device.type == "cuda" else "cpu"
    for turn in range(2):
        left = [i for i, (prompt, _) in enumerate(jobs) if len(prompt.turns) > turn]
        contexts = {i: render(jobs[i][0], tokenizer, said[i]) for i in left}
        keys = {i: recordings.key_of(weights, jobs[i][1], contexts[i]) for i in left}
        missing = [i for i in left if recordings.lookup(keys[i]) is None]
        missing.sort(key=lambda i: (jobs[i][1].temperature, jobs[i][1].top_p, len(contexts[i])))
        done = 0
        while done < len(missing):
            batch = [missing[done]]
            for i in missing[done + 1 :]:
                first, own = jobs[batch[0]][1], jobs[i][1]
                alike = (own.temperature, own.top_p) == (first.temperature, first.top_p)
                if not alike or (len(contexts[i]) + LENGTH) * (len(batch) + 1) > room:
                    break
                batch.append(i)
            ids, how = [contexts[i] for i in batch], [jobs[i][1] for i in batch]
            if model.device.type == "cuda":
                outputs = [
                    recordings.Answer(tokens, "eos" if tokens[-1] == end else "length")
                    for tokens in guesses(model, ids, how, LENGTH, end)
                ]
            else:
                runs = decode_together(model, ids, how, LENGTH, end)
                outputs = [recordings.Answer(run.tokens, run.finish_reason) for run in runs]
            for i, output in zip(batch, outputs, strict=True):
                recordings.save_answer(keys[i], output, weights)
            done += len(batch)
            print(f"turn {turn + 1}: {done} of {len(missing)}, {time.monotonic() - begun:.0f} s", flush=True)
        for i in left:
            said[i].append(tokenizer.decode(recordings.lookup(keys[i]).tokens, skip_special_tokens=True))
    count = recordings.pack_answers(recordings.folder(), out, [weights], about)
    print(f"{count} outputs in {out.name}")


if __name__ == "__main__":
    typer.run(main)
