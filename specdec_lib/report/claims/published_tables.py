"""Published numbers in prose: looked up by their id, and reckoned with, so that none is typed."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping

from specdec_lib.experiments.published_numbers import ClaimError

_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_NUMBER = r"-?\d+(\.\d+)?"


def _operand(word: str, rows: Mapping[str, Mapping[str, str]]) -> float:
    if re.fullmatch(_NUMBER, word):
        return float(word)
    if word not in rows:
        raise ClaimError(f"there is no published number {word!r} in data/published")
    value = rows[word]["value"]
    if not re.fullmatch(_NUMBER, value):
        raise ClaimError(f"the published number {word!r} is {value!r}: nothing can be reckoned with it")
    return float(value)


def published_value(expression: str, rows: Mapping[str, Mapping[str, str]]) -> float:
    """Return what ids and numbers joined by ``+ - * /`` come to, worked out from left to right; everything is parted by
    spaces. ClaimError if it cannot be worked out."""
    parts = expression.split()
    if len(parts) % 2 == 0 or any(word not in _OPERATIONS for word in parts[1::2]):
        raise ClaimError(f"{expression!r}: expected ids and numbers joined by + - * /, as in 'one-id / other-id'")
    value = _operand(parts[0], rows)
    for sign, word in zip(parts[1::2], parts[2::2], strict=True):
        value = _OPERATIONS[sign](value, _operand(word, rows))
    return value


def published_text(expression: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    """Return the text that stands for an expression over published numbers by id; ClaimError if it cannot be worked
    out.

    ``id`` is the number as the paper prints it. ``id / id : .2f`` is a :func:`published_value` in the format after the
    colon.
    """
    words, _, form = expression.partition(" : ")
    parts = words.split()
    if len(parts) == 1 and not form:
        if parts[0] not in rows:
            raise ClaimError(f"there is no published number {parts[0]!r} in data/published")
        return rows[parts[0]]["value"]
    if not form:
        raise ClaimError(
            f"{expression!r}: expected an id, or ids and numbers joined by + - * / and a "
            "format, as in 'one-id / other-id : .2f'"
        )
    return format(published_value(words, rows), form.strip())
