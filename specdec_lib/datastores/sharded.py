"""A store of many shards under one manifest, searched as one store.

A shard is a folder with a store as :mod:`specdec_lib.datastores.tokens` describes it, with its own manifest and
checksums; ``shards.json`` beside the shards names those that count. It is replaced in one step, so a shard is there or
not, and no other shard is touched when one comes or goes.

Every shard is asked the same question and gives its longest match with the continuations after it. The longest match of
all shards is that of one store of all their documents, and its occurrences are those of the shards that have it. Their
continuations, one after another, are a small text again, in which the trie of :mod:`specdec_lib.datastores.trie` is
built: nodes, weights and ties are those of the one store.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from specdec_lib import files
from specdec_lib.datastores import faiss_index, store_files
from specdec_lib.datastores.compiled import compiled
from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.datastores.store_files import StoreError
from specdec_lib.datastores.suffix_array import Match, SuffixIndex, longest_suffix
from specdec_lib.datastores.tokens import TokenStore, token_dtype
from specdec_lib.datastores.trie import sample_smallest, take_matches

FORMAT, VERSION = "specdec-lib sharded store", 1
MANIFEST = "shards.json"
_FIELDS = {"vocabulary": store_files.SIZE, "tokenizer": store_files.TEXT_OR_NULL, "shards": store_files.OBJECTS}
_SHARD_FIELDS = {
    "name": store_files.TEXT,
    "tokens": store_files.SIZE,
    "documents": store_files.SIZE,
    "tokens_sha256": store_files.TEXT,
}


def shard_name(number: int) -> str:
    """Name of a shard's folder."""
    return f"shard-{number:05d}"


def is_sharded(path: str | Path) -> bool:
    """Whether a folder is a store of shards."""
    return (Path(path).expanduser() / MANIFEST).is_file()


def read_shards(path: str | Path) -> dict[str, Any]:
    """The manifest of a store of shards.

    Raises
    ------
    StoreError
        If there is none, or it is damaged or of another version.
    """
    path = Path(path).expanduser()
    about = store_files.read_manifest(
        path / MANIFEST,
        FORMAT,
        VERSION,
        path,
        f"{path} is no store of shards: it has no {MANIFEST}; build one with 'python -m specdec_lib datastore build "
        "--shards N', or add a store to it with specdec_lib.datastores.add_shard",
        "build it again",
    )
    check_shards(path / MANIFEST, about)
    return about


def check_shards(path: Path, about: dict[str, Any]) -> None:
    """Refuse a manifest that lacks a field, names a shard twice, or names a folder outside of its own.

    Raises
    ------
    StoreError
    """
    store_files.check_manifest(path, about, _FIELDS)
    for shard in about["shards"]:
        store_files.check_manifest(path, shard, _SHARD_FIELDS)
        if Path(shard["name"]).name != shard["name"] or shard["name"] in ("", ".", ".."):
            raise StoreError(f"{path} names the shard {shard['name']!r}; expected the name of a folder beside it")
    names = [shard["name"] for shard in about["shards"]]
    if not names or len(set(names)) < len(names):
        raise StoreError(f"{path} names the shards {names}; expected one or more, each once: it was altered")


def describe_shard(name: str, store: dict[str, Any]) -> dict[str, Any]:
    """What the manifest of all shards says of one, from the manifest of its tokens."""
    return {
        "name": name,
        "tokens": store["tokens"],
        "documents": store["documents"],
        "tokens_sha256": store["files"]["tokens.npy"]["sha256"],
    }


def shards_manifest(vocabulary: int, tokenizer: str | None, shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The manifest of a store of shards."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "vocabulary": vocabulary,
        "tokenizer": tokenizer,
        "shards": list(shards),
    }


def add_shard(path: str | Path, store: TokenStore | str | Path) -> str:
    """Add a finished store, with its indexes, as a new shard; returns the shard's name.

    Its files are linked, or copied from another file system, into a temporary folder that is renamed. The new manifest
    comes last and in one step. The first shard makes the store of shards.

    Parameters
    ----------
    path : path
        Folder of the store of shards.
    store : TokenStore or path

    Raises
    ------
    StoreError
        If its vocabulary or tokenizer is not that of the shards that are there, or it has no suffix array.
    StoreBusy
        If another process changes the store of shards.
    """
    path = Path(path).expanduser()
    store = store if isinstance(store, TokenStore) else TokenStore.open(store)
    SuffixIndex.open(store)
    if path.exists() and not is_sharded(path) and (not path.is_dir() or any(path.iterdir())):
        raise StoreError(f"{path} exists and is no store of shards; give the name of a new folder")
    path.mkdir(parents=True, exist_ok=True)
    with store_files.BuildLock(path):
        known = (store.vocabulary, store.manifest["tokenizer"])
        shards: list[dict[str, Any]] = []
        if is_sharded(path):
            about = read_shards(path)
            shards = about["shards"]
            if known != (about["vocabulary"], about["tokenizer"]):
                raise StoreError(
                    f"{store.path} has {store.vocabulary} token ids of the tokenizer {(known[1] or 'unknown')[:12]}, the "
                    f"shards of {path} {about['vocabulary']} of {(about['tokenizer'] or 'unknown')[:12]}: a store of "
                    "shards has one tokenizer; build this one with it"
                )
        taken = {shard["name"] for shard in shards}
        number = next(n for n in range(len(taken) + 1) if shard_name(n) not in taken)
        target = path / shard_name(number)
        partial = files.beside(target, ".partial")
        # What a change that was interrupted left is named by no manifest.
        for left in (partial, target):
            shutil.rmtree(left, ignore_errors=True)
        store_files.take_over(store.path, partial)
        files.flush_folder(partial)
        os.rename(partial, target)
        shards = [*shards, describe_shard(target.name, store.manifest)]
        store_files.write_json(path / MANIFEST, shards_manifest(*known, shards))
    return target.name


def remove_shard(path: str | Path, name: str) -> None:
    """Take a shard out of a store of shards, and remove its files; the others stay as they are.

    Raises
    ------
    StoreError
        If there is no such shard, or it is the only one.
    StoreBusy
        If another process changes the store of shards.
    """
    path = Path(path).expanduser()
    with store_files.BuildLock(path):
        about = read_shards(path)
        left = [shard for shard in about["shards"] if shard["name"] != name]
        if len(left) == len(about["shards"]) or not left:
            raise StoreError(
                f"{name!r} cannot be removed from {path}; expected one of its shards "
                f"{', '.join(shard['name'] for shard in about['shards'])}, and another one that stays"
            )
        store_files.write_json(path / MANIFEST, about | {"shards": left})
        shutil.rmtree(path / name)


@dataclass(frozen=True, eq=False)
class ShardedStore:
    """The tokens of all shards.

    Attributes
    ----------
    path : Path
    manifest : dict
    """

    path: Path
    manifest: dict[str, Any]

    @property
    def vocabulary(self) -> int:
        """Number of token ids; the separator is the id after them."""
        return self.manifest["vocabulary"]

    @property
    def count(self) -> int:
        """Number of tokens, separators not counted."""
        return sum(shard["tokens"] for shard in self.manifest["shards"])

    @property
    def names(self) -> list[str]:
        """Names of the shards, in order."""
        return [shard["name"] for shard in self.manifest["shards"]]

    def open_shard(self, name: str) -> TokenStore:
        """One shard, whose tokens are those that the manifest names.

        Raises
        ------
        StoreError
        """
        (about,) = (shard for shard in self.manifest["shards"] if shard["name"] == name)
        store = TokenStore.open(self.path / name)
        if store.vocabulary != self.vocabulary or describe_shard(name, store.manifest) != about:
            raise StoreError(f"{store.path} is not the store that {self.path / MANIFEST} names; build it again")
        return store

    def __repr__(self) -> str:
        return f"ShardedStore({str(self.path)!r}: {self.count:,} tokens in {len(self.names)} shards)"


class Question(NamedTuple):
    """What every shard is asked about a context; the names are those of :class:`~specdec_lib.drafters.rest.Rest`.

    ``keep`` is the largest number of occurrences that are taken; ``uniform`` and ``seed`` say which.
    """

    context: np.ndarray
    max_ngram: int
    min_ngram: int
    keep: int
    length: int
    uniform: bool
    seed: int


class Answer(NamedTuple):
    """One shard's longest match, the entry ``place`` where a longer suffix of the context would stand, and continuations.

    ``rows`` holds one continuation a row, filled with separators from its document's end on; shape (taken, length).
    """

    length: int
    start: int
    stop: int
    place: int
    rows: np.ndarray


class Gathered(NamedTuple):
    """The match over all shards, and its continuations as a text that :func:`~specdec_lib.datastores.trie.best_nodes`
    takes: the entry of each is the position before it."""

    match: Match
    tokens: np.ndarray
    entries: np.ndarray


@compiled
def _continuation_rows(tokens, entries, length):
    rows = np.full((len(entries), length), tokens[0], tokens.dtype)
    for i in range(len(entries)):
        for j in range(length):
            token = tokens[entries[i] + 1 + j]
            if token == tokens[0]:
                break
            rows[i, j] = token
    return rows


class SuffixShard:
    """One shard's suffix array; several threads may ask it."""

    def __init__(self, index: SuffixIndex):
        self.index = index

    def answer(self, question: Question) -> Answer:
        """The shard's own longest match, and at most ``keep`` of its continuations by the question's rule."""
        tokens, suffixes = self.index.arrays[:2]
        context = question.context
        length, start, stop, place = longest_suffix(*self.index.arrays, context, len(context), question.max_ngram)
        taken = min(question.keep, stop - start) if length >= question.min_ngram else 0
        entries = np.empty(taken, np.int32)
        if taken:
            # Scratch of each answer, because threads share the shard. Where all occurrences are taken nothing is counted.
            counts = np.zeros(self.index.store.vocabulary + 1 if stop - start > taken else 0, np.int32)
            take_matches(
                tokens,
                suffixes,
                start,
                stop,
                question.keep,
                question.length,
                question.uniform,
                question.seed,
                counts,
                entries,
            )
        return Answer(length, start, stop, place, _continuation_rows(tokens, entries, question.length))


def gather(answers: Sequence[Answer], question: Question, vocabulary: int) -> Gathered:
    """The answer of one store of all the shards that answered.

    The match is that of the one store: as many entries come before a suffix as in all shards together. Where it has no
    more than ``keep`` occurrences, or the rule is the lexicographic one, the continuations are those of the one store
    too. Where a uniform draw is made, the one store would draw other ones: here each shard draws from its own, and the
    number taken of a shard is its share of ``keep``, rounded at random. Each occurrence is as likely as any.

    Parameters
    ----------
    answers : sequence of Answer
    question : Question
    vocabulary : int
    """
    separator = np.full(1, vocabulary, token_dtype(vocabulary))
    length = max((answer.length for answer in answers), default=0)
    if length == 0:
        return Gathered(Match(0, 0, 0), separator, np.empty(0, np.int32))
    start = sum(answer.start if answer.length == length else answer.place for answer in answers)
    have = [answer for answer in answers if answer.length == length]
    sizes = [answer.stop - answer.start for answer in have]
    match = Match(length, start, start + sum(sizes))
    rows = [answer.rows for answer in have]
    if question.uniform and sum(sizes) > question.keep:
        rows = _share(rows, sizes, question, match)
    joined = np.concatenate(rows)
    tokens = np.concatenate([separator, joined.reshape(-1)])
    entries = np.arange(len(joined), dtype=np.int32) * np.int32(question.length)
    if len(entries) > question.keep:
        counts, out = np.zeros(vocabulary + 1, np.int32), np.empty(question.keep, np.int32)
        sample_smallest(tokens, entries, 0, len(entries), question.keep, question.length, counts, out)
        entries = out
    return Gathered(match, tokens, entries)


def _share(rows: list[np.ndarray], sizes: list[int], question: Question, match: Match) -> list[np.ndarray]:
    """So many of each shard's drawn continuations that each occurrence of all shards is as likely as any."""
    rng = np.random.default_rng([question.seed, *match])
    ends = np.floor(np.cumsum([0, *sizes]) * (question.keep / sum(sizes)) + rng.random()).astype(int)
    # A sum of shares that is a whole number may round to one less or more.
    ends[0], ends[-1] = 0, question.keep
    out = []
    for drawn, size in zip(rows, np.diff(ends), strict=True):
        if len(drawn) > size:
            drawn = drawn[np.sort(rng.permutation(len(drawn))[:size])]
        out.append(drawn)
    return out


@dataclass(frozen=True, eq=False)
class ShardedSuffixIndex:
    """The suffix arrays of all shards, searched as one.

    Attributes
    ----------
    store : ShardedStore
    shards : sequence of SuffixShard
        Those that this process searches.
    """

    store: ShardedStore
    shards: Sequence[SuffixShard] = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> ShardedSuffixIndex:
        """Open every shard here.

        Raises
        ------
        StoreError
            If the manifest or a shard is missing or damaged.
        """
        path = Path(path).expanduser()
        store = ShardedStore(path, read_shards(path))
        return cls(store, [SuffixShard(SuffixIndex.open(store.open_shard(name))) for name in store.names])

    @property
    def entries(self) -> int:
        """Largest number of entries that all shards have together."""
        return self.store.count

    def first(self, count: int) -> ShardedSuffixIndex:
        """The first shards alone, searched as one; they stay open.

        Raises
        ------
        ValueError
            If there are fewer.
        """
        shards = self.store.manifest["shards"]
        if not 1 <= count <= len(shards):
            raise ValueError(f"the first {count} of {len(shards)} shards are asked for; expected 1 to {len(shards)}")
        about = self.store.manifest | {"shards": shards[:count]}
        return ShardedSuffixIndex(ShardedStore(self.store.path, about), self.shards[:count])

    def answers(self, question: Question) -> list[Answer]:
        """What each shard answers."""
        return [shard.answer(question) for shard in self.shards]

    def gather(self, question: Question) -> Gathered:
        """As :func:`gather`, of the shards' answers."""
        return gather(self.answers(question), question, self.store.vocabulary)

    def verify(self) -> None:
        """Read every byte of every shard and compare with the checksums.

        Raises
        ------
        StoreError
        """
        for shard in self.shards:
            shard.index.verify()


class Neighbour(NamedTuple):
    """A stored state: its score, and the tokens from its continuation's first on."""

    score: float
    tokens: list[int]


def nearest_of(index: DenseIndex, states: np.ndarray | torch.Tensor, k: int, length: int) -> list[Neighbour]:
    """The ``k`` nearest stored states of one state, nearest first, with ``length`` tokens each."""
    scores, positions = index.search(states, k)
    return [
        Neighbour(float(score), index.store.continuation(position, length))
        for score, position in zip(scores[0], positions[0].tolist(), strict=True)
        if position >= 0
    ]


def merge_nearest(found: Sequence[Sequence[Neighbour]], k: int) -> list[Neighbour]:
    """The ``k`` nearest of what the shards found; equal scores stay in order of the shards."""
    return sorted((one for shard in found for one in shard), key=lambda one: -one.score)[:k]


@dataclass(frozen=True, eq=False)
class ShardedDenseIndex:
    """The dense indexes of all shards, searched as one.

    Every shard has the same reduction, so that scores of different shards are comparable. Each is searched by FAISS, and
    the best of all are taken.

    Attributes
    ----------
    store : ShardedStore
    width : int
        Values of a hidden state.
    shards : sequence of DenseIndex
        Those that this process searches.
    """

    store: ShardedStore
    width: int
    shards: Sequence[DenseIndex] = field(repr=False)

    @classmethod
    def open(cls, path: str | Path, *, device: str = "auto", model: str | None = None) -> ShardedDenseIndex:
        """Open the dense index of every shard here; parameters as for :meth:`DenseIndex.open`.

        Raises
        ------
        StoreError
            If a shard or its index is missing or damaged, or the shards do not have one reduction.
        """
        path = Path(path).expanduser()
        store = ShardedStore(path, read_shards(path))
        shards = [DenseIndex.open(store.open_shard(name), device=device, model=model) for name in store.names]
        check_reductions(shards)
        return cls(store, shards[0].width, shards)

    @property
    def path(self) -> Path:
        """Folder of the store of shards."""
        return self.store.path

    def __len__(self) -> int:
        """Number of rows of all shards."""
        return sum(map(len, self.shards))

    def nearest(self, states: np.ndarray | torch.Tensor, k: int, length: int) -> list[Neighbour]:
        """The ``k`` nearest stored states of one state, shape (1, width), with the ``length`` tokens from each one's
        continuation on."""
        return merge_nearest([nearest_of(shard, states, k, length) for shard in self.shards], k)


def check_reductions(shards: Sequence[DenseIndex]) -> None:
    """Refuse shards whose keys are not comparable.

    Raises
    ------
    StoreError
        If two have different models or reductions.
    """
    first = faiss_index.reduction_of(shards[0].index)
    for shard in shards:
        one = faiss_index.reduction_of(shard.index)
        same = all(np.array_equal(a, b) for a, b in zip(first, one, strict=True))
        if not same or shard.manifest["model"] != shards[0].manifest["model"]:
            raise StoreError(
                f"{shard.path} has another reduction or model than {shards[0].path}, so that their scores cannot be "
                "compared: build the dense index of all shards with 'python -m specdec_lib datastore dense', or this one "
                "with the reduction of the others"
            )


def open_suffix_index(store: TokenStore | str | Path) -> SuffixIndex | ShardedSuffixIndex:
    """The suffix array of a store, or of a store of shards, whichever the folder holds.

    Raises
    ------
    StoreError
        As for :meth:`SuffixIndex.open`.
    """
    if not isinstance(store, TokenStore) and is_sharded(store):
        return ShardedSuffixIndex.open(store)
    return SuffixIndex.open(store)


def open_dense_index(path: TokenStore | str | Path, **options: Any) -> DenseIndex | ShardedDenseIndex:
    """The dense index of a store, or of a store of shards, whichever the folder holds; options as for
    :meth:`DenseIndex.open`.

    Raises
    ------
    StoreError
    """
    if not isinstance(path, TokenStore) and is_sharded(path):
        return ShardedDenseIndex.open(path, **options)
    return DenseIndex.open(path, **options)
