"""The ledger of claims and the runs that decide it: what the command prints and the book shows.

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
from specdec_lib.report.claims.published_tables import published_value
from specdec_lib.report.claims.rules import Claim, ClaimError, Condition, Size, Truth, Verdict
from specdec_lib.report.display.record import recorded
from specdec_lib.report.display.tables import format_cell

PAPERS = {"rest": "REST", "dresd": "DReSD", "pld_plus": "PLD+", "specdec_pp": "SpecDec++"}
"""Names of the papers, in the order of the page."""

#: What a sentence says of the claims with each verdict.
VERDICT_WORDS = {
    "holds": "hold here",
    "holds in part": "hold in part",
    "does not hold here": "do not hold here",
    "not resolved": "are not resolved by our intervals",
    "not testable here": "cannot be tested here",
    "no number yet": "have no number yet",
}
VERDICTS = (rules.HOLDS, rules.PARTLY, rules.FAILS, rules.UNRESOLVED, rules.UNTESTABLE, rules.NO_NUMBER)
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
    "threshold",
    "verdict",
    "size",
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
class Magnitude:
    """A line of ``size`` with its numbers: ours, the published range, and how far off that is (1: it meets our interval;
    None: we have no number)."""

    label: str
    ours: Any
    low: float
    high: float
    off: float | None

    def __str__(self) -> str:
        published = f"{self.low:.4g}" if self.low == self.high else f"{self.low:.4g} to {self.high:.4g}"
        if self.off is None:
            return f"{self.label}: published {published}, ours {shown(self.ours)}"
        found = "in our interval" if self.off == 1 else f"ours is {self.off:.2f} times that"
        return f"{self.label}: published {published}, ours {shown(self.ours)}; {found}"


@dataclass(frozen=True)
class Mark:
    """Our number in a row of "What reproduces": the recorded name, what priced it, and how far off the published one is
    (:meth:`specdec_lib.report.claims.rules.Size.off`; None where one of the two is missing)."""

    name: str
    price: str
    value: Any
    off: float | None


@dataclass(frozen=True)
class HeadlineRow:
    """A row of "What reproduces"; ``published`` is the smallest and the largest number of the paper, None without one."""

    claim: str
    paper: str
    label: str
    published: tuple[float, float] | None
    marks: tuple[Mark, ...]
    verdict: str

    @property
    def drawn(self) -> tuple[Mark, ...]:
        """The marks that have a number."""
        return tuple(mark for mark in self.marks if rules.bounds(mark.value) is not None)


@dataclass(frozen=True)
class Entry:
    """One claim with everything the page shows.

    Attributes
    ----------
    verdict : Verdict
    published : tuple of dict
        Rows of ``data/published/<paper>.csv`` that the claim names.
    sizes : tuple of Magnitude
        The published sizes compared with ours.
    run : Run or None
        None where the claim cannot be tested.
    headlines : tuple of HeadlineRow
        Its rows of the figure "What reproduces".
    """

    verdict: Verdict
    published: tuple[dict[str, str], ...]
    sizes: tuple[Magnitude, ...]
    run: Run | None
    headlines: tuple[HeadlineRow, ...] = ()

    @property
    def claim(self) -> Claim:
        """The row of the ledger."""
        return self.verdict.claim

    @property
    def why(self) -> str:
        """The reason shown: of what does not wholly hold, of a size that is not ours, or of what cannot be tested."""
        verdict = self.verdict.verdict
        if verdict == rules.NO_NUMBER or (verdict == rules.HOLDS and all(size.off in (1, None) for size in self.sizes)):
            return ""
        if verdict == rules.UNTESTABLE:
            return self.claim.untestable or "The text or the data that decide are not at hand in this run."
        return self.claim.why

    @property
    def note(self) -> str:
        """What is to be known of the rule and of our numbers whatever the verdict; often empty."""
        return self.claim.note

    @property
    def undecided(self) -> tuple[tuple[Condition, Truth], ...]:
        """The conditions that were not true, with what came of them."""
        return tuple((condition, truth) for condition, truth in self.verdict.conditions if truth is not Truth.TRUE)


def shown(value: Any, form: str = ".4g") -> str:
    """Return a recorded value as the page shows it: four significant digits of a number that is no integer, an interval
    as its estimate and its ends.

    Parameters
    ----------
    value : int, float, bool, str, interval or None
        None is what no notebook has recorded yet.
    form : str
        Format of a number that is no integer; empty for all of its digits.
    """
    if value is None:
        return rules.NO_NUMBER
    ends = rules.bounds(value)
    if ends is not None and not isinstance(value, (bool, int, float)):
        return f"{rules.centre(value):{form}} [{ends[0]:{form}}, {ends[1]:{form}}]"
    if not form:
        return str(value)
    return format_cell(value, form if isinstance(value, float) else None)


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


def _size_of(size: Size, claim: Claim, values: Mapping[str, Any], rows: Mapping[str, dict[str, str]]) -> Magnitude:
    low, high = published_value(size.low, rows), published_value(size.high, rows)
    value = values.get(size.name)
    return Magnitude(claim.ours[size.name], value, low, high, size.off(value, low, high))


def _headlines_of(verdict: Verdict, rows: Mapping[str, dict[str, str]]) -> tuple[HeadlineRow, ...]:
    claim, made = verdict.claim, []
    for headline in claim.headline:
        ends = [published_value(expression, rows) for expression in headline.published]
        published = (ends[0], ends[-1]) if ends else None
        marks = []
        for name, price in headline.ours.items():
            value = verdict.ours[name]
            marks.append(Mark(name, price, value, Size(name, "", "").off(value, *published) if published else None))
        made.append(HeadlineRow(claim.id, claim.paper, headline.label, published, tuple(marks), verdict.verdict))
    return tuple(made)


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

    ClaimError if a claim names a published number that there is not.
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
        Entry(
            v,
            given[v.claim.id],
            tuple(_size_of(size, v.claim, v.ours, files[v.claim.paper]) for size in v.claim.size),
            _run_of(v.claim, runs),
            _headlines_of(v, files[v.claim.paper]),
        )
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
        A notebook has not been executed: the message names the claim and what it needs.
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


def counted(verdicts: Mapping[str, int]) -> str:
    """Return how many claims have which verdict as a sentence.

    Parameters
    ----------
    verdicts : mapping of str to int
        Number of claims by verdict.
    """
    said = [f"{verdicts[verdict]} {words}" for verdict, words in VERDICT_WORDS.items() if verdicts.get(verdict)]
    return f"Of the {sum(verdicts.values())} statements of the papers that we tried to check, {', '.join(said)}."


def sizes(entries: Sequence[Entry]) -> dict[str, str]:
    """Return by paper, and for all four, how many of its published sizes meet our intervals, of those that we have."""
    known = {name: [] for name in (*PAPERS.values(), "all four")}
    for entry in entries:
        for off in (size.off for size in entry.sizes if size.off is not None):
            known[PAPERS[entry.claim.paper]].append(off == 1)
            known["all four"].append(off == 1)
    return {name: f"{sum(met)} of {len(met)}" for name, met in known.items()}


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
        "test": [{"condition": str(condition), "truth": truth.value} for condition, truth in verdict.conditions],
        "threshold": claim.threshold,
        "exact": claim.exact,
        "verdict": verdict.verdict,
        "size": [vars(size) for size in entry.sizes],
        "items": dict(claim.items),
        "why": claim.why,
        "untestable": claim.untestable,
        "note": claim.note,
    }


def headlines(entries: Sequence[Entry]) -> list[HeadlineRow]:
    """Return the rows of "What reproduces", in the order of the papers and of the ledger."""
    order = list(PAPERS)
    return sorted((row for entry in entries for row in entry.headlines), key=lambda row: order.index(row.paper))


def to_csv(entries: Sequence[Entry]) -> str:
    """Return the ledger as CSV with :data:`CSV_COLUMNS`; several values in a cell are parted by ";"."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        row, run = plain(entry), entry.run
        writer.writerow(
            {
                **{name: row[name] for name in ("id", "paper", "where", "claim", "rule", "threshold", "verdict")},
                "published": "; ".join(f"{name} = {value}" for name, value in row["published"].items()),
                "ours": "; ".join(f"{name} = {shown(value, '')}" for name, value in row["ours"].items()),
                "size": "; ".join(map(str, entry.sizes)),
                **{name: getattr(run, name) if run else "" for name in _RUN},
                "conditions": "; ".join(f"{c['condition']}: {c['truth']}" for c in row["test"]),
                "why": entry.why,
                "note": entry.note,
            }
        )
    return out.getvalue()
