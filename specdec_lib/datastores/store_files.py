"""The files of a datastore: written whole, checked when they are opened, and built by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from specdec_lib.files import LOCK, NEW, UNFINISHED, beside, flush_folder, recover, swap_in

#: Of all manifests. Version 1 had no checksum of the manifest itself.
VERSION = 2


class StoreError(ValueError):
    """A datastore that cannot be used: missing, truncated, altered, of another version or another tokenizer."""


class StoreBusy(StoreError):
    """Another process is building this datastore."""


def write(file: BinaryIO, data: Any) -> None:
    """Write bytes or an array's memory; every byte of a datastore passes here."""
    file.write(data)


def flush(file: BinaryIO) -> None:
    """Bring what was written onto the disk."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """A file that is written aside and renamed; after a kill the next one has the same name."""
    aside = beside(path, NEW)
    try:
        with aside.open("wb") as file:
            yield file
            flush(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    aside.replace(path)


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file aside and rename it."""
    with _written(path) as file:
        write(file, (json.dumps(content, indent=1) + "\n").encode())
    flush_folder(path.parent)


def read_json(path: Path) -> dict | None:
    """The object in a JSON file; None where there is no file or no object in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def located(path: str | Path) -> Path:
    """The path that a caller names, absolute, ``~`` expanded; a store behind a link is replaced where it lies."""
    try:
        if not os.fspath(path):
            raise RuntimeError("it is empty")
        return Path(path).expanduser().resolve()
    except RuntimeError as error:  # also an unknown user after ~, or links in a circle
        raise ValueError(f"{str(path)!r} is no path ({error}); give the name of a file or a folder") from None


def check_target(path: Path, manifest: str, what: str) -> None:
    """Refuse a folder that holds something else than ``what``, or that cannot be written, before any work is done."""
    if path.exists() and not (path / manifest).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} exists and is no {what}; give the name of a new folder, or of a {what} to replace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "part of it is a file, no folder" if in_the_way else error.strerror
        raise ValueError(f"{path} cannot be written ({reason}); name another folder") from None


def _own_sum(about: dict) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def write_manifest(path: Path, form: str, content: dict, names: Sequence[str] = ()) -> None:
    """Write what a folder holds: its form, ``content``, size and sha256 of the files ``names``, and its own sha256."""
    about = {"format": form, "version": VERSION, **content}
    about["files"] = {name: describe(path.parent / name) for name in names}
    write_json(path, {**about, "sha256": _own_sum(about)})


def read_manifest(path: Path, form: str, missing: str) -> dict:
    """Read what :func:`write_manifest` wrote; StoreError if it or a file's size was altered, or, as ``missing``, without one."""
    about = read_json(path)
    if about is None or about.get("format") != form:
        raise StoreError(missing)
    if about.get("version") != VERSION:
        raise StoreError(f"{path} has version {about.get('version')}, this library reads {VERSION}; build it again")
    if about.pop("sha256", None) != _own_sum(about):
        raise StoreError(f"{path} was altered after it was built (its sha256 differs); build it again")
    for name, known in about["files"].items():
        file = path.parent / name
        if not file.is_file():
            raise StoreError(f"{file} is missing: the datastore is damaged; build it again")
        if file.stat().st_size != known["bytes"]:
            raise StoreError(f"{file} has {file.stat().st_size} bytes, not {known['bytes']}: damaged; build it again")
    return about


#: Bytes of the header of an array of one or two dimensions: NumPy leaves room in it for the array to grow.
NPY_HEADER = 128
_WRITE_ENTRIES = 1 << 22


def npy_header(file: BinaryIO, dtype: np.dtype, length: int, width: int | None = None) -> None:
    """Write the header of an array of ``length`` entries, or rows of ``width``, at the beginning of ``file``."""
    file.seek(0)
    shape = (length,) if width is None else (length, width)
    np.lib.format.write_array_header_1_0(file, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})
    if file.tell() != NPY_HEADER:
        raise RuntimeError(f"NumPy {np.__version__} writes a header of {file.tell()} bytes, expected {NPY_HEADER}")


def write_array(path: Path, array: np.ndarray, dtype: np.dtype) -> None:
    """Write an array of one dimension as ``dtype``, aside and renamed; an error leaves nothing."""
    with _written(path) as file:
        npy_header(file, dtype, len(array))
        for begin in range(0, len(array), _WRITE_ENTRIES):
            write(file, np.ascontiguousarray(array[begin : begin + _WRITE_ENTRIES], dtype).data)


def describe(path: Path) -> dict:
    """Size in bytes and sha256 of a file, as manifests hold them."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def check_sums(folder: Path, files: dict[str, dict]) -> None:
    """Refuse altered files with a StoreError."""
    for name, about in files.items():
        if describe(folder / name)["sha256"] != about["sha256"]:
            raise StoreError(f"{folder / name} was altered after it was built (its sha256 differs); build it again")


def open_array(path: Path, dtype: np.dtype, *shape: int) -> np.ndarray:
    """Map an array into memory, read-only; StoreError if the file holds anything else."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy reads a header as Python code: a damaged one fails in that parser's ways too
        reason = " ".join(str(error).split())
        raise StoreError(f"{path} cannot be read ({reason:.200}); build the datastore again") from None
    if array.dtype != dtype or array.shape != shape:
        raise StoreError(f"{path} holds {array.dtype} of shape {array.shape}, not {dtype} of {shape}: build it again")
    if array.offset + array.nbytes != path.stat().st_size or not array.flags.c_contiguous:
        raise StoreError(f"{path} has a damaged header, or lacks a part; build it again")
    return np.asarray(array)


def check_range(path: Path, array: np.ndarray, least: int, most: int, what: str) -> None:
    """Refuse numbers outside ``least`` to ``most``: compiled loops use them as indices, unchecked."""
    for value in (array.min(), array.max()) if array.size else ():
        if not least <= int(value) <= most:
            raise StoreError(f"{path} holds the {what} {int(value)}; expected {least} to {most}: build it again")


@contextmanager
def build_lock(target: Path) -> Iterator[None]:
    """Let only one process at a time build ``target``; a StoreBusy if another does, an OSError if the file system cannot lock.

    The lock is the kernel's (``flock``), so it ends with its process; the file's text names the holder.
    """
    path = beside(target, LOCK)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_ino == os.stat(path).st_ino:
                break
        except FileNotFoundError:
            pass
        except BlockingIOError:
            os.close(handle)
            about = read_json(path) or {}
            raise StoreBusy(
                f"{target} is being built by another process (process {about.get('pid', 'unknown')}, since "
                f"{about.get('since', 'unknown')}): wait until it has ended, or stop it; what it has done so far is kept"
            ) from None
        except OSError as error:
            os.close(handle)
            reason = f"{error.strerror} (a build needs a file system that locks files, a local disk say)"
            raise OSError(error.errno, reason, str(path)) from None
        os.close(handle)  # the last holder removed the file between our two calls
    try:
        text = json.dumps({"pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")})
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def replacing(path: Path, locked: Path | None = None) -> Iterator[Path]:
    """A new folder that takes the place of ``path`` when the block ends, while ``locked`` or ``path`` is locked. A block that
    raises leaves ``path`` as it was and nothing beside it."""
    with build_lock(locked or path):
        recover(path)
        unfinished = beside(path, UNFINISHED)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            yield unfinished
            flush_folder(unfinished)
            swap_in(unfinished, path)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
