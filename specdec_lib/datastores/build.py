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
from specdec_lib.decoding.checks import whole

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
    documents : iterable of sequences of int, or of str
        Token ids of each document, or texts with ``encode``, which turns a list of texts into lists of ids; read once. Those of
        fewer than two tokens, none of which has a continuation, are left out and counted.
    vocabulary, fingerprint : int, str
        Number of token ids, and :func:`~specdec_lib.datastores.tokens.tokenizer_fingerprint`, of the tokenizer.
    max_tokens : int, optional
        Take whole documents from the first on while they have no more tokens than this together.
    finish : callable, optional
        Called with the folder of the finished store before it takes its place; adds an index to it.
    """
    path = files.located(path)
    token_dtype(vocabulary)
    vocabulary = int(vocabulary)
    max_tokens = None if max_tokens is None else whole("max_tokens", max_tokens, 1)
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
    """Refuse a path at which no datastore can be written, before any work is done."""
    if (files.present(index := path / dense.FOLDER) / dense.MANIFEST).is_file():
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
    """Tokenize texts, one document each, into a store with its suffix array, unless ``suffix_array`` is False.

    Special tokens are not added: a text's tokens are what a model would emit inside it. The rest is as for
    :func:`build_tokens`.
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
    """Return a function from texts to token ids: no special tokens, and a ValueError for half of a surrogate pair."""

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


def taken(documents: Iterator[np.ndarray], max_tokens: int | None) -> Iterator[np.ndarray]:
    """The documents up to the first that would exceed ``max_tokens``; those of fewer than two tokens, which no store keeps,
    do not count."""
    tokens = 0
    for ids in documents:
        if max_tokens is not None and tokens + len(ids) > max_tokens:
            return
        tokens += len(ids) if len(ids) > 1 else 0
        yield ids


def holds(store: TokenStore, texts: Iterable[str], encode: Encode, max_tokens: int | None) -> bool:
    """Whether a store is what :func:`build_tokens` would make of texts."""
    kept = (ids for ids in taken(_encoded(texts, encode, store.vocabulary), max_tokens) if len(ids) > 1)
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

        for ids in taken(documents, max_tokens):
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
