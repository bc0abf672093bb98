"""Numbers that the papers print: one CSV file a paper, a row a number."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

from specdec_lib import paths

_COLUMNS = ("id", "where", "setting", "method", "quantity", "value", "spread", "unit", "note")


class ClaimError(ValueError):
    """A row of the ledger, or a published number that it names, is not as it must be."""


def published(paper: str, folder: str | Path | None = None) -> dict[str, dict[str, str]]:
    """Published numbers of a paper by their id.

    Returns
    -------
    dict
        Rows with ``where``, ``setting``, ``method``, ``quantity``, ``value`` (a number, or "not available"),
        ``spread``, ``unit``, ``note``, all as text.

    Raises
    ------
    ClaimError
        A column is missing, an id repeats, or a value is neither a number nor "not available".
    """
    path = (paths.PUBLISHED if folder is None else Path(folder)) / f"{paper}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != _COLUMNS:
            raise ClaimError(f"{path} has the columns {reader.fieldnames}; expected {', '.join(_COLUMNS)}")
        rows: dict[str, dict[str, str]] = {}
        for row in reader:
            if row["id"] in rows:
                raise ClaimError(f"{path}: the id {row['id']!r} repeats")
            if not re.fullmatch(r"-?\d+(\.\d+)?|not available", row["value"] or ""):
                raise ClaimError(f"{path}, {row['id']!r}: value {row['value']!r}; expected a number or 'not available'")
            rows[row["id"]] = row
    return rows


_PRICE_COLUMNS = ("source", "device", "model", "width", "relative_price", "where")


class Priced(NamedTuple):
    """Whose passes a price curve is of: who published it, the device and the model."""

    source: str
    device: str
    model: str


def pass_prices(folder: str | Path | None = None) -> dict[Priced, dict[int, float]]:
    """Published prices of passes over several tokens, for each source, device and model.

    Returns
    -------
    dict
        By tokens in the pass: its time as a multiple of a pass over one token, 1 for one token among them.

    Raises
    ------
    ClaimError
        A column is missing, a width is no whole number above 1, a price is not above 0, or a width repeats.
    """
    path = (paths.PUBLISHED if folder is None else Path(folder)) / "pass_prices.csv"
    curves: dict[Priced, dict[int, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != _PRICE_COLUMNS:
            raise ClaimError(f"{path} has the columns {reader.fieldnames}; expected {', '.join(_PRICE_COLUMNS)}")
        for line, row in enumerate(reader, start=2):
            curve = curves.setdefault(Priced(row["source"], row["device"], row["model"]), {1: 1.0})
            if not re.fullmatch(r"\d+", row["width"]) or int(row["width"]) < 2 or int(row["width"]) in curve:
                raise ClaimError(
                    f"{path}, line {line}: width {row['width']!r}; expected a whole number above 1, once a curve"
                )
            if not re.fullmatch(r"\d+(\.\d+)?", row["relative_price"]) or not float(row["relative_price"]):
                raise ClaimError(
                    f"{path}, line {line}: relative_price {row['relative_price']!r}; expected a number above 0"
                )
            curve[int(row["width"])] = float(row["relative_price"])
    return curves


#: The card whose prices stand for "a GPU" wherever the book prices steps for one.
GPU = Priced("Spec-Bench", "A100 80GB", "Vicuna 7B v1.3")


def gpu_prices(folder: str | Path | None = None) -> dict[int, float]:
    """The price curve of :data:`GPU`, by :func:`pass_prices`; drafting without a model is in it."""
    return pass_prices(folder)[GPU]


def published_draft_price(folder: str | Path | None = None) -> float:
    """Time of a draft model's pass over that of the target's pass over one token: SpecDec++, section 4.2."""
    rows = published("specdec_pp", folder)
    return float(rows["specdec-pp-t-draft"]["value"]) / float(rows["specdec-pp-t-target-alone"]["value"])
