"""Dense retrieval: which stored positions had a hidden state like the current one (DReSD, section 3).

An index is a folder, usually inside that of its token store. ``index.faiss`` takes hidden states as the model gives them and
holds both the reduction and the search, so that any program with FAISS can use it. ``positions.npy`` says where each row's
continuation starts in the token store; ``explained_variance.npy`` is what the components explain; ``dense.json`` is the
manifest.

A row's key is the state of a token, its position that of the token after it. The last token of a document is not stored, and no
continuation runs on into the next document.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm.auto import tqdm

from specdec_lib import files
from specdec_lib.datastores import arrays, faiss_index, tokens
from specdec_lib.datastores.reduction import EPSILON, Moments, Reduction, check_states, fit
from specdec_lib.datastores.states import ArrayStates
from specdec_lib.datastores.tokens import TokenStore
from specdec_lib.decoding.checks import whole_number
from specdec_lib.files import StoreError

if TYPE_CHECKING:
    import faiss

FORMAT = "specdec-lib dense index"
MANIFEST = "dense.json"
#: Folder of the index within that of its token store.
FOLDER = "dense"
FILES = ("index.faiss", "positions.npy", "explained_variance.npy")
_FIELDS = {
    "rows": files.is_count,
    "width": files.is_count,
    "dims": files.is_count,
    "factory": files.is_text,
    "model": files.is_text_or_none,
    "tokens_sha256": files.is_text,
}


def _named(path: str | Path) -> Path:
    """An absolute path, links left as they are: "." has no parent, and an index behind a link has that of the link."""
    return Path(os.path.abspath(files.named(path)))


def _sampled(source: ArrayStates, sample: int) -> Iterator[np.ndarray]:
    """States of ``sample`` rows spread evenly over the source; all, where it has no more."""
    total, first = len(source), 0
    for _, states in source:
        rows = np.arange(first, first + len(states))
        first += len(states)
        yield states if total <= sample else states[(rows + 1) * sample // total > rows * sample // total]


def sample_moments(source: ArrayStates, sample: int) -> Moments:
    """Mean and covariance of states spread evenly over a source.

    Parameters
    ----------
    source : ArrayStates
    sample : int
        Most states read.

    Returns
    -------
    Moments

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores import ArrayStates
    >>> from specdec_lib.datastores.dense import sample_moments
    >>> sample_moments(ArrayStates(np.arange(100), np.ones((100, 4))), sample=10).count
    10
    """
    moments = Moments()
    for states in _sampled(source, sample):
        moments.add(states)
    return moments


def build_dense_index(
    path: str | Path,
    source: ArrayStates,
    store: TokenStore | str | Path | None = None,
    *,
    dims: int = 64,
    factory: str = "Flat",
    zscore: bool = True,
    normalise: bool = True,
    sample: int = 1_000_000,
    nprobe: int | None = None,
    ef_search: int | None = None,
    reduction: Reduction | None = None,
    progress: bool = True,
) -> DenseIndex:
    r"""Reduce hidden states and index them (DReSD, section 3).

    An index that is already at ``path`` stays until the new one is whole. The source is read twice, three times where the index is
    trained; memory holds the index, and ``sample`` reduced states while it is trained.

    Parameters
    ----------
    path : path
        Folder of the index, usually ``dense`` within that of its store.
    source : ArrayStates
        :class:`States` too.
    store : TokenStore or path, optional
        What the positions are of; by default the store in whose folder the index lies.
    dims, zscore, normalise
        As for :func:`~specdec_lib.datastores.reduction.fit`.
    factory : str
        FAISS's factory string.
    sample : int
        States that mean, deviation, components and lists are estimated from, spread evenly over the source (the paper: about a
        million drawn at random; its code: the first million).
    nprobe, ef_search : int, optional
        How much of the index is searched (:func:`~specdec_lib.datastores.faiss_index.set_effort`).
    reduction : Reduction, optional
        Instead of one that is fitted; shards that are searched together share one.
    progress : bool
        Show a bar.

    Returns
    -------
    DenseIndex

    Raises
    ------
    ImportError
        Without FAISS, which the extra ``cpu`` installs.
    ValueError
        If FAISS does not know ``factory``, or there are too few states to train it.

    Examples
    --------
    >>> from specdec_lib.datastores import build_dense_index, build_from_texts
    >>> from specdec_lib.models.embedding import embed_store
    >>> text = "def add(x, y):\n    return x + y\n\ndef subtract(x, y):\n    return x - y\n"
    >>> store = build_from_texts(folder / "store", [text], tokenizer, progress=False)
    >>> states = embed_store(model, store, folder / "states", progress=False)
    >>> index = build_dense_index(folder / "store/dense", states, dims=16, progress=False)
    >>> index
    DenseIndex('...dense': ... states of width 320 in 16 dimensions, Flat)
    """
    if not isinstance(store, TokenStore):
        store = TokenStore.open(_named(path).parent if store is None else store)
    path = files.located(path)
    sample = whole_number("sample", sample, 1)
    if not len(source):
        raise ValueError("there are no states to index; expected at least one")
    if reduction is not None:
        dims, zscore, normalise = reduction.components.shape[1], reduction.zscore, reduction.normalise
        if len(reduction.mean) != source.width:
            raise ValueError(f"the reduction takes states of width {len(reduction.mean)}, these have {source.width}")
    inner = faiss_index.empty_index(source.width, dims, factory, nprobe, ef_search)
    check_target(path)
    # A store that is built again takes its folder away, with all that is being built inside it.
    with files.building(path, FILES, store.path if path.parent == store.path else path) as unfinished:
        total = len(source) + min(sample, len(source)) * ((reduction is None) + (not inner.is_trained))
        with tqdm(desc="dense index", unit=" states", unit_scale=True, total=total, disable=not progress) as bar:
            if reduction is None:
                moments = sample_moments(source, sample)
                bar.update(moments.count)
                reduction = fit(moments, dims, zscore=zscore, normalise=normalise)
            if not inner.is_trained:
                _train(inner, source, reduction, sample, factory, bar)
            _fill(unfinished, faiss_index.chain(reduction, inner), source, store, factory, bar)
        arrays.write_array(unfinished / "explained_variance.npy", reduction.explained, np.dtype(np.float64))
        how = ("window", "overlap", "cover", "max_states", "dtype", "compute")
        embedded = getattr(source, "manifest", None) or {}  # states of arrays, and the first part of others, have none
        about = {
            "rows": len(source), "width": source.width, "dims": int(dims), "factory": factory, "zscore": zscore,
            "normalise": normalise, "eps": EPSILON, "sample": min(sample, len(source)), "model": source.model,
            "tokens_sha256": store.digest,
            "states": {name: value for name, value in embedded.items() if name in how},
        }  # fmt: skip
        files.write_manifest(unfinished / MANIFEST, FORMAT, about, FILES)
    return DenseIndex.open(path, store)


def check_target(path: Path) -> None:
    """Reject a path at which no dense index can be written, before any work is done."""
    files.check_target(path, MANIFEST, FORMAT, "dense index", FILES)


def _fill(
    folder: Path, whole: faiss.IndexPreTransform, source: ArrayStates, store: TokenStore, factory: str, bar: tqdm
) -> None:
    """Add all states to an index, and write it with their positions."""
    positions = np.empty(len(source), np.int64)
    for places, states in source:
        inside = (places >= 0) & (places < len(store.tokens))
        good = inside & (store.tokens[np.where(inside, places, 0)] != store.vocabulary)
        if not good.all():
            raise ValueError(
                f"position {int(places[~good][0])} holds no token of {store.path}; expected that of each state's next token"
            )
        positions[whole.ntotal : whole.ntotal + len(places)] = places
        states = np.ascontiguousarray(check_states(states, source.width))
        try:
            whole.add(states)
        except RuntimeError as error:
            reason = str(error).rpartition(": ")[2]
            raise ValueError(
                f"factory is {factory!r}, to which states cannot be added ({reason}); say 'Flat'"
            ) from None
        bar.update(len(states))
    with (folder / "index.faiss").open("xb") as file:
        writer = faiss_index.load_faiss().PyCallbackIOWriter(lambda data: files.write(file, data))
        faiss_index.load_faiss().write_index(whole, writer)
    arrays.write_array(folder / "positions.npy", positions, np.dtype(np.int64))


def _train(inner: faiss.Index, source: ArrayStates, reduction: Reduction, sample: int, factory: str, bar: tqdm) -> None:
    keys = []
    for states in _sampled(source, sample):
        keys.append(reduction.apply(states))
        bar.update(len(states))
    joined = np.concatenate(keys)
    faiss_index.check_lists(inner, factory, len(joined))
    try:
        inner.train(joined)
    except RuntimeError as error:
        raise ValueError(
            f"factory is {factory!r}, which {len(joined)} states cannot train; expected more "
            f"states or a smaller index ({str(error).rpartition(': ')[2]})"
        ) from None


@dataclass(frozen=True, eq=False)
class DenseIndex:
    r"""Keys of hidden states, each with the position of its continuation in a token store; :meth:`open` reads one.

    ``index``, a faiss.IndexPreTransform, takes hidden states and gives rows; ``positions``, int64 (rows,), read-only, say where
    each row's continuation starts in ``store.tokens``; ``explained_variance``, float64 (width,), is the share of the variance of
    each component, largest first.

    Examples
    --------
    Each stored state finds itself, and its continuation is the text that followed:

    >>> from specdec_lib.datastores import DenseIndex, build_dense_index, build_from_texts
    >>> from specdec_lib.models.embedding import embed_store
    >>> text = "def add(x, y):\n    return x + y\n\ndef subtract(x, y):\n    return x - y\n"
    >>> store = build_from_texts(folder / "store", [text], tokenizer, progress=False)
    >>> states = embed_store(model, store, folder / "states", progress=False)
    >>> built = build_dense_index(folder / "store/dense", states, dims=16, progress=False)
    >>> index = DenseIndex.open(folder / "store")
    >>> scores, positions = index.search(states.states[:1], k=1)
    >>> positions.tolist() == [[states.positions[0]]]
    True
    >>> tokenizer.decode(store.continuation(int(positions[0, 0]), length=5))
    ' add(x, y'
    """

    path: Path
    store: TokenStore
    manifest: dict[str, Any]
    index: Any
    positions: np.ndarray
    explained_variance: np.ndarray

    @classmethod
    def open(cls, path: TokenStore | str | Path, store: TokenStore | str | Path | None = None) -> DenseIndex:
        """Open a finished index.

        FAISS's own file is compared with its checksum first, because FAISS does not check all of what it reads.

        Parameters
        ----------
        path : TokenStore or path
            The folder of the index, or a token store or its folder with an index in ``dense`` inside it.
        store : TokenStore or path, optional
            By default the one in whose folder the index lies.

        Returns
        -------
        DenseIndex

        Raises
        ------
        StoreError
            If there is no whole index, or it is of other tokens than the store's.
        """
        if isinstance(path, TokenStore):
            path, store = path.path, path
        path, place = _named(path), files.located(path)
        folder = files.current_place(place)
        inside = (folder / tokens.MANIFEST).is_file() or files.current_place(folder / FOLDER).is_dir()
        if not (folder / MANIFEST).is_file() and inside:
            path, place = folder / FOLDER, files.located(folder / FOLDER)
        if not isinstance(store, TokenStore):
            store = path.parent if store is None else store  # the index itself may be a link
        return files.read_one_build(place, MANIFEST, partial(cls._of_build, place, store))

    @classmethod
    def _of_build(cls, path: Path, store: TokenStore | str | Path, folder: Path) -> DenseIndex:
        about = files.read_manifest(
            folder / MANIFEST,
            FORMAT,
            f"{path} has no dense index: build one with 'python -m specdec_lib datastore dense', or with "
            "specdec_lib.datastores.build_dense_index",
            FILES,
            _FIELDS,
        )
        if not isinstance(store, TokenStore):
            store = TokenStore.open(store)
        if about["tokens_sha256"] != store.digest:
            raise StoreError(f"{path} belongs to other tokens than those of {store.path}; build the dense index again")
        positions = arrays.open_array(folder / "positions.npy", np.dtype(np.int64), about["rows"])
        arrays.check_range(folder / "positions.npy", positions, 1, len(store.tokens) - 2, "position")
        explained = arrays.open_array(folder / "explained_variance.npy", np.dtype(np.float64), about["width"])
        files.check_sums(folder, {FILES[0]: about["files"][FILES[0]]})
        keys = faiss_index.read(folder / FILES[0], about["width"], about["rows"])
        return cls(path, store, about, keys, positions, explained)

    def __len__(self) -> int:
        """Number of rows."""
        return self.manifest["rows"]

    def __repr__(self) -> str:
        kind = f"{self.dims} dimensions, {self.manifest['factory']}"
        return f"DenseIndex({str(self.path)!r}: {len(self):,} states of width {self.width} in {kind})"

    @property
    def width(self) -> int:
        """Values of a hidden state."""
        return self.manifest["width"]

    @property
    def dims(self) -> int:
        """Values of a key."""
        return self.manifest["dims"]

    @property
    def bytes_per_state(self) -> float:
        """Bytes of the FAISS file and the positions for each row."""
        return sum(self.manifest["files"][name]["bytes"] for name in FILES[:2]) / len(self)

    def search(self, states: np.ndarray | torch.Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The stored positions whose keys have the largest inner product with each state's.

        Parameters
        ----------
        states : float array or tensor of shape (n, width) or (width,)
            As the model gives them.
        k : int

        Returns
        -------
        scores : float32 array of shape (n, k)
            Largest first; cosines where keys have unit length.
        positions : int64 array of shape (n, k)
            Where the continuations start in ``store.tokens``, -1 where fewer were found.
        """
        k = whole_number("k", k, 1)
        if isinstance(states, torch.Tensor):
            states = states.detach().float().cpu().numpy()
        states = check_states(states, self.width)
        try:
            scores, rows = self.index.search(states, k)
        except RuntimeError as error:
            raise StoreError(
                f"FAISS cannot search {self.path / 'index.faiss'} ({str(error).splitlines()[0]}): if it was altered, "
                "which 'python -m specdec_lib datastore verify' says, build the dense index again"
            ) from None
        # The rows of an inverted list stand in the file.
        if rows.size and not -1 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise StoreError(
                f"{self.path / 'index.faiss'} holds the row {int(rows.max())}; expected 0 to "
                f"{len(self) - 1}: it was altered; build the dense index again"
            )
        return scores, np.where(rows < 0, -1, self.positions[rows])

    def verify(self) -> None:
        """Read every byte of the index and of its store; StoreError where one differs from the checksums."""
        self.store.verify()
        files.check_opened(self.path, MANIFEST, self.manifest)
