"""Small tables of long computations that are kept with the project: rows, and above them where they come from."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specdec_lib.files import write_atomic

#: What every file says of itself.
REQUIRED = ("commit", "date", "machine", "command")


class Results(NamedTuple):
    """What a file says of itself, and its rows; numbers among the cells are numbers, an empty cell is None."""

    about: dict[str, str]
    rows: list[dict[str, Any]]


def write(path: str | Path, rows: Sequence[Mapping[str, Any]], about: Mapping[str, str]) -> None:
    """Write rows as CSV below lines of the form ``# name: value``.

    Parameters
    ----------
    path : path
    rows : sequence of mapping
        All with the columns of the first.
    about : mapping
        At least the names in :data:`REQUIRED`.

    Raises
    ------
    ValueError
        If there are no rows, or ``about`` lacks a name or holds a line break.
    """
    missing = [name for name in REQUIRED if not about.get(name)]
    if missing or not rows or any("\n" in f"{name}{value}" for name, value in about.items()):
        raise ValueError(
            f"{len(rows)} rows about {dict(about)!r}; expected one or more, and {', '.join(REQUIRED)} on a line each"
        )
    out = io.StringIO()
    out.writelines(f"# {name}: {value}\n" for name, value in about.items())
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(Path(path), out.getvalue())


def read(path: str | Path) -> Results:
    """Read what :func:`write` wrote.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a line above the table is no ``# name: value``, or the file does not say where it comes from.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    head = next((i for i, line in enumerate(lines) if not line.startswith("# ")), len(lines))
    unnamed = next((line for line in lines[:head] if ": " not in line), None)
    if unnamed is not None:
        raise ValueError(f"{path} has the line {unnamed!r} above its table; expected '# name: value'")
    about = dict(line[2:].partition(": ")[::2] for line in lines[:head])
    missing = [name for name in REQUIRED if not about.get(name)]
    if missing:
        raise ValueError(f"{path} does not say its {', '.join(missing)}; write it again with its command")
    return Results(about, [{k: _cell(v) for k, v in row.items()} for row in csv.DictReader(lines[head:])])


def _cell(text: str) -> int | float | str | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None
