"""What the runner tells the notebook it executes, through one environment variable."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "SPECDEC_RUN"


@dataclass(frozen=True)
class RunContext:
    """The run a kernel belongs to.

    Parameters
    ----------
    notebook : str
        Name of the source notebook without its suffix.
    profile : str
        Name of the parameter profile.
    files : str
        Folder for files that the notebook offers for download. It is moved beside the executed copy at the
        end.
    sha256 : str
        Checksum of the source notebook.
    alone : tuple of str
        :func:`digest` of each cell that runs while no other notebook does, because it takes times.
    """

    notebook: str
    profile: str
    files: str
    sha256: str
    alone: tuple[str, ...] = ()

    def dumps(self) -> str:
        """Return the text for the environment variable."""
        return json.dumps(asdict(self))

    @property
    def folder(self) -> Path:
        """``files`` as a path; it is created on first use."""
        folder = Path(self.files)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def digest(source: str) -> str:
    """A short checksum of a cell's source."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def current() -> RunContext | None:
    """Return the run this process belongs to, or None outside of the runner."""
    text = os.environ.get(VARIABLE)
    return RunContext(**json.loads(text)) if text else None
