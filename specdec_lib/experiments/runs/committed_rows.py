"""Rows of the results table that are committed: counts of passes by width, compressed, with a file on their origin."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from specdec_lib import paths
from specdec_lib.files import read_json, replacing, sha256, unpack_gzip, write_atomic
from specdec_lib.models.fingerprint import fingerprint

#: Widths at which committed rows count passes, in columns such as ``w8``.
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: Sets of PLD+'s five tasks, or their parts, with the book's names of the tasks.
INPUT_GUIDED = {
    "spec-bench/summarization": "summarisation",
    "codeeditorbench": "code editing",
    "xatu": "short text editing",
    "argrewrite": "long text editing",
    "spec-bench/mt_bench": "conversation",
}
#: The parts of Spec-Bench, and all tasks of published prompts that chapters compare methods on.
SPEC_BENCH = {
    "spec-bench/mt_bench": "conversation",
    "spec-bench/translation": "translation",
    "spec-bench/summarization": "summarisation",
    "spec-bench/qa": "question answering",
    "spec-bench/math_reasoning": "mathematics",
    "spec-bench/rag": "answers from texts",
}
TASKS = INPUT_GUIDED | SPEC_BENCH | {"humaneval": "code completion"}


def _parts(counts: np.ndarray) -> np.ndarray:
    """Passes by width, counted at :data:`WIDTHS`: each width is the weighted mean of its two neighbours there, above the
    last of the last two, so that every cost that is linear between these widths is exact."""
    widths = np.arange(1, len(counts))
    high = np.clip(np.searchsorted(WIDTHS, widths), 1, len(WIDTHS) - 1)
    known = np.asarray(WIDTHS, float)
    share = (widths - known[high - 1]) / (known[high] - known[high - 1])
    below = np.bincount(high - 1, (1 - share) * counts[1:], len(WIDTHS))
    return below + np.bincount(high, share * counts[1:], len(WIDTHS))


def committed(
    name: str, folder: str | Path | None = None, **models: PreTrainedModel
) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """Rows of ``data/results/cpu/<name>.csv.gz`` and what its JSON file says of their origin.

    None where there are none, or where they are of other models than those given by their part, such as ``target=``.
    ValueError if a file is damaged, or a kill left the two of different runs.
    """
    path = paths.DATA / "results" / "cpu" if folder is None else Path(folder)
    packed, origin = path / f"{name}.csv.gz", path / f"{name}.json"
    if not packed.is_file():
        return None
    about = read_json(origin)
    if about is None or about.get("rows_sha256", known := sha256(packed)) != known:
        raise ValueError(f"{origin} is missing or damaged, or of other rows than {packed.name}: make both again")
    if any(about.get(part) != fingerprint(model) for part, model in models.items()):
        return None
    rows = pd.read_csv(io.BytesIO(unpack_gzip(packed))).rename(columns={"nodes": "drafted"})
    columns = [f"w{width}" for width in WIDTHS]
    widths = np.zeros((len(rows), WIDTHS[-1] + 1))
    widths[:, WIDTHS] = rows[columns]
    if (
        "levels" not in rows and "depth" in rows
    ):  # made before they were counted, of drafts that have a level for each depth
        rows["levels"] = rows.depth
    return rows.drop(columns=columns).assign(widths=list(widths)), about


def write(name: str, rows: pd.DataFrame, about: dict[str, Any], folder: Path, **models: PreTrainedModel) -> None:
    """Write rows and their origin for :func:`committed`."""
    parts = pd.DataFrame(
        [_parts(widths) for widths in rows.widths], rows.index, [f"w{width}" for width in WIDTHS]
    ).astype(float)
    kept = pd.concat([rows.drop(columns=["widths", "draft_s"], errors="ignore"), parts], axis=1).round(2)
    with replacing(folder / f"{name}.csv.gz") as aside:
        aside.write_bytes(gzip.compress(kept.to_csv(index=False, lineterminator="\n").encode(), mtime=0))
    about = about | {part: fingerprint(model) for part, model in models.items()} | {"date": str(date.today())}
    about["rows_sha256"] = sha256(folder / f"{name}.csv.gz")
    write_atomic(folder / f"{name}.json", json.dumps(about, indent=1) + "\n")


def on_published_prompts(temperature: float = 0, tasks: Mapping[str, str] = TASKS) -> pd.DataFrame:
    """The committed rows of answers to published prompts, under the book's names of their tasks.

    ``tasks`` has these names by set, such as ``"humaneval"``, or by part of one, such as ``"spec-bench/rag"``.
    """
    rows = committed("published")[0]
    parts = rows.task.where(rows.task.str.contains("/"))
    named = rows["set"].map(tasks).fillna(parts.map(tasks))
    return rows.assign(task=named)[(rows.temperature == temperature) & named.notna()]


def on_pld_plus_prompts(temperature: float = 0) -> pd.DataFrame:
    """:func:`on_published_prompts` of PLD+'s five tasks."""
    return on_published_prompts(temperature, INPUT_GUIDED)
