"""Heads trained with either loss on the same answers: what ``python -m specdec_lib train-heads --compare-losses`` wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_lib import paths
from specdec_lib.experiments.statistics import Interval

# Of the pocket target.
RESULTS = paths.DATA / "results" / "cpu" / "heads_loss.json"


def load(path: Path | None = None) -> dict[str, Any]:
    """Read the file, the committed one without ``path``; an error that names the command where it is missing."""
    path = path or RESULTS
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: python -m specdec_lib train-heads --compare-losses {path} makes it"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def rates(row: Mapping[str, Any], name: str) -> list[Interval]:
    """One of a loss's measures, ``"top1"``, ``"top10"`` or ``"distance"``, by depth, with its interval over answers."""
    ends = row["intervals"][name]
    return [Interval(value, *(both or (math.nan, math.nan))) for value, both in zip(row[name], ends, strict=True)]


def curves(losses: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, tuple[list[int], list[Interval]]]]:
    """Panels of how often choices were right by depth, a line for each loss."""
    panels = {"first choice": "top1", "one of the first ten": "top10"}
    return {
        title: {f"{loss} loss": ([*range(1, len(row[key]) + 1)], rates(row, key)) for loss, row in losses.items()}
        for title, key in panels.items()
    }
