"""Loops over numbers, compiled by numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable, **options: Any) -> Callable:
    """Compile ``function`` on its first call; the machine code is kept on disk where a folder for it can be written.

    An installation that cannot be written to, run by a user without a home, compiles again in each process.
    """
    try:
        return njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:
        return njit(nogil=True, **options)(function)
