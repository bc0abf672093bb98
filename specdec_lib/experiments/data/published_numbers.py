"""Numbers that the papers print: one CSV file per paper, one row per number; and expressions over them, so that none is typed."""

from __future__ import annotations

import csv
import operator
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from specdec_lib import paths

_COLUMNS = ("id", "where", "setting", "method", "quantity", "value", "spread", "unit", "note")
#: The file of ``data/published`` of each paper, in the order of the pages.
PAPERS = {"REST": "rest", "DReSD": "dresd", "PLD+": "pld_plus", "SpecDec++": "specdec_pp"}
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_NUMBER = r"-?\d+(\.\d+)?"
_COST_COLUMNS = ("source", "device", "model", "width", "relative_cost", "where")


class ClaimError(ValueError):
    """A row of the ledger, or a published number that it names, is not as it must be."""


def _rows(name: str, columns: tuple[str, ...]) -> tuple[Path, list[dict[str, str]]]:
    """The path of a table of published numbers and its rows, which must have these columns."""
    path = paths.PUBLISHED / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != columns:
            raise ClaimError(f"{path} has the columns {reader.fieldnames}; expected {', '.join(columns)}")
        return path, list(reader)


def published(paper: str) -> dict[str, dict[str, str]]:
    """Published numbers of a paper by their id: rows with ``where``, ``setting``, ``method``, ``quantity``, ``value`` (a
    number, or "not available"), ``spread``, ``unit``, ``note``, all as text."""
    path, listed = _rows(paper, _COLUMNS)
    rows: dict[str, dict[str, str]] = {}
    for row in listed:
        if row["id"] in rows:
            raise ClaimError(f"{path}: the id {row['id']!r} repeats")
        if not re.fullmatch(rf"{_NUMBER}|not available", row["value"] or ""):
            raise ClaimError(f"{path}, {row['id']!r}: value {row['value']!r}; expected a number or 'not available'")
        rows[row["id"]] = row
    return rows


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
    """Work out ids and numbers joined by ``+ - * /``, from left to right; ClaimError if that is impossible."""
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


class CostSource(NamedTuple):
    """Whose passes a cost curve is of: who published it, the device and the model."""

    source: str
    device: str
    model: str


def pass_costs() -> dict[CostSource, dict[int, float]]:
    """Published costs of passes for each source, device and model.

    By tokens in the pass: its time as a multiple of a pass over one token, 1 for one token among them.
    """
    path, rows = _rows("pass_costs", _COST_COLUMNS)
    curves: dict[CostSource, dict[int, float]] = {}
    for line, row in enumerate(rows, start=2):
        curve = curves.setdefault(CostSource(row["source"], row["device"], row["model"]), {1: 1.0})
        width, cost = row["width"], row["relative_cost"]
        if not re.fullmatch(r"\d+", width) or int(width) < 2 or int(width) in curve:
            raise ClaimError(f"{path}, line {line}: width {width!r}; expected a whole number above 1, once a curve")
        if not re.fullmatch(r"\d+(\.\d+)?", cost) or not float(cost):
            raise ClaimError(f"{path}, line {line}: relative_cost {cost!r}; expected a number above 0")
        curve[int(width)] = float(cost)
    return curves


#: The card whose costs stand for "a GPU" wherever the book has the cost of steps on one.
GPU = CostSource("Spec-Bench", "A100 80GB", "Vicuna 7B v1.3")


def gpu_pass_costs() -> dict[int, float]:
    """The cost curve of :data:`GPU`, by :func:`pass_costs`; drafting without a model is in it."""
    return pass_costs()[GPU]


def published_draft_cost() -> float:
    """Time of a draft model's pass over that of the target's pass over one token: SpecDec++, section 4.2."""
    rows = published("specdec_pp")
    return float(rows["specdec-pp-t-draft"]["value"]) / float(rows["specdec-pp-t-target-alone"]["value"])
