"""Where the project's files are, in a checkout and in an installed wheel.

In a checkout :data:`ROOT` is the repository and the data lie in ``data/``. An installed wheel has no
repository (``ROOT`` is None) and carries what it needs of ``data/`` inside the package, as
``specdec_lib/_data``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from specdec_lib.files import located

PACKAGE = Path(__file__).resolve().parent
"""Folder of the package itself."""


def _checkout(folder: Path) -> Path | None:
    """``folder`` if it is the repository the package lies in, else None."""
    return folder if (folder / "pyproject.toml").is_file() and (folder / "notebooks").is_dir() else None


ROOT: Path | None = _checkout(PACKAGE.parent)
"""The repository, or None when the package is installed from a wheel."""

DATA = ROOT / "data" if ROOT else PACKAGE / "_data"
"""Data that the project ships."""

POCKET = DATA / "models" / "pocket"
"""The pocket target and draft models, the fixture of the tests."""

SMOLLM2 = DATA / "models" / "smollm2"
"""What was trained for SmolLM2: draft model, heads, weights of one tree."""

PUBLISHED = DATA / "published"
"""Numbers of the papers, one CSV file a paper."""

RECORDINGS = DATA / "results" / "recordings" / "smollm2.npz"
"""What SmolLM2 writes to the prompts of the book, as ``scripts/record_answers.py`` decoded it."""

CLAIMS = DATA / "claims.yml"
"""The ledger of claims."""


def folder_of(device: str) -> str:
    """Name of the folder of a device's results, such as ``nvidia-h200`` for ``NVIDIA H200``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def named_folder(variable: str) -> Path | None:
    """The absolute path in an environment variable; None where it is not set."""
    named = os.environ.get(variable)
    try:
        return located(named) if named else None
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None


def cache() -> Path:
    """Return the folder of what can be made again: datastores, responses, states.

    The environment variable ``SPECDEC_CACHE``, else ``_build/cache`` in a checkout and
    ``~/.cache/specdec_lib`` for an installed copy. It is made on first use.
    """
    if named := named_folder("SPECDEC_CACHE"):
        return named
    return ROOT / "_build" / "cache" if ROOT else Path.home() / ".cache" / "specdec_lib"


def root() -> Path:
    """Return the repository; an installed wheel has none."""
    if ROOT is None:
        raise FileNotFoundError(
            f"{PACKAGE} is an installed copy without notebooks and book: work in a checkout of the repository"
        )
    return ROOT


def datasets_root(root: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder of the published data sets: ``root``, or what ``SPECDEC_DATASETS`` names; None where none is given."""
    folder = named_folder("SPECDEC_DATASETS") if root is None else located(root)
    if folder is None:
        return None
    if not folder.is_dir():
        source = "root" if root is not None else "SPECDEC_DATASETS"
        named = os.environ.get(source) if root is None else str(root)
        raise NotADirectoryError(f"{source}={named!r} is not a folder: give the folder of the data sets")
    return folder
