"""What drafting heads are trained on: the target's own answers, recorded once for all kinds of heads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specdec_lib.datastores.store_files import BuildLock
from specdec_lib.decoding.contract import LAST, Capture, Drafter
from specdec_lib.decoding.generate import as_token_list, generate
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import vocabulary_size
from specdec_lib.decoding.target import Target
from specdec_lib.files import replacing
from specdec_lib.models.fingerprint import fingerprint

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Answer:
    """A prompt with what the target answered.

    Attributes
    ----------
    tokens : int32 array, shape (n,)
        Prompt and answer.
    start : int
        Length of the prompt.
    """

    tokens: np.ndarray
    start: int


def _shard(folder: Path, index: int) -> Path:
    return folder / f"answers-{index:05d}.safetensors"


def record_answers(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    folder: str | Path,
    sampling: Sampling = Sampling(),
    max_new_tokens: int = 128,
    drafter: Drafter | None = None,
    shard_size: int = 32,
    progress: bool = True,
) -> list[Answer]:
    """Let the target answer prompts into a folder of shards, going on where an earlier run stopped.

    Parameters
    ----------
    target : PreTrainedModel
    prompts : sequence of sequences of int
    folder : path
        Gets ``answers.json`` and one file for each ``shard_size`` prompts.
    sampling : Sampling
    max_new_tokens : int
    drafter : Drafter, optional
        One that does not change the tokens (:class:`specdec_lib.drafters.prompt_lookup.PromptLookup`), to answer sooner.
    shard_size : int
    progress : bool
        Show a bar.

    Raises
    ------
    ValueError
        If there are no prompts, a number is below 1, or the folder holds answers of another model or to other prompts, or
        a damaged file.
    StoreBusy
        If another process records into the folder.
    """
    folder = Path(folder)
    for name, value in (("max_new_tokens", max_new_tokens), ("shard_size", shard_size)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; expected a whole number, 1 or more")
    if not len(prompts):
        raise ValueError("no prompts; expected at least one")
    prompts = [as_token_list(prompt, vocabulary_size(target)) for prompt in prompts]
    about = {
        "format": FORMAT,
        "target": fingerprint(target),
        "sampling": asdict(sampling),
        "max_new_tokens": max_new_tokens,
        "shard_size": shard_size,
        "prompts": len(prompts),
        "prompts_sha256": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with BuildLock(folder.resolve()):
        _begin(folder / "answers.json", about)
        with tqdm(total=len(prompts), desc="answers", unit="prompt", disable=not progress) as bar:
            for index, first in enumerate(range(0, len(prompts), shard_size)):
                part = prompts[first : first + shard_size]
                if not _shard(folder, index).exists():
                    answers = [generate(target, p, drafter, sampling, max_new_tokens).tokens for p in part]
                    _save(_shard(folder, index), part, answers)
                bar.update(len(part))
    return [answer for index in range(-(-len(prompts) // shard_size)) for answer in _load(_shard(folder, index))]


def _begin(manifest: Path, about: dict) -> None:
    """Say in an empty folder what it will hold; refuse one that holds something else."""
    if manifest.exists():
        held = json.loads(manifest.read_text(encoding="utf-8"))
        differ = [name for name in about if held.get(name) != about[name]]
        if differ:
            raise ValueError(
                f"{manifest.parent} holds answers recorded with another {', '.join(differ)}; name an empty folder"
            )
        return
    with replacing(manifest) as aside:
        aside.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _save(path: Path, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
    both = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    with replacing(path) as aside:
        save_file(
            {
                "tokens": np.concatenate([np.asarray(tokens, np.int32) for tokens in both]),
                "lengths": np.array([len(tokens) for tokens in both], np.int32),
                "starts": np.array([len(prompt) for prompt in prompts], np.int32),
            },
            aside,
        )


def _load(path: Path) -> Iterator[Answer]:
    try:
        with safe_open(path, "np") as file:
            held = {name: file.get_tensor(name) for name in ("tokens", "lengths", "starts")}
    except SafetensorError as error:
        raise ValueError(f"{path} is no shard of answers ({error}); delete it and record it again") from None
    ends = np.cumsum(held["lengths"])[:-1]
    yield from (
        Answer(tokens, int(start)) for tokens, start in zip(np.split(held["tokens"], ends), held["starts"], strict=True)
    )


@torch.no_grad()
def states_of(target: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """The target's final states of a text, after the final norm, shape (n, d), as drafters are shown them."""
    with Target(target, 0, Capture(layers=(LAST,)), capacity=len(tokens)) as model:
        model.extend(list(tokens))
        return model.hidden(LAST).clone()
