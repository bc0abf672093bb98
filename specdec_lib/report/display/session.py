"""What every notebook calls for its page: parameters are checked, a notice is shown, and provenance is the last table."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping
from typing import Any

from specdec_lib.files import write_atomic
from specdec_lib.processes import end_with_parent
from specdec_lib.report import params
from specdec_lib.report.display import run_context

_INJECTED = "# Parameters"


def check_parameters(namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of this run; called in the cell after the parameters.

    papermill writes the values it is given into a cell of their own behind the declarations and accepts any name and any
    type; the sources of both are read back from IPython's history. UsageError if one is unknown or of another type,
    or the parameters cell was not run. In ``namespace``, the notebook's ``globals()``, whole numbers become floats where
    those are declared.
    """
    from specdec_lib.report import plots

    history = namespace.get("In", [])
    index, declared = _last_declarations(history)
    given = _injected_names(history[index + 1]) if index + 1 < len(history) else []
    values = {name: namespace[name] for name in [*declared, *given]}
    checked = params.validate(values, declared)
    if "profile" in given and run_context.current() is None and checked["profile"] != declared["profile"].default:
        raise params.UsageError(
            f"profile {checked['profile']!r} would be a label alone: a profile's counts come with 'python -m specdec_lib run "
            f"--profile {checked['profile']}'"
        )
    namespace.update(checked)
    plots.use_style()
    if run_context.current() is not None:
        end_with_parent(os.getppid())
    return {name: checked[name] for name in declared}


def _last_declarations(history: list[str]) -> tuple[int, dict[str, params.Parameter]]:
    """The last cell that holds nothing but annotated assignments, as its position and its parameters."""
    for index in range(len(history) - 1, -1, -1):
        body = _statements(history[index])
        if body and all(isinstance(node, ast.AnnAssign) for node in body):
            return index, params.parse_declarations(history[index])
    raise params.UsageError("no parameters cell has been run: run the notebook from its first cell")


def _injected_names(source: str) -> list[str]:
    if not source.startswith(_INJECTED):
        return []
    return [
        target.id
        for node in _statements(source)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]


def _statements(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except SyntaxError:  # a cell with a magic command
        return []


def provenance_table(parameters: Mapping[str, Any] | None = None) -> Any:
    """Return the table for the last cell of a notebook: where its numbers come from."""
    from specdec_lib.report.display import provenance

    facts = provenance.collect(parameters)
    run = run_context.current()
    if run is not None:
        write_atomic(run.folder / provenance.FILE, json.dumps(facts, indent=1) + "\n")
    return provenance.Provenance(facts)


class Notice:
    """A warning on a page, with a title and a text of one line each."""

    def __init__(self, title: str, text: str):
        self.title, self.text = title, text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {
            "text/plain": f"{self.title}: {self.text}",
            "text/html": f"<p><b>{self.title}.</b> {self.text}</p>",
            "text/markdown": f":::{{admonition}} {self.title}\n:class: warning\n{self.text}\n:::\n",
        }


def notice(profile: str) -> Notice | None:
    """Return the box that a page of this profile carries, or None for a profile whose numbers are results."""
    words = "This page was made with the smallest parameters, to check that everything runs. "
    words += "Its numbers are not results: run it without that profile for those."
    return Notice("Smoke run", words) if profile == "smoke" else None
