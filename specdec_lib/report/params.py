"""The parameters that a notebook declares; everything else is rejected.

The cell tagged ``parameters`` holds annotated assignments of literals, each with a comment::

    max_new_tokens: int = 128      # tokens generated per prompt

papermill itself runs a notebook with a misspelt parameter, or one of the wrong type, without complaint; the
functions here read the declarations from the source, without a kernel.
"""

from __future__ import annotations

import ast
import difflib
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_INT, _FLOAT, _TIME = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
_TYPES: dict[str, type] = {"str": str, "bool": bool, "list": list, "dict": dict}


#: Parameters of version 1.0 under the names that they have now; both go with version 1.2.
_FORMER = {"head_price": "head_cost", "price_repeats": "pass_repeats"}


class UsageError(ValueError):
    """What was asked for cannot be done; the message says what to ask for instead."""


@dataclass(frozen=True)
class Parameter:
    """One declared parameter: its type as written, and the comment on its line or on the one above it."""

    name: str
    annotation: str
    default: Any
    help: str = ""

    def accepts(self, value: Any) -> bool:
        """Say whether ``value`` has the declared type; an int counts as a float, a bool never as a number."""
        return _conforms(value, ast.parse(self.annotation, mode="eval").body)

    def beyond(self, value: Any) -> str:
        """What is expected instead of a whole number that is too small or a list that is empty; else nothing.

        A whole number counts something or is a seed: none is negative, and what is positive by default must be positive.
        """
        if isinstance(value, list | dict) and not value and self.default:
            return "at least one entry"
        given, known = (
            [one for one in (each if isinstance(each, list) else [each]) if type(one) is int]
            for each in (value, self.default)
        )
        if self.annotation == "float" or not given:
            return ""
        least = 1 if known and min(known) > 0 else 0
        return f"{least} or more" if min(given) < least else ""


def parse_declarations(source: str) -> dict[str, Parameter]:
    """Return the parameters that the source of a ``parameters`` cell declares."""
    comments = {
        token.start[0]: (token.string.lstrip("# ").strip(), token.line.strip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    declared: dict[str, Parameter] = {}
    for node in ast.parse(source).body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None):
            raise UsageError(
                f"line {node.lineno} of the parameters cell is {ast.unparse(node)!r}: "
                "write 'name: type = value  # what it is'"
            )
        name, annotation = node.target.id, ast.unparse(node.annotation)
        try:
            default = ast.literal_eval(node.value)
        except ValueError:
            text = ast.unparse(node.value)
            raise UsageError(f"parameter {name!r}: its default must be a literal, not {text!r}") from None
        above = comments.get(node.lineno - 1, ("", False))
        text = next((comments[line][0] for line in range(node.lineno, node.end_lineno + 1) if line in comments), "")
        declared[name] = Parameter(name, annotation, default, text or (above[0] if above[1] else ""))
        if not declared[name].accepts(default):
            raise UsageError(f"parameter {name!r} is declared {annotation} but its default is {default!r}")
    return declared


def declared_parameters(notebook: str | Path | Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the parameters that a notebook declares, in their order."""
    if isinstance(notebook, Mapping):
        content, name = notebook, "the notebook"
    else:
        import nbformat

        content, name = nbformat.read(str(notebook), as_version=4), Path(notebook).name
    cells = [
        cell["source"]
        for cell in content["cells"]
        if cell["cell_type"] == "code" and "parameters" in cell.get("metadata", {}).get("tags", [])
    ]
    if len(cells) != 1:
        raise UsageError(f"{name} has {len(cells)} cells tagged 'parameters'; exactly one is expected")
    return parse_declarations(cells[0])


def current_name(name: str, declared: Iterable[str]) -> str:
    """The declared name of a parameter, which for one of version 1.0 is another one than was given."""
    new = _FORMER.get(name, name)
    if new == name or name in declared or new not in declared:
        return name
    print(f"the parameter {name} is now {new}; the old name goes with version 1.2", file=sys.stderr)
    return new


def unknown_message(name: str, declared: Iterable[str], where: str = "") -> str:
    """Return the words for a parameter that nobody declared, with the close matches."""
    names = list(declared)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"declared are {', '.join(names) or 'none'}"
    return f"unknown parameter {name!r}{f' of {where}' if where else ''}: {hint}"


def validate(values: Mapping[str, Any], declared: Mapping[str, Parameter], where: str = "") -> dict[str, Any]:
    """Return ``values`` with integers made floats where a float is declared."""
    faults = []
    for name, value in values.items():
        if name not in declared:
            faults.append(unknown_message(name, declared, where))
        elif not declared[name].accepts(value):
            faults.append(
                f"parameter {name!r}{f' of {where}' if where else ''} is {value!r} ({type(value).__name__}); "
                f"{declared[name].annotation} is expected, for example {declared[name].default!r}"
            )
        elif expected := declared[name].beyond(value):
            faults.append(
                f"parameter {name!r}{f' of {where}' if where else ''} is {value!r}; expected {expected}, for example "
                f"{declared[name].default!r}"
            )
    if faults:
        raise UsageError("\n".join(faults))
    return {name: float(value) if declared[name].annotation == "float" else value for name, value in values.items()}


class _Loader(yaml.SafeLoader):
    """YAML whose numbers are read as Python reads them: 010 is 10, 1e-3 a number, and 1:30 none."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag not in (_INT, _FLOAT, _TIME)]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?[0-9]+(_[0-9]+)*$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$", re.IGNORECASE),
    list("-+.0123456789"),
)
_Loader.add_constructor(_INT, lambda loader, node: int(node.value))


def read_yaml(text: str) -> Any:
    """The content of a YAML text, with numbers as Python reads them."""
    return yaml.load(text, _Loader)


def parse_value(text: str, parameter: Parameter) -> Any:
    """Read the text of a command line as the declared type: a string as it stands, all else as YAML."""
    if parameter.annotation == "str":
        return text
    try:
        return read_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        kind = parameter.annotation
        raise UsageError(f"parameter {parameter.name!r}: {text!r:.60} cannot be read as {kind}") from None


def _conforms(value: Any, annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.Name):
        kind = annotation.id
        if kind == "float":
            return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        if kind == "int":
            return isinstance(value, int) and not isinstance(value, bool)
        if kind in _TYPES:
            return isinstance(value, _TYPES[kind])
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        kind, inner = annotation.value.id, annotation.slice
        if kind == "list":
            return isinstance(value, list) and all(_conforms(item, inner) for item in value)
        if kind == "dict" and isinstance(inner, ast.Tuple) and len(inner.elts) == 2:
            return isinstance(value, dict) and all(
                _conforms(key, inner.elts[0]) and _conforms(item, inner.elts[1]) for key, item in value.items()
            )
    raise UsageError(
        f"type {ast.unparse(annotation)!r} cannot be used for a parameter: "
        "use int, float, str, bool, list[...] or dict[str, ...]"
    )
