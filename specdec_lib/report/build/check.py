"""What can be said of notebooks and pages without running anything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import yaml

from specdec_lib.report import params
from specdec_lib.report.build import book, plan
from specdec_lib.report.claims import rules

MAX_CELL_LINES = 15
_FENCED = re.compile(r"^[ ]*(```|\$\$).*?^[ ]*\1", re.DOTALL | re.MULTILINE)
_ABSOLUTE = re.compile(r"""["'](?:/(?:home|root|work|tmp|Users|mnt|opt|data)/|[A-Za-z]:\\)""")


def check_notebook(path: Path) -> list[str]:
    """Return the faults of one source notebook, one sentence each."""
    text = path.read_text(encoding="utf-8")
    try:
        content = nbformat.reads(text, as_version=4)
        nbformat.validate(content)
    except (nbformat.ValidationError, ValueError) as error:
        return [f"is not a valid notebook: {str(error).splitlines()[0]}"]
    code = [cell for cell in content.cells if cell.cell_type == "code"]
    prose = "\n".join(cell.source for cell in content.cells if cell.cell_type == "markdown")
    titles = re.findall(r"^# ", _FENCED.sub("", prose), re.MULTILINE)
    wanted = [
        (plan.NAME.fullmatch(path.stem), "its name is not of the form 01_slug"),
        (
            (content.nbformat, content.nbformat_minor) >= (4, 5),
            "is older than nbformat 4.5, which gives cells their ids",
        ),
        (content.metadata.get("kernelspec", {}).get("name") == "python3", "its kernelspec is not python3"),
        (
            text == canonical(json.loads(text)),
            "is not written canonically: indent 1, no escapes, one newline at the end",
        ),
        (content.cells and content.cells[0].cell_type == "markdown", "does not begin with a text cell"),
        (
            not any(cell.outputs or cell.execution_count for cell in code),
            "carries outputs or execution counts: clear them",
        ),
        (len(titles) == 1, f"has {len(titles)} headings of the first level; exactly one is expected"),
    ]
    return [told for kept, told in wanted if not kept] + _check_parameters(content) + _check_code(code)


def canonical(content: dict[str, Any]) -> str:
    """Return the one way in which the project writes a notebook."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _check_parameters(content: nbformat.NotebookNode) -> list[str]:
    try:
        declared = params.declared_parameters(content)
    except (params.UsageError, SyntaxError) as error:
        return [str(error)]
    faults = [f"parameter {p.name!r} has no comment that says what it is" for p in declared.values() if not p.help]
    if not any("check_parameters(globals()" in cell.source for cell in content.cells if cell.cell_type == "code"):
        faults.append("does not call report.check_parameters(globals()) after its parameters")
    return faults


def _check_code(cells: list[nbformat.NotebookNode]) -> list[str]:
    faults = []
    for number, cell in enumerate(cells, start=1):
        lines, tags = cell.source.rstrip().splitlines(), cell.metadata.get("tags", [])
        imports = all(
            line.startswith(("from ", "import ", "%", "    ", ")", "#")) or not line.strip() for line in lines
        )
        settings = cell.metadata.get("mystnb", {})
        figure, drawn = settings.get("figure", {}), settings.keys() & {"figure", "image"}
        named = figure.get("caption") and figure.get("name", "").startswith("fig-")
        # One value per line: a parameters cell is as long as it has parameters. A solution is a program, unfolded by who wants it.
        solution = settings.get("code_prompt_show") == "Solution"
        saves = "report.save(" in cell.source
        short = len(lines) < MAX_CELL_LINES or imports or "parameters" in tags or saves or solution
        wanted = [
            (short, f"has {len(lines)} lines; fewer than {MAX_CELL_LINES} are wanted"),
            (not _ABSOLUTE.search(cell.source), "holds an absolute path: take paths from specdec_lib.paths"),
            ("plt.show" not in cell.source, "calls plt.show: end the cell with the figure"),
            (
                "hide-cell" not in tags or settings.get("code_prompt_show"),
                "is folded: mystnb.code_prompt_show has to say what it holds",
            ),
            (not drawn or named, "mystnb.figure needs a caption and a name 'fig-...'"),
            (not drawn or settings.get("image", {}).get("alt"), "mystnb.image needs an alt text"),
        ]
        faults += [f"code cell {number} {told}" for kept, told in wanted if not kept]
    return faults


def check_pages(root: Path) -> list[str]:
    """Return the faults of the book's sources: missing pages, and notebooks that are not listed."""
    pages = book.toc_files(root / "book" / "_toc.yml")
    faults = []
    for page in pages:
        source = root / page if page.startswith("notebooks/") else root / "book" / page
        if not any(source.with_name(source.name + suffix).is_file() for suffix in (".md", ".ipynb")):
            faults.append(f"_toc.yml names {page!r}, which is not there")
    listed = {Path(page).name for page in pages if page.startswith("notebooks/")}
    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    faults += [f"_toc.yml does not list notebooks/{path.stem}" for path in notebooks if path.stem not in listed]
    return faults


def check_claims(path: Path) -> list[str]:
    """Return the fault of the ledger of claims, which cannot be read any further than to its first one."""
    try:
        rules.load_claims(path)
    except (rules.ClaimError, yaml.YAMLError, OSError) as error:
        return [f"{path.name}: {error}"]
    return []


def check_all(root: Path) -> list[str]:
    """Return every fault of a repository, each with the file it is in."""
    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    faults = [f"notebooks/{path.name} {fault}" for path in notebooks for fault in check_notebook(path)]
    faults += check_pages(root)
    return faults + check_claims(root / "data" / "claims.yml")
