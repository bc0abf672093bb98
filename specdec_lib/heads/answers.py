"""What drafting heads are trained on: the target's own answers, recorded once for all kinds of heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import PreTrainedModel

from specdec_lib.decoding.contract import LAST, Capture, Drafter
from specdec_lib.decoding.generate import generate
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.target import Target
from specdec_lib.files import replacing
from specdec_lib.heads.shards import Shards, checked
from specdec_lib.models.fingerprint import fingerprint


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
    prompts = checked(target, prompts, max_new_tokens=max_new_tokens, shard_size=shard_size)
    shards = Shards(Path(folder), "answers.json", "answers", "answers recorded", shard_size)
    about = {"target": fingerprint(target), "sampling": asdict(sampling), "max_new_tokens": max_new_tokens}

    def make(path: Path, part: Mapping[int, Sequence[int]]) -> None:
        _save(
            path,
            [*part.values()],
            [generate(target, p, drafter, sampling, max_new_tokens).tokens for p in part.values()],
        )

    shards.fill(prompts, about, make, progress)
    return [answer for path in shards.paths(len(prompts)) for answer in _load(path)]


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
