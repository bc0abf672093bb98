"""``python -m specdec_lib``: run the notebooks, build the book, check, measure, train."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from specdec_lib import paths
from specdec_lib.report.build.params import UsageError

# Commands with options of their own; loaded on call, because each brings heavy imports.
_ELSEWHERE = {
    "bench": ("specdec_lib.report.benchmarks", "measure how fast the library itself is, into data/results/cpu/bench.json"),
    "claims": ("specdec_lib.commands.claims", "print every claim of the papers with its verdict here"),
    "compare": ("specdec_lib.report.build.compare_runs", "compare two runs of the notebooks; times may differ"),
    "datastore": ("specdec_lib.commands.datastore", "build, describe, verify and import datastores"),
    "gpu": ("specdec_lib.commands.gpu", "measure wide models on a GPU (or here) into data/results"),
    "head": ("specdec_lib.experiments.acceptance_training", "train an acceptance head for SpecDec++"),
    "heads": ("specdec_lib.commands.heads", "identify the induction heads of a model"),
    "losslessness": ("specdec_lib.experiments.losslessness", "compare many prompts with plain decoding"),
    "pdf": ("specdec_lib.report.build.pdf", "print the book into _build/book.pdf"),
    "pocket": ("specdec_lib.chapters.a1_pocket_models.training", "train the pocket models again"),
    "pocket-data": ("specdec_lib.chapters.a1_pocket_models.training_text", "fetch and prepare the text that the pocket models are trained on"),
    "readme": ("specdec_lib.report.build.readme", "make the README's table and figure from the executed notebooks"),
}

# Commands about notebooks and pages, which an installed wheel does not have.
_IN_REPOSITORY = {"run", "book", "check", "claims", "pdf", "readme"}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    run = commands.add_parser("run", help="execute the notebooks into book/notebooks")
    run.add_argument("--profile", default="default", help="smoke, default or full (default: %(default)s)")
    run.add_argument(
        "--only", action="append", default=[], metavar="01", help="one notebook; may be repeated"
    )
    run.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="01.name=value",
        help="one parameter; may be repeated",
    )
    run.add_argument("--force", action="store_true", help="execute also what has not changed")

    commands.add_parser("book", help="render the book from the executed notebooks")
    commands.add_parser("check", help="check notebooks, parameters, pages and links without running anything")
    commands.add_parser("doctor", help="report versions, devices and data of this machine")
    for name, (_, text) in _ELSEWHERE.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Words of the command line.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and words[0] in _IN_REPOSITORY:
            paths.root()
        if words and words[0] in _ELSEWHERE:
            return int(import_module(_ELSEWHERE[words[0]][0]).main(words[1:]) or 0)
        return _dispatch(build_parser().parse_args(words))
    except KeyboardInterrupt:
        print("interrupted; what was finished before is kept", file=sys.stderr)
        return 130
    except (UsageError, FileNotFoundError, NotADirectoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        where = "-e '.[book,test,cpu]'" if paths.ROOT else "'specdec-lib[book,cpu]'"
        print(f"error: {error}. Install the extras: pip install {where}", file=sys.stderr)
        return 2
    except ImportError as error:  # its message says what cannot be loaded and why
        print(f"error: {error}", file=sys.stderr)
        return 2


def _dispatch(options: argparse.Namespace) -> int:
    if options.command == "run":
        from specdec_lib.report.build import runner

        return 1 if runner.run(options.profile, options.only, options.parameter, options.force) else 0
    module = import_module(f"specdec_lib.report.build.{options.command}")
    return int(module.main())


if __name__ == "__main__":
    sys.exit(main())
