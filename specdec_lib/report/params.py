"""The parameters that a notebook declares; everything else is rejected.

The cell tagged ``parameters`` holds annotated assignments of literals, each with a comment::

    max_new_tokens: int = 128      # tokens generated per prompt

papermill warns of a misspelt parameter and runs on, and takes a value of any type. What it reads of the declarations lacks the
comment of a value over several lines, and leaves out, without a word, a line that declares nothing. So they are read from the
source here, without a kernel; pydantic compares values with the declared types.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

_INT, _FLOAT, _TIME = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


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

    def read(self, value: Any) -> Any:
        """``value``, whole numbers as floats where those are declared; a ValidationError if it is not what is declared.

        A whole number counts something or is a seed: none is negative, and what is positive by default must be positive. A list
        that has entries by default must have one.
        """
        held = self.default.values() if isinstance(self.default, dict) else self.default
        entries = list(held) if isinstance(self.default, list | dict) else [held]
        return TypeAdapter(
            _type(ast.parse(self.annotation, mode="eval").body, entries), config=_STRICT
        ).validate_python(value)


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
        try:
            declared[name].read(default)
        except ValidationError:
            message = f"parameter {name!r} is declared {annotation} but its default is {default!r}"
            raise UsageError(message) from None
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
    faults, read = [], {}
    for name, value in values.items():
        if name not in declared:
            faults.append(unknown_message(name, declared, where))
            continue
        try:
            read[name] = declared[name].read(value)
        except ValidationError as error:
            place, why = (error.errors()[0][key] for key in ("loc", "msg"))
            faults.append(
                f"parameter {name!r}{f' of {where}' if where else ''} is {value!r}; expected {declared[name].annotation}, for "
                f"example {declared[name].default!r} ({name}{''.join(f'[{step!r}]' for step in place)}: {why})"
            )
    if faults:
        raise UsageError("\n".join(faults))
    return read


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


def _type(annotation: ast.expr, entries: Sequence[Any]) -> Any:
    """The type that an annotation names, which is read and not run, of values like ``entries``."""
    filled = Field(min_length=1 if entries else 0)
    match annotation:
        case ast.Name(id="int"):
            positive = bool(entries) and all(type(one) is int and one > 0 for one in entries)
            return Annotated[int, Field(ge=int(positive))]
        case ast.Name(id="float" | "str" | "bool" as kind):
            return getattr(builtins, kind)
        case ast.Name(id="list" | "dict" as kind):
            return Annotated[getattr(builtins, kind), filled]
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return Annotated[list[_type(inner, entries)], filled]
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, value])):
            return Annotated[dict[_type(key, ()), _type(value, entries)], filled]
    raise UsageError(
        f"type {ast.unparse(annotation)!r} cannot be used for a parameter: "
        "use int, float, str, bool, list[...] or dict[str, ...]"
    )
