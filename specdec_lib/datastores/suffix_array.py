"""Sparse retrieval: where the last tokens occurred before, by one search in a suffix array of the reversed tokens.

REST searches a suffix array once for each suffix length, from the longest down (REST, Algorithm 1). Reversed, the suffixes of a
context are prefixes of one string: its two neighbours in the sorted order share the longest suffix with it.

An entry is a position ``p`` of the store whose token has a successor in the same document, sorted by the tokens read backwards
from ``p``. Without a continuation it is no pair of REST's datastore (section 3.2).

The last tokens of every 64th entry are kept as one number of 64 bits. The search goes over these first, because they stay in
the processor's cache.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

from specdec_lib import files
from specdec_lib.datastores import arrays, tokens
from specdec_lib.datastores.tokens import TokenStore
from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.compiled import compiled
from specdec_lib.files import StoreError

FORMAT = "specdec-lib suffix array of reversed tokens"
MANIFEST = "suffix_array.json"
FILES = ("suffix_array.npy", "first.npy", "keys.npy")
_WRITE_ENTRIES = 1 << 22
#: Entries from one key to the next.
STRIDE = 64


class Match(NamedTuple):
    """Where a suffix of a context occurs: entries ``start`` to ``stop`` of the suffix array; length 0 is none.

    Examples
    --------
    >>> from specdec_lib.datastores import build_suffix_array, build_tokens
    >>> store = build_tokens(folder / "store", [[5, 6, 7], [5, 6, 8]], vocabulary=10, progress=False)
    >>> match = build_suffix_array(store, progress=False).longest([9, 5, 6])
    >>> match.length, match.stop - match.start
    (2, 2)
    """

    length: int
    start: int
    stop: int


@compiled
def _shared(tokens, position, context, last, known, limit):
    """Number of tokens, up to ``limit``, that agree reading backwards; ``known`` of them do, if the entries are in order. In an
    altered file they may not be, so nothing is read before the first token."""
    i = known
    while i < limit and i <= position and np.int64(tokens[position - i]) == context[last - i]:
        i += 1
    return i


@compiled
def _first_shorter(tokens, suffixes, context, last, length, inside, end, way):
    """From ``inside`` to ``end``, up (1) or down (-1), the first entry that shares fewer than ``length`` tokens, else ``end``."""
    step = way
    while (end - inside - step) * way > 0:
        if _shared(tokens, suffixes[inside + step], context, last, 0, length) < length:
            break
        inside += step
        step *= 2
    if (end - inside - step) * way > 0:
        end = inside + step
    while (end - inside) * way > 1:
        middle = (inside + end) // 2
        if _shared(tokens, suffixes[middle], context, last, 0, length) == length:
            inside = middle
        else:
            end = middle
    return end


@compiled
def _bracket(keys, wanted, begin, end):
    """Find two entries in ``begin - 1 .. end``: all before the first sort before the key, all from the second on after it."""
    # Keys outside the range, or none.
    low, high = (begin + STRIDE - 1) // STRIDE - 1, (end - 1) // STRIDE + 1
    first, last = low, high
    while high - low > 1:
        middle = (low + high) // 2
        if keys[middle] < wanted:
            low = middle
        else:
            high = middle
    below = begin - 1 if low == first else low * STRIDE
    low, high = high - 1, last
    while high - low > 1:
        middle = (low + high) // 2
        if keys[middle] <= wanted:
            low = middle
        else:
            high = middle
    return below, end if high == last else high * STRIDE


@compiled
def longest_suffix(tokens, suffixes, first, keys, context, count, max_ngram):
    """The longest suffix of a context that a suffix array has, as :meth:`SuffixIndex.longest` finds it.

    Parameters
    ----------
    tokens, suffixes, first, keys : arrays
        The ``arrays`` of :class:`SuffixIndex`.
    context : int64 array
    count : int
        Tokens of the context that count.
    max_ngram : int

    Returns
    -------
    length : int
    start, stop : int
        The range of its entries.
    place : int
        The entry before which the context itself would stand.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores import build_suffix_array, build_tokens
    >>> from specdec_lib.datastores.suffix_array import longest_suffix
    >>> store = build_tokens(folder / "store", [[5, 6, 7], [5, 6, 8]], vocabulary=10, progress=False)
    >>> index = build_suffix_array(store, progress=False)
    >>> longest_suffix(*index.arrays, np.array([9, 5, 6]), 3, 16)
    (2, 2, 4, 2)
    """
    vocabulary, last = len(first) - 1, count - 1
    # An id that the store cannot hold, the separator's among them, ends what can match.
    limit = 0
    while limit < max_ngram and limit < count and 0 <= context[last - limit] < vocabulary:
        limit += 1
    if limit == 0:
        return 0, 0, 0, 0
    begin, end = first[context[last]], first[context[last] + 1]
    if begin == end:
        return 0, 0, 0, begin
    below, above = begin - 1, end  # the context's place is between these two entries
    below_shared, above_shared = 1, 1
    in_key = 8 // tokens.itemsize
    if end - begin > 2 * STRIDE and limit >= in_key:
        wanted = np.uint64(0)
        for i in range(in_key):
            wanted = (wanted << np.uint64(8 * tokens.itemsize)) | np.uint64(context[last - i])
        below, above = _bracket(keys, wanted, begin, end)
        if below >= begin:
            below_shared = _shared(tokens, suffixes[below], context, last, 1, limit)
        if above < end:
            above_shared = _shared(tokens, suffixes[above], context, last, 1, limit)
    while above - below > 1:
        middle = (below + above) // 2
        position = suffixes[middle]
        shared = _shared(tokens, position, context, last, min(below_shared, above_shared), limit)
        if shared < limit and shared <= position and np.int64(tokens[position - shared]) < context[last - shared]:
            below, below_shared = middle, shared
        else:
            above, above_shared = middle, shared
    length = max(below_shared if below >= begin else 0, above_shared if above < end else 0)
    if length == 1:
        return 1, begin, end, above
    start, stop = above, above
    if below >= begin and below_shared == length:
        start = _first_shorter(tokens, suffixes, context, last, length, below, begin - 1, -1) + 1
    if above < end and above_shared == length:
        stop = _first_shorter(tokens, suffixes, context, last, length, above, end, 1)
    return length, start, stop, above


@dataclass(frozen=True, eq=False)
class SuffixIndex:
    """The suffix array of a store's reversed tokens, memory-mapped and read-only; :meth:`open` reads one (REST, Algorithm 1).

    Examples
    --------
    >>> from specdec_lib.datastores import SuffixIndex, build_suffix_array, build_tokens
    >>> store = build_tokens(folder / "store", [[5, 6, 7], [5, 6, 8]], vocabulary=10, progress=False)
    >>> built = build_suffix_array(store, progress=False)
    >>> index = SuffixIndex.open(folder / "store")
    >>> match = index.longest([9, 5, 6])
    >>> [store.continuation(int(position) + 1, length=4) for position in index.positions(match)]
    [[7], [8]]
    """

    store: TokenStore
    #: Positions in ``store.tokens``, sorted by the tokens read backwards from there; int32, shape (entries,).
    suffixes: np.ndarray
    #: The entries whose last token is ``t`` are ``first[t]`` to ``first[t + 1]``; int64, shape (vocabulary + 1,).
    first: np.ndarray
    #: The last four (uint16) or two (uint32) tokens of every 64th entry; uint64, shape (ceil(entries / 64),).
    keys: np.ndarray
    manifest: dict = field(repr=False)
    #: Tokens, suffixes, first and keys: what :func:`longest_suffix` takes.
    arrays: tuple[np.ndarray, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", (self.store.tokens, self.suffixes, self.first, self.keys))

    @classmethod
    def open(cls, store: TokenStore | str | Path) -> SuffixIndex:
        """Open the index of a store.

        Parameters
        ----------
        store : TokenStore or path

        Returns
        -------
        SuffixIndex

        Raises
        ------
        StoreError
            If the store has no suffix array, or was built again since it was opened.
        """
        path = store.path if isinstance(store, TokenStore) else files.located(store)

        def read(folder: Path) -> SuffixIndex:
            now = TokenStore.of_build(path, folder) if not isinstance(store, TokenStore) else store
            return cls._of_build(now, folder)

        return files.read_one_build(path, tokens.MANIFEST, read)

    @classmethod
    def _of_build(cls, store: TokenStore, folder: Path) -> SuffixIndex:
        path = folder / MANIFEST
        about = files.read_manifest(
            path,
            FORMAT,
            f"{store.path} has no suffix array: build one with 'python -m specdec_lib datastore build', or with "
            "specdec_lib.datastores.build_suffix_array",
            FILES,
            {"entries": files.is_count, "tokens_sha256": files.is_text},
        )
        if about["tokens_sha256"] != store.digest:
            raise StoreError(
                f"{path} belongs to other tokens than those of the store: if that was built again since it was opened, open "
                "it again; else build the suffix array again"
            )
        entries = about["entries"]
        suffixes = arrays.open_array(folder / "suffix_array.npy", np.dtype(np.int32), entries)
        first = arrays.open_array(folder / "first.npy", np.dtype(np.int64), store.vocabulary + 1)
        keys = arrays.open_array(folder / "keys.npy", np.dtype(np.uint64), -(-entries // STRIDE))
        # The compiled loops read tokens up to an entry's successor and entries from first[t] to first[t + 1], and
        # check no bounds. The first and the last of the tokens are separators.
        arrays.check_range(folder / "suffix_array.npy", suffixes, 1, len(store.tokens) - 2, "position")
        arrays.check_range(folder / "first.npy", first, 0, entries, "entry")
        if first[0] != 0 or first[-1] != entries or not (first[1:] >= first[:-1]).all():
            raise StoreError(f"{folder / 'first.npy'} does not rise from 0 to {entries}: build it again")
        return cls(store, suffixes, first, keys, about)

    def __repr__(self) -> str:
        return f"SuffixIndex({len(self.suffixes):,} entries of {self.store!r})"

    @property
    def entries(self) -> int:
        """Number of positions that have a continuation."""
        return len(self.suffixes)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of all arrays for each token, all of which a long run brings into memory."""
        size = sum(array.nbytes for array in (self.store.starts, *self.arrays))
        return size / self.store.count

    def longest(self, context: list[int] | np.ndarray, max_ngram: int = 16) -> Match:
        """The longest suffix of a context that the store continues, and where it occurs.

        Parameters
        ----------
        context : list of int or int array
        max_ngram : int
            Longest suffix looked up, in tokens.

        Returns
        -------
        Match
        """
        max_ngram = whole_number("max_ngram", max_ngram, 1)
        tail = np.array(context[-max_ngram:], dtype=np.int64)
        return Match(*longest_suffix(*self.arrays, tail, len(tail), max_ngram)[:3])

    def positions(self, match: Match) -> np.ndarray:
        """Where a match occurs.

        Parameters
        ----------
        match : Match

        Returns
        -------
        int32 array of shape (stop - start,)
            Positions in ``store.tokens`` of the last token of each occurrence, in order of the entries.
        """
        return self.suffixes[match.start : match.stop]

    def verify(self) -> None:
        """Read every byte of the index and of its store; StoreError where one differs from the checksums."""
        self.store.verify()
        files.check_opened(self.store.path, MANIFEST, self.manifest)


@compiled
def _keep_continued(sorted_bytes, width, tokens, first):
    """Turn offsets of bytes into positions with a continuation, in place; their number. ``first[t + 1]`` counts token ``t``."""
    separator, size, count = tokens[0], len(tokens), 0
    for i in range(len(sorted_bytes)):
        offset = sorted_bytes[i]
        if offset % width:
            continue
        position = size - 1 - offset // width
        token = tokens[position]
        if token != separator and tokens[position + 1] != separator:
            first[token + 1] += 1
            sorted_bytes[count] = position
            count += 1
    return count


@compiled
def _make_keys(tokens, suffixes):
    """The last tokens of every 64th entry, as one number each; zeros from a separator on, behind which no order counts."""
    in_key = 8 // tokens.itemsize
    keys = np.zeros((len(suffixes) + STRIDE - 1) // STRIDE, np.uint64)
    for i in range(len(keys)):
        position = suffixes[i * STRIDE]
        j = 0
        while j < in_key and (j == 0 or tokens[position - j + 1] != tokens[0]):
            keys[i] |= np.uint64(tokens[position - j]) << np.uint64(64 - 8 * tokens.itemsize * (j + 1))
            j += 1
    return keys


def reversed_bytes(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """The tokens backwards as big-endian numbers of as few bytes as the separator needs: they sort alike.

    Parameters
    ----------
    tokens : int array of shape (T,)
    vocabulary : int

    Returns
    -------
    uint8 array of shape (T, width)

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.suffix_array import reversed_bytes
    >>> reversed_bytes(np.array([5, 258]), vocabulary=300).tolist()
    [[1, 2], [0, 5]]
    """
    width = (vocabulary.bit_length() + 7) // 8
    out = np.empty((len(tokens), width), np.uint8)
    for begin in range(0, len(tokens), _WRITE_ENTRIES):
        part = tokens[::-1][begin : begin + _WRITE_ENTRIES]
        for i in range(width):
            out[begin : begin + len(part), i] = (part >> (8 * (width - 1 - i))) & 0xFF
    return out


def sorted_suffixes(text: np.ndarray) -> np.ndarray:
    """Starts of the suffixes of bytes, in their order: by pydivsufsort, or without it by NumPy, which is for small texts.

    Parameters
    ----------
    text : uint8 array of shape (n,)

    Returns
    -------
    int array of shape (n,)

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.suffix_array import sorted_suffixes
    >>> sorted_suffixes(np.frombuffer(bytearray(b"banana"), np.uint8)).tolist()
    [5, 3, 1, 0, 4, 2]
    """
    try:
        import pydivsufsort
    except ImportError:
        warnings.warn(
            "pydivsufsort is not installed: sorting suffixes by NumPy, which is slow for large stores; "
            "pip install pydivsufsort",
            stacklevel=2,
        )
        return _sorted_by_doubling(text)
    return pydivsufsort.divsufsort(text)


def _sorted_by_doubling(text: np.ndarray) -> np.ndarray:
    count, rank, step = len(text), text.astype(np.int64), 1
    if not count:
        return np.empty(0, np.int64)
    while True:
        behind = np.full(count, -1, np.int64)
        behind[: count - step] = rank[step:]
        key = rank * (int(rank.max()) + 2) + behind + 1
        order = np.argsort(key, kind="stable")
        new = np.empty(count, np.int64)
        new[order] = np.concatenate([[0], np.cumsum(key[order][1:] != key[order][:-1])])
        rank = new
        if rank.max() == count - 1:
            return order
        step *= 2


def build_suffix_array(store: TokenStore | str | Path, progress: bool = True) -> SuffixIndex:
    """Sort a store's reversed tokens and write the index beside them.

    An index that is there stays until each of its files is replaced by one of the same bytes. Memory holds 10 bytes a token for
    vocabularies up to 65,535 and 15 above; almost twice that from 2**31 bytes of ids on.

    Parameters
    ----------
    store : TokenStore or path
    progress : bool
        Show a bar.

    Returns
    -------
    SuffixIndex

    Raises
    ------
    StoreBusy
        If another process builds the store or an index in it.
    ValueError
        If the store has 2**31 tokens or more: build a store of shards.

    Examples
    --------
    >>> from specdec_lib.datastores import build_suffix_array, build_tokens
    >>> store = build_tokens(folder / "store", [[5, 6, 7], [5, 6, 8]], vocabulary=10, progress=False)
    >>> build_suffix_array(store, progress=False).entries
    4
    """
    if not isinstance(store, TokenStore):
        store = TokenStore.open(store)
    size = len(store.tokens)
    if size >= 2**31:
        raise ValueError(f"{store.path} has {size} tokens; expected fewer than {2**31}: build a store of shards")
    with files.locked(store.path):
        return _build(store, progress)


def _build(store: TokenStore, progress: bool) -> SuffixIndex:
    folder = files.current_place(store.path)
    if (files.read_json(folder / tokens.MANIFEST) or {}).get("files") != store.manifest["files"]:
        raise StoreError(f"{store.path} was built again since it was opened; open it again")
    first = np.zeros(store.vocabulary + 1, np.int64)
    with tqdm(desc="suffix array", total=3, unit=" stages", disable=not progress) as bar:
        text = reversed_bytes(store.tokens, store.vocabulary)
        width = text.shape[1]
        entries = sorted_suffixes(text.reshape(-1))
        del text
        bar.update()
        count = _keep_continued(entries, width, store.tokens, first)
        np.cumsum(first, out=first)
        bar.update()
        # All are written before the first takes its place. They follow from the tokens alone, so that those of before,
        # beside which some of them may stand for a moment, have the same bytes.
        with files.scratch(folder) as new:
            arrays.write_array(new / "suffix_array.npy", entries[:count], np.dtype(np.int32))
            arrays.write_array(new / "first.npy", first, np.dtype(np.int64))
            arrays.write_array(new / "keys.npy", _make_keys(store.tokens, entries[:count]), np.dtype(np.uint64))
            bar.update()
            files.write_manifest(new / MANIFEST, FORMAT, {"entries": count, "tokens_sha256": store.digest}, FILES)
            files.move_in(new, folder, (*FILES, MANIFEST))
    return SuffixIndex.open(store)
