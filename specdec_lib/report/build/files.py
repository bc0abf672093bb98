"""Writing so that a reader never meets half a file, and checksums of what was read."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from specdec_lib.datastores.files import recover, swap_in
from specdec_lib.files import replacing


def write_atomic(path: Path, text: str) -> None:
    """Write a text file aside and rename it; an interruption leaves the old file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")


def replace_folder(new: Path, target: Path) -> None:
    """Put the folder ``new`` in the place of ``target``; without ``new``, remove ``target``.

    An interruption leaves the old folder or the new one whole; if it falls between the two renames at the end,
    :func:`specdec_lib.datastores.files.recover` brings the old one back.
    """
    if not new.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target)
    aside = target.with_name(target.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    # A copy where ``new`` lies on another file system, as temporary folders often do.
    shutil.move(new, aside)
    swap_in(aside, target)


def sha256(path: Path) -> str:
    """Return the checksum of one file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_digest(root: Path, pattern: str = "**/*", skip: Iterable[str] = ()) -> str:
    """Return one checksum over the names and contents of all files below ``root`` that match ``pattern``, wherever a
    folder named in ``skip`` does not hold them."""
    skipped = {"__pycache__", *skip}
    digest = hashlib.sha256()
    for path in sorted(root.glob(pattern)):
        if path.is_file() and not skipped.intersection(path.relative_to(root).parts):
            digest.update(f"{path.relative_to(root).as_posix()}\0{sha256(path)}\n".encode())
    return digest.hexdigest()
