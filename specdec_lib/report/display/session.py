"""What every notebook calls for its page: parameters are checked, a notice is shown, and provenance is the last table."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_lib.files import write_atomic
from specdec_lib.processes import end_with_parent
from specdec_lib.report import params, run_context
from specdec_lib.report.display import tables

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specdec_lib.experiments.runs.checked_rows import CheckedRows

_INJECTED = "# Parameters"


class Parameters(dict[str, Any]):
    """The parameters of a run by name; ``changed`` names those that are not as the notebook declares them."""

    changed: tuple[str, ...] = ()


#: Parameters that change where a notebook runs and how much of it, and nothing of what a row counts.
_NOT_MEASURED = ("device", "own_prompts")


def check_parameters(namespace: dict[str, Any], only_measured: Collection[str] = ()) -> Parameters:
    """Return the parameters of this run; called in the cell after the parameters. Those of ``only_measured`` change no row.

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
    namespace.update(checked)
    plots.use_style()
    if run_context.current() is not None:
        end_with_parent(os.getppid())
    found = Parameters({name: checked[name] for name in declared})
    found.changed = tuple(
        name
        for name, parameter in declared.items()
        if found[name] != parameter.default and name not in (*_NOT_MEASURED, *only_measured)
    )
    return found


def evidence(chapter: str, parameters: Parameters, **models: PreTrainedModel) -> CheckedRows:
    """The rows of a chapter for the models of this run, by their part: ``target``, ``draft``."""
    from specdec_lib.experiments.runs.checked_rows import CheckedRows
    from specdec_lib.report.display import provenance

    return CheckedRows(
        chapter, models, parameters.changed, parameters.get("own_prompts", 1), {"commit": provenance.commit()}
    )


def evidence_table(evidence: CheckedRows) -> tables.Table | Notice:
    """The last table of a chapter: what was made again of the rows that this page shows; of a reader's own run, its numbers
    compared with the published ones."""
    import pandas as pd

    from specdec_lib.report import numbers

    if evidence.own:
        run = run_context.current()
        own = numbers.read((run.folder if run else Path()) / f"{evidence.chapter}.csv")
        known = numbers.read(numbers.COMMITTED / f"{evidence.chapter}.csv")
        rows = [{"key": key, "own": format(own[key], ".4g"), "published": format(known[key], ".4g")}
                for key in own if key in known and not own[key].measured]  # fmt: skip
        caption = "The numbers of this run compared with those of the published run, which the text quotes."
        columns = {"key": "Number", "own": "Your run", "published": "Published"}
        return tables.Table(pd.DataFrame(rows), f"tab-{evidence.chapter}-own", caption, columns)
    if not evidence.outcomes:
        return Notice(
            "New rows", "All rows of this page were made by this run, so there was nothing to compare them with."
        )
    rows = [
        vars(outcome)
        | {"equal": outcome.made - outcome.rounded, "unchecked": _left_out(outcome.unchecked) or tables.MISSING}
        for outcome in evidence.outcomes
    ]
    return tables.Table(
        pd.DataFrame(rows),
        f"tab-{evidence.chapter}-rows",
        f"The recorded counts of this page. The run that made the page drew prompts at random (seed {evidence.seed}) and counted "
        "them again; the columns on the right compare. Prompts whose data set is not on this machine cannot be drawn. "
        "Rows are left out whose datastore holds other text here, or would take too long "
        "to make.",
        {
            "name": "File",
            "rows": "Rows",
            "prompts": "Prompts",
            "here": "Prompts on this machine",
            "again": "Drawn",
            "made": "Rows counted again",
            "equal": "Equal",
            "rounded": "Differ by rounding",
            "unchecked": "Left out here",
        },
    )


def times_table(chapter: str) -> tables.Table | None:
    """The times that a chapter saved, of the published run and of the one that built the page; None outside of a run."""
    import pandas as pd

    from specdec_lib.report import numbers
    from specdec_lib.report.display import provenance

    run = run_context.current()
    if run is None:
        return None
    known = numbers.read(numbers.COMMITTED / f"{chapter}.csv")
    here = numbers.read(run.folder / f"{chapter}.csv")
    rows = [
        {"key": key, "known": format(known[key], ".3g"), "here": format(one, ".3g")}
        for key, one in here.items()
        if one.measured and key in known
    ]
    published = json.loads((numbers.COMMITTED / "times.json").read_text(encoding="utf-8"))
    heading = "{processor}, {cores} cores, {torch threads} threads, {device}"
    return tables.Table(
        pd.DataFrame(rows, columns=["key", "known", "here"]),
        f"tab-{chapter}-times",
        "The numbers of this chapter that rest on measured seconds. The text quotes those of the published run; the last column "
        "is of the run that made these pages. Times differ from run to run, also on machines of the same type.",
        {
            "key": "Number",
            "known": f"Published run: {heading.format(**published)}",
            "here": f"This run: {heading.format(**provenance.machine())}",
        },
    )


def _left_out(unchecked: Mapping[str, Sequence[Any]], most: int = 4) -> str:
    """Some of the parts that each reason leaves out, how many more there are, and why."""
    told = []
    for reason, parts in unchecked.items():
        more = len(parts) - most
        names = [", ".join(map(str, part)) if isinstance(part, tuple) else str(part) for part in parts[:most]]
        told.append("; ".join(names) + (f"; and {more} more" if more > 0 else "") + f": {reason}")
    return ". ".join(told)


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


def notice(parameters: Parameters) -> Notice | None:
    """The box at the top of a page whose parameters are a reader's own, or None on a page of the published run."""
    if not parameters.changed:
        return None
    words = f"This page was made with other parameters ({', '.join(parameters.changed)}). Its figures and tables are of this run. "
    words += "Its sentences and the numbers in them are about the published run; the last table compares the two."
    return Notice("Your own run", words)
