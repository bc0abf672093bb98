"""Build a token store in chunks: memory is bounded, a kill loses at most one chunk and shows nothing
unfinished."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm.auto import tqdm

from specdec_lib import files
from specdec_lib.datastores import dense, store_files
from specdec_lib.datastores.tokens import FORMAT, MANIFEST, VERSION, TokenStore, token_dtype

CHUNK_TOKENS = 1 << 20
_BATCH = 64
_SHORT = ("error", "skip")
Document = str | Sequence[int] | np.ndarray
Encode = Callable[[list[str]], list[list[int]]]


def build_tokens(
    path: str | Path,
    documents: Iterable[Document],
    vocabulary: int,
    *,
    encode: Encode | None = None,
    fingerprint: str | None = None,
    sources: Sequence[dict] = (),
    max_tokens: int | None = None,
    short_documents: str = "error",
    chunk_tokens: int = CHUNK_TOKENS,
    progress: bool = True,
    finish: Callable[[Path], None] | None = None,
) -> TokenStore:
    """Write a token store and open it.

    The work is done in ``<path>.partial`` and renamed at the end. A build that was interrupted continues
    after its last whole chunk if it is called with the same arguments and its documents begin with the same
    ones; otherwise it starts anew. A store that is already at ``path`` stays until the new one takes its
    place. A dense index inside it is kept if the tokens are the same, and is not thrown away if they are not.

    Parameters
    ----------
    path : path
        Folder of the store.
    documents : iterable of sequences of int, or of str
        Token ids of each document, or texts with ``encode``. It may be read twice, so a list or an object
        that starts again with each ``iter()``, not a generator.
    vocabulary : int
        Number of token ids; all ids are below it.
    encode : callable, optional
        Turns a list of texts into lists of token ids.
    fingerprint : str, optional
        :func:`~specdec_lib.datastores.tokens.tokenizer_fingerprint` of the tokenizer.
    sources : sequence of dict
        Where the documents come from; kept in the manifest.
    max_tokens : int, optional
        Take whole documents from the first on while they have no more tokens than this together.
    short_documents : {"error", "skip"}
        A document of fewer than two tokens has no token with a continuation.
    chunk_tokens : int
        Tokens held in memory before they are written (a longer document is held whole).
    progress : bool
        Show a bar.
    finish : callable, optional
        Called with the folder of the finished store before it takes its place; adds an index to it.

    Raises
    ------
    StoreBusy
        If another process is building it.
    StoreError
        If the store at ``path`` has a dense index of other tokens than these. That store stays as it is, and
        so does the unfinished folder, to continue from.
    ValueError
        If the corpus is empty, a document has fewer than two tokens or an id beyond the vocabulary, or a
        parameter is out of range. The unfinished folder is removed.
    OSError
        If the disk is full, say. The unfinished folder is kept, to continue from.
    """
    path = Path(path).expanduser()
    token_dtype(vocabulary)
    for name, value in (("chunk_tokens", chunk_tokens), ("max_tokens", max_tokens)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} is {value!r}; expected a whole number, 1 or more")
    if short_documents not in _SHORT:
        raise ValueError(f"short_documents is {short_documents!r}; expected one of {', '.join(_SHORT)}")
    if iter(documents) is documents:
        raise TypeError(
            "documents is an iterator, which can be read only once; give a list, or an object "
            "whose __iter__ starts again"
        )
    if path.exists() and not (path / MANIFEST).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(
            f"{path} exists and is no datastore; give the name of a new folder, or of a datastore to replace"
        )
    key = {
        "format": FORMAT,
        "version": VERSION,
        "vocabulary": vocabulary,
        "tokenizer": fingerprint,
        "sources": list(sources),
        "max_tokens": max_tokens,
        "short_documents": short_documents,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with store_files.BuildLock(path):
        files.recover(path)
        partial = files.beside(path, ".partial")
        try:
            with _Writer(partial, key, documents) as writer:
                rest = _encoded(writer.remaining, encode, writer.digest)
                writer.add(rest, chunk_tokens, progress)
                writer.complete()
            if finish is not None:
                finish(partial)
        except (ValueError, TypeError):
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _keep_dense(path, partial)
        files.flush_folder(partial)
        files.swap_in(partial, path)
        (path / _Writer.PROGRESS).unlink()
    return TokenStore.open(path)


def _keep_dense(path: Path, partial: Path) -> None:
    """Have the dense index of the store at ``path`` in its successor, or refuse the successor."""
    index = files.present(path / dense.FOLDER)
    if not index.is_dir():
        return
    about, new = store_files.read_json(index / dense.MANIFEST), store_files.read_json(partial / MANIFEST)
    if about is None or about.get("tokens_sha256") != new["files"]["tokens.npy"]["sha256"]:
        raise store_files.StoreError(
            f"{path} stays as it is, because its dense index is not of the tokens that "
            f"were built now: remove {index} and run this again, it continues from "
            f"{partial.name}; or build into another folder"
        )
    store_files.take_over(index, partial / dense.FOLDER)


def _update(digest: hashlib._Hash, document: Document) -> None:
    if isinstance(document, str):
        data = document.encode("utf-8", "surrogatepass")
    else:
        data = np.ascontiguousarray(document)
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


def _encoded(
    documents: Iterator[Document], encode: Encode | None, digest: hashlib._Hash
) -> Iterator[tuple[np.ndarray, bytes]]:
    """Token ids of each document, with the digest of all documents up to it."""
    while batch := list(itertools.islice(documents, _BATCH)):
        encoded = batch if encode is None else encode(batch)
        for document, ids in zip(batch, encoded, strict=True):
            _update(digest, document)
            yield np.asarray(ids), digest.hexdigest()


class _Writer:
    """The unfinished store: two files that grow by whole chunks, and a note of how far they are valid."""

    PROGRESS = "progress.json"

    def __init__(self, folder: Path, key: dict, documents: Iterable[Document]):
        self.folder, self.key, self.dtype = folder, key, token_dtype(key["vocabulary"])
        self.remaining, self.digest = iter(documents), hashlib.sha256()
        self.state = {"items": 0, "documents": 0, "tokens": 0, "skipped": 0, "digest": self.digest.hexdigest()}
        self._tokens: BinaryIO
        self._starts: BinaryIO
        if not self._resume():
            self.remaining, self.digest = iter(documents), hashlib.sha256()
            self._begin()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._tokens.close()
        self._starts.close()

    def _sizes(self) -> tuple[int, int]:
        """Bytes of the two files at the noted state."""
        stored = self.state["tokens"] + self.state["documents"] + 1
        starts = self.state["documents"] + 1
        return store_files.NPY_HEADER + stored * self.dtype.itemsize, store_files.NPY_HEADER + starts * 8

    def _resume(self) -> bool:
        known = store_files.read_json(self.folder / self.PROGRESS)
        if known is None or known.get("key") != self.key or not isinstance(known.get("state"), dict):
            return False
        if not (
            known["state"].keys() == self.state.keys()
            and all(store_files.is_count(value) for name, value in known["state"].items() if name != "digest")
        ):
            return False
        passed = 0
        for document in itertools.islice(self.remaining, known["state"]["items"]):
            _update(self.digest, document)
            passed += 1
        if passed != known["state"]["items"] or self.digest.hexdigest() != known["state"]["digest"]:
            return False
        self.state = known["state"]
        names = [self.folder / "tokens.npy", self.folder / "documents.npy"]
        if not all(
            name.is_file() and name.stat().st_size >= size for name, size in zip(names, self._sizes(), strict=True)
        ):
            return False
        for name, size in zip(names, self._sizes(), strict=True):
            with name.open("r+b") as file:
                file.truncate(size)
        for path in self.folder.iterdir():  # an index or a manifest of an interrupted ending
            if path.is_dir():
                shutil.rmtree(path)
            elif path not in (*names, self.folder / self.PROGRESS):
                path.unlink()
        self._tokens, self._starts = (name.open("r+b") for name in names)
        for file in (self._tokens, self._starts):
            file.seek(0, 2)
        return True

    def _begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.state = {"items": 0, "documents": 0, "tokens": 0, "skipped": 0, "digest": self.digest.hexdigest()}
        self._tokens, self._starts = ((self.folder / name).open("x+b") for name in ("tokens.npy", "documents.npy"))
        store_files.npy_header(self._tokens, self.dtype, 0)
        store_files.npy_header(self._starts, np.dtype(np.int64), 0)
        store_files.write(self._tokens, np.array([self.key["vocabulary"]], self.dtype).data)
        store_files.write(self._starts, np.array([1], np.int64).data)
        self._note()

    def _note(self) -> None:
        store_files.flush(self._tokens)
        store_files.flush(self._starts)
        store_files.write_json(self.folder / self.PROGRESS, {"key": self.key, "state": self.state})

    def add(self, documents: Iterator[tuple[np.ndarray, str]], chunk_tokens: int, progress: bool) -> None:
        chunk: list[np.ndarray] = []
        limit, coming = self.key["max_tokens"], dict(self.state)
        with tqdm(
            desc="tokens", unit=" tokens", unit_scale=True, initial=coming["tokens"], total=limit, disable=not progress
        ) as bar:
            for ids, digest in documents:
                self._check(ids, coming["items"] + 1)
                # What does not fit is not noted: a build that goes on compares all that is noted by its digest.
                if limit is not None and coming["tokens"] + len(ids) > limit:
                    break
                coming["items"] += 1
                coming["digest"] = digest
                if len(ids) < 2:
                    coming["skipped"] += 1
                    continue
                coming["documents"] += 1
                coming["tokens"] += len(ids)
                chunk.append(ids)
                if coming["tokens"] - self.state["tokens"] >= chunk_tokens:
                    bar.update(coming["tokens"] - self.state["tokens"])
                    self._write(chunk, coming)
                    chunk = []
            bar.update(coming["tokens"] - self.state["tokens"])
        if coming["documents"] == 0:
            within = "" if limit is None else f" within max_tokens={limit}"
            raise ValueError(f"the corpus is empty: it has no document of two or more tokens{within}")
        if chunk:
            self._write(chunk, coming)
        # Only documents that are skipped may follow the last chunk.
        self.state = self.state | {"skipped": coming["skipped"]}

    def _check(self, ids: np.ndarray, number: int) -> None:
        if ids.ndim != 1 or (len(ids) and not np.issubdtype(ids.dtype, np.integer)):
            raise TypeError(
                f"document {number} is an array of {ids.dtype} of shape {ids.shape}; expected "
                "one row of whole numbers (texts need an encoder: "
                "specdec_lib.datastores.build_from_texts)"
            )
        if len(ids) < 2 and self.key["short_documents"] == "error":
            raise ValueError(
                f"document {number} has {len(ids)} tokens; expected two or more, one to match "
                "and one that follows it: leave it out, or pass short_documents='skip'"
            )
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.key["vocabulary"]:
            wrong = int(ids[(ids < 0) | (ids >= self.key["vocabulary"])][0])
            raise ValueError(
                f"document {number} has the token id {wrong}, outside the vocabulary of "
                f"{self.key['vocabulary']}; was it made with another tokenizer?"
            )

    def _write(self, chunk: list[np.ndarray], state: dict) -> None:
        ends = np.cumsum([len(ids) + 1 for ids in chunk]) - 1
        stored = np.empty(ends[-1] + 1, self.dtype)
        stored[ends] = self.key["vocabulary"]
        begin = 0
        for ids, end in zip(chunk, ends, strict=True):
            stored[begin:end] = ids
            begin = end + 1
        first = self.state["tokens"] + self.state["documents"] + 1
        store_files.write(self._tokens, stored.data)
        store_files.write(self._starts, (first + ends + 1).astype(np.int64).data)
        self.state = dict(state)
        self._note()

    def complete(self) -> None:
        """Give the files their lengths and write the manifest."""
        documents, tokens = self.state["documents"], self.state["tokens"]
        for file, dtype, length in (
            (self._tokens, self.dtype, tokens + documents + 1),
            (self._starts, np.dtype(np.int64), documents + 1),
        ):
            store_files.npy_header(file, dtype, length)
            store_files.flush(file)
        about = {name: store_files.describe(self.folder / name) for name in ("tokens.npy", "documents.npy")}
        store_files.write_json(
            self.folder / MANIFEST,
            {
                "format": FORMAT,
                "version": VERSION,
                "vocabulary": self.key["vocabulary"],
                "dtype": self.dtype.name,
                "tokenizer": self.key["tokenizer"],
                "sources": self.key["sources"],
                "documents": documents,
                "tokens": tokens,
                "skipped_documents": self.state["skipped"],
                "files": about,
            },
        )
