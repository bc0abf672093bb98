"""Documents that end their worker or hold it up the first time they are read; workers import this."""

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

    def meets_the_first_reader(self) -> None:
        """After its first text."""

    def __iter__(self) -> Iterator[str]:
        import ray

        with self.notes.open("a") as file:
            file.write(f"{ray.get_runtime_context().get_node_id()}\n")
        yield self.texts[0]
        if len(self.notes.read_text().splitlines()) == 1:
            self.meets_the_first_reader()
        yield from self.texts[1:]


class EndsItsWorker(Counted):
    """The first reader is killed in the middle."""

    def meets_the_first_reader(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class HoldsUpItsWorker(Counted):
    """The first reader never ends."""

    def meets_the_first_reader(self) -> None:
        time.sleep(3600)
