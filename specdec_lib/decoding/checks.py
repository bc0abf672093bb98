"""One way to check a number, and one to check a name."""

from __future__ import annotations

import operator
from collections.abc import Collection

from specdec_lib.lazy import former_names

__getattr__ = former_names(__name__, whole="whole_number")


def whole_number(name: str, value: object, least: int = 0, meaning: str = "") -> int:
    """Check a whole number.

    Parameters
    ----------
    name : str
        What the error calls the value.
    value : object
        An int, of numpy and torch too.
    least : int
    meaning : str
        What the error says instead of "``least`` or more".

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If it is no whole number from ``least`` up.

    Examples
    --------
    >>> from specdec_lib.decoding.checks import whole_number
    >>> whole_number("num_tokens", 10, least=1)
    10
    >>> whole_number("num_tokens", 0, least=1)
    Traceback (most recent call last):
        ...
    ValueError: num_tokens is 0; expected a whole number, 1 or more
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; expected a whole number, {meaning or f'{least} or more'}")
    return number


def one_of(name: str, value: object, known: Collection[str]) -> str:
    """Check a name.

    Parameters
    ----------
    name : str
        What the error calls the value.
    value : object
    known : collection of str

    Returns
    -------
    str
        The value itself.

    Raises
    ------
    ValueError
        If it is none of the known ones.

    Examples
    --------
    >>> from specdec_lib.decoding.checks import one_of
    >>> one_of("variant", "exact", ("original", "transformers"))
    Traceback (most recent call last):
        ...
    ValueError: variant is 'exact'; expected one of original, transformers
    """
    if value not in known:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    return value
