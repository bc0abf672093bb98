"""What the companions of a chat model are trained on: questions that the model asks itself, and its answers.

The model writes users' turns after the chat template's opening of one (Xu et al. 2024, Magpie), answers them, and is asked to
edit, summarise and explain its own answers and functions of Python's standard library. The choosing half of the book's prompts
comes with several answers each. Everything follows from the seed and ``--room``; files in a folder make it resumable. The shipped
answers took eight minutes on an H200 that did other work too.
"""

from __future__ import annotations

import ast
import json
import math
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from batched import write
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import load_model, paths
from specdec_lib.commands import options
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.prompt import render
from specdec_lib.files import replacing, write_atomic

SHARD = 4096  # outputs of a file
LONGEST_QUESTION, LONGEST_PROMPT, LONGEST_ANSWER = 80, 600, 200
#: Turns that the model writes, answers that are edited, and functions of the standard library, with two tasks each.
TURNS, EDITED, FUNCTIONS = 16384, 4000, 1500
#: Temperatures of the answers, in turns: the book decodes greedily and samples.
TEMPERATURES = (0.0, 1.0, 0.0, 0.7)
TEXT_TASKS = (
    "Summarize this text in two sentences.",
    "Fix the grammar and spelling of this text, and change nothing else.",
    "Rewrite this text in a more formal tone.",
    "Make this text shorter and clearer.",
    "Rewrite this so that a child can understand it.",
    "What are the main points of the following text?",
    "Rewrite this text in the past tense.",
    "Give this text a title, and repeat it with the title.",
)
CODE_TASKS = (
    "Add type hints to this function and return the whole function.",
    "Add a docstring to this function and return the whole function.",
    "Rename the first parameter of this function to `item` everywhere.",
    "Explain what this function does.",
    "Add error handling to this code.",
    "Rewrite this function so that it is easier to read.",
    "Write a test for this function.",
    "Find the bug in this code, if there is one, and return the corrected code.",
)


def sampled(temperatures: Sequence[float], seed: int) -> Callable[[torch.Tensor, list[int], int], torch.Tensor]:
    """How the next tokens of a batch are chosen: greedily at temperature 0, drawn elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    heat = torch.tensor(temperatures)

    def choose(logits: torch.Tensor, rows: list[int], step: int) -> torch.Tensor:
        chosen, own = logits.argmax(-1), heat[rows]
        warm = (own > 0).nonzero()[:, 0].to(logits.device)
        drawn = torch.rand(len(rows), 1, generator=generator).to(logits.device)[warm]
        sums = (logits[warm] / own.to(logits.device)[warm, None]).softmax(-1).cumsum(-1)
        chosen[warm] = torch.searchsorted(sums, drawn * sums[:, -1:])[:, 0].clamp_(max=logits.shape[-1] - 1)
        return chosen

    return choose


class Answers:
    """Outputs of a model, kept in files of a folder; ``room`` tokens are decoded side by side."""

    def __init__(self, model: PreTrainedModel, folder: Path, room: int, seed: int):
        self.model, self.folder, self.room, self.seed = model, folder, room, seed
        self.end = model.generation_config.eos_token_id

    def of(self, name: str, asked: Sequence[Sequence[int]], heats: Sequence[float], longest: int) -> list[dict]:
        """Each prompt with its answer, as token lists, and its temperature."""
        jobs = [{"prompt": list(ids), "heat": heats[i % len(heats)]} for i, ids in enumerate(asked)]
        paths = [self.folder / f"{name}-{number:03d}.json" for number in range(math.ceil(len(jobs) / SHARD))]
        begun, fresh = time.monotonic(), 0
        for number, path in enumerate(paths):
            if path.is_file():
                continue
            part = []
            for batch in self._batches(jobs[number * SHARD : (number + 1) * SHARD], longest):
                choose = sampled([job["heat"] for job in batch], self.seed + 1000 * number + len(part))
                outputs = write(self.model, [job["prompt"] for job in batch], choose, longest, self.end)
                part += [job | {"answer": output} for job, output in zip(batch, outputs, strict=True)]
            write_atomic(path, json.dumps(part))
            fresh += 1
            left = sum(not other.is_file() for other in paths)
            minutes = (time.monotonic() - begun) / fresh * left / 60
            print(f"{name}: {left} of {len(paths)} files to make, {minutes:.0f} min", file=sys.stderr, flush=True)
        return [row for path in paths for row in json.loads(path.read_text(encoding="utf-8"))]

    def _batches(self, jobs: list[dict], longest: int) -> Iterator[list[dict]]:
        """Jobs of similar length together."""
        batch: list[dict] = []
        for job in sorted(jobs, key=lambda job: len(job["prompt"])):
            if batch and (len(job["prompt"]) + longest) * (len(batch) + 1) > self.room:
                yield batch
                batch = []
            batch.append(job)
        yield batch


def questions(answers: Answers, tokenizer: PreTrainedTokenizerBase, count: int) -> list[str]:
    """Users' turns that the model writes itself, each once."""
    mark = "\0"
    text = tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False)
    opening = tokenizer(text[: text.index(mark)])["input_ids"]
    rows = answers.of("questions", [opening] * count, [0.85], LONGEST_QUESTION)
    texts = [tokenizer.decode(row["answer"][:-1]).strip() for row in rows if row["answer"][-1] == answers.end]
    return [text for text in dict.fromkeys(texts) if 5 <= len(text.split()) <= 100]


def library_functions(count: int, seed: int) -> list[str]:
    """Functions of 6 to 40 lines of Python's standard library."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    found = []
    for path in sources:
        text = path.read_text(encoding="utf-8", errors="replace")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and 6 <= node.end_lineno - node.lineno <= 40:
                found.append(ast.get_source_segment(text, node))
    random.Random(seed).shuffle(found)
    return found[:count]


def make(answers: Answers, tokenizer: PreTrainedTokenizerBase, turns: int, edited: int, functions: int) -> list[dict]:
    """All prompts with the model's answers: ``prompt`` and ``answer`` as token lists, ``heat`` the temperature."""

    def chat(text: str) -> list[int]:
        message = [{"role": "user", "content": text}]
        return list(tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"])

    asked = [chat(text) for text in questions(answers, tokenizer, turns)]
    first = answers.of("answers", asked, TEMPERATURES, LONGEST_ANSWER)
    texts = [
        tokenizer.decode(row["answer"], skip_special_tokens=True).strip() for row in first if len(row["answer"]) > 60
    ]
    random.Random(answers.seed).shuffle(texts)
    edits = [chat(f"{TEXT_TASKS[i % len(TEXT_TASKS)]}\n\n{text}") for i, text in enumerate(texts[:edited])]
    for i, text in enumerate(library_functions(functions, answers.seed)):
        edits += [chat(f"{CODE_TASKS[(i + j) % len(CODE_TASKS)]}\n\n```python\n{text}\n```") for j in (0, 3)]
    edits = [ids for ids in edits if len(ids) <= LONGEST_PROMPT]
    random.Random(answers.seed).shuffle(edits)
    second = answers.of("edits", edits, TEMPERATURES, LONGEST_ANSWER)
    own = [ids for ids in (render(prompt, tokenizer) for prompt in prompts.load("choose")) if len(ids) <= 900]
    third = answers.of("choosing", [ids for ids in own for _ in range(4)], TEMPERATURES, LONGEST_ANSWER)
    return [*first, *second, *third]


def pack(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """All rows in one file, for :func:`unpack`."""
    parts = {name: [np.array(row[name], np.uint16) for row in rows] for name in ("prompt", "answer")}
    held = {f"{name}_ends": np.cumsum([len(ids) for ids in lists]) for name, lists in parts.items()}
    held |= {name: np.concatenate(lists) for name, lists in parts.items()}
    with replacing(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, heat=np.array([row["heat"] for row in rows], np.float32), **held)


def unpack(path: Path) -> list[dict[str, Any]]:
    """Rows with ``prompt`` and ``answer``, int64 arrays, and ``heat``."""
    with np.load(path, allow_pickle=False) as held:
        lists = {n: np.split(held[n].astype(np.int64), held[f"{n}_ends"][:-1]) for n in ("prompt", "answer")}
        return [
            {"prompt": prompt, "answer": answer, "heat": float(heat)}
            for prompt, answer, heat in zip(lists["prompt"], lists["answer"], held["heat"], strict=True)
        ]


def main(
    data: Annotated[Path, options.folder("of the answers; a run goes on here")] = Path("_build/companions"),
    room: Annotated[int, options.whole_number("tokens decoded side by side")] = 700_000,
    device: options.Device = "auto",
    dtype: options.Dtype = "bfloat16",
    seed: Annotated[int, options.whole_number("of all that is drawn", 0)] = 0,
) -> None:
    """Let SmolLM2 ask itself questions and answer them, for its companions to learn from."""
    target, tokenizer = load_model("smollm2", device, dtype)
    folder = data / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    rows = make(Answers(target, folder, room, seed), tokenizer, TURNS, EDITED, FUNCTIONS)
    pack(rows, paths.SMOLLM2 / "answers.npz")
    print(f"{len(rows)} answers, {sum(len(row['answer']) for row in rows)} tokens")


if __name__ == "__main__":
    typer.run(main)
