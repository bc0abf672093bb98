"""What the runner tells the notebook it executes, through one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "SPECDEC_RUN"


@dataclass(frozen=True)
class RunContext:
    """The run a kernel belongs to: the name of the source notebook without suffix, the folder for files that the notebook offers
    for download, and the checksum of the source."""

    notebook: str
    files: str
    sha256: str

    def dumps(self) -> str:
        """Return the text for the environment variable."""
        return json.dumps(asdict(self))

    @property
    def folder(self) -> Path:
        """``files`` as a path; it is created on first use."""
        folder = Path(self.files)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def current() -> RunContext | None:
    """Return the run this process belongs to, or None outside of the runner."""
    text = os.environ.get(VARIABLE)
    return RunContext(**json.loads(text)) if text else None
