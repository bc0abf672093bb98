"""Build a token store in chunks: memory is bounded, and a kill shows nothing unfinished.

A large corpus is a store of shards (:mod:`specdec_lib.datastores.sharded_build`): there an interrupted build keeps the shards
that were finished.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from specdec_lib import files
from specdec_lib.datastores import arrays, dense, suffix_array
from specdec_lib.datastores.suffix_array import build_suffix_array
from specdec_lib.datastores.tokens import (
    FILES,
    FORMAT,
    MANIFEST,
    TokenStore,
    token_dtype,
    tokenizer_fingerprint,
    tokenizer_vocabulary,
)
from specdec_lib.decoding.checks import whole_number

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Tokens held in memory before they are written; a longer document is held whole.
CHUNK_TOKENS = 1 << 20
_BATCH = 64
Document = str | Sequence[int] | np.ndarray
Encode = Callable[[list[str]], list[list[int]]]
#: Files of a store and of its suffix array, and what the killed build of a dense index left.
NAMES = (*FILES, *suffix_array.FILES, f"{dense.FOLDER}{files.UNFINISHED}")


def build_tokens(
    path: str | Path,
    documents: Iterable[Document],
    vocabulary: int,
    *,
    encode: Encode | None = None,
    fingerprint: str | None = None,
    sources: Sequence[dict] = (),
    max_tokens: int | None = None,
    progress: bool = True,
    finish: Callable[[Path], object] | None = None,
) -> TokenStore:
    """Write a token store and open it.

    A store that is already at ``path`` stays until the new one is whole. One with a dense index inside it is not replaced.

    Parameters
    ----------
    path : path
        Folder of the store.
    documents : iterable of sequences of int, or of str
        Token ids of each document, or texts with ``encode``; read once. Those of fewer than two tokens, none of which has a
        continuation, are left out and counted.
    vocabulary : int
        Number of token ids of the tokenizer.
    encode : callable, optional
        Turns a list of texts into lists of ids (:func:`encoder`).
    fingerprint : str, optional
        Of the tokenizer (:func:`~specdec_lib.datastores.tokens.tokenizer_fingerprint`).
    sources : sequence of dict
        What the manifest is to say of where the documents come from, JSON.
    max_tokens : int, optional
        Take whole documents from the first on while they have no more tokens than this together.
    progress : bool
        Show a bar.
    finish : callable, optional
        Called with the folder of the finished store before it takes its place; adds an index to it.

    Returns
    -------
    TokenStore

    Raises
    ------
    StoreBusy
        If another process builds the store.
    StoreError
        If the store at ``path`` has a dense index.
    ValueError
        If no document has two tokens, or one has an id outside the vocabulary.

    Examples
    --------
    >>> from specdec_lib.datastores import build_tokens
    >>> store = build_tokens(folder / "store", [[5, 6, 7], [5, 8], [9]], vocabulary=10, progress=False)
    >>> len(store), store.manifest["skipped_documents"]
    (2, 1)
    """
    path = files.located(path)
    token_dtype(vocabulary)
    vocabulary = int(vocabulary)
    max_tokens = None if max_tokens is None else whole_number("max_tokens", max_tokens, 1)
    check_target(path)
    with files.building(path, NAMES) as unfinished:
        arrays = _encoded(documents, encode, vocabulary)
        counts = _write(unfinished, arrays, vocabulary, max_tokens, progress)
        known = {"vocabulary": vocabulary, "dtype": token_dtype(vocabulary).name, "tokenizer": fingerprint}
        about = {**known, "sources": list(sources), **counts}
        files.write_manifest(unfinished / MANIFEST, FORMAT, about, FILES)
        if finish is not None:
            finish(unfinished)
    return TokenStore.open(path)


def check_target(path: Path) -> None:
    """Reject a path at which no datastore can be written, before any work is done."""
    if (files.current_place(index := path / dense.FOLDER) / dense.MANIFEST).is_file():
        raise files.StoreError(f"{path} stays: {index} is of its tokens; remove that, or name another folder")
    files.check_target(path, MANIFEST, FORMAT, "datastore", NAMES)


def build_from_texts(
    path: str | Path,
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    suffix_array: bool = True,
    progress: bool = True,
    **options: Any,
) -> TokenStore:
    r"""Tokenize texts into a store with its suffix array.

    Special tokens are not added: a text's tokens are what a model would emit inside it.

    Parameters
    ----------
    path : path
        Folder of the store.
    texts : iterable of str
        Each is a document; read once.
    tokenizer : PreTrainedTokenizerBase
    suffix_array : bool
        Whether to build one.
    progress : bool
        Show bars.
    **options
        ``sources`` and ``max_tokens`` of :func:`build_tokens`.

    Returns
    -------
    TokenStore

    Examples
    --------
    >>> from specdec_lib.datastores import SuffixIndex, build_from_texts
    >>> texts = ["def add(x, y):\n    return x + y\n", "def double(x):\n    return 2 * x\n"]
    >>> store = build_from_texts(folder / "store", texts, tokenizer, progress=False)
    >>> tokenizer.decode(store.document(1)) == texts[1]
    True
    >>> SuffixIndex.open(store).longest(tokenizer("(x):\n    return")["input_ids"]).length
    5
    """
    return build_tokens(
        path,
        texts,
        tokenizer_vocabulary(tokenizer),
        encode=encoder(tokenizer),
        fingerprint=tokenizer_fingerprint(tokenizer),
        progress=progress,
        finish=partial(build_suffix_array, progress=progress) if suffix_array else None,
        **options,
    )


def encoder(tokenizer: PreTrainedTokenizerBase) -> Encode:
    """A function from texts to token ids, without special tokens.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase

    Returns
    -------
    callable
        From a list of str to a list of lists of int; a ValueError for a text with half of a surrogate pair.

    Examples
    --------
    >>> from specdec_lib.datastores import encoder
    >>> encode = encoder(tokenizer)
    >>> [tokenizer.decode(ids) for ids in encode(["x = 1", "y = 2"])]
    ['x = 1', 'y = 2']
    """

    def encode(batch: list[str]) -> list[list[int]]:
        for text in batch:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"the text that begins with {text[:30]!r} has half of a surrogate pair as its character "
                    f"{error.start + 1}, which no tokenizer takes: read the text again as what it is, or replace "
                    "such halves, text.encode(errors='replace').decode() say"
                ) from None
        # A document may be longer than any context: that is no reason for the tokenizer's warning.
        return tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]

    return encode


def _encoded(documents: Iterable[Document], encode: Encode | None, vocabulary: int) -> Iterator[np.ndarray]:
    """Token ids of each document, checked."""
    documents, number = iter(documents), 0
    while batch := list(itertools.islice(documents, _BATCH)):
        for ids in map(np.asarray, batch if encode is None else encode(batch)):
            number += 1
            if ids.ndim != 1 or (len(ids) and not np.issubdtype(ids.dtype, np.integer)):
                raise TypeError(
                    f"document {number} is {ids.dtype} of shape {ids.shape}; expected token ids (for texts: build_from_texts)"
                )
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
                wrong = int(ids[(ids < 0) | (ids >= vocabulary)][0])
                raise ValueError(
                    f"document {number} has the token id {wrong}, outside the vocabulary of {vocabulary}: another tokenizer's?"
                )
            yield ids


def first_documents(documents: Iterator[np.ndarray], max_tokens: int | None) -> Iterator[np.ndarray]:
    """The documents up to the first that would exceed a number of tokens.

    Parameters
    ----------
    documents : iterator of int arrays
    max_tokens : int or None
        None takes all. Documents of fewer than two tokens, which no store keeps, do not count.

    Yields
    ------
    int array

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.build import first_documents
    >>> [len(ids) for ids in first_documents(map(np.arange, (3, 1, 2, 4)), max_tokens=6)]
    [3, 1, 2]
    """
    tokens = 0
    for ids in documents:
        if max_tokens is not None and tokens + len(ids) > max_tokens:
            return
        tokens += len(ids) if len(ids) > 1 else 0
        yield ids


def holds(store: TokenStore, texts: Iterable[str], encode: Encode, max_tokens: int | None) -> bool:
    r"""Whether a store is what :func:`build_tokens` would make of texts.

    Parameters
    ----------
    store : TokenStore
    texts : iterable of str
    encode : callable
    max_tokens : int or None

    Returns
    -------
    bool

    Examples
    --------
    >>> from specdec_lib.datastores import build_from_texts, encoder
    >>> from specdec_lib.datastores.build import holds
    >>> store = build_from_texts(folder / "store", ["x = 1\n"], tokenizer, progress=False)
    >>> [holds(store, [text], encoder(tokenizer), None) for text in ("x = 1\n", "x = 2\n")]
    [True, False]
    """
    kept = (ids for ids in first_documents(_encoded(texts, encode, store.vocabulary), max_tokens) if len(ids) > 1)
    pairs = itertools.zip_longest(kept, map(store.document, range(len(store))))
    return all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs)


def _write(
    folder: Path, documents: Iterator[np.ndarray], vocabulary: int, max_tokens: int | None, progress: bool
) -> dict[str, int]:
    """Write tokens and starts in chunks; how many documents and tokens they are, and how many documents were too short."""
    dtype, wide = token_dtype(vocabulary), np.dtype(np.int64)
    separator = np.array([vocabulary], dtype)
    chunk, starts = [separator], [1]
    count, tokens, skipped, written = 0, 0, 0, 0
    with (
        (folder / "tokens.npy").open("xb") as token_file,
        (folder / "documents.npy").open("xb") as start_file,
        tqdm(desc="tokens", unit=" tokens", unit_scale=True, total=max_tokens, disable=not progress) as bar,
    ):
        arrays.npy_header(token_file, dtype, 0)
        arrays.npy_header(start_file, wide, 0)

        def flush() -> None:
            files.write(token_file, np.concatenate(chunk).data)
            files.write(start_file, np.array(starts, wide).data)
            chunk.clear()
            starts.clear()

        for ids in first_documents(documents, max_tokens):
            if len(ids) < 2:
                skipped += 1
                continue
            count, tokens = count + 1, tokens + len(ids)
            chunk += [ids.astype(dtype), separator]
            starts.append(tokens + count + 1)
            if tokens - written >= CHUNK_TOKENS:
                flush()
                bar.update(tokens - written)
                written = tokens
        if count == 0:
            within = "" if max_tokens is None else f" within max_tokens={max_tokens}"
            raise ValueError(f"the corpus is empty: it has no document of two or more tokens{within}")
        if chunk:
            flush()
        bar.update(tokens - written)
        for file, kind, length in ((token_file, dtype, tokens + count + 1), (start_file, wide, count + 1)):
            arrays.npy_header(file, kind, length)
    return {"documents": count, "tokens": tokens, "skipped_documents": skipped}
