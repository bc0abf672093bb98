"""``python -m specdec_lib run``: execute the notebooks into ``book/notebooks``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext


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
        help="one parameter, or several values of a number (01.seed=0,1,2), each run into a folder of its own in "
        "_build/sweeps; may be repeated, which makes a grid",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="execute N notebooks at once, in processes of this machine"
    )
    parser.add_argument("--force", action="store_true", help="execute also what has not changed")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="decode every prompt again, taking no recorded tokens; executes also what has not changed",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 when a notebook failed."""
    options = build_parser().parse_args(argv)
    from specdec_lib.cluster import Processes
    from specdec_lib.experiments import recordings
    from specdec_lib.report.build import params, runner  # needs the extra `book`, which --help does not

    if options.jobs is not None and options.jobs < 1:
        raise params.UsageError(f"--jobs is {options.jobs}; expected a whole number, 1 or more")
    place = Processes(options.jobs) if options.jobs else None
    with recordings.fresh_folder() if options.fresh else nullcontext():
        failed = runner.run(
            options.profile, options.only, options.parameter, options.force or options.fresh, place=place
        )
    return 1 if failed else 0
