"""What can be said of notebooks and pages without running anything."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
import yaml

from specdec_lib.report.build import book, params, plan, runner
from specdec_lib.report.build.method_tables import expanded
from specdec_lib.report.claims import rules
from specdec_lib.report.display import record

MAX_CELL_LINES = 15
_GLUE = re.compile(r"\{glue:\w+\}`(?:(?P<page>[^`:]+)::)?(?P<name>\w+)(?::(?P<format>[^`]+))?`")
_ABSOLUTE = re.compile(r"""["'](?:/(?:home|root|work|tmp|Users|mnt|opt|data)/|[A-Za-z]:\\)""")
_TYPED_NUMBER = re.compile(r"(?<![\w.`$-])\d+\.\d+(?:\s?(?:%|×|ms|tokens))?(?![\w.])")


#: Functions that take times. Their cells are tagged (``runner.ALONE``), or another notebook could work meanwhile.
_CLOCKED = re.compile(
    r"\b(time_methods|time_generations|step_times|step_samples|head_cost"
    r"|build_cost|prices_here|\w+_microseconds|draft_costs\.(drafting|capturing)|speeds\.timed|pass_ms"
    r"|generation_costs\.company|systems\.(best_widths|Measured\.of))\("
)


def check_notebook(path: Path) -> list[str]:
    """Return the faults of one source notebook, one sentence each."""
    text = path.read_text(encoding="utf-8")
    try:
        content = nbformat.reads(text, as_version=4)
        nbformat.validate(content)
    except (nbformat.ValidationError, ValueError) as error:
        return [f"is not a valid notebook: {str(error).splitlines()[0]}"]
    faults = []
    if not plan.NAME.fullmatch(path.stem):
        faults.append("its name is not of the form 01_slug or A1_slug")
    if (content.nbformat, content.nbformat_minor) < (4, 5):
        faults.append("is older than nbformat 4.5, which gives cells their ids")
    if content.metadata.get("kernelspec", {}).get("name") != "python3":
        faults.append("its kernelspec is not python3")
    if text != canonical(json.loads(text)):
        faults.append("is not written canonically: indent 1, no escapes, one newline at the end")
    if content.cells and content.cells[0].cell_type != "markdown":
        faults.append("does not begin with a text cell")
    code = [cell for cell in content.cells if cell.cell_type == "code"]
    prose = [cell.source for cell in content.cells if cell.cell_type == "markdown"]
    if any(cell.outputs or cell.execution_count is not None for cell in code):
        faults.append("carries outputs or execution counts: clear them")
    titles = [line for source in prose for line in _outside_fences(source) if line.startswith("# ")]
    if len(titles) != 1:
        faults.append(f"has {len(titles)} headings of the first level; exactly one is expected")
    return faults + _check_parameters(content) + _check_code(code) + _check_prose(prose)


def canonical(content: dict[str, Any]) -> str:
    """Return the one way in which the project writes a notebook."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _check_parameters(content: nbformat.NotebookNode) -> list[str]:
    try:
        declared = params.declared_parameters(content)
    except (params.ParameterError, SyntaxError) as error:
        return [str(error)]
    faults = [f"parameter {p.name!r} has no comment that says what it is" for p in declared.values() if not p.help]
    if "profile" not in declared or declared["profile"].annotation != "str":
        faults.append("does not declare 'profile: str', which the runner passes")
    if not any("check_parameters(globals())" in cell.source for cell in content.cells if cell.cell_type == "code"):
        faults.append("does not call report.check_parameters(globals()) after its parameters")
    return faults


def _check_code(cells: list[nbformat.NotebookNode]) -> list[str]:
    faults = []
    for number, cell in enumerate(cells, start=1):
        lines = cell.source.rstrip().splitlines()
        beginnings = ("from ", "import ", "%", "    ", ")", "#")
        imports = all(line.startswith(beginnings) or not line.strip() for line in lines)
        # One value a line: a parameters cell is as long as it has parameters.
        listed = "parameters" in cell.metadata.get("tags", []) or "report.save(" in cell.source
        if len(lines) >= MAX_CELL_LINES and not imports and not listed:
            faults.append(f"code cell {number} has {len(lines)} lines; fewer than {MAX_CELL_LINES} are wanted")
        clocked = _CLOCKED.search(cell.source)
        if clocked and runner.ALONE not in cell.metadata.get("tags", []):
            faults.append(f"code cell {number} takes times with {clocked[1]}: tag it {runner.ALONE!r}")
        if any(_ABSOLUTE.search(line) for line in lines):
            faults.append(f"code cell {number} holds an absolute path: take paths from specdec_lib.paths")
        if "plt.show" in cell.source:
            faults.append(f"code cell {number} calls plt.show: end the cell with the figure")
        try:
            ast.parse("\n".join(line for line in lines if not line.startswith("%")))
        except SyntaxError as error:
            faults.append(f"code cell {number} is not Python: {error.msg}")
        settings = cell.metadata.get("mystnb", {})
        if "hide-cell" in cell.metadata.get("tags", []) and not settings.get("code_prompt_show"):
            faults.append(f"code cell {number} is folded: mystnb.code_prompt_show has to say what it holds")
        if settings.keys() & {"figure", "image"}:
            figure = settings.get("figure", {})
            if not (figure.get("caption") and figure.get("name", "").startswith("fig-")):
                faults.append(f"code cell {number}: mystnb.figure needs a caption and a name 'fig-...'")
            if not settings.get("image", {}).get("alt"):
                faults.append(f"code cell {number}: mystnb.image needs an alt text")
    return faults


def _check_prose(prose: list[str]) -> list[str]:
    return [
        f"prose holds the typed number {match.group().strip()!r}: glue it, or write it as code or formula"
        for source in prose
        for line in _outside_fences(source)
        for match in _TYPED_NUMBER.finditer(re.sub(r"`[^`]*`|\$[^$]*\$|\([^)]*\)|\{[^}]*\}", "", line))
    ]


def _outside_fences(source: str) -> list[str]:
    lines, fenced = [], False
    for line in source.splitlines():
        if line.lstrip().startswith(("```", "$$")):
            fenced = not fenced
        elif not fenced:
            lines.append(line)
    return lines


def check_profiles(folder: Path) -> list[str]:
    """Return the faults of the parameter profiles: unknown notebooks, unknown or ill-typed parameters."""
    faults = []
    for profile in plan.PROFILES:
        try:
            plan.make_plan(profile, notebooks=folder)
        except params.UsageError as error:
            faults.append(f"params/{profile}.yml: {error}")
    return faults


def check_pages(root: Path) -> list[str]:
    """Return the faults of the book's sources: missing pages, notebooks not listed, labels used twice."""
    pages = book.toc_files(root / "book" / "_toc.yml")
    faults = []
    for page in pages:
        source = root / page if page.startswith("notebooks/") else root / "book" / page
        if not any(source.with_name(source.name + suffix).is_file() for suffix in (".md", ".ipynb")):
            faults.append(f"_toc.yml names {page!r}, which is not there")
    listed = {Path(page).name for page in pages if page.startswith("notebooks/")}
    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    faults += [f"_toc.yml does not list notebooks/{path.stem}" for path in notebooks if path.stem not in listed]
    labels = Counter(
        label for path in notebooks for label in re.findall(r'"(tab-[a-z0-9-]+|fig-[a-z0-9-]+)\\?"', _definitions(path))
    )
    faults += [f"the label {label!r} is defined {count} times" for label, count in labels.items() if count > 1]
    return faults


def _definitions(path: Path) -> str:
    """Where a notebook defines labels: names of tables in the code, names of figures in the metadata."""
    content = nbformat.read(str(path), as_version=4)
    code = [cell for cell in content.cells if cell.cell_type == "code"]
    tables = [match for cell in code for match in re.findall(r'name="tab-[a-z0-9-]+"', cell.source)]
    return " ".join(
        tables + [f'"{cell.metadata.get("mystnb", {}).get("figure", {}).get("name", "")}"' for cell in code]
    )


def check_glue(root: Path) -> list[str]:
    """Return the faults of glued values, as far as their notebooks have been executed.

    A key must have been recorded, a floating-point number must be glued with a format, and an interval as a text.
    """
    executed = {path.name: record.recorded(path) for path in (root / "book" / "notebooks").glob("*.ipynb")}
    texts = {page: expanded(page.read_text(encoding="utf-8")) for page in (root / "book").rglob("*.md")}
    for path in (root / "notebooks").glob("*.ipynb"):
        content = nbformat.read(str(path), as_version=4)
        texts[path] = "\n".join(cell.source for cell in content.cells if cell.cell_type == "markdown")
    faults = []
    for path, text in texts.items():
        for match in _GLUE.finditer(text):
            home = Path(match["page"]).name if match["page"] else path.name
            if home not in executed:
                continue
            name = match["name"]
            if name not in executed[home]:
                faults.append(f"{path.name}: {name!r} is glued but {home} did not record it")
            elif isinstance(executed[home][name], dict):
                faults.append(f"{path.name}: {name!r} is not a single value: record the text that the prose needs")
            elif isinstance(executed[home][name], float) and not match["format"]:
                faults.append(f"{path.name}: {name!r} is glued without a format, such as {name}:.2f")
            elif match["page"] and not match["format"]:
                # myst-nb takes the last colon for the beginning of a format.
                faults.append(f"{path.name}: {name!r} is glued from another page without a format, such as {name}:s")
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
    faults += check_profiles(root / "notebooks") + check_pages(root) + check_glue(root)
    return faults + check_claims(root / "data" / "claims.yml")
