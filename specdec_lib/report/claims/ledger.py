"""The ledger of claims beside the runs that decide it: what the command prints and the book shows.

Every number is read: the published ones from ``data/published``, ours from what the executed notebooks
recorded.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec_lib import paths
from specdec_lib.experiments import published_numbers
from specdec_lib.report.build import params
from specdec_lib.report.claims import rules
from specdec_lib.report.claims.rules import Claim, ClaimError, Condition, Verdict
from specdec_lib.report.display.record import recorded
from specdec_lib.report.display.tables import format_cell

PAPERS = {"rest": "REST", "dresd": "DReSD", "pld_plus": "PLD+", "specdec_pp": "SpecDec++"}
"""Names of the papers, in the order of the page."""

VERDICTS = (rules.HOLDS, rules.PARTLY, rules.FAILS, rules.UNTESTABLE)
"""Verdicts in the order of the page."""

_SHAPES = ("shape", "shapes")
_RUN = ("notebook", "profile", "behaviour", "shape", "device")
CSV_COLUMNS = (
    "id",
    "paper",
    "where",
    "claim",
    "published",
    "ours",
    "notebook",
    "profile",
    "behaviour",
    "shape",
    "device",
    "rule",
    "conditions",
    "verdict",
    "why",
    "note",
)
"""Columns of the file that the page offers."""


@dataclass(frozen=True)
class Run:
    """An executed notebook: whose text and acceptance it is (``behaviour``), whose cost (``shape``: the widened one,
    where there is one), on which device and in which number type."""

    notebook: str
    title: str
    profile: str
    behaviour: str
    shape: str
    device: str

    def __str__(self) -> str:
        return f"behaviour of {self.behaviour}; shape {self.shape}; {self.device}"


@dataclass(frozen=True)
class Entry:
    """One claim with everything the page shows.

    Attributes
    ----------
    verdict : Verdict
    published : tuple of dict
        Rows of ``data/published/<paper>.csv`` that the claim names.
    values : dict
        What its notebook recorded under the names that the claim needs.
    run : Run or None
        None where the claim cannot be tested.
    """

    verdict: Verdict
    published: tuple[dict[str, str], ...]
    values: dict[str, Any]
    run: Run | None

    @property
    def claim(self) -> Claim:
        """The row of the ledger."""
        return self.verdict.claim

    @property
    def why(self) -> str:
        """The reason shown: of what does not wholly hold, or of what cannot be tested; else empty."""
        if self.verdict.verdict == rules.HOLDS:
            return ""
        return self.claim.why or self.claim.untestable

    @property
    def note(self) -> str:
        """What is to be known of the rule and of our numbers whatever the verdict; often empty."""
        return self.claim.note

    @property
    def untrue(self) -> tuple[Condition, ...]:
        """The conditions that were not true, or had no number to be true of."""
        return tuple(condition for condition, held in self.verdict.conditions if not held)


def shown(value: Any) -> str:
    """Return a recorded value as the page shows it: four significant digits of a number that is no integer.

    Parameters
    ----------
    value : int, float, bool or str
    """
    return format_cell(value, ".4g" if isinstance(value, float) else None)


def _width(target: str) -> str:
    """Layers and width of a shipped model or of a directory, from its configuration; empty for a hub name."""
    from specdec_lib.models.loading import POCKET_PARTS, pocket_folder

    path = (pocket_folder(target) if target in POCKET_PARTS else Path(target)) / "config.json"
    if not path.is_file():
        return ""
    config = json.loads(path.read_text(encoding="utf-8"))
    return f" ({config['num_hidden_layers']} layers of width {config['hidden_size']})"


def read_run(path: Path) -> Run:
    """Return what an executed notebook says of itself.

    Parameters
    ----------
    path : Path
        Executed copy with a cell tagged ``parameters`` and the runner's provenance.

    Raises
    ------
    ClaimError
        It has no such cell or no provenance: it was not executed by ``python -m specdec_lib run``.
    """
    import nbformat

    content = nbformat.read(str(path), as_version=4)
    facts = content.metadata.get("specdec", {})
    cells = [cell for cell in content.cells if "parameters" in cell.metadata.get("tags", [])]
    if not cells or "provenance" not in facts:
        raise ClaimError(f"{path} does not say how it was made; run: python -m specdec_lib run")
    values = {name: item.default for name, item in params.parse_declarations(cells[0].source).items()}
    values |= facts["provenance"]["parameters"]
    title = next(
        line[2:]
        for cell in content.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("# ")
    )
    target = str(values.get("target", "pocket"))
    shape = next((values[name] for name in _SHAPES if values.get(name)), f"its own{_width(target)}")
    return Run(
        path.stem,
        title,
        facts["profile"],
        ", ".join([target, *filter(None, [values.get("draft")])]),
        ", ".join(map(str, shape)) if isinstance(shape, (list, tuple, dict)) else str(shape),
        f"{facts['provenance']['machine']['device']}, {values.get('dtype', 'float32')}",
    )


def numbers(folder: Path | None = None) -> dict[str, dict[str, str]]:
    """Return the published numbers of all papers by their id.

    Raises
    ------
    ClaimError
        An id is in two files, or a file is not as :func:`specdec_lib.experiments.published_numbers.published` wants it.
    """
    found: dict[str, dict[str, str]] = {}
    for paper in rules.PAPERS:
        rows = published_numbers.published(paper, folder)
        twice = sorted(set(rows) & set(found))
        if twice:
            raise ClaimError(f"the published number {twice[0]!r} is in {paper}.csv and in another file")
        found |= rows
    return found


def _numbers_of(claim: Claim, rows: Mapping[str, dict[str, str]]) -> tuple[dict[str, str], ...]:
    unknown = [name for name in claim.published if name not in rows]
    if unknown:
        raise ClaimError(f"claim {claim.id!r}: no published number {unknown[0]!r} in {claim.paper}.csv")
    return tuple(rows[name] for name in claim.published)


def _run_of(claim: Claim, runs: Mapping[str | None, Run]) -> Run | None:
    """The run of its notebook, with what the claim says of it where other text or other times decide."""
    run = runs.get(claim.notebook)
    said = {name: getattr(claim, name) for name in ("behaviour", "shape") if getattr(claim, name)}
    return run and replace(run, **said)


def read_ledger(
    notebooks: Path | None = None, ledger: Path | None = None, published: Path | None = None
) -> tuple[list[Entry], list[str]]:
    """Judge the ledger by the executed notebooks, the book's own by default; returns the entries and the ids of claims
    whose notebook has not been executed.

    ClaimError if a claim names a published number that there is not, or a value its notebook did not record.
    """
    rows = rules.load_claims(ledger)
    files = {paper: published_numbers.published(paper, published) for paper in {claim.paper for claim in rows}}
    given = {claim.id: _numbers_of(claim, files[claim.paper]) for claim in rows}
    notebooks = notebooks or paths.root() / "book" / "notebooks"
    there = {c.notebook: notebooks / f"{c.notebook}.ipynb" for c in rows if c.notebook}
    found = {name: recorded(path) for name, path in there.items() if path.is_file()}
    runs = {name: read_run(there[name]) for name in found}
    judged = rules.judge_all(rows, found)
    entries = [
        Entry(v, given[v.claim.id], {n: found[v.claim.notebook][n] for n in v.claim.names}, _run_of(v.claim, runs))
        for v in judged
    ]
    done = {entry.claim.id for entry in entries}
    return entries, [claim.id for claim in rows if claim.id not in done]


def whole_ledger(
    notebooks: Path | None = None, ledger: Path | None = None, published: Path | None = None
) -> list[Entry]:
    """Judge every claim of the ledger, for a page that may lack none; parameters as in :func:`read_ledger`.

    Raises
    ------
    ClaimError
        A value is missing: the message names the claim and what it needs.
    """
    entries, waiting = read_ledger(notebooks, ledger, published)
    if waiting:
        missing = next(claim for claim in rules.load_claims(ledger) if claim.id == waiting[0])
        more = f" (and {len(waiting) - 1} more claims)" if len(waiting) > 1 else ""
        raise ClaimError(
            f"claim {missing.id!r} needs {missing.notebook}, which has not been executed{more}; "
            "run: python -m specdec_lib run"
        )
    return entries


def counts(entries: Sequence[Entry]) -> dict[str, dict[str, int]]:
    """Return the number of claims by paper (its name) and verdict."""
    table = {name: dict.fromkeys(VERDICTS, 0) for name in PAPERS.values()}
    for entry in entries:
        table[PAPERS[entry.claim.paper]][entry.verdict.verdict] += 1
    return table


def plain(entry: Entry) -> dict[str, Any]:
    """Return every field of a row of the ledger, as JSON can hold it."""
    claim, verdict = entry.claim, entry.verdict
    return {
        "id": claim.id,
        "paper": claim.paper,
        "where": claim.where,
        "claim": claim.claim,
        "published": {row["id"]: row["value"] for row in entry.published},
        "notebook": claim.notebook,
        "ours": verdict.ours,
        "run": vars(entry.run) if entry.run else None,
        "rule": claim.rule,
        "test": [{"condition": str(condition), "true": held} for condition, held in verdict.conditions],
        "verdict": verdict.verdict,
        "why": claim.why,
        "untestable": claim.untestable,
        "note": claim.note,
    }


def to_csv(entries: Sequence[Entry]) -> str:
    """Return the ledger as CSV with :data:`CSV_COLUMNS`; several values in a cell are parted by ";"."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        row, run = plain(entry), entry.run
        writer.writerow(
            {
                **{name: row[name] for name in ("id", "paper", "where", "claim", "rule", "verdict")},
                "published": "; ".join(f"{name} = {value}" for name, value in row["published"].items()),
                "ours": "; ".join(f"{name} = {value}" for name, value in row["ours"].items()),
                **{name: getattr(run, name) if run else "" for name in _RUN},
                "conditions": "; ".join(f"{c['condition']} is {c['true']}" for c in row["test"]),
                "why": entry.why,
                "note": entry.note,
            }
        )
    return out.getvalue()
