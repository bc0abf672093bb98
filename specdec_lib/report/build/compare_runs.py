"""Two runs of the notebooks, value by value and table by table.

A second run of the same code with the same parameters gives the same numbers in everything that is not a time. Which
values are times, or follow from some, the notebooks say where they record them (``report.record(..., timed=True)``,
``report.Table(..., timed=[columns])``), and an executed notebook carries it. What either of the two runs marks counts
as a time: where one of them is older than these marks, those of the other one are used, and where both are, nothing
counts as a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from specdec_lib.report.display.record import recorded, timed_columns, timed_names


@dataclass(frozen=True)
class Difference:
    """One value or one column that two runs do not agree on.

    Parameters
    ----------
    place : str
        Name of the notebook, or of the notebook and the table.
    name : str
        Of the recorded value or the column.
    first, second : object
        What each run has; a text such as ``"missing"`` where there is nothing.
    timed : bool
        Whether one of the runs marks it as a time.
    """

    place: str
    name: str
    first: Any
    second: Any
    timed: bool


def compare(first: Path, second: Path) -> list[Difference]:
    """Return what two folders of executed notebooks differ in: recorded values and the CSV files of their tables.

    Parameters
    ----------
    first, second : Path
        Folders that the runner wrote.

    Raises
    ------
    FileNotFoundError
        A folder is not there or holds no notebook.
    """
    names = [{path.name for path in folder.glob("*.ipynb")} for folder in (first, second)]
    for folder, found in zip((first, second), names, strict=True):
        if not found:
            raise FileNotFoundError(
                f"no executed notebook in {folder}: give two folders that 'python -m specdec_lib run' wrote"
            )
    differences = [
        Difference(
            Path(name).stem,
            "notebook",
            *(("there", "missing") if name in names[0] else ("missing", "there")),
            timed=False,
        )
        for name in sorted(names[0] ^ names[1])
    ]
    for name in sorted(names[0] & names[1]):
        notebook = Path(name).stem
        runs = [nbformat.read(str(folder / name), as_version=4) for folder in (first, second)]
        one, other = map(recorded, runs)
        timed = set().union(*map(timed_names, runs))
        differences += [
            Difference(notebook, key, one.get(key, "missing"), other.get(key, "missing"), key in timed)
            for key in sorted(one.keys() | other.keys())
            if key not in one or key not in other or one[key] != other[key]
        ]
        columns = [(table, column) for run in runs for table, marked in timed_columns(run).items() for column in marked]
        differences += _tables(notebook, first / "files" / notebook, second / "files" / notebook, set(columns))
    return differences


def _tables(notebook: str, first: Path, second: Path, timed: set[tuple[str, str]]) -> list[Difference]:
    import pandas as pd

    differences = []
    for name in sorted({path.name for folder in (first, second) for path in folder.glob("*.csv")}):
        place = f"{notebook}/{Path(name).stem}"
        if not (first / name).is_file() or not (second / name).is_file():
            there = ["there" if (folder / name).is_file() else "missing" for folder in (first, second)]
            differences.append(Difference(place, "table", *there, timed=False))
            continue
        one, other = (pd.read_csv(folder / name, dtype=str, keep_default_na=False) for folder in (first, second))
        if list(one) != list(other) or len(one) != len(other):
            differences.append(Difference(place, "shape", one.shape, other.shape, timed=False))
            continue
        for column in one:
            apart = int((one[column] != other[column]).sum())
            if apart:
                is_time = (Path(name).stem, column) in timed
                differences.append(Difference(place, column, f"{apart} of {len(one)} rows", "differ", is_time))
    return differences
