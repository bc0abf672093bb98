"""Everything that is written, replaced or removed goes through this module, and so do the checks of what is read.

A file or folder is there whole or not at all. Only what the library wrote is replaced or removed: a folder shows by its
manifest, or by the mark of an unfinished build, which of its files those are. A folder with any other file is rejected, and
the message names that file. What changes is locked meanwhile, what is written reaches the disk before it takes its place,
and the scratch of a run that was killed is removed by the next one.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from glob import escape
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeVar
from unicodedata import category
from zipfile import ZipFile

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

#: Endings of the names of what is being built, of what it replaces, and of the lock.
UNFINISHED, ASIDE, LOCK = ".unfinished-build", ".set-aside", ".build-lock"
#: Beginning of the names of folders for work in progress, and the lock inside, which is held as long as the work goes on.
SCRATCH, IN_USE = ".specdec-scratch-", "in-use"
#: In an unfinished build: what is built there, of which files, and how far it is.
MARK = "unfinished.json"
#: Begins the ``format`` of every manifest and mark.
OWN = "specdec-lib "
#: Of all manifests. Version 1 had no checksum of the manifest itself.
VERSION = 2
#: How often something is opened again that was replaced meanwhile, and looked for that is missing.
ATTEMPTS, LOOKS = 1000, 5
_LOCK_BYTES = 1000
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
T = TypeVar("T")


class StoreError(ValueError):
    """A datastore that cannot be used: missing, truncated, altered, of another version or another tokenizer.

    Examples
    --------
    >>> from specdec_lib.datastores import SuffixIndex, build_tokens
    >>> store = build_tokens(folder / "store", [[5, 6, 7]], vocabulary=10, progress=False)
    >>> SuffixIndex.open(store)
    Traceback (most recent call last):
        ...
    specdec_lib.files.StoreError: ...store has no suffix array: build one with 'python -m specdec_lib datastore build', or ...
    """


class StoreBusy(StoreError):
    """Another process is building this datastore."""


class ForeignFile(ValueError):
    """A folder cannot be replaced or removed, because it holds a file that the library did not write."""


def named(path: str | Path) -> Path:
    """The path that a caller names, ``~`` written out; ValueError if it is empty or names an unknown user."""
    try:
        if not os.fspath(path):
            raise RuntimeError("it is empty")
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{str(path)!r} is no path ({error}); give the name of a file or a folder") from None


def located(path: str | Path) -> Path:
    """The path that a caller names, absolute, links followed: what lies behind a link is replaced there, and the link stays."""
    try:
        return named(path).resolve()
    except (RuntimeError, OSError) as error:  # links in a circle
        raise ValueError(f"{str(path)!r} is no path ({error}); give the name of a file or a folder") from None


def beside(path: Path, suffix: str) -> Path:
    """The neighbour of ``path`` whose name has ``suffix`` added."""
    return path.with_name(path.name + suffix)


def write(file: BinaryIO, data: Any) -> None:
    """Write bytes or an array's memory; every byte of a datastore passes here."""
    file.write(data)


def flush(path: Path) -> None:
    """Bring the bytes of a file, or the names in a folder, onto the disk: a rename counts only then."""
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def no_link(path: str, flags: int) -> int:
    """Opener for a file of a predictable name: a symbolic link there is an OSError."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


# Locks


def _lock(path: Path) -> BaseFileLock:
    """A lock whose file says who holds it; to acquire it is a ForeignFile if the file is somebody else's."""

    def note_holder(handle: int) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        held = os.read(handle, _LOCK_BYTES)
        if held and not _of_lock(held):
            raise ForeignFile(f"{path} is no lock of this library, and one is needed there: move it away")
        try:
            about = {"format": f"{OWN}lock", "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            # Windows locks the first byte, which nobody else can read then.
            os.write(handle, b" " + json.dumps(about).encode())
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise

    # Where there is neither flock nor Windows, a file that is there is the lock, and its text is filelock's own.
    hook = {} if FileLock is SoftFileLock else {"on_acquired": note_holder}
    return FileLock(path, timeout=0, thread_local=False, **hook)


def _unlock(lock: BaseFileLock) -> None:
    if not isinstance(lock, SoftFileLock):
        # Removed while it is held: who waits for it sees that and makes another. Windows removes it on release.
        with suppress(OSError):
            os.unlink(lock.lock_file)
    lock.release()


def _holder(held: bytes) -> dict:
    """What a lock's file says about its holder."""
    with suppress(ValueError, RecursionError):
        about = json.loads(held)
        return about if isinstance(about, dict) else {}
    return {}


def _of_lock(held: bytes) -> bool:
    """Whether a file's bytes are those of a lock, of this version or of 1.0."""
    return _holder(held).keys() in ({"format", "pid", "since"}, {"pid", "since"})


def _lock_bytes(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        file.seek(1)  # the first is a blank or, of a lock of 1.0, the brace
        held = file.read(_LOCK_BYTES)
        return held if held.startswith(b"{") else b"{" + held
    return b""


def _is_lock(path: Path) -> bool:
    """Whether a file is a lock of this library, or an empty one: a process was killed before it had written who it is."""
    if path.is_symlink() or not path.is_file():
        return False
    return not path.stat().st_size or _of_lock(_lock_bytes(path))


@contextmanager
def locked(target: Path, wait: bool = False) -> Iterator[None]:
    """Let one process at a time build ``target``; if another does, ``wait`` for it, or else a StoreBusy. An OSError if the file
    system cannot lock.

    The lock is the kernel's, so it ends with its process; its file's text names the holder.
    """
    path = beside(target, LOCK)
    lock = _lock(path)
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        holder = _holder(_lock_bytes(path))
        raise StoreBusy(
            f"{target} is being built by another process (process {holder.get('pid', 'unknown')}, since "
            f"{holder.get('since', 'unknown')}): wait until it has ended, or stop it; what it has done so far is kept"
        ) from None
    except OSError as error:
        if path.is_symlink():
            raise ForeignFile(f"{path} is a symbolic link, and a lock is needed there: move it away") from None
        if error.errno not in _NO_LOCKS:
            raise
        reason = f"{error.strerror} (a build needs a file system that locks files, a local disk say)"
        raise OSError(error.errno, reason, str(path)) from None
    try:
        yield
    finally:
        _unlock(lock)


# Scratch


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A new folder in ``parent``, which nobody else may read, for work in progress; gone after the block.

    Those that killed runs left in ``parent`` are removed first.
    """
    sweep(parent)
    folder, lock = _new_scratch(parent)
    try:
        yield folder
    finally:
        _discard(folder, lock)


def sweep(parent: Path) -> None:
    """Remove what killed runs left in ``parent``: folders of :func:`scratch` whose lock nobody holds."""
    for left in parent.glob(f"{SCRATCH}*"):
        _sweep(left)


def _new_scratch(parent: Path) -> tuple[Path, BaseFileLock | None]:
    while True:
        folder = parent / f"{SCRATCH}{secrets.token_hex(6)}"
        folder.mkdir(0o700)
        lock = _lock(folder / IN_USE)
        try:
            lock.acquire()
            return folder, lock
        except (Timeout, FileNotFoundError):
            continue  # another process took it for one of a killed run, and removes it
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in _NO_LOCKS:
                return folder, None  # which nobody removes but this block
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _sweep(folder: Path) -> None:
    with suppress(OSError, ForeignFile):
        if folder.is_symlink() or not folder.is_dir():
            return
        if not (folder / IN_USE).exists():
            folder.rmdir()  # if it is empty: a run was killed before it had locked it
            return
        lock = _lock(folder / IN_USE)
        lock.acquire()
        _discard(folder, lock)


def _discard(folder: Path, lock: BaseFileLock | None) -> None:
    """Remove a scratch folder, its lock last: until then it is known as what it is."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != IN_USE:
            path.unlink(missing_ok=True)
    if lock is not None:
        _unlock(lock)
    with suppress(OSError):
        folder.rmdir()


# Files


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A file to write to that takes the place of ``path`` once the block has ended and its bytes are on the disk.

    It lies in a :func:`scratch` beside ``path``, so that two processes do not write into the same one. A symbolic link stays,
    and what it leads to is replaced; who may read it stays as well. A block that raises leaves ``path`` as it was and no
    other file.
    """
    path = located(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}; make it before {path.name} is written there")
    with scratch(path.parent) as folder:
        aside = folder / path.name
        aside.touch(exist_ok=False)
        mode = _mode(path if path.is_file() else aside)
        yield aside
        aside.chmod(mode)  # safetensors makes another file there, which only its owner may read
        flush(aside)
        aside.replace(path)
        flush(path.parent)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & 0o777


def write_atomic(path: str | Path, text: str) -> None:
    """Write a text file, and the folders that it lies in; an interruption leaves the old file or none."""
    path = named(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")  # the same bytes on Windows


def write_json(path: str | Path, content: dict) -> None:
    """Write an object as JSON, whole or not at all."""
    with replacing(path) as aside, aside.open("wb") as file:
        write(file, (json.dumps(content, indent=1) + "\n").encode())


def read_json(path: Path) -> dict | None:
    """The object in a JSON file; None where there is no file or no object in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def cannot_write(path: Path) -> str:
    """Why no file can be made at ``path``, whose missing folders would be made as well; empty where one can."""
    try:
        if path.exists() and not path.is_file():
            return "it is a folder" if path.is_dir() else "it is no file"
        there = next(parent for parent in Path(os.path.realpath(path)).parents if parent.exists())
        if not there.is_dir():
            return "part of it is a file, no folder"
        with suppress(FileNotFoundError):
            os.lstat(path)  # an OSError for a name that is too long
        TemporaryFile(dir=there).close()
        return ""
    except OSError as error:
        return error.strerror or str(error)


def sha256(path: Path) -> str:
    """Return the checksum of one file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def state(path: Path) -> tuple[int, int, int]:
    """What any writing to a file changes: its size, and when it was written."""
    about = path.stat()
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns


def known_sum(path: Path) -> str:
    """Return the checksum of one file, which is read once for each :func:`state` of it."""
    return _sum(path.resolve(), state(path))


@cache
def _sum(path: Path, state: tuple[int, int, int]) -> str:
    return sha256(path)


def tree_digest(root: Path) -> str:
    """Return one checksum over the names and contents of all files below ``root``, compiled Python left out."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.relative_to(root).parts:
            digest.update(f"{path.relative_to(root).as_posix()}\0{sha256(path)}\n".encode())
    return digest.hexdigest()


# Whose a folder is


def _manifests(folder: Path) -> list[dict]:
    """Manifests and marks of this library in a folder, each with the name of its own file."""
    found = ((path.name, read_json(path)) for path in folder.glob("*.json") if path.is_file() and not path.is_symlink())
    return [about | {"file": name} for name, about in found if about and str(about.get("format", "")).startswith(OWN)]


def foreign_entry(folder: Path, names: Sequence[str] = (), marked: bool = True) -> Path | None:
    """The first entry of a folder that the library did not write, if there is one.

    What it wrote are manifests and marks, what they list, what is called like one of ``names`` (patterns of ``fnmatch``), and
    its locks and scratch. A folder with one of these names is its own if the same is true of what lies in it; a store that
    was put into another one is not. Without a manifest or mark nothing is its own, unless the folder need not be ``marked``.
    """
    if folder.is_symlink() or not folder.is_dir():
        return folder
    manifests = _manifests(folder)
    known = list(names) if manifests or not marked else []
    for about in manifests:
        known += map(escape, [about["file"], *_listed(about)])

    def ours(name: str) -> bool:
        return any(fnmatchcase(name, one) for one in known)

    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()) or (path.name.startswith(SCRATCH) and _is_lock(path / IN_USE)):
                continue
            named = {path.name, path.name.removesuffix(UNFINISHED), path.name.removesuffix(ASIDE)}
            if not any(map(ours, named)) or not _manifests(path):
                return path
            if found := foreign_entry(path, known):
                return found
        elif not ours(path.name) and not (path.name.endswith(LOCK) and _is_lock(path)):
            return path
    return None


def _listed(about: dict) -> Iterator[str]:
    """Names of the files, and of the shards, that a manifest or mark lists."""
    for key in ("files", "names"):
        some = about.get(key)
        yield from (name for name in (some if isinstance(some, dict | list) else ()) if isinstance(name, str))
    if is_object_list(about.get("shards")):
        yield from (shard["name"] for shard in about["shards"] if isinstance(shard.get("name"), str))


def _check_own(folder: Path, names: Sequence[str], marked: bool = True) -> None:
    if os.path.lexists(folder) and (found := foreign_entry(folder, names, marked)):
        raise ForeignFile(f"{folder} stays: the library did not write {found}; move it away, or name another folder")


def remove(folder: Path, names: Sequence[str] = (), marked: bool = True) -> None:
    """Remove a folder that the library wrote (:func:`foreign_entry`), file by file and its manifest last; ForeignFile if it holds
    anything else."""
    _check_own(folder, names, marked)
    if folder.exists():
        _remove_files(folder)


def _remove_files(folder: Path) -> None:
    for path in sorted(folder.iterdir(), key=lambda path: path.suffix == ".json"):
        if path.is_dir() and not path.is_symlink():
            _remove_files(path)
        else:
            path.unlink()
    folder.rmdir()


def check_target(path: Path, manifest: str, form: str, what: str, names: Sequence[str] = ()) -> None:
    """Reject a folder that is no ``what`` of this library, that holds anything else, or that cannot be written, before any
    work is done."""
    if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
        about = read_json(path / manifest)
        if about is None or about.get("format") != form:
            raise ForeignFile(
                f"{path} exists and is no {what}; give the name of a new folder, or of a {what} to replace"
            )
        if found := foreign_entry(path, names):
            raise ForeignFile(f"{path} stays: {found} is no part of a {what}; move it away, or name another folder")
    why = cannot_write(beside(path, LOCK))
    if why:
        raise ValueError(f"{path} cannot be written ({why}); name another folder")
    path.parent.mkdir(parents=True, exist_ok=True)


# Folders


def current_place(target: Path) -> Path:
    """Where the folder ``target`` is: set aside, if its replacement was interrupted between the two renames."""
    old = beside(target, ASIDE)
    return old if not target.exists() and old.exists() else target


def recover(target: Path, names: Sequence[str] = (), marked: bool = True) -> None:
    """Undo a replacement that was interrupted; called by whoever holds the lock."""
    old = beside(target, ASIDE)
    if target.exists():
        remove(old, names, marked)
    elif os.path.lexists(old):
        _check_own(old, names, marked)
        os.rename(old, target)


def unfinished_folder(path: Path, names: Sequence[str], key: Any = None) -> Path:
    """The folder in which ``path`` is built: that of an interrupted run with the same ``key``, else an empty one.

    ``names`` are those of the files that the build writes. Called by whoever holds the lock.
    """
    unfinished = beside(path, UNFINISHED)
    if key is not None and progress(unfinished).get("key") == key and not foreign_entry(unfinished, names):
        return unfinished
    remove(unfinished, names)
    unfinished.mkdir()
    try:
        if path.is_dir():
            unfinished.chmod(_mode(path))
        write_json(unfinished / MARK, {"format": f"{OWN}unfinished build", "names": list(names), "key": key})
    except BaseException:
        unfinished.rmdir()
        raise
    return unfinished


def progress(unfinished: Path) -> dict:
    """What an unfinished build notes about itself; nothing where there is none."""
    about = None if unfinished.is_symlink() else read_json(unfinished / MARK)
    return about if about and about.get("format") == f"{OWN}unfinished build" else {}


def note_progress(unfinished: Path, **about: Any) -> None:
    """Note how far an unfinished build is, for the run that goes on with it."""
    write_json(unfinished / MARK, progress(unfinished) | about)


def swap_in(new: Path, target: Path, names: Sequence[str] = (), marked: bool = True) -> None:
    """Put the finished folder ``new`` in the place of ``target``, which is no symbolic link; :func:`current_place` finds one of the
    two at any moment. A ``target`` that holds anything but the library's own files (:func:`foreign_entry`) is a ForeignFile."""
    old = beside(target, ASIDE)
    remove(old, names, marked)
    _check_own(target, names, marked)
    for path in [*new.rglob("*"), new]:
        if (was := target / path.relative_to(new)).exists():
            path.chmod(_mode(was))
        flush(path)
    if target.exists():
        os.rename(target, old)
    try:
        os.rename(new, target)
    except OSError:
        if old.exists():
            os.rename(old, target)
        raise
    (target / MARK).unlink(missing_ok=True)
    flush(target.parent)
    remove(old, names, marked)


def move_in(new: Path, folder: Path, names: Sequence[str]) -> None:
    """Move files of ``new`` into a folder, one after another, in the place of those that are there."""
    for name in names:
        if (was := folder / name).is_file():
            (new / name).chmod(_mode(was))
        os.replace(new / name, folder / name)
    flush(folder)


@contextmanager
def building(path: Path, names: Sequence[str], lock: Path | None = None) -> Iterator[Path]:
    """A new folder that takes the place of ``path`` when the block ends, while ``lock`` or ``path`` is locked. A block that
    raises leaves ``path`` as it was and nothing beside it."""
    with locked(lock or path):
        recover(path, names)
        unfinished = unfinished_folder(path, names)
        try:
            yield unfinished
            swap_in(unfinished, path, names)
        except BaseException:
            with suppress(ForeignFile):
                remove(unfinished, names)
            raise


def replace_folder(new: Path, target: Path, names: Sequence[str]) -> None:
    """Put the folder ``new`` in the place of ``target``; without ``new``, remove ``target``, which may hold nothing but ``names``.

    An interruption leaves the old folder or the new one whole; if it falls between the two renames at the end,
    :func:`recover` brings the old one back.
    """
    target = located(target)  # a symbolic link stays, and what it leads to is replaced
    if not new.is_dir():
        remove(target, names, marked=False)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target, names, marked=False)
    with scratch(target.parent) as folder:
        # A copy where ``new`` lies on another file system, as temporary folders often do.
        swap_in(Path(shutil.move(new, folder / target.name)), target, names, marked=False)


# Reading


def read_one_build(path: Path, manifest: str, read: Callable[[Path], T]) -> T:
    """What ``read`` makes of a folder, all of it of one build: again, if that was replaced meanwhile.

    A build is known by the file of its ``manifest``, which is kept open: its number cannot be given to another one, and no
    build comes back.
    """
    looks = 0
    for _ in range(ATTEMPTS):
        folder, error, found = current_place(path), None, None
        handle = _opened(folder / manifest)
        try:
            before = None if handle is None else _number(os.fstat(handle))
            try:
                found = read(folder)
            except (StoreError, FileNotFoundError) as failed:
                error = failed
            now, after = current_place(path), None
            with suppress(OSError):
                after = _number(os.stat(now / manifest))
        finally:
            if handle is not None:
                os.close(handle)
        if before != after or now != folder:
            continue
        if before is not None and error is None:
            return found
        # A file that was not there may have been moved and moved back meanwhile.
        looks += 1
        if looks == LOOKS:
            if error is not None:
                raise error
            return found
    raise StoreBusy(f"{path} is replaced again and again while it is opened; wait until its builds have ended")


def _opened(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None


def _number(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _own_sum(about: dict) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def describe(path: Path) -> dict:
    """Size in bytes and sha256 of a file, as manifests hold them."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def write_manifest(path: Path, form: str, content: dict, names: Sequence[str] = ()) -> None:
    """Write what a folder holds: its form, ``content``, size and sha256 of the files ``names``, and its own sha256."""
    about = {"format": form, "version": VERSION, **content}
    about["files"] = {name: describe(path.parent / name) for name in names}
    write_json(path, {**about, "sha256": _own_sum(about)})


def is_count(value: Any) -> bool:
    """Whether a value of a manifest is a number of things, 0 or more."""
    return type(value) is int and 0 <= value < 2**62


def is_text(value: Any) -> bool:
    """Whether a value of a manifest is a text."""
    return isinstance(value, str)


def is_text_or_none(value: Any) -> bool:
    """Whether a value of a manifest is a text or not known."""
    return value is None or isinstance(value, str)


def is_object_list(value: Any) -> bool:
    """Whether a value of a manifest is a list of objects."""
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def read_manifest(
    path: Path, form: str, missing: str, names: Sequence[str], fields: dict[str, Callable[[Any], bool]]
) -> dict:
    """Read what :func:`write_manifest` wrote about the files ``names``; StoreError if it or a file's size was altered, if one of
    ``fields`` is not what it must be, or, as ``missing``, without a manifest."""
    about = read_json(path)
    if about is None or about.get("format") != form:
        raise StoreError(missing)
    if about.get("version") != VERSION:
        raise StoreError(f"{path} has version {about.get('version')}, this library reads {VERSION}; build it again")
    if about.pop("sha256", None) != _own_sum(about):
        raise StoreError(f"{path} was altered after it was built (its sha256 differs); build it again")
    files = about.get("files")
    if not isinstance(files, dict) or set(files) != set(names) or not all(map(_describes, files.values())):
        raise StoreError(
            f"{path} does not say which size and sha256 {', '.join(names) or 'no file'} must have; build it again"
        )
    for name, right in fields.items():
        if name not in about or not right(about[name]):
            raise StoreError(f"{path} has {about.get(name)!r:.80} as its {name}, which cannot be; build it again")
    for name, known in files.items():
        file = path.parent / name
        if not file.is_file():
            raise StoreError(f"{file} is missing: the datastore is damaged; build it again")
        if file.stat().st_size != known["bytes"]:
            raise StoreError(f"{file} has {file.stat().st_size} bytes, not {known['bytes']}: damaged; build it again")
    return about


def _describes(value: Any) -> bool:
    return isinstance(value, dict) and is_count(value.get("bytes")) and is_text(value.get("sha256"))


def check_sums(folder: Path, files: dict[str, dict]) -> None:
    """Reject altered files with a StoreError."""
    for name, about in files.items():
        if sha256(folder / name) != about["sha256"]:
            raise StoreError(f"{folder / name} was altered after it was built (its sha256 differs); build it again")


def check_opened(path: Path, manifest: str, about: dict) -> None:
    """Compare every byte of a folder that was opened with ``about``, what its manifest says; StoreError where one differs, or if
    it was built again since."""

    def check(folder: Path) -> None:
        now = read_json(folder / manifest) or {}
        now.pop("sha256", None)
        if now != about:
            raise StoreError(f"{folder / manifest} was altered, or built again, since it was opened; open it again")
        check_sums(folder, about["files"])

    read_one_build(path, manifest, check)


def check_unpacked(path: Path, most: int = 1 << 30) -> None:
    """Reject a zip archive, an .npz file say, that unpacks to more than ``most`` bytes."""
    with ZipFile(path) as packed:
        total = sum(about.file_size for about in packed.infolist())
    if total > most:
        raise ValueError(f"{path} unpacks to {total:,} bytes; expected at most {most:,}")


def unpack_gzip(path: Path, most: int = 1 << 30) -> bytes:
    """The content of a .gz file; ValueError if it is damaged, or more than ``most`` bytes."""
    try:
        with gzip.open(path) as packed:
            content = packed.read(most + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked ({error})") from None
    if len(content) > most:
        raise ValueError(f"{path} unpacks to more than {most:,} bytes")
    return content


def printable(words: str) -> str:
    """Somebody else's text for one line of a terminal: control characters, which could steer it, are written as escapes."""
    return "".join(
        c if c.isprintable() or category(c) == "Zs" else c.encode("unicode_escape", "surrogatepass").decode()
        for c in words
    )
