"""``python -m specdec_lib diagnose``: predict from recorded answers what the methods would save; needs no model.

Each line of the file is a JSON object with the texts "prompt", as the model was given it, and "answer".
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from specdec_lib.commands import exit_status
from specdec_lib.commands.datastore import load_tokenizer
from specdec_lib.datastores import SuffixIndex, TokenStore
from specdec_lib.drafters.pass_prices import CURVES, PassPrices
from specdec_lib.experiments.diagnosis import Diagnosis, TokensAlone, diagnose, read_answers
from specdec_lib.files import write_atomic
from specdec_lib.report.display import diagnosis_page


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_lib diagnose",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("answers", type=Path, help="JSON lines of prompts and answers")
    parser.add_argument(
        "--tokenizer", default="pocket", help="the model's: a directory, a name on the hub, or pocket (default)"
    )
    parser.add_argument("--store", type=Path, help="a datastore of this tokenizer, for REST and one tree")
    parser.add_argument("--weights", type=Path, help="one tree's, a file of fit-tree's (default: the pocket pair's)")
    parser.add_argument(
        "--prices",
        default="cpu",
        help=f"what a pass costs by its width: {', '.join(CURVES)}, or a file of calibrate's (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, help="JSON file to write")
    parser.add_argument("--page", type=Path, help="HTML page to write, with a figure")
    return parser


def _prices(name: str) -> PassPrices:
    if name in CURVES:
        return CURVES[name]
    if not Path(name).is_file():
        raise ValueError(f"--prices is {name!r}; expected {', '.join(CURVES)}, or a file that calibrate wrote")
    return PassPrices.load(name)


def _table(found: Diagnosis) -> str:
    rows = [("Method", "Tokens a pass", "Speed-up", "Width")]
    for one in found.predictions:
        rows.append((one.method, f"{one.tokens_per_pass:.2f}", f"{one.speedup:.2f}", f"{one.width:.1f}"))
    # The joiners that keep a bracket on one line of a page have no width on a terminal.
    rows = [tuple(cell.replace("\u2060", "") for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _run(options: argparse.Namespace) -> None:
    for path in (options.json, options.page):
        if path is not None and not path.resolve().parent.is_dir():
            raise FileNotFoundError(f"no folder {path.resolve().parent} for {path.name}")
    given = {"store": options.store, "weights": options.weights}
    answers, prices = read_answers(options.answers), _prices(options.prices)
    tokenizer = load_tokenizer(options.tokenizer)
    store = None if options.store is None else SuffixIndex.open(TokenStore.open(options.store, tokenizer))
    bench = TokensAlone(tokenizer, prices, store, options.weights)
    bench.tree_probabilities  # noqa: B018 (a file that cannot be read is refused before any work)
    found = diagnose(answers, bench, prices)
    print(
        f"{len(found.each):,d} answers of {found.tokens:,d} tokens; tokenizer {options.tokenizer}, prices {prices.name}"
    )
    print()
    print(_table(found))
    print()
    for line in (*diagnosis_page.reasons(found), found.advice()):
        print(line.replace("\u2060", ""))
    for name, needed in found.needs.items():
        print(f"{name} is not predicted: it needs {needed}.")
    if found.free:
        print(f"Drafting counts as free, because these prices have no time for it: {', '.join(found.free)}.")
    if options.json is not None:
        about = {"tokenizer": options.tokenizer}
        about |= {name: None if path is None else str(path) for name, path in given.items()}
        write_atomic(options.json, json.dumps(about | found.about(), indent=1, ensure_ascii=False) + "\n")
        print(f"written to {options.json}")
    if options.page is not None:
        write_atomic(options.page, diagnosis_page.page(found, options.tokenizer))
        print(f"written to {options.page}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Words of the command line after ``diagnose``.
    """
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options), "interrupted; nothing was written")
