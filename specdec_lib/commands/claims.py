"""The command ``claims``: every claim of the papers with its verdict from the executed notebooks."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from specdec_lib.files import write_atomic
from specdec_lib.report.claims import second_run
from specdec_lib.report.claims.ledger import plain, read_ledger
from specdec_lib.report.claims.rules import ClaimError
from specdec_lib.report.display.record import RecordError


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib claims", description=__doc__)
    parser.add_argument("--json", action="store_true", help="every field, as JSON")
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="write the verdicts and what decides them; the page on the claims compares first_run.json with second_run.json, "
        "both in data/results/cpu",
    )
    parser.add_argument(
        "--add", action="store_true", help="keep what the saved file has of notebooks that were not executed this time"
    )
    parser.add_argument("--note", default="", help="a sentence on the run that is saved, for the page")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the ledger; returns the exit status."""
    options = build_parser().parse_args(argv)
    try:
        entries, waiting = read_ledger()
    except (ClaimError, RecordError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.save:
        try:
            earlier = second_run.load(options.save) if options.add else None
        except ClaimError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        unknown = [name for name in waiting if not earlier or name not in earlier["claims"]]
        if unknown:
            print(
                f"error: {len(unknown)} claims wait for notebooks that have not been executed, {unknown[0]} first. Run: "
                "python -m specdec_lib run",
                file=sys.stderr,
            )
            return 2
        write_atomic(options.save, json.dumps(second_run.content(entries, options.note, earlier), indent=1) + "\n")
        kept = f", {len(waiting)} kept as they were" if waiting else ""
        print(f"written to {options.save}: {len(entries)} claims{kept}")
        return 0
    if options.json:
        print(json.dumps({"claims": [plain(entry) for entry in entries], "not_run": waiting}, indent=1))
        return 0
    for entry in entries:
        claim, verdict = entry.claim, entry.verdict.verdict
        print(f"{verdict:20} {claim.paper:10} {claim.where:22} {claim.claim}")
        if claim.rule:
            print(f"{'':20} {claim.rule}")
        for size in entry.sizes:
            print(f"{'':20} Size: {size}")
        if entry.why:
            print(f"{'':20} Why: {entry.why}")
        if entry.note:
            print(f"{'':20} Note: {entry.note}")
    count = Counter(entry.verdict.verdict for entry in entries)
    print("\n" + "; ".join(f"{number} {text}" for text, number in count.most_common()))
    if waiting:
        print(f"{len(waiting)} wait for notebooks that have not been executed: python -m specdec_lib run")
    return 0
