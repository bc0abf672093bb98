"""Hidden states of a store's tokens, on disk: what a dense index is built from.

The states come from a function of token arrays, so that nothing here knows a model. An interrupted run keeps what it wrote.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from specdec_lib import files
from specdec_lib.datastores import store_files
from specdec_lib.datastores.reduction import check_states
from specdec_lib.datastores.store_files import StoreError
from specdec_lib.datastores.tokens import TokenStore
from specdec_lib.decoding.checks import one_of, whole

FORMAT = "specdec-lib hidden states"
MANIFEST, PROGRESS = "states.json", "progress.json"
#: Bytes of states that are in memory before they are written: of a small model on a processor some minutes, which an
#: interruption costs.
STEP_BYTES = 1 << 24
#: States handed out at once.
BLOCK = 16_384
Compute = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]


@dataclass(frozen=True, eq=False)
class ArrayStates:
    """Hidden states in memory, given out at most 16,384 at a time.

    ``positions``, int (n,), are those in a store's tokens of the token *after* each state's own, the first of its continuation;
    ``states`` are float (n, width), ``model`` is the fingerprint of the model they were computed by.
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


@dataclass(frozen=True, eq=False)
class States(ArrayStates):
    """Hidden states of a store's positions in a folder, memory-mapped, in order of the store."""

    path: Path = Path()
    manifest: dict[str, Any] | None = None

    @classmethod
    def open(cls, path: str | Path, store: TokenStore | None = None) -> States:
        """Open finished states, of ``store``'s tokens where one is given."""
        path = files.present(store_files.located(path))
        missing = f"{path} holds no hidden states; make them with specdec_lib.models.embedding.embed_store"
        about = store_files.read_manifest(path / MANIFEST, FORMAT, missing)
        if store is not None and about["tokens_sha256"] != store.digest:
            raise StoreError(f"{path} holds states of other tokens than {store.path}; embed this store")
        count, dtype = about["states"], np.dtype(about["dtype"])
        positions = store_files.open_array(path / "positions.npy", np.dtype(np.int64), count)
        states = store_files.open_array(path / "states.npy", dtype, count, about["width"])
        return cls(positions, states, about["model"], path, about)

    def __repr__(self) -> str:
        return f"States({str(self.path)!r}: {len(self):,} of width {self.width})"

    def verify(self) -> None:
        """Read every byte; StoreError where one differs from the checksums."""
        store_files.check_sums(self.path, self.manifest["files"])


def plan_windows(store: TokenStore, window: int, overlap: int, cover: str, max_states: int | None = None) -> np.ndarray:
    """Which tokens are run together, and which of their states are kept: not those of a document's last token.

    A window has at most ``window`` tokens. ``cover`` is ``"truncate"``: the first window of each document, as the paper
    truncates at 1,024; or ``"windows"``: as many as cover it, with ``overlap`` tokens before the first kept state of all but
    the first.

    Returns an int64 array of shape (windows, 3): where each window starts in ``store.tokens``, its first kept state, its end.
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
    """Refuse windows that would not advance over a document."""
    if cover == "windows" and not 0 <= overlap < window:
        raise ValueError(f"overlap is {overlap!r}; expected a whole number from 0 to below the window, {window}")


def batches(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Indices of windows of similar length, at most ``batch_tokens`` with their padding, or one window."""
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
    progress: bool = True,
) -> States:
    """Compute the states of a store's tokens and write them.

    The same call goes on after an interruption, and opens what was finished; memory holds 16 MiB of states and one batch.

    ``compute`` gives for a list of int64 token arrays a list of float arrays of shape (tokens, width); it is handed
    ``batch_tokens`` tokens at once, counted as padded to the longest. ``model`` is the fingerprint of the model behind it,
    ``about`` more that decides what the states are. ``window``, ``overlap``, ``cover`` and ``max_states`` are those of
    :func:`plan_windows`; ``dtype``, "float16" or "float32", is as which the states are stored. A state that is not finite is a
    ValueError, and the unfinished folder is then removed.
    """
    path = store_files.located(path)
    window, width = whole("window", window, 1), whole("width", width, 1)
    batch_tokens = whole("batch_tokens", batch_tokens, 1)
    max_states = None if max_states is None else whole("max_states", max_states, 1)
    one_of("cover", cover, ("truncate", "windows"))
    one_of("dtype", dtype, ("float16", "float32"))
    check_overlap(window, overlap, cover)
    store_files.check_target(path, MANIFEST, "folder of hidden states")
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
    with store_files.build_lock(path):
        files.recover(path)
        if (done := _finished(path, key)) is not None:
            return done
        partial = files.beside(path, files.UNFINISHED)
        if (store_files.read_json(partial / PROGRESS) or {}).get("key") != key:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            store_files.write_json(partial / PROGRESS, {"key": key, "rows": 0})
        try:
            _write(partial, store, plan, key, compute, batch_tokens, progress)
        except ValueError:
            shutil.rmtree(partial)
            raise
        positions = np.concatenate([np.arange(keep, stop) for _, keep, stop in plan]) + 1
        store_files.write_array(partial / "positions.npy", positions, np.dtype(np.int64))
        known = {**key, "states": len(positions)}
        store_files.write_manifest(partial / MANIFEST, FORMAT, known, ("positions.npy", "states.npy"))
        (partial / PROGRESS).unlink()
        files.flush_folder(partial)
        files.swap_in(partial, path)
    return States.open(path, store)


def _finished(path: Path, key: dict) -> States | None:
    """The states at ``path`` where they are sound and those that are asked for."""
    try:
        states = States.open(path)
        states.verify()
    except StoreError:
        return None
    return states if all(states.manifest.get(name) == value for name, value in key.items()) else None


def _write(
    folder: Path, store: TokenStore, plan: np.ndarray, key: dict, compute: Compute, batch_tokens: int, progress: bool
) -> None:
    """Write the states that are not there yet, in steps; a step counts once its end is noted."""
    ends, dtype, width = np.cumsum(plan[:, 2] - plan[:, 1]), np.dtype(key["dtype"]), key["width"]
    row_bytes, total, path = width * dtype.itemsize, int(ends[-1]), folder / "states.npy"
    step_of = (ends - 1) // max(1, STEP_BYTES // row_bytes)
    known = store_files.read_json(folder / PROGRESS)["rows"]
    if not path.is_file() or path.stat().st_size < store_files.NPY_HEADER + known * row_bytes:
        known = 0
    with (
        path.open("r+b" if known else "w+b") as file,
        tqdm(desc="hidden states", unit=" tokens", unit_scale=True, total=total, disable=not progress) as bar,
    ):
        store_files.npy_header(file, dtype, total, width)
        file.seek(store_files.NPY_HEADER + known * row_bytes)
        file.truncate()
        bar.update(known)
        for step in np.unique(step_of):
            end = int(ends[step_of == step][-1])
            if end > known:
                states = _states(store, plan[step_of == step], key, compute, batch_tokens, bar)
                store_files.write(file, states.data)
                store_files.flush(file)
                store_files.write_json(folder / PROGRESS, {"key": key, "rows": end})


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
