"""A store of many shards under one manifest, searched as one store.

A shard is a folder with a store as :mod:`specdec_lib.datastores.tokens` describes it, with its own manifest and
checksums; ``shards.json`` beside the shards says which they are.

Every shard is asked the same question and gives its longest match with the continuations after it. The longest match of
all shards is that of one store of all their documents, and its occurrences are those of the shards that have it. Their
continuations, one after another, are a small text again, in which the trie of :mod:`specdec_lib.datastores.trie` is
built: nodes, weights and ties are those of the one store.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from specdec_lib import files
from specdec_lib.datastores import faiss_index
from specdec_lib.datastores.dense import FOLDER, DenseIndex
from specdec_lib.datastores.suffix_array import Match, SuffixIndex, longest_suffix
from specdec_lib.datastores.tokens import LARGEST_VOCABULARY, TokenStore, token_dtype
from specdec_lib.datastores.trie import sample_smallest, take_matches
from specdec_lib.decoding.compiled import compiled
from specdec_lib.files import StoreError

FORMAT = "specdec-lib sharded store"
MANIFEST = "shards.json"
#: Name of a shard's folder, by its number.
SHARD = "shard-{:05d}"


def _shards(value: Any) -> bool:
    """Whether a value of a manifest describes shards, under names that lead nowhere else."""
    kinds = {"tokens": files.is_count, "documents": files.is_count, "tokens_sha256": files.is_text}
    return (
        files.is_object_list(value)
        and len(value) > 0
        and all(about.get("name") == SHARD.format(number) for number, about in enumerate(value))
        and all(right(about.get(name)) for about in value for name, right in kinds.items())
    )


_FIELDS = {
    "vocabulary": lambda value: files.is_count(value) and 1 <= value <= LARGEST_VOCABULARY,
    "tokenizer": files.is_text_or_none,
    "shards": _shards,
}


def is_sharded(path: str | Path) -> bool:
    """Whether a folder is a store of shards.

    Parameters
    ----------
    path : path

    Returns
    -------
    bool

    Examples
    --------
    >>> from specdec_lib.datastores import build_tokens
    >>> from specdec_lib.datastores.sharded import is_sharded
    >>> store = build_tokens(folder / "store", [[5, 6]], vocabulary=10, progress=False)
    >>> is_sharded(folder / "store")
    False
    """
    return (files.current_place(files.located(path)) / MANIFEST).is_file()


def write_shards(path: Path, count: int, **about: Any) -> None:
    """Write the manifest of ``count`` finished shards in the folder ``path``, and what else is to be known of them."""
    shards = [TokenStore.open(path / SHARD.format(number)) for number in range(count)]
    kinds = {(shard.vocabulary, shard.manifest["tokenizer"]) for shard in shards}
    if len(kinds) != 1:
        raise StoreError(f"the shards of {path} have {len(kinds)} tokenizers; expected shards of one tokenizer")
    vocabulary, tokenizer = kinds.pop()
    about |= {"vocabulary": vocabulary, "tokenizer": tokenizer, "shards": [_describe(shard) for shard in shards]}
    files.write_manifest(path / MANIFEST, FORMAT, about)


def _describe(shard: TokenStore) -> dict[str, Any]:
    return {"name": shard.path.name, "tokens": shard.count, "documents": len(shard), "tokens_sha256": shard.digest}


@dataclass(frozen=True, eq=False)
class ShardedStore:
    r"""The tokens of all shards.

    Examples
    --------
    >>> from specdec_lib.datastores.sharded import ShardedStore
    >>> from specdec_lib.datastores.sharded_build import build_sharded
    >>> build_sharded(folder / "store", [["x = 1\n"], ["y = 2\n"]], tokenizer, progress=False)
    >>> [len(shard) for shard in ShardedStore.open(folder / "store").shards()]
    [1, 1]
    """

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> ShardedStore:
        """Read the manifest of all shards; StoreError if there is none, or it is damaged or of another version."""
        folder = files.current_place(files.located(path))
        missing = f"{folder} is no store of shards; build one with 'python -m specdec_lib datastore build --shards N'"
        return cls(folder, files.read_manifest(folder / MANIFEST, FORMAT, missing, (), _FIELDS))

    @property
    def vocabulary(self) -> int:
        """Number of token ids; the separator is the id after them."""
        return self.manifest["vocabulary"]

    @property
    def count(self) -> int:
        """Number of tokens, separators not counted."""
        return sum(shard["tokens"] for shard in self.manifest["shards"])

    def shards(self) -> list[TokenStore]:
        """Open all shards; StoreError if one is missing, damaged or another than the manifest says."""
        stores = []
        for about in self.manifest["shards"]:
            store = TokenStore.open(self.path / about["name"])
            if _describe(store) != about:
                raise StoreError(f"{store.path} is not the store that {self.path / MANIFEST} names; build it again")
            stores.append(store)
        return stores


class Question(NamedTuple):
    r"""What every shard is asked about a context; the names are those of :class:`~specdec_lib.drafters.rest.Rest`.

    At most ``keep`` occurrences are taken; ``uniform`` and ``seed`` say which.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores import ShardedSuffixIndex
    >>> from specdec_lib.datastores.sharded import Question
    >>> from specdec_lib.datastores.sharded_build import build_sharded
    >>> build_sharded(folder / "store", [["x = 1\n"], ["x = 2\n"]], tokenizer, progress=False)
    >>> context = np.array(tokenizer("x =")["input_ids"])
    >>> index = ShardedSuffixIndex.open(folder / "store")
    >>> match, tokens, entries = index.gather(Question(context, 16, 1, 8, 2, False, 0))
    >>> match.length == len(context), len(entries)
    (True, 2)
    """

    context: np.ndarray
    max_ngram: int
    min_ngram: int
    keep: int
    length: int
    uniform: bool
    seed: int


class Answer(NamedTuple):
    """One shard's longest match, the entry ``place`` where a longer suffix would stand, and continuations.

    ``rows``, shape (taken, length), holds one continuation a row, filled with separators.
    """

    length: int
    start: int
    stop: int
    place: int
    rows: np.ndarray


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


def _answer(index: SuffixIndex, question: Question) -> Answer:
    """One shard's longest match, and at most ``keep`` of its continuations by the question's rule."""
    tokens, suffixes = index.arrays[:2]
    context = question.context
    length, start, stop, place = longest_suffix(*index.arrays, context, len(context), question.max_ngram)
    taken = min(question.keep, stop - start) if length >= question.min_ngram else 0
    entries = np.empty(taken, np.int32)
    if taken:
        # Scratch of each answer, because threads share the shard. Where all occurrences are taken nothing is counted.
        counts = np.zeros(index.store.vocabulary + 1 if stop - start > taken else 0, np.int32)
        rule = question.keep, question.length, question.uniform, question.seed
        take_matches(tokens, suffixes, start, stop, rule, counts, entries)
    return Answer(length, start, stop, place, _continuation_rows(tokens, entries, question.length))


def _share(rows: list[np.ndarray], sizes: list[int], question: Question, match: Match) -> list[np.ndarray]:
    """Keep so many of each shard's drawn continuations that every occurrence of all shards is equally likely."""
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
    r"""The suffix arrays of all shards, searched as one; :meth:`open` reads them.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.datastores import ShardedSuffixIndex
    >>> from specdec_lib.datastores.sharded_build import build_sharded
    >>> from specdec_lib.drafters import Rest
    >>> parts = [["def multiply(x, y):\n    return x * y\n"], ["def divide(x, y):\n    return x / y\n"]]
    >>> build_sharded(folder / "store", parts, tokenizer, progress=False)
    >>> index = ShardedSuffixIndex.open(folder / "store")
    >>> run = generate(model, prompt, Rest(index), max_new_tokens=12)
    >>> run.tokens == generate(model, prompt, max_new_tokens=12).tokens
    True
    """

    store: ShardedStore
    shards: Sequence[SuffixIndex] = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> ShardedSuffixIndex:
        """Open every shard; StoreError if one is missing or damaged."""
        store = ShardedStore.open(path)
        return cls(store, [SuffixIndex.open(shard) for shard in store.shards()])

    @property
    def entries(self) -> int:
        """Largest number of entries that all shards have together."""
        return self.store.count

    def first(self, count: int) -> ShardedSuffixIndex:
        """The first shards alone, searched as one; they stay open."""
        shards = self.store.manifest["shards"]
        if not 1 <= count <= len(shards):
            raise ValueError(f"the first {count} of {len(shards)} shards are asked for; expected 1 to {len(shards)}")
        about = self.store.manifest | {"shards": shards[:count]}
        return ShardedSuffixIndex(ShardedStore(self.store.path, about), self.shards[:count])

    def gather(self, question: Question) -> tuple[Match, np.ndarray, np.ndarray]:
        """The answer of one store of all the shards.

        The match is that of the one store, as many entries come before a suffix as in all shards together. So are the
        continuations, except for a uniform draw: each shard draws from its own, and its part of ``keep`` is its share, rounded
        at random. Each occurrence is as likely as any.

        Parameters
        ----------
        question : Question

        Returns
        -------
        match : Match
        tokens : int array
            The continuations as a text for :func:`~specdec_lib.datastores.trie.best_nodes`.
        entries : int32 array
            The position in that text before each of them.
        """
        answers, vocabulary = [_answer(shard, question) for shard in self.shards], self.store.vocabulary
        separator = np.full(1, vocabulary, token_dtype(vocabulary))
        length = max((answer.length for answer in answers), default=0)
        if length == 0:
            return Match(0, 0, 0), separator, np.empty(0, np.int32)
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
        return match, tokens, entries


#: In the folder of the shards, which of two folders of each shard holds the dense index that counts; the first without it.
SLOT, SLOTS = "dense.json", (FOLDER, f"{FOLDER}-2")
SLOT_FORMAT = "specdec-lib dense index of shards"


def _slot(path: Path) -> dict[str, Any]:
    about = files.read_json(path / SLOT) or {}
    return about if about.get("format") == SLOT_FORMAT and about.get("folder") in SLOTS else {"folder": SLOTS[0]}


def dense_slots(path: Path) -> tuple[str, str]:
    """Folders of a shard's dense indexes: the one that counts, and the one in which the next is built."""
    current = _slot(path)["folder"]
    return current, SLOTS[1 - SLOTS.index(current)]


def take_slot(path: Path, folder: str) -> None:
    """Let the dense indexes in this folder of each shard count from now on."""
    if folder != _slot(path)["folder"]:
        files.write_json(path / SLOT, {"format": SLOT_FORMAT, "folder": folder, "number": secrets.token_hex(8)})


@dataclass(frozen=True, eq=False)
class ShardedDenseIndex:
    r"""The dense indexes of all shards, searched as one; all have one reduction, so that scores are comparable.

    Examples
    --------
    >>> from functools import partial
    >>> from specdec_lib.datastores import ShardedDenseIndex
    >>> from specdec_lib.datastores.sharded_build import build_sharded, build_sharded_dense
    >>> from specdec_lib.models.embedding import embed_store
    >>> parts = [["def multiply(x, y):\n    return x * y\n"], ["def divide(x, y):\n    return x / y\n"]]
    >>> build_sharded(folder / "store", parts, tokenizer, progress=False)
    >>> embed = lambda store, path, replace: embed_store(model, store, path, replace=replace, progress=False)
    >>> build_sharded_dense(folder / "store", embed, dims=8, progress=False)
    >>> index = ShardedDenseIndex.open(folder / "store")
    >>> len(index.shards), index.width == model.config.hidden_size
    (2, True)
    """

    store: ShardedStore
    width: int
    shards: Sequence[DenseIndex] = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> ShardedDenseIndex:
        """Open the dense index of every shard, all of one build."""
        store = ShardedStore.open(path)
        while True:
            slot = _slot(store.path)
            try:
                found = cls._of_slot(store, slot["folder"])
            except StoreError:
                if slot == _slot(store.path):
                    raise
            else:
                if slot == _slot(store.path):
                    return found

    @classmethod
    def _of_slot(cls, store: ShardedStore, folder: str) -> ShardedDenseIndex:
        shards = [DenseIndex.open(shard.path / folder, shard) for shard in store.shards()]
        first = faiss_index.reduction_of(shards[0].index)
        for shard in shards:
            own = faiss_index.reduction_of(shard.index)
            same = all(np.array_equal(a, b) for a, b in zip(first, own, strict=True))
            if not same or shard.manifest["model"] != shards[0].manifest["model"]:
                raise StoreError(
                    f"{shard.path} has another reduction or model than {shards[0].path}, so that their scores cannot be "
                    "compared: build the dense index of all shards with 'python -m specdec_lib datastore dense'"
                )
        return cls(store, shards[0].width, shards)

    @property
    def path(self) -> Path:
        """Folder of the store of shards."""
        return self.store.path

    def __len__(self) -> int:
        """Number of rows of all shards."""
        return sum(map(len, self.shards))

    def nearest(self, states: np.ndarray | torch.Tensor, k: int, length: int) -> list[tuple[float, list[int]]]:
        """The nearest stored states of one state.

        Parameters
        ----------
        states : float array or tensor of shape (1, width)
        k : int
        length : int
            Tokens of each continuation.

        Returns
        -------
        list of (float, list of int)
            Score and continuation, the largest score first.
        """
        found = []
        for shard in self.shards:
            scores, positions = (rows[0].tolist() for rows in shard.search(states, k))
            found += [
                (score, shard.store.continuation(position, length))
                for score, position in zip(scores, positions, strict=True)
                if position >= 0
            ]
        return sorted(found, key=lambda one: -one[0])[:k]  # equal scores stay in order of the shards


def open_suffix_index(store: TokenStore | str | Path) -> SuffixIndex | ShardedSuffixIndex:
    r"""The suffix array of a store, or of a store of shards, whichever the folder holds.

    Parameters
    ----------
    store : TokenStore or path

    Returns
    -------
    SuffixIndex or ShardedSuffixIndex

    Examples
    --------
    >>> from specdec_lib.datastores import build_from_texts, open_suffix_index
    >>> store = build_from_texts(folder / "store", ["x = 1\n"], tokenizer, progress=False)
    >>> type(open_suffix_index(folder / "store")).__name__
    'SuffixIndex'
    """
    if not isinstance(store, TokenStore) and is_sharded(store):
        return ShardedSuffixIndex.open(store)
    return SuffixIndex.open(store)


def open_dense_index(path: TokenStore | str | Path) -> DenseIndex | ShardedDenseIndex:
    """The dense index of a store, or of a store of shards, whichever the folder holds.

    Parameters
    ----------
    path : TokenStore or path

    Returns
    -------
    DenseIndex or ShardedDenseIndex

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores import ArrayStates, build_dense_index, build_tokens, open_dense_index
    >>> store = build_tokens(folder / "store", [[5, 6, 7]], vocabulary=10, progress=False)
    >>> states = ArrayStates(np.array([2, 3]), np.eye(2, 8))
    >>> built = build_dense_index(folder / "store/dense", states, dims=2, progress=False)
    >>> len(open_dense_index(folder / "store"))
    2
    """
    if not isinstance(path, TokenStore) and is_sharded(path):
        return ShardedDenseIndex.open(path)
    return DenseIndex.open(path)
