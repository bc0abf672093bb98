"""The command ``claims``: every claim of the papers with its verdict, from the numbers of the executed notebooks."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from specdec_lib.report import numbers
from specdec_lib.report.build.params import UsageError
from specdec_lib.report.claims import rules, table


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib claims", description=__doc__)
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="copy the run's tables there, data/results/cpu say")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the claims, or save the tables that decide them; returns the exit status."""
    options = build_parser().parse_args(argv)
    files = numbers.table_files()
    if options.save:
        executed = [path for path in files.values() if path.parent != numbers.COMMITTED]
        smoke = [path.name for path in executed if any(one.profile == "smoke" for one in numbers.read(path).values())]
        if smoke or not executed:
            raise UsageError(
                f"nothing is saved: {f'{smoke[0]} is of a smoke run' if smoke else 'no notebook has been executed'}. "
                "Run: python -m specdec_lib run"
            )
        options.save.mkdir(parents=True, exist_ok=True)
        for path in executed:
            shutil.copy(path, options.save)
        print(f"{len(executed)} tables written to {options.save}")
        return 0
    tables = numbers.tables()
    judged = rules.judge(rules.load_claims(), tables)
    for row in judged.itertuples():
        print(f"{row.verdict:20} {row.claim.paper}: {row.says}")
        lines = [row.claim.rule, *table.sizes(row.claim, tables), table.reason(row.claim, row.verdict, tables)]
        print(*(f"{'':20} {line}" for line in (*lines, row.claim.note) if line), sep="\n")
    print("; ".join(f"{number} {verdict}" for verdict, number in judged.verdict.value_counts().items()))
    return 0
