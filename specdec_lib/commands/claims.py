"""The command ``claims``: every claim of the papers with its verdict, from the published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from specdec_lib import paths
from specdec_lib.commands import options
from specdec_lib.files import write_atomic


def claims(
    save: Annotated[Path | None, options.folder("Copy the numbers of the executed notebooks there, not print.")] = None,
) -> None:
    """Print every claim of the papers with its verdict here."""
    paths.root()
    from specdec_lib.models import smollm2
    from specdec_lib.report import numbers
    from specdec_lib.report.claims import rules, table
    from specdec_lib.report.params import UsageError

    if save:
        executed = list(numbers.executed_files().values())
        targets = {path.name: numbers.target_of(path) for path in executed}
        other = [f"{name} is of the target {target}" for name, target in targets.items() if target != smollm2.NAME]
        if other or not executed:
            raise UsageError(
                f"nothing is saved: {other[0] if other else 'no notebook has been executed'}. Run: python -m specdec_lib run"
            )
        save.mkdir(parents=True, exist_ok=True)
        for path in executed:
            write_atomic(save / path.name, path.read_text(encoding="utf-8"))
        print(f"{len(executed)} tables written to {save}")
        return
    tables = numbers.tables()
    judged = rules.judge(rules.load_claims(), tables)
    for row in judged.itertuples():
        print(f"{row.verdict:20} {row.claim.paper}: {row.says}")
        lines = [row.claim.rule, *table.sizes(row.claim, tables), table.reason(row.claim, row.verdict, tables)]
        print(*(f"{'':20} {line}" for line in (*lines, row.claim.note) if line), sep="\n")
    print("; ".join(f"{number} {verdict}" for verdict, number in judged.verdict.value_counts().items()))
