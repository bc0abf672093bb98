"""Published numbers by their id, and expressions over them, so that none is typed."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from functools import lru_cache

from specdec_lib.experiments.published_numbers import ClaimError, published

#: The file of ``data/published`` of each paper, in the order of the pages.
PAPERS = {"REST": "rest", "DReSD": "dresd", "PLD+": "pld_plus", "SpecDec++": "specdec_pp"}
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_NUMBER = r"-?\d+(\.\d+)?"


@lru_cache(maxsize=1)
def published_rows() -> dict[str, dict[str, str]]:
    """The published numbers of all papers by their id; ClaimError if an id is in two files."""
    found: dict[str, dict[str, str]] = {}
    for paper in PAPERS.values():
        rows = published(paper)
        twice = sorted(set(rows) & set(found))
        if twice:
            raise ClaimError(f"the published number {twice[0]!r} is in {paper}.csv and in another file")
        found |= rows
    return found


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
    """What ids and numbers joined by ``+ - * /`` come to, from left to right; ClaimError if it cannot be worked out."""
    parts = expression.split()
    if len(parts) % 2 == 0 or any(word not in _OPERATIONS for word in parts[1::2]):
        raise ClaimError(f"{expression!r}: expected ids and numbers joined by + - * /, as in 'one-id / other-id'")
    value = _operand(parts[0], rows)
    for sign, word in zip(parts[1::2], parts[2::2], strict=True):
        value = _OPERATIONS[sign](value, _operand(word, rows))
    return value


def published_range(expression: str, rows: Mapping[str, Mapping[str, str]]) -> tuple[float, float]:
    """The smallest and the largest published number of ``expression to expression``, or one expression twice."""
    low, _, high = expression.partition(" to ")
    return published_value(low, rows), published_value(high or low, rows)


def published_text(expression: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    """The text of ``id``, as the paper prints it, or of ``id / id : .2f``, a :func:`published_value` in that format."""
    words, _, form = expression.partition(" : ")
    if form:
        return format(published_value(words, rows), form.strip())
    if len(words.split()) > 1:
        raise ClaimError(f"{expression!r}: expected a format after an expression, as in 'one-id / other-id : .2f'")
    if words.strip() not in rows:
        raise ClaimError(f"there is no published number {words!r} in data/published")
    return rows[words.strip()]["value"]
