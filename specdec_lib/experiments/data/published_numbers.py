"""Numbers that the papers print: one CSV file per paper, one row per number; and expressions over them, so that none is typed."""

from __future__ import annotations

import csv
import operator
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError

from specdec_lib import paths

#: The file of ``data/published`` of each paper, in the order of the pages.
PAPERS = {"REST": "rest", "DReSD": "dresd", "PLD+": "pld_plus", "SpecDec++": "specdec_pp"}
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_NUMBER = r"-?\d+(\.\d+)?"


class ClaimError(ValueError):
    """A row of the ledger, or a published number that it names, is not as it must be."""


class PublishedNumber(BaseModel):
    """A number as a paper prints it, and where."""

    id: str
    where: str
    setting: str
    method: str
    quantity: str
    value: Annotated[str, Field(pattern=f"^({_NUMBER}|not available)$", description="a number or 'not available'")]
    spread: str
    unit: str
    note: str


class PublishedCost(BaseModel):
    """The cost of a pass over ``width`` tokens by someone's measurement."""

    source: str
    device: str
    model: str
    width: Annotated[int, Field(gt=1, description="a whole number above 1")]
    relative_cost: Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number above 0")]
    where: str


Checked = TypeVar("Checked", bound=BaseModel)


def parse_entry(model: type[Checked], raw: Mapping[str, Any], entry: str) -> Checked:
    """An entry of a file as a model; ClaimError, which names the entry, the field, its value and what was expected."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        fault = error.errors()[0]
        name = fault["loc"][0] if fault["loc"] else ""
        if fault["type"] == "value_error":  # of our own validators, which say what they expect
            reason = str(fault["ctx"]["error"])
        elif name not in model.model_fields:
            reason = f"unknown field {name!r}"
        elif name not in raw:
            reason = f"no {name!r}"
        else:
            reason = f"{name} is {raw[name]!r}; expected {model.model_fields[name].description or 'a text'}"
        raise ClaimError(f"{entry}: {reason}") from None


def _table(name: str, model: type[Checked]) -> list[Checked]:
    """The rows of a table of published numbers, whose columns are the fields of the model."""
    path = paths.PUBLISHED / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if list(reader.fieldnames or ()) != list(model.model_fields):
            raise ClaimError(f"{path} has the columns {reader.fieldnames}; expected {', '.join(model.model_fields)}")
        return [parse_entry(model, row, f"{path}, line {reader.line_num}") for row in reader]


def published(paper: str) -> dict[str, dict[str, str]]:
    """Published numbers of a paper by their id: the fields of :class:`PublishedNumber`, all as text."""
    rows: dict[str, dict[str, str]] = {}
    for row in _table(paper, PublishedNumber):
        if row.id in rows:
            raise ClaimError(f"{paper}.csv: the id {row.id!r} repeats")
        rows[row.id] = row.model_dump()
    return rows


@lru_cache(maxsize=1)
def printed_numbers() -> dict[str, dict[str, str]]:
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
        raise ClaimError(f"the published number {word!r} is {value!r}, so this cannot be computed")
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
    curves: dict[CostSource, dict[int, float]] = {}
    for row in _table("pass_costs", PublishedCost):
        curve = curves.setdefault(CostSource(row.source, row.device, row.model), {1: 1.0})
        if row.width in curve:
            raise ClaimError(f"pass_costs.csv: width {row.width} of {row.source} repeats; expected it once a curve")
        curve[row.width] = row.relative_cost
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


def published_draft_step() -> float:
    """Time of a step of speculative decoding over that of a one-token pass, drafting and host included.

    It follows from Spec-Bench's results on :data:`GPU` with a draft model of 68 million weights. How many tokens that drafts
    in a step is not published.
    """
    rows = published("spec_bench")
    return float(rows["spec-bench-7b-specdec-accepted"]["value"]) / float(rows["spec-bench-7b-specdec"]["value"])
