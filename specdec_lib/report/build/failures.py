"""What a reader is told when a cell fails."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_lib.report.build.plan import Job

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TRACEBACK_LINES = 14


@dataclass(frozen=True)
class Failure:
    """A notebook that did not reach its end."""

    job: Job
    message: str


def strip_ansi(text: str) -> str:
    """Return the text without the escape sequences of a terminal."""
    return _ANSI.sub("", text)


def describe(job: Job, executed: Mapping[str, Any] | None, error: str, kept: Path | None = None) -> Failure:
    """Return the failure of a job in words."""
    lines = [f"{job.name} failed"]
    index = _failing_cell(executed) if executed else None
    if index is not None:
        cells = executed["cells"]
        number = sum(_counts(cell) for cell in cells[: index + 1])
        total = sum(_counts(cell) for cell in cells)
        heading = _heading(cells[:index])
        lines[0] += f" in code cell {number} of {total}" + (f", under the heading {heading!r}" if heading else "")
    trace = _traceback(executed, index, error)
    lines += [f"    {line}" for line in trace[-_TRACEBACK_LINES:]]
    if kept:
        lines.append(f"  the notebook as far as it came: {kept}")
    lines.append(f"  run it again alone: {job.command}")
    return Failure(job, "\n".join(lines))


def _counts(cell: Mapping[str, Any]) -> bool:
    tags = cell["metadata"].get("tags", [])
    return cell["cell_type"] == "code" and not {"injected-parameters", "papermill-error-cell-tag"} & set(tags)


def _failing_cell(executed: Mapping[str, Any]) -> int | None:
    """The cell that raised; for a kernel that died, the last one that was begun."""
    begun = None
    for index, cell in enumerate(executed["cells"]):
        if cell["cell_type"] != "code":
            continue
        if any(output["output_type"] == "error" for output in cell.get("outputs", [])):
            return index
        if cell["metadata"].get("papermill", {}).get("start_time"):
            begun = index
    return begun


def _heading(cells: list[Mapping[str, Any]]) -> str:
    for cell in reversed(cells):
        if cell["cell_type"] == "markdown":
            titles = re.findall(r"^#+\s+(.+?)\s*$", cell["source"], re.MULTILINE)
            titles = [title for title in titles if "An Exception was encountered" not in title]
            if titles:
                return titles[-1]
    return ""


def _traceback(executed: Mapping[str, Any] | None, index: int | None, error: str) -> list[str]:
    if executed and index is not None:
        for output in executed["cells"][index].get("outputs", []):
            if output["output_type"] == "error":
                text = "\n".join(output["traceback"]) or f"{output['ename']}: {output['evalue']}"
                return [line for line in strip_ansi(text).splitlines() if line.strip()]
    if error.startswith("DeadKernelError"):
        return ["the kernel died without a traceback; running out of memory is the usual cause"]
    return [line for line in strip_ansi(error).splitlines() if line.strip()]
