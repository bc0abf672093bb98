"""Hidden states of a store's tokens, on disk: what a dense index is built from.

The states come from a function of token arrays, so that nothing here knows a model. An interrupted run keeps what it wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from specdec_lib import files
from specdec_lib.datastores import arrays
from specdec_lib.datastores.reduction import check_states
from specdec_lib.datastores.tokens import TokenStore
from specdec_lib.decoding.checks import one_of, whole_number
from specdec_lib.files import StoreError

FORMAT = "specdec-lib hidden states"
MANIFEST = "states.json"
FILES = ("positions.npy", "states.npy")
#: Bytes of states that are in memory before they are written: of a small model on a processor some minutes, which an
#: interruption costs.
STEP_BYTES = 1 << 24
#: States handed out at once.
BLOCK = 16_384
Compute = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
#: Beside a store: states that are to be kept, and those that are removed once they are indexed.
KEPT, UNKEPT = ".states", ".unkept-states"


@dataclass(frozen=True, eq=False)
class ArrayStates:
    """Hidden states in memory, given out at most 16,384 at a time.

    Parameters
    ----------
    positions : int array of shape (n,)
        For each state, the position in a store's tokens of the token *after* the state's own: the first of its continuation.
    states : float array of shape (n, width)
    model : str, optional
        Fingerprint of the model they were computed by.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores import ArrayStates
    >>> source = ArrayStates(np.array([2, 3]), np.ones((2, 8), np.float16))
    >>> [(positions.tolist(), states.dtype.name) for positions, states in source]
    [([2, 3], 'float32')]
    """

    positions: np.ndarray
    states: np.ndarray
    model: str | None = None

    def __post_init__(self) -> None:
        if self.states.ndim != 2 or self.positions.shape != (len(self.states),):
            raise ValueError(
                f"positions have shape {self.positions.shape}, states {self.states.shape}; expected one position for each row"
            )

    @property
    def width(self) -> int:
        """Values of one state."""
        return self.states.shape[1]

    def __len__(self) -> int:
        """Number of states."""
        return len(self.states)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for begin in range(0, len(self), BLOCK):
            part = self.states[begin : begin + BLOCK].astype(np.float32)
            yield self.positions[begin : begin + BLOCK].astype(np.int64), part


class OtherStates(StoreError):
    r"""The folder holds states that were computed in another way.

    Examples
    --------
    >>> from specdec_lib.datastores import build_from_texts
    >>> from specdec_lib.models.embedding import embed_store
    >>> store = build_from_texts(folder / "store", ["x = 1\n"], tokenizer, progress=False)
    >>> states = embed_store(model, store, folder / "states", progress=False)
    >>> embed_store(draft, store, folder / "states", replace=False, progress=False)
    Traceback (most recent call last):
        ...
    specdec_lib.datastores.states.OtherStates: ...states holds other states, of the model ...: move them away, or remove them
    """


_FIELDS = {
    "states": files.is_count,
    "width": files.is_count,
    "dtype": lambda value: value in ("float16", "float32"),
    "model": files.is_text_or_none,
    "tokens_sha256": files.is_text,
}


@dataclass(frozen=True, eq=False)
class States(ArrayStates):
    r"""Hidden states of a store's positions in a folder, memory-mapped, in order of the store; :meth:`open` reads them.

    Examples
    --------
    >>> from specdec_lib.datastores import States, build_from_texts
    >>> from specdec_lib.models.embedding import embed_store
    >>> store = build_from_texts(folder / "store", ["x = 1\ny = 2\n"], tokenizer, progress=False)
    >>> made = embed_store(model, store, folder / "states", progress=False)
    >>> states = States.open(folder / "states", store)
    >>> len(states) == store.count - 1, states.width == model.config.hidden_size
    (True, True)
    """

    path: Path = Path()
    manifest: dict[str, Any] | None = None

    @classmethod
    def open(cls, path: str | Path, store: TokenStore | None = None) -> States:
        """Open finished states.

        Parameters
        ----------
        path : path
        store : TokenStore, optional
            The one whose tokens they must be of.

        Returns
        -------
        States

        Raises
        ------
        StoreError
            If there are none, they are damaged, or of other tokens.
        """
        path = files.located(path)
        states = files.read_one_build(path, MANIFEST, partial(cls._of_build, path))
        if store is not None and states.manifest["tokens_sha256"] != store.digest:
            raise StoreError(f"{path} holds states of other tokens than {store.path}; embed this store")
        return states

    @classmethod
    def _of_build(cls, path: Path, folder: Path) -> States:
        missing = f"{path} holds no hidden states; make them with specdec_lib.models.embedding.embed_store"
        about = files.read_manifest(folder / MANIFEST, FORMAT, missing, FILES, _FIELDS)
        count, dtype = about["states"], np.dtype(about["dtype"])
        positions = arrays.open_array(folder / "positions.npy", np.dtype(np.int64), count)
        states = arrays.open_array(folder / "states.npy", dtype, count, about["width"])
        return cls(positions, states, about["model"], path, about)

    def __repr__(self) -> str:
        return f"States({str(self.path)!r}: {len(self):,} of width {self.width})"

    def verify(self) -> None:
        """Read every byte; StoreError where one differs from the checksums."""
        files.check_opened(self.path, MANIFEST, self.manifest)


def plan_windows(store: TokenStore, window: int, overlap: int, cover: str, max_states: int | None = None) -> np.ndarray:
    """Which tokens are run together, and which of their states are kept: not those of a document's last token.

    Parameters
    ----------
    store : TokenStore
    window : int
        Most tokens of a window.
    overlap : int
        Tokens before the first kept state of all windows of a document but the first.
    cover : {"truncate", "windows"}
        ``"truncate"``: the first window of each document, as the paper truncates at 1,024; ``"windows"``: as many as cover it.
    max_states : int, optional

    Returns
    -------
    int64 array of shape (windows, 3)
        Where each window starts in ``store.tokens``, its first kept state, its end.

    Examples
    --------
    >>> from specdec_lib.datastores import build_tokens
    >>> from specdec_lib.datastores.states import plan_windows
    >>> store = build_tokens(folder / "store", [[5, 6, 7, 8, 9, 5]], vocabulary=10, progress=False)
    >>> plan_windows(store, window=4, overlap=2, cover="windows").tolist()
    [[1, 1, 5], [3, 5, 6]]
    """
    windows: list[tuple[int, int, int]] = []
    left = max_states
    for begin, end in zip(store.starts[:-1].tolist(), (store.starts[1:] - 2).tolist(), strict=True):
        start = keep = begin
        while keep < end and left != 0:
            stop = min(start + window, end)
            if left is not None:
                stop = min(stop, keep + left)
                left -= stop - keep
            windows.append((start, keep, stop))
            if cover == "truncate":
                break
            start, keep = stop - overlap, stop
    return np.array(windows, np.int64).reshape(-1, 3)


def check_overlap(window: int, overlap: int, cover: str) -> None:
    """Reject windows that would not advance over a document.

    Parameters
    ----------
    window, overlap, cover
        As for :func:`plan_windows`.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> from specdec_lib.datastores.states import check_overlap
    >>> check_overlap(window=4, overlap=4, cover="windows")
    Traceback (most recent call last):
        ...
    ValueError: overlap is 4; expected a whole number from 0 to below the window, 4
    """
    if cover == "windows" and not 0 <= overlap < window:
        raise ValueError(f"overlap is {overlap!r}; expected a whole number from 0 to below the window, {window}")


def batches(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Windows of similar length together.

    Parameters
    ----------
    lengths : int array of shape (n,)
    batch_tokens : int
        Most tokens of a batch with its padding.

    Yields
    ------
    int array
        Indices of windows; at least one.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.states import batches
    >>> [batch.tolist() for batch in batches(np.array([3, 8, 2, 4]), batch_tokens=8)]
    [[1], [3, 0], [2]]
    """
    order = np.argsort(lengths, kind="stable")[::-1]
    begin = 0
    while begin < len(order):
        count = max(1, batch_tokens // max(1, int(lengths[order[begin]])))
        yield order[begin : begin + count]
        begin += count


def write_states(
    path: str | Path,
    store: TokenStore,
    compute: Compute,
    width: int,
    *,
    model: str | None = None,
    window: int = 1024,
    overlap: int = 256,
    cover: str = "truncate",
    max_states: int | None = None,
    dtype: str = "float16",
    batch_tokens: int = 4096,
    about: dict | None = None,
    replace: bool = True,
    progress: bool = True,
) -> States:
    """Compute the states of a store's tokens and write them.

    The same call goes on after an interruption, and opens what was finished; memory holds 16 MiB of states and one batch.

    Parameters
    ----------
    path : path
        Folder of the states.
    store : TokenStore
    compute : callable
        Gives for a list of int64 token arrays a list of float arrays of shape (tokens, width).
    width : int
        Values of a state.
    model : str, optional
        Fingerprint of the model behind ``compute``.
    window, overlap, cover, max_states
        As for :func:`plan_windows`.
    dtype : {"float16", "float32"}
        As which the states are stored.
    batch_tokens : int
        Tokens handed to ``compute`` at once, counted as padded to the longest.
    about : dict, optional
        More that decides what the states are, JSON.
    replace : bool
        Whether other states at ``path`` give way, once the new ones are whole; without it they are an OtherStates.
    progress : bool
        Show a bar.

    Returns
    -------
    States

    Raises
    ------
    ValueError
        If a state is not finite; the unfinished folder is then removed.
    StoreBusy
        If another process writes them.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores import build_tokens
    >>> from specdec_lib.datastores.states import write_states
    >>> store = build_tokens(folder / "store", [[5, 6, 7]], vocabulary=10, progress=False)
    >>> one_hot = lambda documents: [np.eye(10)[tokens] for tokens in documents]
    >>> states = write_states(folder / "states", store, one_hot, width=10, progress=False)
    >>> states.states.argmax(1).tolist(), states.positions.tolist()
    ([5, 6], [2, 3])
    """
    path = files.located(path)
    window, width = whole_number("window", window, 1), whole_number("width", width, 1)
    batch_tokens = whole_number("batch_tokens", batch_tokens, 1)
    max_states = None if max_states is None else whole_number("max_states", max_states, 1)
    one_of("cover", cover, ("truncate", "windows"))
    one_of("dtype", dtype, ("float16", "float32"))
    check_overlap(window, overlap, cover)
    check_target(path)
    key = {
        "model": model,
        "width": width,
        "dtype": dtype,
        "window": window,
        "overlap": int(overlap) if cover == "windows" else 0,
        "cover": cover,
        "max_states": max_states,
        "tokens_sha256": store.digest,
        **(about or {}),
    }
    plan = plan_windows(store, window, overlap, cover, max_states)
    with files.locked(path):
        files.recover(path, FILES)
        if (done := _finished(path)) is not None:
            if all(done.manifest.get(name) == value for name, value in key.items()):
                return done
            if not replace:
                raise OtherStates(
                    f"{path} holds other states, of the model {str(done.model)[:12]}: move them away, or remove them"
                )
        unfinished = files.unfinished_folder(path, FILES, key)
        try:
            _write(unfinished, store, plan, key, compute, batch_tokens, progress)
        except ValueError:
            files.remove(unfinished, FILES)
            raise
        positions = np.concatenate([np.arange(keep, stop) for _, keep, stop in plan]) + 1
        arrays.write_array(unfinished / "positions.npy", positions, np.dtype(np.int64))
        files.write_manifest(unfinished / MANIFEST, FORMAT, {**key, "states": len(positions)}, FILES)
        files.swap_in(unfinished, path, FILES)
    return States.open(path, store)


def check_target(path: Path) -> None:
    """Reject a path at which no states can be written, before any work is done."""
    files.check_target(path, MANIFEST, FORMAT, "folder of hidden states", FILES)


#: ``embed(store, path, replace)`` computes states as :func:`write_states` does.
Embed = Callable[[TokenStore, Path, bool], "States"]


def states_of_store(store: TokenStore, embed: Embed, keep: bool) -> States:
    r"""States of a store to make an index of.

    Those that were kept earlier are taken where they are the ones that are asked for, and stay in any case. States that are
    not kept lie in a folder of their own until :func:`remove_unkept`.

    Parameters
    ----------
    store : TokenStore
    embed : callable
        ``embed(store, path, replace)`` computes states as :func:`write_states` does.
    keep : bool

    Returns
    -------
    States

    Raises
    ------
    OtherStates
        If other states are there, and the new ones are to be kept.

    Examples
    --------
    >>> from specdec_lib.datastores import build_from_texts
    >>> from specdec_lib.datastores.states import states_of_store, remove_unkept
    >>> from specdec_lib.models.embedding import embed_store
    >>> store = build_from_texts(folder / "store", ["x = 1\n"], tokenizer, progress=False)
    >>> embed = lambda store, path, replace: embed_store(model, store, path, replace=replace, progress=False)
    >>> states = states_of_store(store, embed, keep=False)
    >>> remove_unkept(store.path)
    >>> states.path.exists()
    False
    """
    kept = files.beside(store.path, KEPT)
    if keep or files.current_place(kept).exists():
        try:
            return embed(store, kept, False)
        except OtherStates:
            if keep:
                raise
    return embed(store, files.beside(store.path, UNKEPT), True)


def remove_unkept(store: Path) -> None:
    """Remove the states of a store that were computed only to make an index of (:func:`states_of_store`).

    Parameters
    ----------
    store : Path
        Folder of the store; there need not be states.

    Examples
    --------
    >>> from specdec_lib.datastores.states import remove_unkept
    >>> remove_unkept(folder / "store")
    """
    files.remove(files.beside(store, UNKEPT), FILES)


def _finished(path: Path) -> States | None:
    """The states at ``path`` where they are sound."""
    try:
        states = States.open(path)
        states.verify()
    except StoreError:
        return None
    return states


def _write(
    folder: Path, store: TokenStore, plan: np.ndarray, key: dict, compute: Compute, batch_tokens: int, progress: bool
) -> None:
    """Write the states that are not there yet, in steps; a step counts once its end is noted."""
    ends, dtype, width = np.cumsum(plan[:, 2] - plan[:, 1]), np.dtype(key["dtype"]), key["width"]
    row_bytes, total, path = width * dtype.itemsize, int(ends[-1]), folder / "states.npy"
    step_of = (ends - 1) // max(1, STEP_BYTES // row_bytes)
    known = files.progress(folder).get("rows")
    size = path.stat().st_size if path.is_file() else 0
    if not files.is_count(known) or size < arrays.NPY_HEADER + known * row_bytes:
        known = 0
    with (
        open(path, "r+b" if known else "w+b", opener=files.no_link) as file,
        tqdm(desc="hidden states", unit=" tokens", unit_scale=True, total=total, disable=not progress) as bar,
    ):
        arrays.npy_header(file, dtype, total, width)
        file.seek(arrays.NPY_HEADER + known * row_bytes)
        file.truncate()
        bar.update(known)
        for step in np.unique(step_of):
            end = int(ends[step_of == step][-1])
            if end > known:
                states = _states(store, plan[step_of == step], key, compute, batch_tokens, bar)
                files.write(file, states.data)
                file.flush()
                files.flush(path)
                files.note_progress(folder, rows=end)


def _states(
    store: TokenStore, windows: np.ndarray, key: dict, compute: Compute, batch_tokens: int, bar: tqdm
) -> np.ndarray:
    """The kept states of some windows, in order of the store."""
    counts = windows[:, 2] - windows[:, 1]
    out, first = np.empty((counts.sum(), key["width"]), key["dtype"]), np.cumsum(counts) - counts
    for batch in batches(windows[:, 2] - windows[:, 0], batch_tokens):
        tokens = [store.tokens[start:stop].astype(np.int64) for start, _, stop in windows[batch]]
        for i, states in zip(batch, compute(tokens), strict=True):
            start, keep, stop = windows[i]
            with np.errstate(over="ignore"):
                part = np.asarray(states)[keep - start :].astype(key["dtype"])
            try:
                check_states(part, key["width"])
            except ValueError as error:
                raise ValueError(f"states of positions {keep} to {stop - 1} as {key['dtype']}: {error}") from None
            out[first[i] : first[i] + len(part)] = part
            bar.update(len(part))
    return out
