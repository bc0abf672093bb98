"""The token store under every retrieval method: tokens, document boundaries, and a manifest of what they are.

A store is a folder. ``tokens.npy`` holds all documents, each between two separators; the separator is the id ``vocabulary``,
which no context has, so that no match or continuation crosses a document. ``documents.npy`` holds where each document starts,
``manifest.json`` the vocabulary, tokenizer, sources and checksums. The arrays are memory-mapped.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_lib import files
from specdec_lib.datastores import arrays
from specdec_lib.files import StoreBusy as StoreBusy
from specdec_lib.files import StoreError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT = "specdec-lib token store"
MANIFEST = "manifest.json"
FILES = ("tokens.npy", "documents.npy")
#: Largest vocabulary; one id more is the separator. Tokenizers have up to about 2**20 ids, and a suffix array keeps a
#: number of 8 bytes for each id: a wrong vocabulary must not ask for the memory of one of 2**32.
LARGEST_VOCABULARY = 2**24


def token_dtype(vocabulary: int) -> np.dtype:
    """The smaller of uint16 and uint32 that holds the ids of a vocabulary and the separator.

    Parameters
    ----------
    vocabulary : int
        Number of token ids, 1 to :data:`LARGEST_VOCABULARY`.

    Returns
    -------
    numpy.dtype

    Examples
    --------
    >>> from specdec_lib.datastores.tokens import token_dtype
    >>> token_dtype(4096), token_dtype(65536)
    (dtype('uint16'), dtype('uint32'))
    """
    if not hasattr(vocabulary, "__index__") or not 1 <= vocabulary <= LARGEST_VOCABULARY:
        raise ValueError(f"vocabulary is {vocabulary!r}; expected the number of token ids, 1 to {LARGEST_VOCABULARY}")
    return np.dtype(np.uint16 if vocabulary < 2**16 else np.uint32)


#: Of tokenizers that do not change: their sizes, and what :func:`tokenizer_fingerprint` gave.
_PRINTS: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, str]] = weakref.WeakKeyDictionary()


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 of a tokenizer's vocabulary and merges, whatever its padding and truncation.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase

    Returns
    -------
    str
        64 hexadecimal digits.

    Examples
    --------
    >>> from specdec_lib import load_model
    >>> from specdec_lib.datastores import tokenizer_fingerprint
    >>> _, of_the_draft = load_model("pocket-draft", "cpu")
    >>> tokenizer_fingerprint(of_the_draft) == tokenizer_fingerprint(tokenizer)
    True
    """
    size, known = _PRINTS.get(tokenizer, (None, ""))
    if size != len(tokenizer):
        _PRINTS[tokenizer] = len(tokenizer), (known := _fingerprint(tokenizer))
    return known


def _fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    merges = None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        merges = json.loads(backend.to_str())["model"].get("merges")
        if merges is not None:
            # Written as "a b" or as ["a", "b"], depending on the version of tokenizers.
            merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    return hashlib.sha256(json.dumps([vocabulary, merges]).encode()).hexdigest()


def tokenizer_vocabulary(tokenizer: PreTrainedTokenizerBase) -> int:
    """Number of token ids of a tokenizer: one more than the largest.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase

    Returns
    -------
    int

    Examples
    --------
    >>> from specdec_lib.datastores import tokenizer_vocabulary
    >>> tokenizer_vocabulary(tokenizer)
    4096
    """
    return max(tokenizer.get_vocab().values()) + 1


def check_vocabulary(store: TokenStore, vocabulary: int, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
    """Reject a store of another tokenizer than a model's.

    Parameters
    ----------
    store : TokenStore
    vocabulary : int
        Token ids of the model.
    tokenizer : PreTrainedTokenizerBase, optional
        The model's, where it is known.

    Raises
    ------
    ValueError
        If the store has more token ids than the model.
    StoreError
        If the store was built with another tokenizer.

    Examples
    --------
    >>> from specdec_lib.datastores import build_tokens
    >>> from specdec_lib.datastores.tokens import check_vocabulary
    >>> store = build_tokens(folder / "store", [[5, 6, 7]], vocabulary=10, progress=False)
    >>> check_vocabulary(store, 10)
    >>> check_vocabulary(store, 8)
    Traceback (most recent call last):
        ...
    ValueError: ... has 10 token ids, the model 8: they do not share a tokenizer; build a store for this model
    """
    if store.vocabulary > vocabulary:
        raise ValueError(
            f"{store.path} has {store.vocabulary} token ids, the model {vocabulary}: they do not share a tokenizer; build a store "
            "for this model"
        )
    if tokenizer is not None and store.manifest["tokenizer"] not in (None, own := tokenizer_fingerprint(tokenizer)):
        known = store.manifest["tokenizer"]
        raise StoreError(
            f"{store.path} holds the tokens of another tokenizer ({known[:12]}, the model's is {own[:12]}); build one for "
            "this model"
        )


_FIELDS = {
    "vocabulary": lambda value: files.is_count(value) and 1 <= value <= LARGEST_VOCABULARY,
    "tokens": files.is_count,
    "documents": files.is_count,
    "skipped_documents": files.is_count,
    "dtype": files.is_text,
    "tokenizer": files.is_text_or_none,
    "sources": files.is_object_list,
}


@dataclass(frozen=True, eq=False)
class TokenStore:
    """Tokens of many documents, memory-mapped and read-only; :meth:`open` reads one.

    Examples
    --------
    >>> from specdec_lib.datastores import TokenStore, build_tokens
    >>> built = build_tokens(folder / "store", [[5, 6, 7], [5, 8]], vocabulary=10, progress=False)
    >>> store = TokenStore.open(folder / "store")
    >>> len(store), store.count
    (2, 5)
    >>> store.document(1).tolist()
    [5, 8]
    >>> store.tokens.tolist()
    [10, 5, 6, 7, 10, 5, 8, 10]
    """

    path: Path
    manifest: dict[str, Any]
    #: Documents and separators, a separator first and last; uint16 or uint32, shape (T,).
    tokens: np.ndarray
    #: Where each document starts, and T; int64, shape (documents + 1,). Document ``i`` is ``tokens[starts[i]:starts[i + 1] - 1]``.
    starts: np.ndarray

    @classmethod
    def open(cls, path: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> TokenStore:
        """Open a finished store.

        Parameters
        ----------
        path : path
        tokenizer : PreTrainedTokenizerBase, optional
            The one that the tokens must be of.

        Returns
        -------
        TokenStore

        Raises
        ------
        StoreError
            If there is no whole store, it is damaged, or its tokens are another tokenizer's.

        Examples
        --------
        >>> from specdec_lib.datastores import TokenStore
        >>> TokenStore.open(folder / "none")
        Traceback (most recent call last):
            ...
        specdec_lib.files.StoreError: no datastore at ...none: build one with 'python -m specdec_lib datastore build'
        """
        path = files.located(path)
        store = files.read_one_build(path, MANIFEST, lambda folder: cls.of_build(path, folder))
        if tokenizer is not None:
            store.check_tokenizer(tokenizer)
        return store

    @classmethod
    def of_build(cls, path: Path, folder: Path) -> TokenStore:
        """The store at ``path`` as one build of it, ``folder``, has it (``specdec_lib.files.read_one_build``)."""
        manifest = files.read_manifest(folder / MANIFEST, FORMAT, _what_is_there(path), FILES, _FIELDS)
        separator = manifest["vocabulary"]
        length = manifest["tokens"] + manifest["documents"] + 1
        tokens = arrays.open_array(folder / "tokens.npy", token_dtype(separator), length)
        starts = arrays.open_array(folder / "documents.npy", np.dtype(np.int64), manifest["documents"] + 1)
        # The compiled loops walk from separator to separator and check no bounds.
        if tokens[0] != separator or tokens[-1] != separator:
            raise StoreError(f"{folder / 'tokens.npy'} does not begin and end with a separator: build the store again")
        arrays.check_range(folder / "tokens.npy", tokens, 0, separator, "token")
        arrays.check_range(folder / "documents.npy", starts, 1, length, "start")
        rising = starts[0] == 1 and starts[-1] == length and (starts[1:] > starts[:-1]).all()
        if not (rising and (tokens[starts - 1] == separator).all()):
            raise StoreError(f"{folder / 'documents.npy'} does not say where documents start: build the store again")
        return cls(path, manifest, tokens, starts)

    @property
    def vocabulary(self) -> int:
        """Number of token ids; the separator is the id after them."""
        return self.manifest["vocabulary"]

    @property
    def digest(self) -> str:
        """sha256 of the file of tokens, by which indexes and states know their store."""
        return self.manifest["files"]["tokens.npy"]["sha256"]

    @property
    def count(self) -> int:
        """Number of tokens, separators not counted."""
        return self.manifest["tokens"]

    def __len__(self) -> int:
        """Number of documents."""
        return self.manifest["documents"]

    def __repr__(self) -> str:
        return (
            f"TokenStore({str(self.path)!r}: {self.count:,} tokens in {len(self):,} documents, "
            f"vocabulary {self.vocabulary})"
        )

    def document(self, index: int) -> np.ndarray:
        """Tokens of one document, read-only."""
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}; expected 0 to {len(self) - 1}")
        return self.tokens[self.starts[index] : self.starts[index + 1] - 1]

    def continuation(self, position: int, length: int) -> list[int]:
        """The tokens from a position on, to the end of their document at most.

        Parameters
        ----------
        position : int
            In ``tokens``.
        length : int
            Most tokens.

        Returns
        -------
        list of int

        Examples
        --------
        >>> from specdec_lib.datastores import build_tokens
        >>> store = build_tokens(folder / "store", [[5, 6, 7], [5, 8]], vocabulary=10, progress=False)
        >>> store.continuation(2, length=5)
        [6, 7]
        """
        tokens = self.tokens[position : position + length].tolist()
        return tokens[: tokens.index(self.vocabulary)] if self.vocabulary in tokens else tokens

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Reject another tokenizer than the one the store was built with, also where the store does not know its own."""
        known = self.manifest["tokenizer"]
        if known is None:
            raise StoreError(f"{self.path} was built without a tokenizer to compare yours with; build it with one")
        own = tokenizer_fingerprint(tokenizer)
        if known != own:
            raise StoreError(
                f"{self.path} holds the tokens of another tokenizer ({known[:12]}, yours is {own[:12]}); build one for this model"
            )

    def verify(self) -> None:
        """Read every byte and compare it with the manifest's checksums; StoreError if a file was altered."""
        files.check_opened(self.path, MANIFEST, self.manifest)


def _what_is_there(path: Path) -> str:
    if files.beside(path, files.UNFINISHED).is_dir():
        return f"{path} is not built yet: its build still runs or was interrupted; run it again"
    if not path.exists():
        return f"no datastore at {path}: build one with 'python -m specdec_lib datastore build'"
    return f"{path} is no datastore: its {MANIFEST} is missing or damaged; name a folder made by 'datastore build'"
