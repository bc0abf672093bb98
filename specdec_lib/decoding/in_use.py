"""A drafter serves one generation at a time: a second one is refused before it spoils the first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_CHANGING = threading.Lock()
_IN_USE: set[int] = set()


@contextmanager
def alone(drafter: object) -> Iterator[None]:
    """Have a drafter for one generation; None is no drafter.

    Raises
    ------
    RuntimeError
        If another generation has it, in this thread or another.
    """
    if drafter is None:
        yield
        return
    with _CHANGING:
        if id(drafter) in _IN_USE:
            raise RuntimeError(
                f"{drafter!r} is in use by another generation, and it holds what that one has seen; make a "
                "drafter for each generation that runs at the same time"
            )
        _IN_USE.add(id(drafter))
    try:
        yield
    finally:
        with _CHANGING:
            _IN_USE.discard(id(drafter))
