"""Numbers that the papers print: one CSV file a paper, a row a number."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

from specdec_lib import paths

_COLUMNS = ("id", "where", "setting", "method", "quantity", "value", "spread", "unit", "note")
_PRICE_COLUMNS = ("source", "device", "model", "width", "relative_price", "where")


class ClaimError(ValueError):
    """A row of the ledger, or a published number that it names, is not as it must be."""


def _rows(name: str, folder: str | Path | None, columns: tuple[str, ...]) -> tuple[Path, list[dict[str, str]]]:
    """The path of a table of published numbers and its rows, which must have these columns."""
    path = (paths.PUBLISHED if folder is None else Path(folder)) / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != columns:
            raise ClaimError(f"{path} has the columns {reader.fieldnames}; expected {', '.join(columns)}")
        return path, list(reader)


def published(paper: str, folder: str | Path | None = None) -> dict[str, dict[str, str]]:
    """Published numbers of a paper by their id: rows with ``where``, ``setting``, ``method``, ``quantity``, ``value`` (a
    number, or "not available"), ``spread``, ``unit``, ``note``, all as text."""
    path, listed = _rows(paper, folder, _COLUMNS)
    rows: dict[str, dict[str, str]] = {}
    for row in listed:
        if row["id"] in rows:
            raise ClaimError(f"{path}: the id {row['id']!r} repeats")
        if not re.fullmatch(r"-?\d+(\.\d+)?|not available", row["value"] or ""):
            raise ClaimError(f"{path}, {row['id']!r}: value {row['value']!r}; expected a number or 'not available'")
        rows[row["id"]] = row
    return rows


class Priced(NamedTuple):
    """Whose passes a price curve is of: who published it, the device and the model."""

    source: str
    device: str
    model: str


def pass_prices(folder: str | Path | None = None) -> dict[Priced, dict[int, float]]:
    """Published prices of passes for each source, device and model.

    By tokens in the pass: its time as a multiple of a pass over one token, 1 for one token among them.
    """
    path, rows = _rows("pass_prices", folder, _PRICE_COLUMNS)
    curves: dict[Priced, dict[int, float]] = {}
    for line, row in enumerate(rows, start=2):
        curve = curves.setdefault(Priced(row["source"], row["device"], row["model"]), {1: 1.0})
        width, price = row["width"], row["relative_price"]
        if not re.fullmatch(r"\d+", width) or int(width) < 2 or int(width) in curve:
            raise ClaimError(f"{path}, line {line}: width {width!r}; expected a whole number above 1, once a curve")
        if not re.fullmatch(r"\d+(\.\d+)?", price) or not float(price):
            raise ClaimError(f"{path}, line {line}: relative_price {price!r}; expected a number above 0")
        curve[int(width)] = float(price)
    return curves


#: The card whose prices stand for "a GPU" wherever the book prices steps for one.
GPU = Priced("Spec-Bench", "A100 80GB", "Vicuna 7B v1.3")


def gpu_prices() -> dict[int, float]:
    """The price curve of :data:`GPU`, by :func:`pass_prices`; drafting without a model is in it."""
    return pass_prices()[GPU]


def published_draft_price() -> float:
    """Time of a draft model's pass over that of the target's pass over one token: SpecDec++, section 4.2."""
    rows = published("specdec_pp")
    return float(rows["specdec-pp-t-draft"]["value"]) / float(rows["specdec-pp-t-target-alone"]["value"])
