"""``python -m specdec_lib compare``: two runs of the notebooks, value by value and table by table.

A second run of the same code with the same parameters gives the same numbers in everything that is not a time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from specdec_lib.report.build.compare_runs import compare


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib compare", description=__doc__)
    parser.add_argument("first", type=Path, help="folder of executed notebooks, book/notebooks say")
    parser.add_argument("second", type=Path, help="another one")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the differences; the exit status is 1 when one of them is no time."""
    options = build_parser().parse_args(argv)
    try:
        differences = compare(options.first, options.second)
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    untimed = [one for one in differences if not one.timed]
    for one in untimed:
        print(f"{one.place}: {one.name}: {str(one.first)[:60]} | {str(one.second)[:60]}")
    timed = [f"{one.place}: {one.name}" for one in differences if one.timed]
    if timed:
        print(f"{len(timed)} times differ: " + ", ".join(timed))
    print(f"{len(untimed)} values that are no times differ" if untimed else "everything that is no time is the same")
    return 1 if untimed else 0
