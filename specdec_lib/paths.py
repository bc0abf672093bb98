"""Where the project's files are, in a checkout and in an installed wheel.

In a checkout :data:`ROOT` is the repository and the data lie in ``data/``. An installed wheel has no
repository (``ROOT`` is None) and carries what it needs of ``data/`` inside the package, as
``specdec_lib/_data``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

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


def cache() -> Path:
    """Return the folder of what can be made again: datastores, responses, states.

    The environment variable ``SPECDEC_CACHE``, else ``_build/cache`` in a checkout and
    ``~/.cache/specdec_lib`` for an installed copy. It is made on first use.
    """
    named = os.environ.get("SPECDEC_CACHE")
    if named:
        return Path(named).expanduser().resolve()
    return ROOT / "_build" / "cache" if ROOT else Path.home() / ".cache" / "specdec_lib"


def root() -> Path:
    """Return the repository.

    Raises
    ------
    FileNotFoundError
        The package is installed from a wheel, which has no notebooks and no book.
    """
    if ROOT is None:
        raise FileNotFoundError(
            f"{PACKAGE} is an installed copy without notebooks and book: work in a checkout of the repository"
        )
    return ROOT


def datasets_root(root: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder that holds the published data sets, or None where none is given.

    Parameters
    ----------
    root : path, optional
        Taken as it is. Without it, the environment variable ``SPECDEC_DATASETS`` counts.

    Raises
    ------
    NotADirectoryError
        A folder is named that is not there.
    """
    named = root if root is not None else os.environ.get("SPECDEC_DATASETS") or None
    if named is None:
        return None
    folder = Path(named).expanduser().resolve()
    if not folder.is_dir():
        source = "root" if root is not None else "SPECDEC_DATASETS"
        raise NotADirectoryError(f"{source}={str(named)!r} is not a folder: give the folder of the data sets")
    return folder
