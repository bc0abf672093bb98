"""``python -m specdec_lib check``: check notebooks, parameters, pages, links and claims without running anything."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from specdec_lib import paths


def build_parser() -> argparse.ArgumentParser:
    """The command has no options but ``--help``."""
    return argparse.ArgumentParser(prog="python -m specdec_lib check", description=__doc__)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the faults; the exit status is 1 when there is one."""
    build_parser().parse_args(argv)
    from specdec_lib.report.build import check  # needs the extra `book`, which --help does not

    faults = check.check_all(paths.root())
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults" if faults else "no fault found")
    return 1 if faults else 0
