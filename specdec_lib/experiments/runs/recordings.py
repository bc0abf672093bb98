"""Plain runs that all chapters share: each prompt is decoded once for the whole book.

What a model writes depends on its weights, the prompt's tokens and the sampling alone; the tokens are kept under a
checksum of these, in a file each below the cache folder, and those of SmolLM2 in ``data/results/recordings``.
States and attention rows are not kept: one pass over prompt and answer gives them
(:func:`specdec_lib.decoding.teacher_forcing.record_known`).

Every run decodes a sample of what it takes from there again and compares. ``python -m specdec_lib run --fresh`` decodes
everything again. Where rows are checked, one pass over a committed answer shows that it is what the model writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import paths
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.generate import end_tokens, record
from specdec_lib.decoding.loop import Limits, Trace
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import context_limit, token_ids, vocabulary_size
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.experiments.checks.rounding import Judge
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs.all_cores import on_all_cores
from specdec_lib.experiments.runs.recorded_runs import Recording, each_turn
from specdec_lib.files import check_unpacked, move_in, read_json, replacing, scratch, write_atomic
from specdec_lib.models.fingerprint import fingerprint

#: Names the folder of a run that decodes everything again: what it decodes is kept there, and nothing else is read.
FRESH = "SPECDEC_FRESH"
#: If this is set too, a committed answer is taken after one pass has shown that the model writes each of its tokens.
VERIFY = "SPECDEC_VERIFY"
#: One in so many of the outputs that are taken from a file is decoded again.
SAMPLE = 40
_REASONS = ("eos", "length", "context")


class RecordingError(ValueError):
    """A recording that the model does not write, or a damaged file of recordings."""


class Answer(NamedTuple):
    """The tokens that a model wrote to one prompt, and why it ended."""

    tokens: list[int]
    finish_reason: str

    def cut(self, count: int) -> Answer | None:
        """Return what the model writes with a limit of ``count`` tokens; None if the answer is too short to tell."""
        if len(self.tokens) > count:
            return Answer(self.tokens[:count], "length")
        return self if len(self.tokens) == count or self.finish_reason != "length" else None


def record_once(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    capture: Capture = Capture(),
) -> list[Recording]:
    """Do what :func:`~specdec_lib.experiments.runs.recorded_runs.record_prompts` does, but decode only what no chapter decoded
    before.

    Raises RecordingError if the model writes another text than one taken from a file, and rounding does not explain it.
    """
    sampling = Sampling() if sampling is None else sampling
    if not isinstance(sampling, Sampling):
        raise TypeError(f"sampling is {sampling!r}; expected a specdec_lib.Sampling, or None for greedy decoding")
    weights = identity(model)

    def recorded(prompt: Prompt) -> tuple[list[Recording], set[str]]:
        """All turns of a prompt, and the keys of what was decoded."""
        decoded: set[str] = set()

        def answer(ids: list[int]) -> Trace:
            key = key_of(weights, sampling, ids)
            found = lookup(key)
            known = None if found is None else found.cut(max_new_tokens)
            if known is None and os.environ.get(VERIFY) and (kept := _of_repository(key)):
                known = kept.cut(max_new_tokens)
                if known is not None and capture == Capture():  # else the pass below verifies it
                    _, written = record_known(model, ids, *known, sampling, max_new_tokens)
                    compare(model, prompt, ids, known, written, sampling)
                if known is not None:
                    save_answer(key, known, weights)
            if known is None:
                trace = record(model, ids, sampling, max_new_tokens)
                known = Answer(trace.tokens, trace.finish_reason)
                save_answer(key, known, weights)
                decoded.add(key)
            elif key not in _checked and int(key[:8], 16) % SAMPLE == 0:
                again = record(model, ids, sampling, max_new_tokens)
                compare(model, prompt, ids, known, again.tokens, sampling)
                decoded.add(key)
            if capture == Capture():
                limits = Limits(max_new_tokens, end_tokens(model, None), context_limit(model))
                about = sampling, vocabulary_size(model), limits, known.finish_reason
                return Trace(list(ids), known.tokens, *about, token_ids=token_ids(model))
            trace, written = record_known(model, ids, *known, sampling, max_new_tokens, capture)
            compare(model, prompt, ids, known, written, sampling)
            return trace

        return [Recording(prompt, turn, trace) for turn, trace in each_turn(prompt, tokenizer, answer)], decoded

    recordings = []
    for own, decoded in on_all_cores([partial(recorded, prompt) for prompt in prompts]):
        recordings += own
        _checked.update(decoded)
    return recordings


def identity(model: PreTrainedModel) -> dict[str, str]:
    """What decides a model's tokens, up to rounding: weights, their type and the kind of device."""
    return {
        "weights": fingerprint(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
    }


def key_of(weights: dict[str, str], sampling: Sampling, prompt: Sequence[int]) -> str:
    """Checksum of a model, a sampling and a prompt's tokens, 32 hexadecimal digits."""
    text = json.dumps([weights, asdict(sampling), list(prompt)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


#: Keys of what this run decoded itself.
_checked: set[str] = set()


def compare(
    model: PreTrainedModel, prompt: Prompt, ids: Sequence[int], known: Answer, written: list[int], sampling: Sampling
) -> None:
    """RecordingError where two texts differ by more than rounding."""
    if written == known.tokens:
        return
    mismatch = Judge(model)(ids, known.tokens, written, sampling)
    if not mismatch.explained:
        raise RecordingError(
            f"prompt {prompt.id!r} of task {prompt.task!r}: token {mismatch.position} of the recording is "
            f"{mismatch.expected}, the model writes {mismatch.got}, and rounding does not explain it; decode everything "
            "again with 'python -m specdec_lib run --fresh', and make data/results/recordings again if it comes from there"
        )


def folder() -> Path:
    """Where tokens are kept: that of a fresh run, or the cache's."""
    named = os.environ.get(FRESH)
    return Path(named) if named else paths.cache() / "recordings"


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """An empty folder, into which this process and those it starts meanwhile decode everything again; at the end its files
    replace those in the cache."""
    cache = paths.cache() / "recordings"
    cache.mkdir(parents=True, exist_ok=True)
    with scratch(cache.parent) as fresh:
        os.environ[FRESH] = str(fresh)
        try:
            yield fresh
        finally:
            del os.environ[FRESH]
            move_in(fresh, cache, [path.name for path in fresh.glob("*.json")])


def lookup(key: str) -> Answer | None:
    """The answer that is kept under a key (:func:`key_of`), by this run, an earlier one or the repository."""
    path = folder() / f"{key}.json"
    if path.is_file():
        about = _about(path)
        return Answer(about["tokens"], about["finish_reason"])
    return None if os.environ.get(FRESH) else _of_repository(key)


def _of_repository(key: str) -> Answer | None:
    # A file per model; the key names the weights.
    files = sorted(paths.RECORDINGS.parent.glob("*.npz"))
    return next((found[key] for path in files if key in (found := _committed(path, path.stat().st_mtime_ns))), None)


def _about(path: Path) -> dict:
    """What :func:`save_answer` wrote."""
    about = read_json(path) or {}
    tokens, named = about.get("tokens"), [about.get(name) for name in ("weights", "dtype", "device")]
    sound = isinstance(tokens, list) and all(type(token) is int and 0 <= token < 2**32 for token in tokens)
    if not sound or about.get("finish_reason") not in _REASONS or not all(isinstance(name, str) for name in named):
        raise RecordingError(f"{path} is no recording; delete it")
    return about


def save_answer(key: str, answer: Answer, weights: dict[str, str]) -> None:
    """Keep an answer of the model of these weights (:func:`identity`) under a key."""
    write_atomic(folder() / f"{key}.json", json.dumps(answer._asdict() | weights))


def pack_answers(source: Path, target: Path, weights: Sequence[dict[str, str]], about: dict) -> int:
    """Write the tokens of some models (:func:`identity`) that the folder ``source`` keeps into the file ``target`` (``.npz``),
    and ``about`` into a JSON file of the same name; returns their count. What the file has of the same models stays in it.

    The file itself says which models it is of, so that a run that is killed before it has written the JSON file loses nothing.
    """
    facts, answers = target.with_suffix(".json"), {}
    if target.is_file() and _models(target, facts) == list(weights):
        known = _committed(target, target.stat().st_mtime_ns)
        answers = {key: answer._asdict() for key, answer in known.items()}
    for path in sorted(source.glob("*.json")):
        kept = _about(path)
        if {name: kept[name] for name in ("weights", "dtype", "device")} in weights:
            answers[path.stem] = kept
    if not answers:
        raise RecordingError(f"{source} holds no recordings of these models; run the notebooks first")
    tokens = [token for kept in answers.values() for token in kept["tokens"]]
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as aside, aside.open("wb") as file:
        np.savez_compressed(
            file,
            models=np.array(json.dumps(list(weights))),
            keys=np.array([list(bytes.fromhex(key)) for key in answers], np.uint8),
            ends=np.cumsum([len(kept["tokens"]) for kept in answers.values()]),
            reasons=np.array([_REASONS.index(kept["finish_reason"]) for kept in answers.values()], np.uint8),
            tokens=np.array(tokens, np.uint16 if max(tokens) < 2**16 else np.uint32),
        )
    write_atomic(
        facts,
        json.dumps(about | {"models": list(weights), "outputs": len(answers), "tokens": len(tokens)}, indent=1) + "\n",
    )
    return len(answers)


def _models(target: Path, facts: Path) -> list[dict] | None:
    """The models of a file that :func:`pack_answers` wrote; one of version 1.0 has them in its JSON file alone."""
    with np.load(target, allow_pickle=False) as file:
        if "models" in file.files:
            return json.loads(str(file["models"]))
    return (read_json(facts) or {}).get("models")


@lru_cache(maxsize=4)
def _committed(path: Path, changed: int) -> dict[str, Answer]:
    """The answers of a file that :func:`pack_answers` wrote, by key; ``changed`` is when, in nanoseconds."""
    try:
        check_unpacked(path)
        with np.load(path, allow_pickle=False) as file:
            keys, ends, reasons, tokens = (file[name] for name in ("keys", "ends", "reasons", "tokens"))
        parts = np.split(tokens, ends[:-1])
        return {
            bytes(key).hex(): Answer(part.tolist(), _REASONS[reason])
            for key, part, reason in zip(keys, parts, reasons, strict=True)
        }
    except (
        OSError,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        EOFError,
        MemoryError,
        BadZipFile,
        zlib.error,
    ) as error:
        raise RecordingError(
            f"{path} is no file of recordings ({type(error).__name__}: {error}); get it again or delete it"
        ) from None
