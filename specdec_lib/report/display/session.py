"""The cell behind the parameters: refuse what nobody declared, set the style of the figures."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from specdec_lib.report.build import params

_INJECTED = "# Parameters"
_reference: Any = None


def check_parameters(namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of this run; called in the cell after the parameters.

    papermill writes the values it is given into a cell of their own behind the declarations and accepts any name and any
    type; the sources of both are read back from IPython's history. ParameterError if one is unknown or of another type,
    or the parameters cell was not run. In ``namespace``, the notebook's ``globals()``, whole numbers become floats where
    those are declared.
    """
    from IPython import get_ipython

    from specdec_lib.report.display import figures, reference_pass

    history = namespace.get("In", [])
    index, declared = _last_declarations(history)
    given = _injected_names(history[index + 1]) if index + 1 < len(history) else []
    values = {name: namespace[name] for name in [*declared, *given]}
    checked = params.validate(values, declared)
    namespace.update(checked)
    figures.use_style()
    global _reference
    _reference = reference_pass.Reference()
    shell = get_ipython()
    if shell is not None:
        _reference.watch(shell.events)
    return {name: checked[name] for name in declared}


def _last_declarations(history: list[str]) -> tuple[int, dict[str, params.Parameter]]:
    """The last cell that holds nothing but annotated assignments, as its position and its parameters."""
    for index in range(len(history) - 1, -1, -1):
        body = _statements(history[index])
        if body and all(isinstance(node, ast.AnnAssign) for node in body):
            return index, params.parse_declarations(history[index])
    raise params.ParameterError("no parameters cell has been run: run the notebook from its first cell")


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
    """Return the table for the last cell of a notebook: where its numbers come from.

    Ends the reference pass that :func:`check_parameters` began, records its time, and shows a box where the machine was
    not free (:mod:`specdec_lib.report.display.reference_pass`).

    Parameters
    ----------
    parameters : mapping, optional
        What :func:`check_parameters` returned.
    """
    import torch
    from IPython.display import display

    from specdec_lib.report.display import provenance, reference_pass
    from specdec_lib.report.display.record import record

    if _reference is not None:
        record("torch_threads", torch.get_num_threads(), timed=True)
        found = _reference.end()
        if found is not None:
            record("reference_pass_ms", 1e3 * found[0], timed=True)
            record("reference_pass_multiple", found[1], timed=True)
            box = reference_pass.disturbed(*found)
            if box is not None:
                display(box)
    return provenance.Provenance(provenance.collect(parameters))
