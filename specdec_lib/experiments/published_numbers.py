"""Numbers that the papers print: one CSV file a paper, a row a number."""

from __future__ import annotations

import csv
import re
from pathlib import Path

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
