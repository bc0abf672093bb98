"""The numbers of a chapter: one CSV file, which pages, claims, README and tests read.

The last cell of a chapter is ``report.save("04", {"h10_over_pld10": ratio(...), ...}, measured={...})``. Instead of a table that is
written out there it can have a list of tables, such as what functions of the chapter's module give. In prose
``{num}`04/h10_over_pld10:.2f``` shows a number with its interval. Pages show the published numbers, which lie in
``data/results/cpu``: a build of the published rows writes its counts there, which changes nothing unless rows or code changed; its
times stay with the build.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specdec_lib import paths
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.files import replacing
from specdec_lib.report import run_context

COLUMNS = ("key", "value", "low", "high", "measured", "words", "prompts")
# The numbers of the book; those of chapters run again with another seed are in its folder ``seed1``.
COMMITTED = paths.DATA / "results" / "cpu"
#: Files of chapters, of what ``make bench``, ``make bench-vllm`` (its replay too) and ``make bench-llama`` measure, of
#: ``scripts/released_rules.py``, of how SmolLM2's companions did, and of what a chapter with a model of your own takes.
_FILES = (
    "??.csv",
    "seconds.csv",
    "own_bits.csv",
    "serving.csv",
    "replayed.csv",
    "llama.csv",
    "released.csv",
    "marks.csv",
    "own_model.csv",
)
MISSING, NO_INTERVAL = "not available", "no interval"
#: Type of the output in which a cell says the keys of each table that it saved; ``report.build.sources`` reads it.
KEYS = "application/vnd.specdec.keys+json"


class NumberError(ValueError):
    """A number that cannot be saved, or is not in the tables."""


class Number(NamedTuple):
    """A row of a chapter's table: ``value`` and the ends of its 95 % interval.

    ``prompts`` is how many prompts count in a value with an interval, None where it does not rest on prompts. ``measured`` says
    that it rests on measured seconds, so that a second run gives another one. ``words`` is a value that is a text,
    ``"not available"``, or of a value whose interval is not known ``"no interval"``.
    """

    value: float | int | None
    low: float | None = None
    high: float | None = None
    measured: bool = False
    words: str = ""
    prompts: int | None = None

    def __format__(self, spec: str) -> str:
        if self.value is None:
            return self.words
        if self.low is None or self.high is None:
            return format(self.value, spec)
        return format(Interval(self.value, self.low, self.high), spec)


def save(
    chapter: str,
    counted: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any] | None = None,
    published: bool = False,
) -> Path:
    """Write the numbers of a chapter, ``"04"`` say, and return the file; ``measured`` are those that rest on measured seconds.

    ``counted`` is one table or a list of some. Those that are counted from ``published`` rows are also written to
    :data:`COMMITTED`, whose times stay as they are.

    A value is an :class:`Interval`, a number, a truth value or a text; None, NaN and infinite numbers are written as ``"not
    available"``. NumberError if a value is something else, or a key is no identifier or there twice.
    """
    tables, measured = [counted] if isinstance(counted, Mapping) else list(counted), measured or {}
    every: dict[str, Any] = {}
    for table in (*tables, measured):
        if twice := every.keys() & table.keys():
            raise NumberError(f"{min(twice)!r} is counted and measured, or in two tables; expected it once")
        every |= table
    run = run_context.current()
    path = (run.folder if run else Path()) / f"{chapter}.csv"
    rows = [_row(key, value, key in measured) for key, value in every.items()]
    _write(path, rows)
    if published and run:
        _renew(COMMITTED / path.name, rows)
    if run:
        from IPython.display import display

        display({KEYS: [list(table) for table in (*tables, measured)]}, raw=True)
    return path


def _renew(path: Path, rows: Sequence[tuple[str, ...]]) -> None:
    """Write the counts of ``rows`` into the published file; a time that it lacks is taken too, one that it has stays."""
    with path.open(encoding="utf-8", newline="") as file:
        before = {
            row["key"]: tuple(row.get(name) or "" for name in COLUMNS)
            for row in csv.DictReader(file)
            if row["measured"]
        }
    _write(path, [before.get(row[0], row) for row in rows])


def _write(path: Path, rows: Sequence[tuple[str, ...]]) -> None:
    with replacing(path) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def _row(key: str, value: Any, measured: bool) -> tuple[str, ...]:
    if not key.isidentifier():
        raise NumberError(f"{key!r} is no key; expected letters, digits and underscores")
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    low = high = words = ""
    prompts = str(value.prompts or "") if isinstance(value, Interval) else ""
    if isinstance(value, Interval) and value.known:
        value, low, high = value.value, _written(value.low), _written(value.high)
    elif isinstance(value, Interval):
        value, words = value.value, NO_INTERVAL
    if isinstance(value, str):
        value, words = None, value
    elif value is None or (isinstance(value, float) and not math.isfinite(value)):
        value, words = None, MISSING
    elif not isinstance(value, bool | int | float):
        raise NumberError(
            f"{key!r} is a {type(value).__name__}; expected an Interval, a number, a truth value or a text"
        )
    return (key, _written(value), low, high, "yes" if measured else "", words, prompts)


def _written(value: float | int | bool | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    if not isinstance(value, float):
        return str(int(value))
    text = f"{value:.6g}"
    return f"{text}.0" if text.lstrip("-").isdigit() else text  # a count is told from a measured number by its form


def read(path: Path) -> dict[str, Number]:
    """The numbers of a file that :func:`save` wrote, by key."""

    def number(text: str) -> float | int | None:
        if not text:
            return None
        return int(text) if text.lstrip("-").isdigit() else float(text)

    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["key"]: Number(
                number(row["value"]),
                number(row["low"]),
                number(row["high"]),
                bool(row["measured"]),
                row["words"],
                number(row.get("prompts") or ""),
            )
            for row in csv.DictReader(file)
        }


def read_folder(folder: Path) -> dict[str, dict[str, Number]]:
    """The numbers of every file of a folder, by the number of its chapter, or its name (:data:`_FILES`)."""
    return {path.stem: read(path) for pattern in _FILES for path in sorted(folder.glob(pattern))}


def table_files() -> dict[str, Path]:
    """The published file of every chapter, by its number, and what ``make gpu`` wrote, by the folder of the GPU."""
    gpus = {path.parent.name: path for path in COMMITTED.parent.glob("nvidia-*/06.csv")}
    return gpus | {path.stem: path for name in _FILES for path in sorted(COMMITTED.glob(name))}


def executed_files(executed: Path | None = None) -> dict[str, Path]:
    """The file that each executed notebook wrote, by the number of its chapter; ``executed`` is ``book/notebooks`` by default."""
    folder = executed or paths.root() / "book" / "notebooks"
    return {path.stem: path for path in sorted(folder.glob("files/*/??.csv"))}


def tables() -> dict[str, dict[str, Number]]:
    """The published numbers of every chapter, by its number: all pages of every build show these."""
    return {chapter: read(path) for chapter, path in table_files().items()}


def both_runs() -> list[dict[str, dict[str, Number]]]:
    """The numbers of the published run, and the same with those of the chapters that were run again with another seed.

    A second run lacks the numbers that were added since.
    """
    first, again = read_folder(COMMITTED), read_folder(COMMITTED / "seed1")
    return [first, first | {chapter: first[chapter] | own for chapter, own in again.items()}]


def look_up(key: str, of: Mapping[str, Mapping[str, Number]]) -> Number:
    """The number of ``"04/h10_over_pld10"``; NumberError names keys that are near if there is none."""
    chapter, _, name = key.partition("/")
    if name not in of.get(chapter, {}):
        import difflib

        near = difflib.get_close_matches(name, of.get(chapter, {}), n=3) or ["no key of that chapter is near"]
        raise NumberError(f"no number {key!r}; did you mean {', '.join(near)}?")
    return of[chapter][name]
