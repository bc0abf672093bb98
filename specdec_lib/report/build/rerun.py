"""What the pages on running again take from the notebooks: every parameter, and what the last run took.

:func:`specdec_lib.report.build.book.build` writes both texts into ``_build/pages`` before the pages are rendered, so
that they name what the notebooks declare now and took last.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat

from specdec_lib import files, paths
from specdec_lib.report import params
from specdec_lib.report.build import plan
from specdec_lib.report.build.plan import METADATA
from specdec_lib.report.display import tables


def title(notebook: nbformat.NotebookNode) -> str:
    """Return the heading of the first level."""
    for cell in notebook.cells:
        for line in cell.source.splitlines() if cell.cell_type == "markdown" else ():
            if line.startswith("# "):
                return line[2:].strip()
    return ""


def _literal(value: Any) -> str:
    return tables.code_cell(repr(value))


def parameters_text(folder: Path) -> str:
    """Return one collapsible table a notebook of a folder: name, default, meaning, type."""
    parts = []
    for path in plan.find_notebooks(folder):
        content = nbformat.read(str(path), as_version=4)
        rows = []
        for parameter in params.declared_parameters(content).values():
            what = f"{tables.markdown_cell(parameter.help)} (`{parameter.annotation}`)"
            rows.append(f"| `{parameter.name}` | {_literal(parameter.default)} | {what} |")
        number = path.stem.split("_", 1)[0]
        parts += [
            f":::{{dropdown}} {number}: {title(content)}",
            f"[](notebooks/{path.name})",
            "",
            "| Parameter | Default | What it is |",
            "|:--|:--|:--|",
            *rows,
            ":::",
            "",
        ]
    return "\n".join(parts)


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


def times_text(executed: Iterable[Path], cache_bytes: int) -> str:
    """Return the table of what each executed notebook took and where, with the sum and the size of the cache below it."""
    rows, seconds = [], 0.0
    for path in sorted(executed):
        content = nbformat.read(str(path), as_version=4)
        facts = content.metadata[METADATA]
        machine = facts["provenance"]["machine"]
        threads = machine["torch threads"]
        where = f"{machine['processor'] if machine['device'] == 'cpu' else machine['device']}, {threads} thread"
        size = (path.stat().st_size + _folder_bytes(path.parent / "files" / path.stem)) / 1e6
        rows.append(
            f"| [](notebooks/{path.name}) | {facts['seconds']:.0f} | {size:.1f} | "
            f"{tables.markdown_cell(where)}{'s' if threads != '1' else ''} |"
        )
        seconds += facts["seconds"]
    cache = f"{cache_bytes / 1e9:.1f} GB" if cache_bytes >= 1e8 else f"{cache_bytes / 1e6:.0f} MB"
    lines = [
        ":::{table} Time and disk space of the run that made these pages.",
        ":name: tab-rerun-times",
        ":align: center",
        "",
        "| Notebook | Seconds | Copy and tables, MB | Machine |",
        "|:--|--:|--:|:--|",
        *rows,
        ":::",
        "",
        f"Together they took {seconds / 60:.0f} minutes. What can be made again "
        f"(datastores, answers, states) is kept in `_build/cache`, or where `SPECDEC_CACHE` says. It took {cache} there.",
        "",
    ]
    return "\n".join(lines)


def write_pages(root: Path) -> Path:
    """Write these texts into a repository's ``_build/pages``; returns it."""
    folder = root / "_build" / "pages"
    files.write_atomic(folder / "parameters.md", parameters_text(root / "notebooks"))
    executed = (root / "book" / "notebooks").glob("*.ipynb")
    files.write_atomic(folder / "times.md", times_text(executed, _folder_bytes(paths.cache())))
    return folder
