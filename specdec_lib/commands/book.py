"""``python -m specdec_lib book``: render the book from the executed notebooks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    """The command has no options but ``--help``."""
    return argparse.ArgumentParser(prog="python -m specdec_lib book", description=__doc__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    build_parser().parse_args(argv)
    from specdec_lib.report.build import book  # needs the extra `book`, which --help does not

    book.build()
    return 0
