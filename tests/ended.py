"""Which processes live on."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path


def left_after(pids: Iterable[int], seconds: float = 5) -> set[int]:
    """Those that are still alive after so many seconds, or as soon as none is; a zombie is not (Linux)."""
    deadline = time.monotonic() + seconds
    while (left := {pid for pid in pids if _alive(pid)}) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
