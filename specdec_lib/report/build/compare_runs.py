"""``python -m specdec_lib compare``: two runs of the notebooks, value by value and table by table.

A second run of the same code with the same parameters gives the same numbers in everything that is not a time. A
recorded value does not say of itself whether it was timed, so the rules for that are here, in one place: words in a
name that stand for a unit of time or a ratio of times, and the names that no such word gives away.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_lib.methods import METHODS, PLAIN
from specdec_lib.report.display.record import recorded

TIME_WORDS = {"ms", "us", "seconds", "microseconds", "tps", "speedup", "time"}
"""A name that has one of these between its underscores is timed, unless :data:`COMPUTED` begins it."""

COMPUTED = ("mdp_",)
"""Beginnings of names whose times are computed from published ones, not measured."""

TIMED_BEGINNINGS: dict[str, tuple[str, ...]] = {
    "06_gpu_benchmarks": (
        "bandwidth_",
        "composed_error",
        "composed_tree_",
        "composed_unlooped_",
        *(f"composed_{slug}_" for slug in (PLAIN, *(method.slug for method in METHODS.values()))),
        "draft_share",
        "matrix_",
        "peer_ratio",
        "step_ratio",
        "store_growth_speed",
        "tokens_per_s_",
        "winner_",
    ),
}
"""By notebook: beginnings of the names of values that come from a clock, or follow from some that do."""

TIMED_VALUES: dict[str, set[str]] = {
    "01_speculative_decoding": {"cost_ratio", "wide_ratio", "found_oracle"},
    "02_datastore_construction": {"sort_rate", "search_small", "search_large", "draft_large"},
    "03_dense_vs_sparse_retrieval": {"rest_draft_share", "dresd_draft_share"},
    "04_pld_plus": {"wide_ratio"},
    "05_specdec_pp": {
        "cost_r2_specdec",
        "cost_r2_draft_alone",
        "cost_r2_target_alone",
        "cost_error_largest",
        "cost_error_median",
        "cost_error_words",
        "cost_alone_words",
        "cost_wide_ratio",
        "head_step_share",
        "head_here_ratio",
        "head_here_fixed_k",
        "head_here_confidence",
        "head_here_cumulative_confidence",
        "head_here_specdecpp",
        "head_here_specdecpp_with_confidence",
        "head_here_gain",
        "head_here_low",
        "head_here_high",
    },
}
"""By notebook: recorded values that come from a clock although no word of their name says so."""

TIMED_COLUMNS: dict[str, set[str]] = {
    "tab-decoding-time": {"rate"},
    # Which fixed length is best, and what follows from it, is decided by measured times.
    "tab-decoding-oracle": {"best", "tokens_per_forward", "expected"},
    "tab-store-time": {"search", "search99", "draft", "draft99"},
    "tab-retrieval-time": {"rate", "step", "share"},
    "tab-plus-time": {"gain", "draft", "verify"},
    "tab-wide-steps": {"ms_low", "ms_high", "bound_ms", "bandwidth_fraction", "ratio"},
    "tab-wide-speedups": {
        "tokens_per_second",
        "speedup_ratio_of_pooled_rates",
        "speedup_low",
        "speedup_high",
        "speedup_ratio_of_mean_rates",
        "speedup_mean_of_ratios",
    },
    "tab-wide-tasks": set(METHODS),
    "tab-wide-retrieval": {"draft_ms_per_step", "draft_ms_per_token", "verify_ms", "host_ms"},
    "tab-wide-peers": {"tokens_per_second", "ours_tokens_per_second", "ratio", "ratio_low", "ratio_high"},
    "tab-wide-published": {"ours"},
    "tab-wide-methods": {"speedup", "unlooped"},
    "tab-wide-trees": {"speedup"},
    "tab-cost-forward-times": {"t_draft", "t_target", "r_squared"},
}
"""By table: the columns of the same kind."""


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
        Whether it comes from a clock.
    """

    place: str
    name: str
    first: Any
    second: Any
    timed: bool


def is_timed(name: str, notebook: str = "", table: str = "") -> bool:
    """Say whether a recorded value or a table's column comes from a clock.

    Parameters
    ----------
    name : str
    notebook : str
        Name without suffix, for a recorded value.
    table : str
        Name without suffix, for a column.
    """
    if not name.startswith(COMPUTED) and TIME_WORDS.intersection(name.split("_")):
        return True
    if name.startswith(TIMED_BEGINNINGS.get(notebook, ())):
        return True
    return name in TIMED_VALUES.get(notebook, ()) or name in TIMED_COLUMNS.get(table, ())


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
        Difference(Path(name).stem, "notebook", *(("there", "missing") if name in names[0] else ("missing", "there")),
                   timed=False)
        for name in sorted(names[0] ^ names[1])
    ]
    for name in sorted(names[0] & names[1]):
        notebook = Path(name).stem
        one, other = recorded(first / name), recorded(second / name)
        differences += [
            Difference(notebook, key, one.get(key, "missing"), other.get(key, "missing"), is_timed(key, notebook))
            for key in sorted(one.keys() | other.keys())
            if key not in one or key not in other or one[key] != other[key]
        ]
        differences += _tables(notebook, first / "files" / notebook, second / "files" / notebook)
    return differences


def _tables(notebook: str, first: Path, second: Path) -> list[Difference]:
    import pandas as pd

    found = []
    for name in sorted({path.name for folder in (first, second) for path in folder.glob("*.csv")}):
        place = f"{notebook}/{Path(name).stem}"
        if not (first / name).is_file() or not (second / name).is_file():
            there = ["there" if (folder / name).is_file() else "missing" for folder in (first, second)]
            found.append(Difference(place, "table", *there, timed=False))
            continue
        one, other = (pd.read_csv(folder / name, dtype=str, keep_default_na=False) for folder in (first, second))
        if list(one) != list(other) or len(one) != len(other):
            found.append(Difference(place, "shape", one.shape, other.shape, timed=False))
            continue
        for column in one:
            apart = int((one[column] != other[column]).sum())
            if apart:
                timed = is_timed(column, table=Path(name).stem)
                found.append(Difference(place, column, f"{apart} of {len(one)} rows", "differ", timed))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specdec_lib compare", description=__doc__)
    parser.add_argument("first", type=Path, help="folder of executed notebooks, book/notebooks say")
    parser.add_argument("second", type=Path, help="another one")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the differences; the exit status is 1 when one of them is no time.

    Parameters
    ----------
    argv : sequence of str, optional
        Words of the command line behind ``compare``.
    """
    options = _parser().parse_args(argv)
    try:
        found = compare(options.first, options.second)
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    others = [one for one in found if not one.timed]
    for one in others:
        print(f"{one.place}: {one.name}: {str(one.first)[:60]} | {str(one.second)[:60]}")
    timed = [f"{one.place}: {one.name}" for one in found if one.timed]
    if timed:
        print(f"{len(timed)} times differ: " + ", ".join(timed))
    print(f"{len(others)} values that are no times differ" if others else "everything that is no time is the same")
    return 1 if others else 0
