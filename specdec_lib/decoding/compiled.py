"""Loops over numbers, compiled by numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable, **options: Any) -> Callable:
    """Compile ``function`` on its first call; the machine code is kept on disk where a folder for it can be written.

    An installation that cannot be written to, run by a user without a home, compiles again in each process.

    Parameters
    ----------
    function : callable
    **options
        Of ``numba.njit``.

    Returns
    -------
    callable

    Examples
    --------
    >>> from specdec_lib.decoding.compiled import compiled
    >>> def total(numbers):
    ...     found = 0
    ...     for number in numbers:
    ...         found += number
    ...     return found
    >>> compiled(total).py_func is total
    True
    """
    try:
        return njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:
        return njit(nogil=True, **options)(function)
