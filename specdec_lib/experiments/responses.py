"""In-distribution text (DReSD, section 4.2.1): responses that the target itself gives, to fill a datastore with.

They are generated in batches by transformers, outside the decoding loop: a datastore needs many texts, not each of them
fast. Finished batches are kept, so that a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.datastores.store_files import BuildLock
from specdec_lib.decoding.generate import end_tokens
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.models.fingerprint import fingerprint


def _requests(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, samples: int, batch: int
) -> list[list[list[int]]]:
    """Token ids of every request, in batches of like length; ``samples`` requests a prompt, one after another."""
    rendered = sorted((render(prompt, tokenizer) for prompt in prompts), key=len)
    repeated = [ids for ids in rendered for _ in range(samples)]
    return [repeated[i : i + batch] for i in range(0, len(repeated), batch)]


def _answer(
    model: PreTrainedModel, batch: list[list[int]], sampling: Sampling, max_new_tokens: int, pad: int, seed: int
) -> list[list[int]]:
    """Prompt and response of each request, the end token included and padding left out."""
    width = max(map(len, batch))
    device = model.device
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in batch], device=device)
    seen = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch], device=device)
    ends = end_tokens(model, None)
    how = {"do_sample": False}
    if not sampling.greedy:
        how = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    # Only what the library's own decoding does: no penalty or filter that the checkpoint's settings may hold.
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens, pad_token_id=pad, eos_token_id=sorted(ends) or None, **how
    )
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.inference_mode():
        torch.manual_seed(seed)
        out = _plainly(model, settings, ids, seen)
    answers = []
    for row, new in zip(batch, out[:, width:].tolist(), strict=True):
        end = next((i + 1 for i, token in enumerate(new) if token in ends), len(new))
        answers.append(row + new[:end])
    return answers


def _plainly(model: PreTrainedModel, settings: GenerationConfig, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    # transformers fills what a given configuration leaves open from the model's own: that is put aside meanwhile.
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        return model.generate(ids, attention_mask=seen, generation_config=settings)
    finally:
        model.generation_config = own


def generate_responses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    path: str | Path,
    sampling: Sampling | None = None,
    samples: int = 1,
    max_new_tokens: int = 128,
    batch: int = 16,
    progress: bool = True,
) -> list[list[int]]:
    """Let the target answer the first turn of prompts, and keep prompts with responses as documents of token ids,
    shortest prompts first.

    ``path`` holds one JSON list a line; if it is there, from the same request, it is read. While it is made,
    ``<path>.partial`` holds the batches done, and the same call after an interruption goes on from there. Sampling's
    seed and the number of the batch seed the draws. ValueError for a number below 1, several greedy samples, or a file
    of another request; StoreBusy if another process is making it.
    """
    sampling = Sampling() if sampling is None else sampling
    for name, value in (("samples", samples), ("max_new_tokens", max_new_tokens), ("batch", batch)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; expected a whole number, 1 or more")
    if sampling.greedy and samples > 1:
        raise ValueError(
            f"samples is {samples}, but greedy responses to one prompt are all the same; give a sampling with "
            "a temperature, or samples=1"
        )
    if not prompts:
        raise ValueError("no prompts; expected at least one")
    path = Path(path)
    batches = _requests(prompts, tokenizer, samples, batch)
    request = [
        fingerprint(model),
        batches,
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.seed,
        max_new_tokens,
    ]
    key = hashlib.sha256(json.dumps(request).encode()).hexdigest()
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with BuildLock(path):
        done = _read(path, key, batches)
        if done is None:
            done = _go_on(
                path,
                key,
                batches,
                lambda i: _answer(model, batches[i], sampling, max_new_tokens, pad, sampling.seed * 1_000_003 + i),
                progress,
            )
    return [document for part in done for document in part]


def _go_on(
    path: Path, key: str, batches: list, answer: Callable[[int], list[list[int]]], progress: bool
) -> list[list[list[int]]]:
    partial = path.with_name(path.name + ".partial")
    parts = _finished(partial, key)
    aside = path.with_name(path.name + ".new")
    aside.write_text("".join(json.dumps(line) + "\n" for line in [key, *parts]), encoding="utf-8")
    aside.replace(partial)
    with partial.open("a", encoding="utf-8") as file:
        for i in tqdm(
            range(len(parts), len(batches)),
            desc="responses",
            unit="batch",
            disable=not progress,
            initial=len(parts),
            total=len(batches),
        ):
            parts.append(answer(i))
            file.write(json.dumps(parts[-1]) + "\n")
            file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return parts


def _finished(partial: Path, key: str) -> list[list[list[int]]]:
    """Whole batches of an interrupted run of the same request."""
    if not partial.is_file():
        return []
    lines = partial.read_text(encoding="utf-8").split("\n")
    if lines[0] != json.dumps(key):
        raise ValueError(
            f"{partial} holds part of the responses to another request, or in batches of another size; go on "
            "with that one, name another file, or delete it"
        )
    return [json.loads(line) for line in lines[1:-1]]  # what follows the last line end was cut off


def _read(path: Path, key: str, batches: list) -> list[list[list[int]]] | None:
    if not path.exists():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or lines[0] != json.dumps(key):
        raise ValueError(
            f"{path} holds responses of another model, to other prompts or with other settings; name another "
            "file, or delete it"
        )
    parts = [json.loads(line) for line in lines[1:]]
    if list(map(len, parts)) != list(map(len, batches)):
        raise ValueError(
            f"{path} holds {sum(map(len, parts))} responses, expected {sum(map(len, batches))}: it was cut or "
            "changed; delete it and call again"
        )
    return parts
