"""The files of a datastore: written whole, checked when they are opened, and built by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from specdec_lib.files import beside, flush_folder


class StoreError(ValueError):
    """A datastore that cannot be used: missing, truncated, altered, of another version or another
    tokenizer."""


class StoreBusy(StoreError):
    """Another process is building this datastore."""


def write(file: BinaryIO, data: Any) -> None:
    """Write bytes or an array's memory; every byte of a datastore passes here."""
    file.write(data)


def flush(file: BinaryIO) -> None:
    """Bring what was written onto the disk."""
    file.flush()
    os.fsync(file.fileno())


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file aside and rename it."""
    aside = beside(path, ".new")
    with aside.open("wb") as file:
        write(file, (json.dumps(content, indent=1) + "\n").encode())
        flush(file)
    os.replace(aside, path)
    flush_folder(path.parent)


def read_json(path: Path) -> dict | None:
    """The object in a JSON file; None where there is no file or no object in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def is_count(value: Any, least: int = 0) -> bool:
    """Whether a value read from JSON is a whole number, ``least`` or more; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_file_list(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(about, dict) and is_count(about.get("bytes")) and isinstance(about.get("sha256"), str)
        for about in value.values()
    )


#: What a field of a manifest may hold, by the words that errors describe it with.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "a whole number, 0 or more": is_count,
    "a whole number, 1 or more": lambda value: is_count(value, 1),
    "a text": lambda value: isinstance(value, str),
    "a text or null": lambda value: value is None or isinstance(value, str),
    "a list of objects": lambda value: isinstance(value, list) and all(isinstance(v, dict) for v in value),
    "a list of whole numbers": lambda value: isinstance(value, list) and all(map(is_count, value)),
    "sizes and checksums by file": _is_file_list,
}
COUNT, SIZE, TEXT, TEXT_OR_NULL, OBJECTS, COUNTS, FILES = _KINDS


def read_manifest(path: Path, form: str, version: int, named: Path, missing: str, again: str) -> dict:
    """The content of a manifest of this form and version.

    Parameters
    ----------
    path : path
        Of the manifest.
    form : str
        What its field ``format`` holds.
    version : int
    named : path
        What the message of another version names.
    missing : str
        Said where there is none, or one of another form.
    again : str
        What to do about another version.

    Raises
    ------
    StoreError
    """
    about = read_json(path)
    if about is None or about.get("format") != form:
        raise StoreError(missing)
    if about.get("version") != version:
        raise StoreError(
            f"{named} has version {about.get('version')} of the format, this library reads version {version}; {again}"
        )
    return about


def check_manifest(path: Path, about: dict, fields: dict[str, str], names: Sequence[str] = ()) -> None:
    """Refuse a manifest that lacks a field or a file, or holds another kind of value.

    Parameters
    ----------
    path : path
        Of the manifest, for the message.
    about : dict
    fields : dict of str
        The kind of each field: ``COUNT``, ``SIZE``, ``TEXT``, ``TEXT_OR_NULL``, ``OBJECTS``, ``COUNTS`` or
        ``FILES``.
    names : sequence of str
        Files that the field ``files`` must list.

    Raises
    ------
    StoreError
    """
    for name, kind in fields.items():
        if name not in about:
            raise StoreError(f"{path} has no field {name!r}; expected {kind}: it was altered; build it again")
        if not _KINDS[kind](about[name]):
            raise StoreError(
                f"{path} has {name!r}: {about[name]!r:.60}; expected {kind}: it was altered; build it again"
            )
    for name in names:
        if name not in about["files"]:
            raise StoreError(f"{path} does not list the file {name}: it was altered; build it again")


#: Bytes of the header of an array of one or two dimensions: NumPy leaves room in it for the array to grow.
NPY_HEADER = 128
_WRITE_ENTRIES = 1 << 22


def npy_header(file: BinaryIO, dtype: np.dtype, length: int, width: int | None = None) -> None:
    """Write the header of an array of ``length`` entries, or rows of ``width``, at the beginning of ``file``.

    Raises
    ------
    RuntimeError
        If this NumPy writes headers of another size.
    """
    file.seek(0)
    shape = (length,) if width is None else (length, width)
    np.lib.format.write_array_header_1_0(file, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})
    if file.tell() != NPY_HEADER:
        raise RuntimeError(f"NumPy {np.__version__} writes a header of {file.tell()} bytes, expected {NPY_HEADER}")


def write_array(path: Path, array: np.ndarray, dtype: np.dtype) -> None:
    """Write an array of one or two dimensions as ``dtype``, aside and renamed.

    Raises
    ------
    OSError
        If the disk is full, say. Nothing is left.
    """
    aside = beside(path, ".new")
    rows = max(1, _WRITE_ENTRIES // (array.shape[1] if array.ndim == 2 else 1))
    try:
        with aside.open("wb") as file:
            npy_header(file, dtype, *array.shape)
            for begin in range(0, len(array), rows):
                write(file, np.ascontiguousarray(array[begin : begin + rows], dtype).data)
            flush(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    aside.replace(path)


def describe(path: Path) -> dict:
    """Size in bytes and sha256 of a file, as manifests hold them."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def check_sizes(folder: Path, files: dict[str, dict]) -> None:
    """Refuse missing and truncated files.

    Raises
    ------
    StoreError
    """
    for name, about in files.items():
        path = folder / name
        if not path.is_file():
            raise StoreError(f"{path} is missing: the datastore is damaged; build it again")
        if path.stat().st_size != about["bytes"]:
            raise StoreError(
                f"{path} has {path.stat().st_size} bytes, its manifest says {about['bytes']}: "
                "the datastore is damaged; build it again"
            )


def check_sums(folder: Path, files: dict[str, dict]) -> None:
    """Refuse altered files.

    Raises
    ------
    StoreError
    """
    for name, about in files.items():
        if describe(folder / name)["sha256"] != about["sha256"]:
            raise StoreError(
                f"{folder / name} was altered after it was built (its sha256 differs from the "
                "manifest's); build it again"
            )


def open_array(path: Path, dtype: np.dtype, *shape: int) -> np.ndarray:
    """Map an array into memory, read-only.

    Raises
    ------
    StoreError
        If the file holds anything else.
    """
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy reads a header as Python code: a damaged one fails in that parser's ways too
        reason = " ".join(str(error).split())
        raise StoreError(f"{path} cannot be read ({reason:.200}); build the datastore again") from None
    if array.dtype != dtype or array.shape != shape:
        raise StoreError(
            f"{path} holds {array.dtype} of shape {array.shape}, expected {np.dtype(dtype)} of "
            f"shape {shape}: the datastore is damaged; build it again"
        )
    if array.offset + array.nbytes != path.stat().st_size or not array.flags.c_contiguous:
        raise StoreError(
            f"{path} has a damaged header: {array.nbytes} bytes of numbers from byte {array.offset} on, "
            f"in a file of {path.stat().st_size}; build the datastore again"
        )
    return np.asarray(array)


def check_range(path: Path, array: np.ndarray, least: int, most: int, what: str) -> None:
    """Refuse numbers outside a range; compiled loops use them as indices and check no bounds.

    This reads the array once or twice at the speed of memory, several times faster than a checksum.

    Parameters
    ----------
    path : path
        Of the array's file, for the message.
    array : integer array
    least, most : int
        The range, both ends included.
    what : str
        What a number of the array is.

    Raises
    ------
    StoreError
    """
    for value in (array.min(), array.max()) if array.size else ():
        if not least <= int(value) <= most:
            raise StoreError(
                f"{path} holds the {what} {int(value)}; expected {least} to {most}: it was altered; build it again"
            )


def take_over(folder: Path, target: Path) -> None:
    """Have the files of ``folder`` in a new folder ``target`` too: linked, for files of a datastore are
    replaced and never changed; copied where the file system has no links."""

    def link(source: str, name: str) -> None:
        try:
            os.link(source, name)
        except OSError:
            shutil.copy2(source, name)

    shutil.copytree(folder, target, copy_function=link)


class BuildLock:
    """Only one process at a time builds ``target``.

    The lock is the kernel's (``flock``), so it ends with its process however that ends; the file's text,
    process id and when it took the lock, is there to name the holder.

    Raises
    ------
    StoreBusy
        On entering, if another builder holds it.
    OSError
        On entering, if the file system cannot lock.
    """

    def __init__(self, target: Path):
        self.target, self.path = target, beside(target, ".lock")
        self._handle = -1

    def __enter__(self) -> BuildLock:
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                raise StoreBusy(
                    f"{self.target} is being built by another process ({self._holder()}): wait "
                    "until it has ended, or stop it; what it has done so far is kept"
                ) from None
            except OSError as error:
                os.close(handle)
                raise OSError(
                    error.errno,
                    f"{error.strerror} (a build needs a file system that locks files, a local disk say)",
                    str(self.path),
                ) from None
            try:
                current = os.fstat(handle).st_ino == os.stat(self.path).st_ino
            except FileNotFoundError:
                current = False
            if current:
                break
            os.close(handle)  # the last holder removed the file between our two calls
        self._handle = handle
        text = json.dumps({"pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")})
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)
        return self

    def _holder(self) -> str:
        about = read_json(self.path) or {}
        return f"process {about.get('pid', 'unknown')}, since {about.get('since', 'unknown')}"

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._handle)
