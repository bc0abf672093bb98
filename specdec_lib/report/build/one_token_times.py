"""One-token passes that several chapters of one run timed, compared: a box on their pages where the times contradict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from docutils import nodes
from sphinx.application import Sphinx

from specdec_lib.report.build import params
from specdec_lib.report.build.runner import METADATA
from specdec_lib.report.display.notices import Notice
from specdec_lib.report.display.record import recorded

#: Values that chapters record of a one-token pass of their target in plain decoding, in milliseconds.
NAMES = ("t_target_ms", "cost_t_target_target_alone_ms", "step_ms_eager_w1")
#: Times of one pass that differ by more than this share were taken on a machine that was not equally free.
APART = 0.25


class Timed(NamedTuple):
    """A one-token pass that a chapter timed: what has to be the same for a comparison, and milliseconds."""

    chapter: str
    conditions: tuple[str, ...]
    ms: float


def read(path: Path) -> Timed | None:
    """The one-token pass of an executed notebook; None where it recorded none, and of a smoke run, whose few passes prove
    nothing."""
    content = nbformat.read(str(path), as_version=4)
    about = content.metadata.get(METADATA, {})
    values = recorded(content)
    found = next((values[name] for name in NAMES if name in values), None)
    if found is None or about.get("profile", "smoke") == "smoke":
        return None
    declared: dict[str, Any] = {}
    for cell in content.cells:
        if "parameters" in cell.metadata.get("tags", []):
            declared = {name: one.default for name, one in params.parse_declarations(cell.source).items()}
    used = {**declared, **content.metadata.get("papermill", {}).get("parameters", {})}
    asked = [str(used.get(name, "")) for name in ("target", "shape", "device", "dtype")]
    where = [str(values.get("torch_threads")), about["profile"], str(about["provenance"]["machine"].get("processor"))]
    return Timed(path.stem, (*asked, *where), float(found))


def contradictions(times: Sequence[Timed]) -> dict[str, list[tuple[Timed, Timed]]]:
    """By chapter the pairs, its own time first, that timed the same pass and differ by more than :data:`APART`."""
    found: dict[str, list[tuple[Timed, Timed]]] = {}
    for one, other in combinations(times, 2):
        short, long = sorted((one.ms, other.ms))
        if one.conditions == other.conditions and long > (1 + APART) * short:
            found.setdefault(one.chapter, []).append((one, other))
            found.setdefault(other.chapter, []).append((other, one))
    return found


def box(pairs: Sequence[tuple[Timed, Timed]]) -> Notice:
    """What the page of the first of each pair says."""
    others = ", ".join(f"{other.ms:.2f} ms in {other.chapter}" for _, other in pairs)
    return Notice(
        "Times that contradict each other",
        f"A one-token pass of the same model took {pairs[0][0].ms:.2f} ms on this page and {others}. The machine was not "
        "equally free in these chapters. Do not compare their times; run them again on a free machine.",
    )


def _add_box(app: Sphinx, document: nodes.document) -> None:
    """Put the box below the title of a chapter whose time contradicts that of another chapter."""
    folder, _, name = app.env.docname.rpartition("/")
    if folder != "notebooks":
        return
    notebooks = sorted((Path(app.env.srcdir) / folder).glob("*.ipynb"))
    if not any(path.stem == name for path in notebooks):
        return
    for path in notebooks:
        app.env.note_dependency(str(path))
    pairs = _all(tuple((path, path.stat().st_mtime_ns) for path in notebooks)).get(name)
    title = next(iter(document.findall(nodes.title)), None)
    if pairs and title is not None:
        made = box(pairs)
        place = title.parent.index(title) + 1
        title.parent.insert(
            place,
            nodes.admonition("", nodes.title("", made.title), nodes.paragraph("", made.text), classes=[made.kind]),
        )


@lru_cache(maxsize=1)
def _all(notebooks: Sequence[tuple[Path, int]]) -> Mapping[str, list[tuple[Timed, Timed]]]:
    """The contradictions among notebooks; each comes with the time it was written, so that a change is seen."""
    return contradictions([found for path, _ in notebooks if (found := read(path)) is not None])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the comparison with Sphinx."""
    app.connect("doctree-read", _add_box)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
