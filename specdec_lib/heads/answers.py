"""What heads are trained on: the target's own answers, kept in a folder of shards, where a later run goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.generate import as_token_lists, generate
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.target import check_model
from specdec_lib.files import is_count, located, locked, named, read_json, replacing, sweep, write_json
from specdec_lib.lazy import former_names
from specdec_lib.models.fingerprint import fingerprint

__getattr__ = former_names(__name__, kept="record_or_load")

FORMAT = 1
MANIFEST = "about.json"
#: Prompts of one file, and the most of one folder.
SHARD, MOST = 32, 1 << 24


@dataclass(frozen=True, eq=False)
class Answer:
    """A prompt and the target's answer; a subclass adds arrays with one entry per token of it.

    Parameters
    ----------
    prompt : int array of shape (m,)
    tokens : int array of shape (n,)

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.heads.answers import Answer
    >>> Answer(prompt=np.array([5, 6]), tokens=np.array([7])).tokens.tolist()
    [7]
    """

    prompt: np.ndarray
    tokens: np.ndarray


def record_answers(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    folder: str | Path,
    sampling: Sampling = Sampling(),
    max_new_tokens: int = 128,
    drafter: Drafter | None = None,
    progress: bool = True,
) -> list[Answer]:
    """Let the target answer prompts into a folder (:func:`record_or_load`).

    Parameters
    ----------
    target : PreTrainedModel
    prompts : sequence of sequences of int
    folder : path
        Empty, or one that an interrupted call with the same arguments left.
    sampling : Sampling
    max_new_tokens : int
    drafter : Drafter, optional
        One that does not change the tokens, to save time.
    progress : bool
        Show a bar.

    Returns
    -------
    list of Answer

    Examples
    --------
    >>> from specdec_lib.drafters import PromptLookup
    >>> from specdec_lib.heads.answers import Answer, load, record_answers
    >>> answers = record_answers(
    ...     model, [prompt], folder, max_new_tokens=8, drafter=PromptLookup(), progress=False
    ... )
    >>> load(Answer, folder)[0].tokens.tolist() == answers[0].tokens.tolist()
    True
    """

    def answer(number: int, prompt: list[int]) -> Answer:
        tokens = generate(target, prompt, drafter, sampling, max_new_tokens).tokens
        return Answer(np.asarray(prompt, np.int32), np.asarray(tokens, np.int32))

    about = {"target": fingerprint(target), "sampling": asdict(sampling), "max_new_tokens": max_new_tokens}
    return record_or_load(Answer, folder, target, prompts, about, answer, progress)


def record_or_load(
    kind: type[Answer],
    folder: str | Path,
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    about: Mapping[str, Any],
    answer: Callable[[int, list[int]], Answer],
    progress: bool,
) -> list[Answer]:
    """Answers to prompts: those that are in a folder already, and new ones.

    The folder gets :data:`MANIFEST`, which holds ``about``, and a file for each :data:`SHARD` prompts.

    Parameters
    ----------
    kind : type of Answer
    folder : path
    target : PreTrainedModel
    prompts : sequence of sequences of int
    about : mapping
        What decides the content, JSON; ``max_new_tokens`` must be among it.
    answer : callable
        ``answer(number, prompt)`` gives an object of ``kind``.
    progress : bool
        Show a bar.

    Returns
    -------
    list of Answer

    Raises
    ------
    ValueError
        If the folder was begun with something else.
    StoreBusy
        If another process fills it.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.heads.answers import Answer, record_or_load
    >>> echo = lambda number, prompt: Answer(np.array(prompt), np.array(prompt[-2:]))
    >>> answers = record_or_load(Answer, folder, model, [[5, 6, 7]], {"max_new_tokens": 2}, echo, progress=False)
    >>> answers[0].tokens.tolist()
    [6, 7]
    """
    whole_number("max_new_tokens", about["max_new_tokens"], 1)
    prompts = as_token_lists(prompts, target)
    check_model(target)
    digest = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    about = {"format": FORMAT, **about, "shard_size": SHARD, "prompts": len(prompts), "prompts_sha256": digest}
    folder = named(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Resolved: the lock lies beside the folder, and "." has no name to lie beside.
    with (
        locked(located(folder)),
        tqdm(total=len(prompts), desc="answers", unit="prompt", disable=not progress) as bar,
    ):
        sweep(folder)  # a run that was killed at its last file leaves nothing for this one to write
        _begin(folder / MANIFEST, about)
        for index, path in enumerate(_paths(folder, about)):
            numbers = range(index * SHARD, min((index + 1) * SHARD, len(prompts)))
            if not path.exists():
                _save(path, [answer(number, prompts[number]) for number in numbers])
            bar.update(len(numbers))
    return load(kind, folder)


def _begin(manifest: Path, about: Mapping[str, Any]) -> None:
    if not manifest.exists():
        write_json(manifest, dict(about))
        return
    begun = read_json(manifest) or {}
    differ = [name for name in about if begun.get(name) != about[name]]
    if differ:
        raise ValueError(f"{manifest.parent} holds answers with another {', '.join(differ)}; name an empty folder")


def _paths(folder: Path, about: Mapping[str, Any]) -> list[Path]:
    return [folder / f"shard-{i:05d}.safetensors" for i in range(-(-about["prompts"] // about["shard_size"]))]


def load(kind: type[Answer], folder: str | Path) -> list[Answer]:
    """Read what :func:`record_or_load` wrote.

    Parameters
    ----------
    kind : type of Answer
    folder : path

    Returns
    -------
    list of Answer

    Raises
    ------
    FileNotFoundError
        If a part is missing.
    ValueError
        If one is damaged.

    Examples
    --------
    >>> from specdec_lib.heads.answers import Answer, load, record_answers
    >>> answers = record_answers(model, [prompt], folder, max_new_tokens=8, progress=False)
    >>> len(load(Answer, folder))
    1
    """
    folder = named(folder)
    about = read_json(folder / MANIFEST) or {}
    if not (is_count(about.get("prompts")) and about["prompts"] <= MOST and about.get("shard_size") == SHARD):
        raise ValueError(f"{folder / MANIFEST} is missing or damaged: record the answers again, in an empty folder")
    shards = _paths(folder, about)
    missing = [path.name for path in shards if not path.exists()]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {missing[0]} ({len(missing)} of {len(shards)} shards); record them")
    return [answer for path in shards for answer in _load(kind, path)]


def _save(path: Path, answers: Sequence[Answer]) -> None:
    held = {field.name: np.concatenate([getattr(a, field.name) for a in answers]) for field in fields(answers[0])}
    for name, values in held.items():
        if values.dtype.kind == "i" and values.max() < 1 << 16:
            held[name] = values.astype(np.uint16)
    for name in ("prompt", "tokens"):
        held[f"{name}_lengths"] = np.array([len(getattr(answer, name)) for answer in answers], np.int32)
    with replacing(path) as aside:
        save_file(held, aside)


def _load(kind: type[Answer], path: Path) -> Iterator[Answer]:
    try:
        held = load_file(path)
        ends = {name: np.cumsum(held[f"{name}_lengths"])[:-1] for name in ("prompt", "tokens")}
        parts = []
        for field in fields(kind):
            values = held[field.name]
            values = values.astype(np.int32) if values.dtype.kind in "iu" else values
            parts.append(np.split(values, ends["prompt" if field.name == "prompt" else "tokens"]))
        rows = list(zip(*parts, strict=True))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no shard of answers ({error}); move it away, and it is recorded again") from None
    yield from (kind(*row) for row in rows)
