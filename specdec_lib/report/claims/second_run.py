"""Two runs of all notebooks with different seeds: which claims get two verdicts.

``python -m specdec_lib claims --save`` leaves the verdicts of a run, what decides them and which models it had. Both files
are committed, so a reader can compare them without running anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specdec_lib import files, paths
from specdec_lib.report.claims.ledger import Entry, plain
from specdec_lib.report.claims.rules import ClaimError
from specdec_lib.report.display import provenance

FIRST = paths.DATA / "results" / "cpu" / "first_run.json"
SECOND = paths.DATA / "results" / "cpu" / "second_run.json"


class Turned(NamedTuple):
    """A claim with two verdicts, and what the two runs measured."""

    claim: str
    verdicts: tuple[str, str]
    ours: tuple[Mapping[str, Any], Mapping[str, Any]]


def content(entries: Sequence[Entry], note: str = "", earlier: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the file holds of a run: its profile and models, the verdict of each row and what decides it.

    Parameters
    ----------
    entries : sequence of Entry
    note : str
        For the page.
    earlier : mapping, optional
        Content whose rows stay where ``entries`` has none of that claim.
    """
    earlier = earlier or {"profiles": [], "models": [], "claims": {}}
    rows = [plain(entry) for entry in entries]
    claims = {row["id"]: {"verdict": row["verdict"], "ours": row["ours"]} for row in rows}
    return {
        "profiles": sorted({*profiles(entries), *earlier["profiles"]}),
        "models": sorted({*models(entries), *earlier["models"]}),
        "weights": weights(),
        "note": note,
        "provenance": provenance.collect(),
        "claims": {**earlier["claims"], **claims},
    }


def profiles(entries: Sequence[Entry]) -> list[str]:
    """Profiles of the runs that the rows come from."""
    return sorted({entry.run.profile for entry in entries if entry.run})


def models(entries: Sequence[Entry]) -> list[str]:
    """Models that the notebooks of the rows decoded with, by name."""
    return sorted({entry.run.behaviour for entry in entries if entry.run and not entry.claim.behaviour})


def weights() -> dict[str, str]:
    """Checksums of the shipped pair's weights."""
    from specdec_lib.models.loading import pocket_folder

    return {name: files.sha256(pocket_folder(name) / "model.safetensors") for name in ("pocket", "pocket-draft")}


def load(path: Path) -> dict[str, Any]:
    """What :func:`content` gave.

    Raises
    ------
    ClaimError
        If the file cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ClaimError(
            f"{path} cannot be read ({error}); make it from an executed run: python -m specdec_lib claims --save {path}"
        ) from error


def differs(entries: Sequence[Entry], run: Mapping[str, Any]) -> str:
    """In what a saved run differs from the run that the rows come from, other than in its seeds; empty if in nothing."""
    if profiles(entries) != run["profiles"]:
        return "profile"
    return "models" if models(entries) != run["models"] or weights() != run["weights"] else ""


def turned(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Turned]:
    """The claims that both runs have, with two verdicts."""
    return [
        Turned(name, (one["verdict"], other["verdict"]), (one["ours"], other["ours"]))
        for name, one in first["claims"].items()
        if (other := second["claims"].get(name)) and other["verdict"] != one["verdict"]
    ]
