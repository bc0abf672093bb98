"""One way to check a number, and one to check a name."""

from __future__ import annotations

import operator
from collections.abc import Collection


def whole(name: str, value: object, least: int = 0, meaning: str = "") -> int:
    """``value`` as an int, those of numpy and torch too; a ValueError names it if it is no whole number from ``least`` up."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; expected a whole number, {meaning or f'{least} or more'}")
    return number


def one_of(name: str, value: object, known: Collection[str]) -> str:
    """``value``, if it is a known name; a ValueError names it otherwise."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    return value
