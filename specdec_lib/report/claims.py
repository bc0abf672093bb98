"""The command ``claims``: every claim of the papers with its verdict from the executed notebooks."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from .. import paths
from ..evaluation.claims import HOLDS, ClaimError, Verdict, judge_all, load_claims, published
from .recording import RecordError, recorded


def verdicts() -> tuple[list[Verdict], list[str]]:
    """Judge the ledger by the executed notebooks.

    Returns
    -------
    verdicts : list of Verdict
    waiting : list of str
        Ids of claims whose notebook has not been executed.

    Raises
    ------
    ClaimError
        A claim names a published number that there is not, or a value its notebook did not record.
    """
    claims = load_claims()
    for paper in {claim.paper for claim in claims}:
        known = published(paper)
        for claim in claims:
            unknown = [name for name in claim.published if claim.paper == paper and name not in known]
            if unknown:
                raise ClaimError(f"claim {claim.id!r}: no published number {unknown[0]!r} in {paper}.csv")
    folder = paths.root() / "book" / "notebooks"
    found = {name: recorded(folder / f"{name}.ipynb")
             for name in {c.notebook for c in claims if c.notebook} if (folder / f"{name}.ipynb").is_file()}
    judged = judge_all(claims, found)
    done = {verdict.claim.id for verdict in judged}
    return judged, [claim.id for claim in claims if claim.id not in done]


def _plain(verdict: Verdict) -> dict:
    row = asdict(verdict.claim) | {"verdict": verdict.verdict, "ours": verdict.ours}
    row["test"] = [{"condition": str(condition), "true": held} for condition, held in verdict.conditions]
    return row


def main(argv: Sequence[str] | None = None) -> int:
    """Print the ledger; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib claims", description=__doc__)
    parser.add_argument("--json", action="store_true", help="every field, as JSON")
    options = parser.parse_args(argv)
    try:
        judged, waiting = verdicts()
    except (ClaimError, RecordError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"claims": [_plain(verdict) for verdict in judged], "not_run": waiting}, indent=1))
        return 0
    for verdict in judged:
        print(f"{verdict.verdict:20} {verdict.claim.paper:10} {verdict.claim.where:22} {verdict.claim.claim}")
        if verdict.claim.rule:
            print(f"{'':20} {verdict.claim.rule}")
        if verdict.verdict != HOLDS and (verdict.claim.why or verdict.claim.untestable):
            print(f"{'':20} Why: {verdict.claim.why or verdict.claim.untestable}")
    count = Counter(verdict.verdict for verdict in judged)
    print("\n" + "; ".join(f"{number} {text}" for text, number in count.most_common()))
    if waiting:
        print(f"{len(waiting)} wait for notebooks that have not been executed: python -m specdec_lib run")
    return 0
