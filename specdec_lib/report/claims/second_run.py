"""A second run of all notebooks, with other seeds: which claims get another verdict from it than from the run of the book."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specdec_lib import paths
from specdec_lib.report.claims.ledger import Entry, plain
from specdec_lib.report.claims.rules import ClaimError
from specdec_lib.report.display import provenance

RESULTS = paths.DATA / "results" / "cpu" / "second_run.json"


class Turned(NamedTuple):
    """A row of the ledger that has another verdict in the second run, with what that run measured."""

    entry: Entry
    verdict: str
    ours: Mapping[str, Any]


def content(entries: Sequence[Entry], note: str = "", earlier: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the file holds of a run: its profile, the verdict of each row and what decides it.

    Parameters
    ----------
    entries : sequence of Entry
    note : str
        For the page.
    earlier : mapping, optional
        Content whose rows stay where ``entries`` has none of that claim.
    """
    earlier = earlier or {"profiles": [], "claims": {}}
    rows = [plain(entry) for entry in entries]
    claims = {row["id"]: {"verdict": row["verdict"], "ours": row["ours"]} for row in rows}
    return {
        "profiles": sorted({*profiles(entries), *earlier["profiles"]}),
        "note": note,
        "provenance": provenance.collect(),
        "claims": {**earlier["claims"], **claims},
    }


def profiles(entries: Sequence[Entry]) -> list[str]:
    """Profiles of the runs that the rows come from."""
    return sorted({entry.run.profile for entry in entries if entry.run})


def load(path: Path | None = None) -> dict[str, Any]:
    """What :func:`content` gave.

    Raises
    ------
    ClaimError
        If the file cannot be read.
    """
    path = path or RESULTS
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ClaimError(
            f"{path} cannot be read ({error}); make it from a second run: python -m specdec_lib claims --save {path}"
        ) from error


def turned(entries: Sequence[Entry], second: Mapping[str, Any]) -> list[Turned]:
    """The rows that both runs have, with two verdicts."""
    claims = second["claims"]
    return [
        Turned(entry, other["verdict"], other["ours"])
        for entry in entries
        if (other := claims.get(entry.claim.id)) and other["verdict"] != entry.verdict.verdict
    ]
