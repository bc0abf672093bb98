"""Files and folders that are there whole or not at all, and checksums of what was read."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Endings of the names of what is being built, of what it replaces, and of the lock. People give no such names, so what is
#: found under one is removed.
UNFINISHED, NEW, ASIDE, LOCK = ".unfinished-build", ".not-yet-in-place", ".set-aside", ".build-lock"


def named(path: str | Path) -> Path:
    """The path that a caller names, ``~`` written out."""
    return Path(os.path.expanduser(path))


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A file to write to that takes the place of ``path`` once the block has ended.

    It lies in the folder of ``path`` under a name of its own, so that two processes do not write into the same one. A symbolic link
    stays, and what it leads to is replaced. A block that raises leaves ``path`` as it was and no other file.
    """
    path = Path(os.path.realpath(named(path)))
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}; make it before {path.name} is written there")
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    aside.touch(exist_ok=False)
    mode = aside.stat().st_mode
    try:
        yield aside
        aside.chmod(mode)  # safetensors makes another file there, which only its owner may read
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def beside(path: Path, suffix: str) -> Path:
    """The neighbour of ``path`` whose name has ``suffix`` added."""
    return path.with_name(path.name + suffix)


def flush_folder(folder: Path) -> None:
    """Bring the names in ``folder`` onto the disk: a rename counts only then."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(folder: Path) -> None:
    """Remove a folder, or a symbolic link to one."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def swap_in(new: Path, target: Path) -> None:
    """Put the folder ``new`` in the place of ``target``, which is no symbolic link; :func:`present` finds one of the two at
    any moment."""
    old = beside(target, ASIDE)
    if target.exists():
        _remove(old)
        os.rename(target, old)
    os.rename(new, target)
    flush_folder(target.parent)
    _remove(old)


def present(target: Path) -> Path:
    """Where the folder ``target`` is: set aside, if its replacement was interrupted between the two
    renames."""
    old = beside(target, ASIDE)
    return old if not target.exists() and old.exists() else target


def recover(target: Path) -> None:
    """Undo a replacement that was interrupted; called by whoever holds the lock."""
    old = beside(target, ASIDE)
    if target.exists():
        _remove(old)
    elif old.exists():
        os.rename(old, target)


def cannot_write(path: Path) -> str:
    """Why no file can be made at ``path``, whose missing folders would be made as well; empty where one can."""
    try:
        if path.exists() and not path.is_file():
            return "it is a folder" if path.is_dir() else "it is no file"
        there = next(parent for parent in Path(os.path.realpath(path)).parents if parent.exists())
        # Named as in `replacing`: a name can be too long.
        with tempfile.NamedTemporaryFile(dir=there, prefix=f".{path.name}.", suffix=".tmp"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def write_atomic(path: Path, text: str) -> None:
    """Write a text file aside and rename it; an interruption leaves the old file or none."""
    path = named(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")


def replace_folder(new: Path, target: Path) -> None:
    """Put the folder ``new`` in the place of ``target``; without ``new``, remove ``target``.

    An interruption leaves the old folder or the new one whole; if it falls between the two renames at the end,
    :func:`recover` brings the old one back.
    """
    target = target.resolve()  # a symbolic link stays, and what it leads to is replaced
    if not new.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target)
    aside = beside(target, NEW)
    shutil.rmtree(aside, ignore_errors=True)
    # A copy where ``new`` lies on another file system, as temporary folders often do.
    shutil.move(new, aside)
    swap_in(aside, target)


def sha256(path: Path) -> str:
    """Return the checksum of one file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_digest(root: Path) -> str:
    """Return one checksum over the names and contents of all files below ``root``, compiled Python left out."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.relative_to(root).parts:
            digest.update(f"{path.relative_to(root).as_posix()}\0{sha256(path)}\n".encode())
    return digest.hexdigest()
