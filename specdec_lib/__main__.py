"""``python -m specdec_lib``: run the notebooks, build the book, check, measure, train."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from specdec_lib import paths
from specdec_lib.report.build.params import UsageError


class Command(NamedTuple):
    """One command of the program.

    Attributes
    ----------
    module : str
        Has ``build_parser()`` and ``main(words)``; loaded on call, because it can bring heavy imports.
    help : str
        One line.
    alias : str
        An older name that works too.
    in_repository : bool
        It is about notebooks and pages, which an installed wheel does not have.
    """

    module: str
    help: str
    alias: str = ""
    in_repository: bool = False


#: The commands by name.
COMMANDS: dict[str, Command] = {
    "run": Command("specdec_lib.commands.run", "execute the notebooks into book/notebooks", in_repository=True),
    "book": Command("specdec_lib.commands.book", "render the book from the executed notebooks", in_repository=True),
    "check": Command(
        "specdec_lib.commands.check",
        "check notebooks, parameters, pages, links and claims without running anything",
        in_repository=True,
    ),
    "diagnose": Command("specdec_lib.commands.diagnose", "predict from recorded answers what the methods would save"),
    "doctor": Command("specdec_lib.commands.doctor", "report versions, devices and data of this machine"),
    "bench": Command(
        "specdec_lib.commands.bench", "measure how fast the library itself is, into data/results/cpu/bench.json"
    ),
    "calibrate": Command("specdec_lib.commands.calibrate", "measure what passes of a model cost by their width"),
    "claims": Command(
        "specdec_lib.commands.claims", "print every claim of the papers with its verdict here", in_repository=True
    ),
    "datastore": Command("specdec_lib.commands.datastore", "build, describe and verify datastores"),
    "find-heads": Command("specdec_lib.commands.find_heads", "identify the induction heads of a model", "heads"),
    "fit-tree": Command("specdec_lib.commands.fit_tree", "fit the probabilities of one tree on a model's answers"),
    "known-answers": Command(
        "specdec_lib.commands.known_answers", "replay copying methods on answers of large models and of people"
    ),
    "losslessness": Command("specdec_lib.commands.losslessness", "compare many prompts with plain decoding"),
    "pdf": Command("specdec_lib.commands.pdf", "print the book into _build/book.pdf", in_repository=True),
    "pocket": Command("specdec_lib.commands.pocket", "train the pocket models again"),
    "pocket-data": Command(
        "specdec_lib.commands.pocket_data", "fetch and prepare the text that the pocket models are trained on"
    ),
    "recordings": Command(
        "specdec_lib.commands.recordings",
        "decode the prompts of the book and commit what the shipped models write",
        in_repository=True,
    ),
    "train-acceptance-head": Command(
        "specdec_lib.commands.train_acceptance_head", "train an acceptance head for SpecDec++", "head"
    ),
    "train-heads": Command("specdec_lib.commands.train_heads", "train heads that draft: Medusa, Hydra, EAGLE"),
}


def find_command(name: str) -> Command | None:
    """The command of that name or alias; None where there is none."""
    by_alias = {command.alias: command for command in COMMANDS.values() if command.alias}
    return COMMANDS.get(name) or by_alias.get(name)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's name; the rest is read by the command itself."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib", description=__doc__)
    names = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        names.add_parser(name, help=command.help, aliases=[command.alias] if command.alias else [], add_help=False)
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
        if not words or find_command(words[0]) is None:
            words = [build_parser().parse_args(words).command]  # it ends here with a list, or a message
        command = find_command(words[0])
        if command.in_repository:
            paths.root()
        return int(import_module(command.module).main(words[1:]) or 0)
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


if __name__ == "__main__":
    sys.exit(main())
