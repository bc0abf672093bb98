"""What drafts are retrieved from: a token store, and indexes over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_lib.datastores.build import CHUNK_TOKENS, build_tokens
from specdec_lib.datastores.dense import DenseIndex, build_dense_index
from specdec_lib.datastores.ranks import mean_reciprocal_rank, next_token_reciprocal_rank
from specdec_lib.datastores.reduction import fit_transform
from specdec_lib.datastores.rest_import import import_rest
from specdec_lib.datastores.sharded import (
    ShardedDenseIndex,
    ShardedSuffixIndex,
    add_shard,
    open_dense_index,
    open_suffix_index,
    remove_shard,
)
from specdec_lib.datastores.states import ArrayStates, States
from specdec_lib.datastores.store_files import StoreBusy, StoreError
from specdec_lib.datastores.suffix_array import Match, SuffixIndex, build_suffix_array
from specdec_lib.datastores.tokens import TokenStore, tokenizer_fingerprint, tokenizer_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "ArrayStates",
    "DenseIndex",
    "Match",
    "ShardedDenseIndex",
    "ShardedSuffixIndex",
    "States",
    "StoreBusy",
    "StoreError",
    "SuffixIndex",
    "TokenStore",
    "add_shard",
    "build_dense_index",
    "build_from_texts",
    "build_suffix_array",
    "build_tokens",
    "fit_transform",
    "import_rest",
    "mean_reciprocal_rank",
    "next_token_reciprocal_rank",
    "open_dense_index",
    "open_suffix_index",
    "remove_shard",
    "tokenizer_fingerprint",
    "tokenizer_vocabulary",
]


def build_from_texts(
    path: str | Path,
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    sources: Sequence[dict] = (),
    max_tokens: int | None = None,
    short_documents: str = "error",
    chunk_tokens: int = CHUNK_TOKENS,
    suffix_array: bool = True,
    progress: bool = True,
) -> TokenStore:
    """Tokenize texts, one document each, into a store with its suffix array.

    Special tokens are not added: a text's tokens are what a model would emit inside it.

    Parameters
    ----------
    path, sources, max_tokens, short_documents, chunk_tokens, progress
        As for :func:`~specdec_lib.datastores.build.build_tokens`, which says what happens when it is
        interrupted.
    texts : iterable of str
        A list, or an object that starts again with each ``iter()``.
    tokenizer : PreTrainedTokenizerBase
    suffix_array : bool
        Build the sparse index too.

    Raises
    ------
    ValueError, StoreBusy, OSError
        As for :func:`~specdec_lib.datastores.build.build_tokens`; a ValueError also where a text holds half of a
        surrogate pair, which is no character.
    """
    finish = (lambda folder: build_suffix_array(folder, progress)) if suffix_array else None
    return build_tokens(
        path,
        texts,
        tokenizer_vocabulary(tokenizer),
        encode=encoder(tokenizer),
        fingerprint=tokenizer_fingerprint(tokenizer),
        sources=sources,
        max_tokens=max_tokens,
        short_documents=short_documents,
        chunk_tokens=chunk_tokens,
        progress=progress,
        finish=finish,
    )


def encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[str]], list[list[int]]]:
    """What turns texts of documents into token ids: no special tokens, and a ValueError for half of a surrogate pair."""

    def encode(batch: list[str]) -> list[list[int]]:
        for text in batch:
            _refuse_surrogates(text)
        # A document may be longer than any context: that is no reason for the tokenizer's warning.
        return tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]

    return encode


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text that begins with {text[:30]!r} has half of a surrogate pair as its character "
            f"{error.start + 1}, which no tokenizer takes: read the text again as what it is, or replace "
            "such halves, text.encode(errors='replace').decode() say"
        ) from None
