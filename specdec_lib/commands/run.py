"""``python -m specdec_lib run``: execute the notebooks into ``book/notebooks``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib run", description=__doc__)
    parser.add_argument("--profile", default="default", help="smoke, default or full (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], metavar="01", help="one notebook; may be repeated")
    parser.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="01.name=value",
        help="one parameter; may be repeated",
    )
    parser.add_argument("--force", action="store_true", help="execute also what has not changed")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 when a notebook failed."""
    options = build_parser().parse_args(argv)
    from specdec_lib.report.build import runner  # needs the extra `book`, which --help does not

    return 1 if runner.run(options.profile, options.only, options.parameter, options.force) else 0
