"""Datastores of the experiments: which text, and each built once."""

from __future__ import annotations

import hashlib
import json
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import paths
from specdec_lib.datastores import (
    ShardedSuffixIndex,
    StoreBusy,
    SuffixIndex,
    TokenStore,
    build_from_texts,
    build_suffix_array,
    build_tokens,
)
from specdec_lib.datastores.dense import DenseIndex, build_dense_index
from specdec_lib.datastores.sharded_build import build_sharded
from specdec_lib.datastores.states import States
from specdec_lib.datastores.tokens import tokenizer_fingerprint, tokenizer_vocabulary
from specdec_lib.decoding.generate import end_tokens
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import input_device, vocabulary_size
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.files import VERSION, check_unpacked, sha256
from specdec_lib.models.draft_vocabulary import draft_vocabulary
from specdec_lib.models.embedding import embed_store
from specdec_lib.models.fingerprint import fingerprint

#: Largest file of a package that is taken, in bytes: larger ones are tables and generated code.
LARGEST_FILE = 400_000
#: Folders of the standard library that are not sources like the rest.
_SKIPPED = {"site-packages", "dist-packages", "__pycache__", "lib2to3", "bad_coding", "encodings", "test_lib2to3"}
#: How often one looks whether another process has built a store, in seconds.
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Texts:
    """Texts that are read, or made, as they are needed, told from others by ``key``; starts again with each
    ``iter()``."""

    read: Callable[[], Iterator[str]]
    key: str

    def __iter__(self) -> Iterator[str]:
        return self.read()


def key_of(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _folder(name: str, parts: Iterable[object]) -> Path:
    return paths.cache() / f"{name}-{key_of(VERSION, *parts)[:16]}"


def _once(name: str, parts: Iterable[object], build: Callable[[Path], Any]) -> Path:
    """A folder of :func:`specdec_lib.paths.cache` for this name and these parts, built unless it is there; one that another
    process is building is waited for."""
    folder = _folder(name, parts)
    while not folder.is_dir():
        try:
            build(folder)
        except StoreBusy:
            time.sleep(LOOK_SECONDS)
    return folder


@cache
def stdlib_modules() -> dict[str, str]:
    """The text of every readable source file of the standard library by its dotted name, in order of name; FileNotFoundError if
    this Python has none."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = {}
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED.intersection(relative.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if len(text) > 200:
            modules[".".join(relative.with_suffix("").parts)] = text
    if not modules:
        raise FileNotFoundError(
            f"no Python sources under {root}: this Python was installed without the text of "
            "its standard library; use one that has it (python.org, conda or a distribution)"
        )
    return modules


def stdlib_texts() -> Texts:
    """Modules of the standard library, in an order that mixes its packages."""
    modules = stdlib_modules()
    texts = [modules[name] for name in sorted(modules, key=lambda name: hashlib.sha256(name.encode()).hexdigest())]
    return Texts(lambda: iter(texts), key_of(*texts))


def chat_texts() -> Texts:
    """What SmolLM2 answered to questions of its own (``scripts/own_answers.py``)."""
    path = paths.SMOLLM2 / "answers.npz"

    def read() -> Iterator[str]:
        tokenizer = AutoTokenizer.from_pretrained(paths.SMOLLM2 / "draft", trust_remote_code=False)
        check_unpacked(path)
        with np.load(path, allow_pickle=False) as held:
            answers = np.split(held["answer"], held["answer_ends"][:-1])
        return (
            tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False) for answer in answers
        )

    return Texts(read, key_of("chat", sha256(path)))


def package_texts(folder: str | Path | None = None) -> Texts:
    """Python files of the installed packages, other people's code, in an order that mixes the packages.

    Small files and those above :data:`LARGEST_FILE` are left out. The default folder is where this Python's packages are
    installed.
    """
    root = Path(folder or sysconfig.get_paths()["purelib"])
    files = [file for file in root.rglob("*.py") if 200 < file.stat().st_size <= LARGEST_FILE]
    if not files:
        raise FileNotFoundError(f"no Python files under {root}; name a folder of Python packages")

    names = {file: file.relative_to(root).as_posix() for file in files}
    files.sort(key=lambda file: hashlib.sha256(names[file].encode()).hexdigest())

    def read() -> Iterator[str]:
        return (file.read_text(encoding="utf-8", errors="replace") for file in files)

    return Texts(
        read, key_of("by content", *((names[file], file.stat().st_size, file.stat().st_mtime_ns) for file in files))
    )


#: Texts of :func:`text_store` by name.
TEXTS = {"stdlib": stdlib_texts, "packages": package_texts, "chat": chat_texts}


def text_store(
    name: str, tokenizer: PreTrainedTokenizerBase, max_tokens: int, texts: Iterable[str] | None = None
) -> SuffixIndex:
    """A store of text with its suffix array, opened if it was built before, in :func:`specdec_lib.paths.cache`.

    ``name`` is ``"stdlib"``, ``"packages"``, ``"chat"``, or any other with ``texts`` (else ValueError). Documents are
    taken from the first on while they have no more than ``max_tokens`` tokens together; those of more bytes than this
    are left out.
    """
    if texts is None:
        if name not in TEXTS:
            raise ValueError(f"store {name!r} is unknown; expected one of {', '.join(TEXTS)}, or texts")
        texts = TEXTS[name]()
    key = texts.key if hasattr(texts, "key") else key_of(*texts)
    # No tokenizer gives more tokens than bytes, so each of these fits; the first that does not ends the store.
    short = Texts(lambda: (text for text in texts if len(text.encode("utf-8", "replace")) <= max_tokens), key)
    folder = _once(
        name,
        (key, tokenizer_fingerprint(tokenizer), max_tokens),
        lambda folder: build_from_texts(
            folder,
            short,
            tokenizer,
            sources=[{"name": name}],
            max_tokens=max_tokens,
            progress=False,
        ),
    )
    return SuffixIndex.open(TokenStore.open(folder, tokenizer))


#: Tokens of one shard of :func:`text_shards`.
SHARD_TOKENS = 20_000_000


def text_shards(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    texts: Any,
    shard_tokens: int = SHARD_TOKENS,
    progress: bool = False,
) -> ShardedSuffixIndex:
    """A store of shards, built or opened as by :func:`text_store`; an interrupted build goes on.

    The texts, which have ``key`` and ``split(count)`` as ``PackageFiles`` of chapter 3 do, are
    cut into as many parts as there are shards. Each shard takes documents of its part while they have no
    more than ``shard_tokens`` tokens together, so that the first shards are a store of their own. ``max_tokens`` is of all
    shards: a multiple of ``shard_tokens``, or the next one is taken.
    """
    count = -(-max_tokens // shard_tokens)
    folder = _once(
        f"{name}-shards",
        (texts.key, tokenizer_fingerprint(tokenizer), count, shard_tokens),
        lambda folder: build_sharded(
            folder,
            texts.split(count),
            tokenizer,
            sources=[{"name": name}],
            max_tokens=count * shard_tokens,
            progress=progress,
        ),
    )
    return ShardedSuffixIndex.open(folder)


def document_store(name: str, documents: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> SuffixIndex:
    """A store of documents of token ids, such as responses of a model, built or opened as by :func:`text_store`."""
    documents = [list(map(int, document)) for document in documents]
    known = tokenizer_fingerprint(tokenizer)
    about = {"fingerprint": known, "sources": [{"name": name}]}
    return _ids_store(name, (documents, known), lambda: documents, tokenizer_vocabulary(tokenizer), about)


def _ids_store(
    name: str, parts: Iterable[object], read: Callable[[], Iterable], vocabulary: int, about: dict[str, Any]
) -> SuffixIndex:
    folder = _once(
        name,
        parts,
        lambda folder: build_tokens(
            folder,
            read(),
            vocabulary,
            progress=False,
            finish=lambda unfinished: build_suffix_array(unfinished, progress=False),
            **about,
        ),
    )
    return SuffixIndex.open(folder)


def _answer(
    model: PreTrainedModel, batch: list[list[int]], sampling: Sampling, max_new_tokens: int, pad: int, seed: int
) -> list[list[int]]:
    """Prompt and response of each request, the end token included and padding left out."""
    width, device, vocabulary = max(map(len, batch)), input_device(model), draft_vocabulary(model)
    read = [vocabulary.to_draft([pad] * (width - len(row)) + row) for row in batch]
    ids = torch.tensor(read, device=device)
    seen = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch], device=device)
    ends = end_tokens(model, None)
    how = {"do_sample": False}
    if not sampling.greedy:
        how = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    # Only what the library's own decoding does: no penalty or filter that the checkpoint's settings may hold. transformers
    # fills what a given configuration leaves open from the model's own, which is put aside meanwhile.
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        pad_token_id=vocabulary.to_draft([pad])[0],
        eos_token_id=sorted(ends) or None,
        suppress_tokens=list(range(len(vocabulary), vocabulary_size(model))) or None,  # rows that stand for no token
        **how,
    )
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.inference_mode():
            torch.manual_seed(seed)
            out = model.generate(ids, attention_mask=seen, generation_config=settings)
    finally:
        model.generation_config = own
    answers = []
    for row, new in zip(batch, out[:, width:].tolist(), strict=True):
        end = next((i + 1 for i, token in enumerate(new) if token in ends), len(new))
        answers.append(row + vocabulary.to_target(new[:end]))
    return answers


def response_store(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    sampling: Sampling | None = None,
    samples: int = 1,
    max_new_tokens: int = 128,
    batch: int = 16,
) -> SuffixIndex:
    """An in-distribution store (DReSD, section 4.2.1): prompts with the target's own responses to their first turns, as documents
    of token ids, shortest prompts first; generated and indexed once.

    Batches are generated by transformers: a datastore needs many texts, not each of them fast. Sampling's seed and the number of
    the batch seed the draws.
    """
    sampling = Sampling() if sampling is None else sampling
    if sampling.greedy and samples > 1:
        raise ValueError(
            f"samples is {samples}, but greedy responses to one prompt are all the same; give a sampling with "
            "a temperature, or samples=1"
        )
    rendered = sorted((render(prompt, tokenizer) for prompt in prompts), key=len)
    asked = [ids for ids in rendered for _ in range(samples)]
    batches = [asked[i : i + batch] for i in range(0, len(asked), batch)]
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0

    def documents() -> Iterator[list[int]]:
        for i, part in enumerate(batches):
            yield from _answer(model, part, sampling, max_new_tokens, pad, sampling.seed * 1_000_003 + i)

    known = tokenizer_fingerprint(tokenizer)
    about = {"fingerprint": known, "sources": [{"name": "responses"}]}
    parts = fingerprint(model), batches, asdict(sampling), max_new_tokens, known
    return _ids_store("responses", parts, documents, tokenizer_vocabulary(tokenizer), about)


def first_part(index: SuffixIndex, tokens: int) -> SuffixIndex:
    """A store of the first ``tokens`` tokens of another, the last document cut. A rest of one token is left out."""
    store = index.store
    ends = np.cumsum(np.diff(store.starts) - 1)
    if tokens >= ends[-1]:
        return index
    begins = [0, *ends[ends < tokens].tolist()]
    documents = (store.document(number)[: tokens - begin] for number, begin in enumerate(begins))
    about = {"fingerprint": store.manifest["tokenizer"], "sources": store.manifest["sources"]}
    return _ids_store("part", (store.digest, "tokens", tokens), lambda: documents, store.vocabulary, about)


def dense_states(model: PreTrainedModel, index: SuffixIndex) -> States:
    """Final hidden states of a store's tokens, embedded once, kept in :func:`specdec_lib.paths.cache`.

    Documents longer than the window of 1,024 tokens go on in another window, so that sparse and dense index hold the
    same continuations.
    """
    store = index.store
    folder = _once(
        "states",
        _states_of(model, index),
        lambda folder: embed_store(model, store, folder, cover="windows", progress=False),
    )
    return States.open(folder)


def _states_of(model: PreTrainedModel, index: SuffixIndex) -> tuple[str, str, str]:
    return index.store.digest, fingerprint(model), "model"


def has_states(model: PreTrainedModel, index: SuffixIndex) -> bool:
    """Whether :func:`dense_states` computed these before, which for a large store takes hours."""
    return _folder("states", _states_of(model, index)).is_dir()


def first_states(states: States, part: SuffixIndex) -> States:
    """States of the tokens of :func:`first_part` of a store, from those of the whole store; these themselves where the
    part is the whole.
    """
    count = part.store.count - len(part.store)  # the last token of a document has none
    if count > len(states):
        raise ValueError(f"the part has {count} states, the store {len(states)}; expected a part of this store")
    if count == len(states):
        return states
    path = states.path.with_name(f"{states.path.name}-{count}")
    return replace(states, positions=states.positions[:count], states=states.states[:count], path=path, manifest=None)


def dense_index(states: States, index: SuffixIndex, **options: Any) -> DenseIndex:
    """A dense index over a store's states, opened if it was built before; options are those of
    :func:`specdec_lib.datastores.dense.build_dense_index`."""
    folder = _once(
        "dense",
        (states.path.name, sorted(options.items())),
        lambda folder: build_dense_index(folder, states, index.store, progress=False, **options),
    )
    return DenseIndex.open(folder, index.store)
