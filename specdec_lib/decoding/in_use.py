"""A drafter serves one generation at a time: a second one is refused before it spoils the first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from specdec_lib.decoding.contract import Drafter

_CHANGING = threading.Lock()
_IN_USE: set[int] = set()


@contextmanager
def alone(drafter: Drafter | None) -> Iterator[None]:
    """Have a drafter, and those that it calls, for one generation; None is no drafter.

    Raises
    ------
    RuntimeError
        If another generation has one of them, in this thread or another.
    """
    if drafter is None:
        yield
        return
    together = {id(each): each for each in _with_inner(drafter)}
    with _CHANGING:
        for number, each in together.items():
            if number in _IN_USE:
                raise RuntimeError(
                    f"{each!r} is in use by another generation, and it holds what that one has seen; make a "
                    "drafter for each generation that runs at the same time"
                )
        _IN_USE.update(together)
    try:
        yield
    finally:
        with _CHANGING:
            _IN_USE.difference_update(together)


def _with_inner(drafter: Drafter) -> Iterator[Drafter]:
    yield drafter
    for each in drafter.inner():
        yield from _with_inner(each)
