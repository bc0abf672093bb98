"""Record what the second model writes to the prompts on which the book compares two models, many at a time.

The tokens are those of a batch. Whoever makes rows of them (``python -m specdec_lib rows 04/second_model``) passes the model
over each prompt with its answer, and stops where it would write another token and rounding does not explain it. What is kept
lies in the cache, outside of the repository, by Gemma's terms.
"""

from __future__ import annotations

import time
from typing import Annotated

import torch
import typer
from batched import guesses

from specdec_lib import Sampling, load_model
from specdec_lib.commands import options
from specdec_lib.decoding.generate import end_tokens
from specdec_lib.experiments.data.prompt import render
from specdec_lib.experiments.runs import recorded_runs, recordings, second_model
from specdec_lib.experiments.workbench import choosing


def main(
    target: str = second_model.NAME,
    prompts: Annotated[int, options.whole_number("of each task, the first")] = second_model.PROMPTS,
    task: Annotated[list[str] | None, options.choice(("choosing", *second_model.TASKS), "may be repeated")] = None,
    room: Annotated[int, options.whole_number("tokens decoded side by side")] = 40_000,
) -> None:
    """Record the second model's greedy answers, those to short prompts first."""
    torch.set_num_threads(1)
    model, tokenizer = load_model(target, "cpu", "float32")
    recorded_runs.as_plain_text(tokenizer)
    weights, (end,), begun = recordings.identity(model), end_tokens(model, None), time.monotonic()
    tasks = task or ("choosing", *second_model.TASKS)
    asked = {name: choosing() if name == "choosing" else second_model.prompts(name, prompts) for name in tasks}
    contexts = {}
    for own in asked.values():
        for ids in (render(prompt, tokenizer) for prompt in own):
            contexts[recordings.key_of(weights, Sampling(), ids)] = ids
    missing = [key for key in sorted(contexts, key=lambda key: len(contexts[key])) if recordings.lookup(key) is None]
    while missing:
        batch: list[str] = []
        for key in missing:
            if batch and (len(contexts[key]) + second_model.LENGTH) * (len(batch) + 1) > room:
                break
            batch.append(key)
        ids = [contexts[key] for key in batch]
        for key, tokens in zip(
            batch, guesses(model, ids, [Sampling()] * len(batch), second_model.LENGTH, end), strict=True
        ):
            recordings.save_answer(key, recordings.Answer(tokens, "eos" if tokens[-1] == end else "length"), weights)
        missing = missing[len(batch) :]
        print(f"{len(batch)} answers, {len(missing)} left, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    typer.run(main)
