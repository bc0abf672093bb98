"""Files that are there whole or not at all."""
from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A file to write to that takes the place of ``path`` once the block has ended.

    It lies beside ``path`` under a name of its own, so that two processes do not write into the same one. A block that
    raises leaves ``path`` as it was and nothing beside it.

    Parameters
    ----------
    path : path
        In a folder that is there.
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        aside.chmod(0o644)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
