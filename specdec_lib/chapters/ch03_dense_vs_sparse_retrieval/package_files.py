"""Python files of packages, installed or in downloaded archives: the text of the largest stores."""

from __future__ import annotations

import hashlib
import io
import sys
import sysconfig
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from specdec_lib.experiments.data.stores import LARGEST_FILE, key_of

#: Smaller files hold little but a licence.
SMALLEST_FILE = 200
#: What pip downloads as a wheel is a zip archive.
ARCHIVES = (".whl", ".zip")


@dataclass(frozen=True)
class PackageFile:
    """One file: its name in its package, its size, its checksum, and where it lies.

    ``path`` is the file itself, or the archive that holds it under ``name`` if ``packed``.
    """

    name: str
    size: int
    checksum: int
    path: Path
    packed: bool


@dataclass(frozen=True)
class PackageFiles:
    """Texts of Python files, read as they are needed; starts again with each ``iter()`` and can be pickled."""

    files: tuple[PackageFile, ...]

    def __iter__(self) -> Iterator[str]:
        with ExitStack() as stack:
            archives: dict[Path, zipfile.ZipFile] = {}
            for file in self.files:
                if file.packed:
                    if file.path not in archives:
                        archives[file.path] = stack.enter_context(zipfile.ZipFile(file.path))
                    stream = archives[file.path].open(file.name)
                else:
                    stream = file.path.open("rb")
                with io.TextIOWrapper(stream, encoding="utf-8", errors="replace") as reader:
                    yield reader.read()

    @cached_property
    def key(self) -> str:
        """Key that identifies these texts."""
        return key_of("package files", *((file.name, file.size, file.checksum) for file in self.files))

    @property
    def bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    def split(self, count: int) -> list[PackageFiles]:
        """The files in ``count`` parts of about equally many bytes, one after another."""
        ends = np.cumsum([file.size for file in self.files])
        cuts = np.searchsorted(ends, [self.bytes * i / count for i in range(1, count)], side="left")
        return [PackageFiles(self.files[a:b]) for a, b in zip([0, *cuts], [*cuts, len(self.files)], strict=True)]


def _installed(root: Path) -> Iterator[PackageFile]:
    for path in root.rglob("*.py"):
        size = path.stat().st_size
        if SMALLEST_FILE < size <= LARGEST_FILE:
            yield PackageFile(path.relative_to(root).as_posix(), size, zlib.crc32(path.read_bytes()), path, False)


def _packed(archive: Path) -> Iterator[PackageFile]:
    with zipfile.ZipFile(archive) as opened:
        for about in opened.infolist():
            if about.filename.endswith(".py") and SMALLEST_FILE < about.file_size <= LARGEST_FILE:
                yield PackageFile(about.filename, about.file_size, about.CRC, archive, True)


def installed_packages() -> list[Path]:
    """The folders that this Python imports installed packages from."""
    found = [Path(name) for name in sys.path if Path(name).name in ("site-packages", "dist-packages")]
    return found or [Path(sysconfig.get_paths()["purelib"])]


def package_files(downloaded: Sequence[Path] = (), installed: Sequence[Path] | None = None) -> PackageFiles:
    """Python files of the installed packages and of the wheels in the folders ``downloaded``, each content once.

    Their order mixes the packages and depends on the files' names alone, so the first part of them is a sample of all.
    FileNotFoundError if a folder holds no wheel, or there is no file.
    """
    roots = installed_packages() if installed is None else installed
    found = [file for root in roots for file in _installed(root)]
    for folder in downloaded:
        archives = sorted(path for path in Path(folder).iterdir() if path.suffix in ARCHIVES) if folder.is_dir() else []
        if not archives:
            raise FileNotFoundError(f"no wheels in {folder}; name a folder that 'pip download' has filled")
        for archive in archives:
            found += _packed(archive)
    if not found:
        raise FileNotFoundError(f"no Python files in {', '.join(map(str, roots))}; name a folder of Python packages")
    found.sort(key=lambda file: (hashlib.sha256(file.name.encode()).digest(), file.path.name))
    once = {(file.checksum, file.size): file for file in reversed(found)}
    return PackageFiles(tuple(reversed(once.values())))
