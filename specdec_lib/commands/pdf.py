"""``python -m specdec_lib pdf``: the book as one PDF, printed by a headless Chromium from the book as one page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from specdec_lib.report.build import pdf
from specdec_lib.report.build.params import UsageError


def build_parser() -> argparse.ArgumentParser:
    """The command has no options but ``--help``."""
    return argparse.ArgumentParser(prog="python -m specdec_lib pdf", description=__doc__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    build_parser().parse_args(argv)
    try:
        pdf.build()
    except (UsageError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
