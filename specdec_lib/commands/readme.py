"""``python -m specdec_lib readme``: the README's table of chapters and its figure, from the executed notebooks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from specdec_lib import paths
from specdec_lib.experiments.published_numbers import ClaimError
from specdec_lib.report.build import readme
from specdec_lib.report.build.params import UsageError


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; say whether the last run gives the same")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file of values, the figure and the README's block, or check them; returns the exit status."""
    options = build_parser().parse_args(argv)
    try:
        root = paths.root()
        if options.check:
            faults = readme.check(root)
            print("\n".join(faults) or "the README says what the last run gave")
            return 1 if faults else 0
        written = readme.renew(root)
    except (UsageError, ClaimError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"written: {', '.join(path.relative_to(root).as_posix() for path in written)}")
    return 0
