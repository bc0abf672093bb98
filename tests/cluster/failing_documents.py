"""Documents that end their worker or hold it up the first time they are read; workers import this."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Counted:
    """Texts that note in a file each time they are read."""

    texts: list[str]
    notes: Path

    def note(self) -> int:
        """Add a note; returns how many there were."""
        import ray

        with self.notes.open("a") as file:
            file.write(f"{ray.get_runtime_context().get_node_id()}\n")
        return len(self.notes.read_text().splitlines()) - 1

    def __iter__(self) -> Iterator[str]:
        self.note()
        yield from self.texts


class EndsItsWorker(Counted):
    """The first reader is killed in the middle."""

    def __iter__(self) -> Iterator[str]:
        first = self.note() == 0
        for number, text in enumerate(self.texts):
            if first and number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield text


class HoldsUpItsWorker(Counted):
    """The first reader never ends."""

    def __iter__(self) -> Iterator[str]:
        first = self.note() == 0
        yield self.texts[0]
        if first:
            time.sleep(3600)
        yield from self.texts[1:]
