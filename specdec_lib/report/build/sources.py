"""Where a chapter's number comes from: the cell that makes it, found by the names in the expression that is saved."""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from specdec_lib.report.numbers import KEYS, Number


def made_in(notebook: Path) -> dict[str, str]:
    """The id of the cell that makes each saved number, by its key.

    That is the last cell with an output or code on the page that assigns a name of the saved expression. A key that is
    composed while the notebook runs, and one whose expression has no such name, are left out.
    """
    return dict(_made_in(notebook, notebook.stat().st_mtime_ns))


@lru_cache(maxsize=16)
def _made_in(notebook: Path, changed: int) -> tuple[tuple[str, str], ...]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assigned: dict[str, tuple[int, str]] = {}
    found = {}
    for place, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        tree = ast.parse("\n".join(line for line in source.splitlines() if not line.startswith("%")))
        for key, value in _saved(tree, cell["outputs"]):
            names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)} & assigned.keys()
            if names:
                found[key] = max(assigned[name] for name in names)[1]
        if "remove-cell" not in cell["metadata"].get("tags", ()):
            assigned |= dict.fromkeys(_assigned(tree), (place, cell["id"]))
    return tuple(found.items())


def _saved(tree: ast.Module, outputs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ast.expr]]:
    """The keys that a cell gives to ``report.save``, each with the expression that makes its number.

    The keys of a table that is not written out are in the output of the executed cell.
    """
    ran = next((output["data"][KEYS] for output in outputs if KEYS in output.get("data", {})), [])
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "report.save":
            _, counted, *others = (*call.args, *(each.value for each in call.keywords))
            tables = counted.elts if isinstance(counted, ast.List) else [counted]
            for table, keys in zip_longest([*tables, *others], ran, fillvalue=()):
                if isinstance(table, ast.Dict):
                    written = zip(table.keys, table.values, strict=True)
                    yield from ((key.value, value) for key, value in written if isinstance(key, ast.Constant))
                else:
                    yield from ((key, table) for key in keys)


def _assigned(tree: ast.Module) -> set[str]:
    """The names that a cell gives values to; functions and imports make no number."""
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not hasattr(builtins, node.id)
    }


class number(nodes.inline):  # noqa: N801 -- nodes of docutils are named so
    """A number in prose, with what it is and where it is made."""


def node(text: str, key: str, value: Number, target: str) -> number:
    """The node of a number that a chapter saved under ``key``; ``target`` is the address of the cell that makes it."""
    about = [key]
    if value.prompts:
        about.append("1 prompt" if value.prompts == 1 else f"{value.prompts} prompts")
    if value.measured:
        about.append("time, of the published run")
    elif value.low is not None:
        about.append("95 % interval")
    else:
        about.append("count" if isinstance(value.value, int) else "no interval")
    return number("", "", nodes.Text(text), about=" · ".join(about), target=target)


def _visit(writer: nodes.NodeVisitor, made: number) -> None:
    # What has no address can have the focus too.
    place = {"href": made["target"]} if made["target"] else {"tabindex": "0"}
    tag = writer.starttag(made, _tag(made), "", CLASS="number", **place, **{"data-about": made["about"]})
    writer.body.append(tag)


def _depart(writer: nodes.NodeVisitor, made: number) -> None:
    writer.body.append(f"</{_tag(made)}>")


def _tag(made: number) -> str:
    return "a" if made["target"] else "span"


def _as_text(writer: nodes.NodeVisitor, made: number) -> None:
    """Other formats than HTML have the number alone."""


class NameCells(SphinxTransform):
    """Gives the cells of a notebook's page the ids of the notebook, so that a number can point at the one that makes it."""

    default_priority = 800

    def apply(self, **_: object) -> None:
        """Name the cells of one page."""
        source = Path(self.env.doc2path(self.env.docname))
        if source.suffix != ".ipynb":
            return
        cells = json.loads(source.read_text(encoding="utf-8"))["cells"]
        for cell in self.document.findall(nodes.container):
            if cell.get("nb_element") == "cell_code":
                cell["ids"].append(f"cell-{cells[cell['cell_index']]['id']}")


def setup(app: Sphinx) -> None:
    """Register the node and the transform with Sphinx."""
    app.add_node(number, html=(_visit, _depart), latex=(_as_text, _as_text), text=(_as_text, _as_text))
    app.add_transform(NameCells)


def address(key: str, docname: str, notebooks: Mapping[str, Path]) -> str:
    """The address, seen from page ``docname``, of the cell that makes a number, or of its chapter where no cell does.

    It is empty for a number that no notebook makes. ``notebooks`` has the executed notebooks by the names of their pages.
    """
    chapter, _, name = key.partition("/")
    for page, notebook in notebooks.items():
        if Path(page).name.startswith(f"{chapter}_"):
            up = "../" * docname.count("/")
            cell = made_in(notebook).get(name)
            return f"{up}{page}.html" + (f"#cell-{cell}" if cell else "")
    return ""
