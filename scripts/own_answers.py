"""What the companions of a chat model are trained on: questions that the model asks itself, and its answers.

The model writes users' turns after the chat template's opening of one (Xu et al. 2024, Magpie), answers them, and is asked to
edit, summarise and explain its own answers and functions of Python's standard library. The choosing half of the book's prompts
comes with several answers each. Everything follows from the seed; files of 256 outputs in a folder make it resumable.
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

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.experiments import prompts
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.files import write_atomic

QUESTIONS, BATCH, SHARD = 2688, 192, 384
LONGEST_QUESTION, LONGEST_PROMPT, LONGEST_ANSWER = 80, 600, 200
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
#: Share of a batch that is still being written when the others leave it.
_ALIVE = 0.8


@torch.inference_mode()
def write(
    model: PreTrainedModel,
    contexts: Sequence[Sequence[int]],
    choose: Callable[[torch.Tensor, list[int], int], torch.Tensor],
    longest: int,
    end: int,
) -> list[list[int]]:
    """Continue token lists together until each ends, the shorter ones padded on the left.

    Parameters
    ----------
    model : PreTrainedModel
    contexts : sequence of sequences of int
    choose : callable
        ``choose(logits, rows, step)`` gives the next tokens, int64 of shape (n,), for float32 logits of shape (n, vocabulary)
        of these rows of ``contexts``.
    longest : int
        New tokens of a row at most.
    end : int
        The token that ends a row.
    """
    width = max(map(len, contexts))
    ids = torch.full((len(contexts), width), end)
    mask = torch.zeros(len(contexts), width, dtype=torch.long)
    for row, context in enumerate(contexts):
        ids[row, width - len(context) :] = torch.tensor(context)
        mask[row, width - len(context) :] = 1
    outputs: list[list[int]] = [[] for _ in contexts]
    alive = torch.arange(len(contexts))
    cache = DynamicCache(config=model.config)
    for step in range(longest):
        places = (mask.cumsum(1) - 1).clamp_min(0)[:, -ids.shape[1] :]
        out = model(
            ids, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        chosen = choose(out.logits[:, -1].float(), alive.tolist(), step)
        for row, token in zip(alive.tolist(), chosen.tolist(), strict=True):
            outputs[row].append(token)
        on = torch.tensor([end not in outputs[row] for row in alive.tolist()])
        ids, mask = chosen[:, None], torch.cat([mask, torch.ones(len(mask), 1, dtype=torch.long)], 1)
        if on.sum() <= _ALIVE * len(on):
            alive, ids, mask = alive[on], ids[on], mask[on]
            cache.batch_select_indices(on.nonzero()[:, 0])
        if not len(alive):
            break
    return [tokens[: tokens.index(end) + 1] if end in tokens else tokens for tokens in outputs]


def sampled(temperatures: Sequence[float], seed: int) -> Callable[[torch.Tensor, list[int], int], torch.Tensor]:
    """How the next tokens of a batch are chosen: greedily at temperature 0, drawn elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    heat = torch.tensor(temperatures)

    def choose(logits: torch.Tensor, rows: list[int], step: int) -> torch.Tensor:
        chosen, own = logits.argmax(-1), heat[rows]
        drawn, warm = torch.rand(len(rows), generator=generator), own > 0
        sums = (logits[warm] / own[warm, None]).softmax(-1).cumsum(-1)
        chosen[warm] = torch.searchsorted(sums, drawn[warm, None] * sums[:, -1:])[:, 0]
        return chosen

    return choose


def in_shards(
    name: str,
    folder: Path,
    jobs: Sequence[dict],
    made: Callable[[list[dict], int], list[dict]],
) -> list[dict]:
    """What ``made`` gives for all jobs, kept in a file for each :data:`SHARD` of them; files that are there are read."""
    begun, fresh = time.monotonic(), 0
    numbers = range(math.ceil(len(jobs) / SHARD))
    paths = [folder / f"{name}-{number:03d}.json" for number in numbers]
    # A second process with --last-first halves the time; both read what the other made.
    for number in reversed(numbers) if "--last-first" in sys.argv else numbers:
        path, first = paths[number], number * SHARD
        if not path.is_file():
            part = made(list(jobs[first : first + SHARD]), number)
            write_atomic(path, json.dumps(part))
            fresh += len(part)
            left = sum(not other.is_file() for other in paths)
            minutes = (time.monotonic() - begun) / fresh * SHARD * left / 60
            print(f"{name}: {left} of {len(paths)} files to make, {minutes:.0f} min", file=sys.stderr, flush=True)
    return [row for path in paths for row in json.loads(path.read_text(encoding="utf-8"))]


def batches(jobs: list[dict]) -> Iterator[list[dict]]:
    """Jobs of similar length together."""
    ordered = sorted(jobs, key=lambda job: len(job["prompt"]))
    for first in range(0, len(ordered), BATCH):
        yield ordered[first : first + BATCH]


def questions(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, seed: int) -> list[str]:
    """Users' turns that the model writes itself, each once."""
    mark = "\0"
    text = tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False)
    opening, end = tokenizer(text[: text.index(mark)])["input_ids"], model.generation_config.eos_token_id

    def made(jobs: list[dict], number: int) -> list[dict]:
        found = []
        for part, batch in enumerate(batches(jobs)):
            choose = sampled([0.85] * len(batch), seed + 1000 * number + part)
            outputs = write(model, [opening] * len(batch), choose, LONGEST_QUESTION, end)
            found += [{"text": tokenizer.decode(o[:-1]).strip(), "ended": o[-1] == end} for o in outputs]
        return found

    rows = in_shards("questions", folder, [{"prompt": []}] * QUESTIONS, made)
    good = [row["text"] for row in rows if row["ended"] and 5 <= len(row["text"].split()) <= 100]
    return list(dict.fromkeys(good))


def answered(model: PreTrainedModel, folder: Path, name: str, asked: Sequence[Sequence[int]], seed: int) -> list[dict]:
    """Prompts and answers as token lists."""
    jobs = [{"prompt": list(ids), "heat": TEMPERATURES[i % len(TEMPERATURES)]} for i, ids in enumerate(asked)]

    def made(jobs: list[dict], number: int) -> list[dict]:
        found = []
        for part, batch in enumerate(batches(jobs)):
            choose = sampled([job["heat"] for job in batch], seed + 1000 * number + part)
            end = model.generation_config.eos_token_id
            outputs = write(model, [job["prompt"] for job in batch], choose, LONGEST_ANSWER, end)
            found += [job | {"answer": output} for job, output in zip(batch, outputs, strict=True)]
        return found

    return in_shards(name, folder, jobs, made)


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


def make(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, seed: int = 0) -> list[dict]:
    """All prompts with the model's answers: ``prompt`` and ``answer`` as token lists, ``heat`` the temperature.

    Parameters
    ----------
    model : PreTrainedModel
        A chat model, in bfloat16 where the processor has products for it.
    folder : Path
        Keeps what is made; a later call goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def chat(text: str) -> list[int]:
        return list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
            )["input_ids"]
        )

    asked = [chat(text) for text in questions(model, tokenizer, folder, seed)]
    first = answered(model, folder, "answers", asked, seed)
    texts = [
        tokenizer.decode(row["answer"], skip_special_tokens=True).strip() for row in first if len(row["answer"]) > 60
    ]
    edits = [chat(f"{TEXT_TASKS[i % len(TEXT_TASKS)]}\n\n{text}") for i, text in enumerate(texts[:1000])]
    code = library_functions(700, seed)
    edits += [chat(f"{CODE_TASKS[i % len(CODE_TASKS)]}\n\n```python\n{text}\n```") for i, text in enumerate(code)]
    edits = [ids for ids in edits if len(ids) <= LONGEST_PROMPT]
    random.Random(seed).shuffle(edits)
    second = answered(model, folder, "edits", edits, seed + 1)
    own = [render(prompt, tokenizer) for prompt in prompts.load("choose")]
    own = [ids for ids in own if len(ids) <= LONGEST_PROMPT + 300]
    third = answered(model, folder, "choosing", [ids for ids in own for _ in range(3)], seed + 2)
    return [*first, *second, *third]


if __name__ == "__main__":
    from specdec_lib import load_model

    target, words = load_model("smollm2", dtype="bfloat16")
    rows = make(target, words, Path("_build/companions/answers"))
    print(f"{len(rows)} answers, {sum(len(row['answer']) for row in rows)} tokens")
