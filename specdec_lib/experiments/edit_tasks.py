"""Edits of code whose right answer a program knows: more than copying the text again.

Each edit changes the source text at the positions of syntax nodes, so that what is not edited stays verbatim, and
Python compiles the code before and after. Most prompts ask for the changed part alone, because the whole code is
nearly all copied. A maker that cannot use a text returns ``None``.
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

#: The user's turns and the assistant's answers.
Exchange = tuple[tuple[str, ...], tuple[str, ...]]
#: What each task asks.
TASKS: dict[str, str] = {
    "add-parameter": "add a parameter and use it instead of a literal, or pass it in the calls",
    "type-hints": "add the type hints that a docstring names",
    "wrap-try": "wrap the statement of a call in try/except",
    "write-docstring": "write the docstring of a function",
}
#: Share of the prompts that ask for the whole code, and the longest code in characters for which they do.
WHOLE_SHARE = 0.2
WHOLE_CHARS = 620


class Edit(NamedTuple):
    """One edit: the code before, what is asked, the code after, and a shorter answer with the words that ask for it."""

    before: str
    instruction: str
    after: str
    part: tuple[str, str]


# --- A piece of code and its positions ----------------------------------------------------------------------------

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (*_FUNCTIONS, ast.ClassDef, ast.Module)
Change = tuple[int, int, str]


class _Code:
    """The text of a piece of code, its nodes with their parents, and the offset of each node."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.tree = ast.parse(text)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []
        #: Docstrings and what stands in f-strings: the positions of the latter depend on the version of Python.
        self.fixed: set[ast.AST] = set()
        waiting = [self.tree]
        while waiting:
            node = waiting.pop()
            self.nodes.append(node)
            inside = isinstance(node, ast.JoinedStr) or node in self.fixed
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                if inside:
                    self.fixed.add(child)
                waiting.append(child)
            if isinstance(node, _DOCUMENTED) and node.body and _is_docstring(node.body[0]):
                self.fixed.add(node.body[0].value)
        self.nodes.sort(key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0)))
        names = Counter(n.name for n in self.nodes if isinstance(n, (*_FUNCTIONS, ast.ClassDef)))
        #: Functions that the piece defines once.
        self.functions = [n for n in self.nodes if isinstance(n, _FUNCTIONS) and names[n.name] == 1]

    def start(self, node: ast.AST) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def source(self, node: ast.AST) -> str:
        return self.text[self.start(node) : self.end(node)]

    def changed(self, changes: list[Change]) -> str | None:
        """The text after the changes, None if they overlap or Python does not compile the result."""
        out, place = [], 0
        for start, end, new in sorted(changes):
            if start < place:
                return None
            out += [self.text[place:start], new]
            place = end
        return _compiled("".join(out) + self.text[place:])


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _compiled(text: str) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "<piece>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    return text


@lru_cache(maxsize=128)
def _code(text: str) -> _Code | None:
    if not text.isascii() or re.search(r"[\t\r\f\v\x1c-\x1e]", text) or _compiled(text) is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Code(text)


_LINES_ONLY = ("Give only the changed lines.", "Answer with the changed lines only.", "Show only what changes.")


def _edit(code: _Code, rng: random.Random, instructions: list[str], changes: list[Change]) -> Edit | None:
    """The edit of ``changes``, which add no line, with one of the instructions; its shorter answer is the changed lines."""
    after = code.changed(changes)
    if after is None or after == code.text:
        return None
    lines = [new for old, new in zip(code.lines, after.split("\n"), strict=False) if old != new]
    return Edit(code.text, rng.choice(instructions), after, (rng.choice(_LINES_ONLY), "\n".join(lines)))


def _name(rng: random.Random, text: str, pool: list[str]) -> str | None:
    """A lower-case name of the pool that the text does not contain."""
    for _ in range(50):
        name = rng.choice(pool)
        if re.fullmatch(r"[a-z][a-z0-9_]*", name) and not re.search(rf"\b{name}\b", text):
            return name
    return None


# --- Literals -----------------------------------------------------------------------------------------------------

#: Values of an added parameter.
_VALUES = "None True False 0 1 2 3 4 5 6 7 8 10 12 15 16 20 24 25 30 32 40 50".split()
_PLAIN_STRING = re.compile(r"""'[^'"\\\n{}]{0,30}'|"[^'"\\\n{}]{0,30}\"""")


def _literals(code: _Code, within: ast.AST) -> dict[str, list[ast.Constant]]:
    """Numbers and plain strings in the bodies of functions and classes ``within``, by source.

    Each stands in the text as often as in the syntax tree, so that no comment or docstring names it.
    """
    places: dict[str, list[ast.Constant]] = {}
    for node in code.nodes:
        if not isinstance(node, ast.Constant) or node in code.fixed or type(node.value) not in (int, float, str):
            continue
        source = code.source(node)
        if isinstance(node.value, str) and not _PLAIN_STRING.fullmatch(source):
            continue
        places.setdefault(source, []).append(node)
    out = {}
    for source, nodes in places.items():
        # A number within a longer number or name is not this one.
        before, after = ("", "") if source[0] in "'\"" else (r"(?<![\w.])", r"(?![\w.])")
        count = len(re.findall(before + re.escape(source) + after, code.text))
        if count == len(nodes) and all(_in_body(code, n, within) for n in nodes):
            out[source] = nodes
    return out


def _in_body(code: _Code, node: ast.AST, within: ast.AST) -> bool:
    """Whether the node is in a statement of ``within``'s body and in no parameter list, decorator, pattern or hint."""
    while node is not within:
        if isinstance(node, (ast.arguments, ast.pattern)) or node not in code.parents:
            return False
        parent = code.parents[node]
        if isinstance(parent, _FUNCTIONS) and node not in parent.body:
            return False
        if isinstance(parent, ast.AnnAssign) and node is parent.annotation:
            return False
        node = parent
    return True


def _defaults(function: ast.AST) -> list[tuple[ast.arg, ast.expr]]:
    a = function.args
    positional = a.posonlyargs + a.args
    pairs = list(zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=False))
    return pairs + [(p, d) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=False) if d is not None]


# --- Parameters ---------------------------------------------------------------------------------------------------


def _calls(code: _Code, function: ast.AST) -> list[ast.Call] | None:
    """Calls of the function by its name or on ``self`` or ``cls``; None if it is used in another way."""
    calls, uses = [], 0
    for node in code.nodes:
        if (
            isinstance(node, ast.Name)
            and node.id == function.name
            or (isinstance(node, ast.Attribute) and node.attr == function.name)
        ):
            uses += 1
            call = code.parents[node]
            known = isinstance(node, ast.Name) or isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if known and isinstance(call, ast.Call) and call.func is node and node not in code.fixed:
                calls.append(call)
    return calls if len(calls) == uses else None


def _with_parameter(code: _Code, function: ast.AST, new: str) -> Change | None:
    """The change that adds ``new`` as the last parameter, before ``**``."""
    a = function.args
    if a.posonlyargs:
        return None
    if a.kwarg is not None:
        place = code.text.rindex("**", 0, code.start(a.kwarg))
        return place, place, f"{new}, "
    ends = [n for n in (*a.args, *a.kwonlyargs, a.vararg, *a.defaults, *a.kw_defaults) if n is not None]
    if ends:
        place = max(code.end(n) for n in ends)
        return place, place, f", {new}"
    match = re.compile(rf"\s*{function.name}\s*\(\s*\)").search(
        code.text, code.text.index("def", code.start(function)) + 3
    )
    return match and (match.end() - 1, match.end() - 1, new)


def _add_parameter(code: _Code, rng: random.Random, pool: list[str]) -> Edit | None:
    if not code.functions:
        return None
    called = [n for n in code.functions if _calls(code, n)]
    # One piece in thirty calls its own function: most of the others are passed over, so that calls are not rare.
    if not called and rng.random() < 0.7:
        return None
    function = rng.choice(called if called and rng.random() < 0.7 else code.functions)
    f, new = function.name, _name(rng, code.text, pool)
    calls = _calls(code, function)
    if calls is None:
        return None
    literals = _literals(code, function)
    if new is None or f.startswith("__") and f != "__init__" or not calls and not literals:
        return None
    if calls and (not literals or rng.random() < 0.5):
        default, value = rng.sample(_VALUES, 2)
        changes = []
        for call in calls:
            inner = code.text[: code.end(call) - 1].rstrip()
            empty = not call.args and not call.keywords
            if len(call.args) == 1 and isinstance(call.args[0], ast.GeneratorExp) or "#" in code.source(call):
                return None
            blank = "" if empty else " " if inner.endswith(",") else ", "
            changes.append((len(inner), len(inner), f"{blank}{new}={value}"))
        asks = [
            f"Add a parameter `{new}={default}` to `{f}` and pass `{new}={value}` in its calls.",
            f"Give `{f}` a parameter `{new}` with the default `{default}`; its calls pass `{new}={value}`.",
        ]
    else:
        if not literals:
            return None
        default = rng.choice(list(literals))
        changes = [(code.start(n), code.end(n), new) for n in literals[default]]
        asks = [
            f"Add a parameter `{new}={default}` to `{f}` and use it instead of `{default}`.",
            f"Make `{default}` a parameter `{new}` of `{f}`.",
            f"Turn the value `{default}` in `{f}` into a parameter `{new}` with that default.",
        ]
    signature = _with_parameter(code, function, f"{new}={default}")
    return signature and _edit(code, rng, asks, [signature, *changes])


# --- Statements ---------------------------------------------------------------------------------------------------

_EXCEPTIONS = (
    "ValueError",
    "KeyError",
    "TypeError",
    "OSError",
    "AttributeError",
    "IndexError",
    "RuntimeError",
    "Exception",
    "ImportError",
    "LookupError",
    "NotImplementedError",
    "(TypeError, ValueError)",
    "(KeyError, IndexError)",
)


def _call_name(node: ast.Call) -> str | None:
    parts, func = [], node.func
    while isinstance(func, ast.Attribute):
        parts.append(func.attr)
        func = func.value
    return ".".join([func.id, *reversed(parts)]) if isinstance(func, ast.Name) else None


def _wrap_try(code: _Code, rng: random.Random, pool: list[str]) -> Edit | None:
    calls = [
        (name, n) for n in code.nodes if isinstance(n, ast.Call) and n not in code.fixed and (name := _call_name(n))
    ]
    counts = Counter(name for name, _ in calls)
    places = []
    for name, call in calls:
        statement = call
        while not isinstance(statement, (ast.stmt, ast.Lambda, ast.ExceptHandler)):
            statement = code.parents[statement]
        if counts[name] == 1 and isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)):
            places.append((name, statement))
    if not places:
        return None
    name, statement = rng.choice(places)
    first, last = statement.lineno - 1, statement.end_lineno
    lines = code.lines[first:last]
    indent = lines[0][: statement.col_offset]
    strings = any(isinstance(n, (ast.Constant, ast.JoinedStr)) and n.end_lineno > n.lineno for n in ast.walk(statement))
    if indent.strip() or strings or not re.fullmatch(r"\s*(#.*)?", code.lines[last - 1][statement.end_col_offset :]):
        return None
    error = rng.choice(_EXCEPTIONS)
    new = rng.choice(pool)
    caught, handler, words = rng.choice(
        [
            ("", "pass", "does nothing"),
            ("", "return None", "returns `None`"),
            ("", "return False", "returns `False`"),
            ("", f"self.{new} = None", f"sets `self.{new}` to `None`"),
            ("", f"{new} = None", f"sets `{new}` to `None`"),
            (" as error", f"raise RuntimeError('{new}') from error", f"raises `RuntimeError('{new}')` from the error"),
            (" as error", f"log.warning('{new}: %s', error)", f"calls `log.warning('{new}: %s', error)`"),
            (" as error", "print(error)", "prints the error"),
            ("", "raise", "raises it again"),
        ]
    )
    if not any(isinstance(n, ast.Name) and n.id == "self" for n in code.nodes) and "self." in handler:
        return None
    block = [
        f"{indent}try:",
        *(f"    {line}" if line.strip() else line for line in lines),
        f"{indent}except {error}{caught}:",
        f"{indent}    {handler}",
    ]
    start, end = code.starts[first], code.starts[last] - 1
    made = _edit(
        code,
        rng,
        [
            f"Wrap the call of `{name}` in try/except: `{error}` {words}.",
            f"Catch `{error}` around `{name}(...)`; the handler {words}.",
            f"Put the statement that calls `{name}` in a try block whose `except {error}` {words}.",
        ],
        [(start, end, "\n".join(block))],
    )
    return made and made._replace(
        part=(rng.choice(["Give only the try statement.", "Answer with the try statement only."]), "\n".join(block))
    )


# --- Docstrings ---------------------------------------------------------------------------------------------------


def _function(code: _Code) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function that the piece is, if its body starts on a line of its own after the signature."""
    node = code.tree.body[0] if len(code.tree.body) == 1 else None
    if not isinstance(node, _FUNCTIONS) or node.decorator_list or node.lineno != 1:
        return None
    head = code.lines[node.body[0].lineno - 2]
    return node if node.body[0].lineno > 1 and re.search(r":\s*$", head) else None


def _documented(code: _Code) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """That function if its docstring stands on lines of its own and statements follow."""
    node = _function(code)
    if node is None or not _is_docstring(node.body[0]) or len(node.body) < 2:
        return None
    docstring = node.body[0]
    alone = node.body[1].lineno > docstring.end_lineno and code.lines[docstring.end_lineno - 1].rstrip().endswith(
        ("'", '"')
    )
    return node if alone and len(docstring.value.value.split()) >= 3 else None


def write_docstring(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """The real docstring of a function, or the signature with it, for the function without it."""
    code = _code(text) if '"""' in text or "'''" in text else None
    node = code and _documented(code)
    if not node:
        return None
    first, last = node.body[0].lineno - 1, node.body[0].end_lineno
    docstring = code.lines[first:last]
    if len("\n".join(docstring)) > 400:
        return None
    rest = "\n".join(code.lines[:first] + code.lines[last:])
    f = node.name
    if rng.random() < 0.5:
        turn = rng.choice(
            ["Write the docstring.", f"Write a docstring for `{f}`.", f"Document `{f}`: give the docstring only."]
        )
        answer = textwrap.dedent("\n".join(docstring))
    else:
        turn = rng.choice(
            [
                "Document this function. Give the signature with the docstring.",
                f"Give the signature of `{f}` and a docstring.",
            ]
        )
        answer = "\n".join(code.lines[:first] + docstring)
    return (f"{turn}\n\n{rest}",), (answer,)


# --- Type hints ---------------------------------------------------------------------------------------------------

_TYPES = {
    "int",
    "str",
    "float",
    "bool",
    "bytes",
    "bytearray",
    "list",
    "dict",
    "tuple",
    "set",
    "frozenset",
    "complex",
    "object",
    "type",
    "slice",
    "range",
    "memoryview",
    "None",
}
_STRINGS = {"string": "str", "integer": "int", "boolean": "bool", "dictionary": "dict"}


def annotation(named: str) -> str | None:
    """The type hint for a type as a docstring names it, e.g. ``list of str, optional``; None if it is not plain."""
    named = re.sub(r",?\s*(optional|\(optional\)|default\b.*)$", "", named.strip()).strip("`. ")
    named = re.sub(r"^(list|tuple|set) of (\w+)$", r"\1[\2]", named)
    named = re.sub(r" or ", " | ", named)
    named = re.sub(r"\w+", lambda m: _STRINGS.get(m[0], m[0]), named)
    try:
        tree = ast.parse(named, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if not isinstance(
            node, (ast.Name, ast.Subscript, ast.Tuple, ast.BinOp, ast.BitOr, ast.Load, ast.Attribute, ast.Constant)
        ):
            return None
        if (
            isinstance(node, ast.Constant)
            and node.value is not None
            or isinstance(node, ast.Name)
            and not (node.id in _TYPES or re.match(r"[A-Z]\w*[a-z]", node.id))
        ):
            return None
    return named


def named_types(docstring: str) -> dict[str, str]:
    """Type by parameter as a docstring in numpy, reStructuredText or Google style names it; ``"return"`` if it does."""
    types: dict[str, str] = {}
    for name, type_ in re.findall(r"^\s*:type\s+(\w+):\s*(.+?)\s*$", docstring, re.MULTILINE):
        types[name] = type_
    for type_, name in re.findall(r"^\s*:param\s+(\S[^:\n]*?)\s+(\w+):", docstring, re.MULTILINE):
        types[name] = type_
    for type_ in re.findall(r"^\s*:rtype:\s*(.+?)\s*$", docstring, re.MULTILINE):
        types["return"] = type_
    if types:
        return types
    section = re.search(r"^Parameters\n-{3,}\n(.*?)(?=^\w[^\n]*\n-{3,}|\Z)", docstring, re.MULTILINE | re.DOTALL)
    if section:
        for names, type_ in re.findall(r"^(\w+(?:, \w+)*) ?: (.+?)\s*$", section[1], re.MULTILINE):
            types |= dict.fromkeys(names.split(", "), type_)
        returns = re.search(r"^Returns\n-{3,}\n(?:\w+ : )?([^\n]+)\n?(?: |\Z|\n)", docstring, re.MULTILINE)
        return types | ({"return": returns[1]} if returns else {})
    section = re.search(r"^(?:Args|Arguments|Parameters):\n((?:[ ]+[^\n]*\n?|\n)*)", docstring, re.MULTILINE)
    if section:
        for name, type_ in re.findall(r"^ +(\w+) \(([^)\n]+)\)(?:\s*:|\s*$)", section[1], re.MULTILINE):
            types[name] = type_
        returns = re.search(r"^Returns:\n +([\w\[\], |.]+?)(?::[^\n]*)?$", docstring, re.MULTILINE)
        if types and returns:
            types["return"] = returns[1]
    return types


def _section(types: dict[str, str], rng: random.Random) -> list[str]:
    """Lines that name the types in one of the docstring styles."""
    style = rng.choice(["numpy", "type", "param", "google"])
    parameters = {k: v for k, v in types.items() if k != "return"}
    returned = types.get("return")
    if style == "numpy":
        lines = ["Parameters", "----------", *(f"{k} : {v}" for k, v in parameters.items())] if parameters else []
        return lines + ([""] if lines and returned else []) + (["Returns", "-------", returned] if returned else [])
    if style == "google":
        lines = ["Args:", *(f"    {k} ({v})" for k, v in parameters.items())] if parameters else []
        return lines + ([""] if lines and returned else []) + (["Returns:", f"    {returned}"] if returned else [])
    lines = [f":type {k}: {v}" if style == "type" else f":param {v} {k}:" for k, v in parameters.items()]
    return lines + ([f":rtype: {returned}"] if returned else [])


def _hint_changes(code: _Code, node: ast.AST, types: dict[str, str]) -> list[Change] | None:
    """The changes that add ``types`` to the signature."""
    changes, defaults = [], dict(_defaults(node))
    for parameter in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if parameter.arg in types:
            default = defaults.get(parameter)
            place = code.end(parameter)
            end = code.start(default) if default is not None else place
            if default is not None and not re.fullmatch(r" ?= ?", code.text[place:end]):
                return None
            changes.append((place, end, f": {types[parameter.arg]}" + (" = " if default is not None else "")))
    if "return" in types:
        head = "\n".join(code.lines[: node.body[0].lineno - 1]).rstrip()
        changes.append((len(head) - 1, len(head) - 1, f" -> {types['return']}"))
    return changes


def _strip_changes(code: _Code, node: ast.AST) -> tuple[list[Change], dict[str, str]] | None:
    """The changes that take the type hints out of the signature, and the hints; None if one is not plain."""
    changes, types, defaults = [], {}, dict(_defaults(node))
    for parameter in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if parameter.annotation is not None:
            name_end = code.start(parameter) + len(parameter.arg)
            default = defaults.get(parameter)
            hint_end = code.end(parameter.annotation)
            end = code.start(default) if default is not None else hint_end
            types[parameter.arg] = code.source(parameter.annotation)
            plain = code.text[name_end : code.start(parameter.annotation)] == ": "
            if not plain or default is not None and code.text[hint_end:end] != " = ":
                return None
            changes.append((name_end, end, "=" if default is not None else ""))
    if node.returns is not None:
        start = code.text.rindex("->", 0, code.start(node.returns))
        types["return"] = code.source(node.returns)
        changes.append((len(code.text[:start].rstrip()), code.end(node.returns), ""))
    if any(a is not None and a.annotation is not None for a in (node.args.vararg, node.args.kwarg)):
        return None
    if any(len(t) > 40 or re.search(r"[\n\"'()]", t) for t in types.values()):
        return None
    return changes, types


def _with_section(code: _Code, node: ast.AST, section: list[str]) -> Change | None:
    """The change that adds the section to the docstring, or a docstring that is the section."""
    first = node.body[0]
    indent = " " * first.col_offset
    lines = "\n".join(indent + line if line else "" for line in section)
    if not _is_docstring(first):
        place = code.starts[first.lineno - 1]
        return place, place, f'{indent}"""\n{lines}\n{indent}"""\n'
    source = code.source(first)
    if source[:3] != '"""':
        return None
    start = code.start(first)
    return start, code.end(first), f'{source[:-3].rstrip()}\n\n{lines}\n{indent}"""'


def _default_type(default: ast.expr) -> str | None:
    """The type of a default, None where it is ``None`` or no literal."""
    if isinstance(default, ast.UnaryOp) and isinstance(default.op, ast.USub):
        default = default.operand
    if isinstance(default, ast.Tuple):
        return "tuple"
    known = isinstance(default, ast.Constant) and type(default.value) in (int, str, float, bool, bytes)
    return type(default.value).__name__ if known else None


def _type_hints(code: _Code, rng: random.Random, pool: list[str]) -> Edit | None:
    """Types that a docstring names: those of real hints, of a real docstring, or of the defaults, in this order."""
    node = _function(code)
    if node is None or len(node.body) == 1 and _is_docstring(node.body[0]):
        return None
    parameters = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    stripped = _strip_changes(code, node)
    if stripped is None:
        return None
    removals, types = stripped
    if removals:
        section = _with_section(code, node, _section(types, rng))
        before, after = section and code.changed([*removals, section]), section and code.changed([section])
    else:
        docstring = ast.get_docstring(node) or ""
        named = named_types(docstring)
        types = {k: annotation(v) for k, v in named.items() if k == "return" or k in {p.arg for p in parameters}}
        if None in types.values():
            return None
        section = (0, 0, "")
        if not types:
            types = {p.arg: type_ for p, d in _defaults(node) if (type_ := _default_type(d))}
            section = _with_section(code, node, _section(types, rng)) if types else None
        changes = _hint_changes(code, node, types) if section else None
        before, after = section and code.changed([section]), changes and code.changed([section, *changes])
    if not before or not after or before == after:
        return None
    final = _code(after)
    again = final and _function(final)
    if not again:
        return None
    signature = "\n".join(final.lines[: again.body[0].lineno - 1])
    instruction = rng.choice(
        [
            "Add the type hints that the docstring names.",
            f"Annotate `{node.name}` as its docstring says.",
            f"Take the types of `{node.name}` from its docstring into the signature.",
        ]
    )
    return Edit(
        before,
        instruction,
        after,
        (rng.choice(["Give only the signature.", "Answer with the signature only."]), signature),
    )


# --- The makers ---------------------------------------------------------------------------------------------------

#: What a text must contain for an edit to be possible: spares parsing the others.
_NEEDED = {
    "add-parameter": re.compile(r"def \w+\("),
    "type-hints": re.compile(r"^(?:async )?def \w+\([^)]*[=:]|->|:type |:param |Parameters\n|Args:|Arguments:"),
}
_EDITS: dict[str, Callable[[_Code, random.Random, list[str]], Edit | None]] = {
    "add-parameter": _add_parameter,
    "type-hints": _type_hints,
    "wrap-try": _wrap_try,
}


def edit(name: str, text: str, rng: random.Random, pool: list[str]) -> Edit | None:
    """One edit by name, None where the text does not allow it."""
    needed = _NEEDED.get(name)
    code = _code(text) if needed is None or needed.search(text) else None
    return _EDITS[name](code, rng, pool) if code else None


def _maker(name: str) -> Callable[[str, random.Random, list[str]], Exchange | None]:
    def make(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
        made = edit(name, text, rng, pool)
        if made is None:
            return None
        if len(made.after) <= WHOLE_CHARS and rng.random() < WHOLE_SHARE:
            return (f"{made.instruction}\n\n{made.before}",), (made.after,)
        asks, part = made.part
        return (f"{made.instruction} {asks}\n\n{made.before}",), (part,)

    make.__name__ = name.replace("-", "_")
    make.__doc__ = f"{TASKS[name].capitalize()}: the whole code or the changed part alone."
    return make


#: Maker of each task; all work on code.
MAKERS: dict[str, Callable[[str, random.Random, list[str]], Exchange | None]] = {
    **{name: _maker(name) for name in _EDITS},
    "write-docstring": write_docstring,
}
