"""Edits of code whose right answer a program knows: more than copying the text again.

Each edit changes the source text at the positions of syntax nodes, so that what is not edited stays verbatim, and
Python compiles the code before and after. Most prompts ask for the changed part alone, because the whole code is
nearly all copied. A maker that cannot use a text returns ``None``.
"""

from __future__ import annotations

import ast
import difflib
import random
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from specdec_lib.experiments.corpus import Module, Snippet, _blocks

#: The user's turns and the assistant's answers.
Exchange = tuple[tuple[str, ...], tuple[str, ...]]
#: What each task asks.
TASKS: dict[str, str] = {
    "change-default": "change the default value of a parameter",
    "change-literal": "change a literal in the body",
    "add-parameter": "add a parameter and use it instead of a literal, or pass it in the calls",
    "remove-parameter": "remove a parameter and use a value instead",
    "percent-to-fstring": "turn % formatting into f-strings",
    "type-hints": "add the type hints that a docstring names",
    "wrap-try": "wrap the statement of a call in try/except",
    "sort-imports": "sort a block of import lines",
    "invert-condition": "negate the condition of an if statement and swap its branches",
    "reorder-functions": "put functions in another order",
    "write-docstring": "write the docstring of a function",
    "write-function": "write the body of a function from its signature and docstring",
    "summarise-docstring": "give the first sentence of a docstring",
    "fix-bug": "correct the one wrong token",
    "two-turn-edit": "make two different edits of the same code, one after the other",
}
#: Share of the prompts that ask for the whole code, and the longest code in characters for which they do: both the
#: code and its edited copy have to fit a window of 512 tokens.
WHOLE_SHARE = 0.2
WHOLE_CHARS = 620
#: Longest code in characters that two turns are made from: it stands three times in the conversation.
TWO_TURN_CHARS = 420


class Edit(NamedTuple):
    """One edit: the code before, what is asked, the code after, and a shorter answer with the words that ask for it."""

    before: str
    instruction: str
    after: str
    part: tuple[str, str] | None


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


def _changed_lines(before: str, after: str) -> str:
    old, new = before.split("\n"), after.split("\n")
    if len(old) == len(new):
        return "\n".join(b for a, b in zip(old, new, strict=False) if a != b)
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return "\n".join(line for what, _, _, first, last in blocks if what != "equal" for line in new[first:last])


_LINES_ONLY = ("Give only the changed lines.", "Answer with the changed lines only.", "Show only what changes.")


def _edit(code: _Code, rng: random.Random, instructions: list[str], changes: list[Change]) -> Edit | None:
    """The edit of ``changes`` with one of the instructions; its shorter answer is the changed lines."""
    after = code.changed(changes)
    if after is None or after == code.text:
        return None
    lines = _changed_lines(code.text, after)
    return Edit(code.text, rng.choice(instructions), after, (rng.choice(_LINES_ONLY), lines) if lines else None)


def _name(rng: random.Random, text: str, pool: list[str]) -> str | None:
    """A lower-case name of the pool that the text does not contain."""
    for _ in range(50):
        name = rng.choice(pool)
        if re.fullmatch(r"[a-z][a-z0-9_]*", name) and not re.search(rf"\b{name}\b", text):
            return name
    return None


# --- Literals -----------------------------------------------------------------------------------------------------

_INTEGERS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    10,
    12,
    15,
    16,
    20,
    24,
    25,
    30,
    32,
    40,
    50,
    60,
    64,
    80,
    100,
    120,
    128,
    200,
    256,
    500,
    512,
    1000,
    1024,
    4096,
    8192,
)
_FLOATS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 0.9, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PLAIN_STRING = re.compile(r"""'[^'"\\\n{}]{0,30}'|"[^'"\\\n{}]{0,30}\"""")


def _another(source: str, value: object, rng: random.Random, pool: list[str]) -> str | None:
    """The source of another value, of the same type unless the old one is None."""
    if value is None:
        return rng.choice(["0", "1", "-1", "10", "True", "False", "''", "()", repr(rng.choice(pool))])
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(rng.choice([i for i in _INTEGERS if i != value]))
    if isinstance(value, float):
        return str(rng.choice([i for i in _FLOATS if i != value]))
    if isinstance(value, str) and _PLAIN_STRING.fullmatch(source):
        new = rng.choice(pool)
        return None if new == value else source[0] + new + source[0]
    return None


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


def _change_default(code: _Code, rng: random.Random, pool: list[str]) -> Edit | None:
    """One default of a function, or two."""
    places = {f: [(p, d) for p, d in _defaults(f) if isinstance(d, ast.Constant)] for f in code.functions}
    owners = [f for f, defaults in places.items() if defaults]
    if not owners:
        return None
    function = rng.choice(owners)
    f, defaults = function.name, places[function]
    chosen = rng.sample(defaults, min(len(defaults), rng.choice([1, 2, 2])))
    changes, names = [], []
    for parameter, default in chosen:
        new = _another(code.source(default), default.value, rng, pool)
        if new is None:
            return None
        names.append((parameter.arg, new))
        changes.append((code.start(default), code.end(default), new))
    p, new = names[0]
    if len(names) == 2:
        q, newer = names[1]
        asks = [
            f"Change the defaults of `{f}`: `{p}` to `{new}` and `{q}` to `{newer}`.",
            f"In `{f}`, let `{p}` default to `{new}` and `{q}` to `{newer}`.",
        ]
    else:
        asks = [
            f"Change the default of `{p}` in `{f}` to `{new}`.",
            f"Let `{p}` of `{f}` default to `{new}`.",
            f"`{f}` should take `{new}` as the default of `{p}`.",
        ]
    return _edit(code, rng, asks, changes)


def _change_literal(code: _Code, rng: random.Random, pool: list[str]) -> Edit | None:
    """One literal wherever it stands, or two."""
    literals = _literals(code, code.tree)
    if not literals:
        return None
    changes: list[Change] = []
    pairs: list[tuple[str, str]] = []
    for old in rng.sample(list(literals), min(len(literals), rng.choice([1, 2, 2]))):
        new = _another(old, literals[old][0].value, rng, pool)
        if new is None or any(new in pair for pair in pairs):
            return None
        pairs.append((old, new))
        changes += [(code.start(n), code.end(n), new) for n in literals[old]]
    old, new = pairs[0]
    if len(pairs) == 2:
        older, newer = pairs[1]
        asks = [
            f"Change the literal `{old}` to `{new}` and `{older}` to `{newer}`.",
            f"Use `{new}` instead of `{old}`, and `{newer}` instead of `{older}`.",
        ]
    else:
        asks = [
            f"Change the literal `{old}` to `{new}`.",
            f"Use `{new}` instead of `{old}`.",
            f"Replace the value `{old}` by `{new}`.",
        ]
    return _edit(code, rng, asks, changes)


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
        default, value = rng.sample(["None", "True", "False", *map(str, _INTEGERS[:20])], 2)
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


def _without(code: _Code, start: int, end: int) -> Change:
    """The removal of one item of a list in brackets, with the comma after it, or that before it."""
    after = re.compile(r"\s*,\s*").match(code.text, end)
    if after and code.text[after.end()] != ")":
        return start, after.end(), ""
    comma = re.search(r",\s*$", code.text[:start])
    return (comma.start() if comma else start), end, ""


def _remove_parameter(code: _Code, rng: random.Random, pool: list[str]) -> Edit | None:
    places = [(f, p) for f in code.functions for p in f.args.args if p.arg not in ("self", "cls")]
    if not places:
        return None
    function, parameter = rng.choice(places)
    f, name = function.name, parameter.arg
    changes: list[Change] = []
    inside = set(ast.walk(function))
    words = 0
    for node in code.nodes:
        spelt = {getattr(node, "id", None), getattr(node, "arg", None), getattr(node, "attr", None)}
        words += name in spelt
        if isinstance(node, ast.Name) and node.id == name and node in inside:
            parent = code.parents[node]
            odd = (
                isinstance(parent, (ast.Attribute, ast.Starred))
                or (isinstance(parent, ast.Compare) and any(isinstance(o, (ast.Is, ast.IsNot)) for o in parent.ops))
                or (isinstance(parent, (ast.Subscript, ast.Call)) and node is next(ast.iter_child_nodes(parent)))
            )
            if not isinstance(node.ctx, ast.Load) or odd or node in code.fixed:
                return None
            changes.append((code.start(node), code.end(node), ""))
        if isinstance(node, ast.arg) and node.arg == name and node is not parameter and node in inside:
            return None
    default = dict(_defaults(function)).get(parameter)
    if not changes or words != len(re.findall(rf"\b{name}\b", code.text)):
        return None
    if isinstance(default, ast.Constant) and "\n" not in code.source(default):
        value = code.source(default)
    else:
        value = rng.choice(["None", "0", "1", "2", "10", "True", "False", "''", "()"])
    uses = [(start, end, value) for start, end, _ in changes]
    last = default or parameter.annotation or parameter
    removals = [_without(code, code.start(parameter), code.end(last))]
    calls = _calls(code, function)
    index = function.args.args.index(parameter)
    if calls is None or function.args.posonlyargs:
        return None
    for call in calls:
        bound = isinstance(call.func, ast.Attribute)
        place = index - (bound and function.args.args[0].arg in ("self", "cls"))
        given = [k for k in call.keywords if k.arg == name]
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            return None
        item = given[0] if given else call.args[place] if place < len(call.args) else None
        if item is not None:
            removals.append(_without(code, code.start(item), code.end(item)))
    # A use within an argument that goes, goes with it.
    changes = removals + [use for use in uses if not any(start <= use[0] < end for start, end, _ in removals)]
    return _edit(
        code,
        rng,
        [
            f"Remove the parameter `{name}` of `{f}` and use `{value}` instead.",
            f"`{f}` no longer takes `{name}`; put `{value}` in its place.",
            f"Drop `{name}` from `{f}`: it is always `{value}`.",
        ],
        changes,
    )


# --- Formatting ---------------------------------------------------------------------------------------------------

_PERCENT = re.compile(r"%(.)")
_LITERAL = re.compile(r"""(r?)('''|\"""|'|")(.*)\2""", re.DOTALL)


def _fstring(code: _Code, node: ast.BinOp) -> str | None:
    """The f-string of one ``%`` formatting with ``%s``, ``%d`` and ``%r``."""
    literal = _LITERAL.fullmatch(code.source(node.left))
    if not literal or len(literal[2]) == 1 and literal[2] in re.sub(r"\\.", "", literal[3]) or "\\N" in literal[3]:
        return None
    prefix, quote, text = literal.groups()
    operands = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
    sources = []
    for operand in operands:
        inner = list(ast.walk(operand))
        simple = all(
            isinstance(
                n,
                (
                    ast.Name,
                    ast.Attribute,
                    ast.Subscript,
                    ast.Call,
                    ast.Constant,
                    ast.Load,
                    ast.BinOp,
                    ast.Add,
                    ast.Sub,
                    ast.USub,
                    ast.UnaryOp,
                ),
            )
            for n in inner
        )
        source = code.source(operand)
        if not simple or isinstance(operand, ast.Constant) or len(source) > 40 or re.search(r"[\\\n{}#!:]", source):
            return None
        if quote[0] in source:
            return None
        sources.append(source)
    kinds = [k for k in _PERCENT.findall(text) if k != "%"]
    if (
        not kinds
        or len(kinds) != len(sources)
        or set(kinds) - set("sdr")
        or text.replace("%%", "").count("%") != len(kinds)
    ):
        return None
    left = iter(sources)
    form = {"s": "{%s}", "d": "{%s:d}", "r": "{%s!r}"}
    text = text.replace("{", "{{").replace("}", "}}")
    text = _PERCENT.sub(lambda m: "%" if m[1] == "%" else form[m[1]] % next(left), text)
    return f"f{prefix}{quote}{text}{quote}"


def _percent(code: _Code, node: ast.JoinedStr) -> str | None:
    """The ``%`` formatting of one f-string of which :func:`_fstring` makes that f-string again."""
    source = code.source(node)
    quote = source[1:2]
    if source[:1] != "f" or not re.fullmatch(r"""'[^'\n]*'|"[^"\n]*\"""", source[1:]):
        return None
    text, operands = "", []
    # The literal parts as the source spells them, escapes included, stand between the braces.
    parts = re.split(r"\{\{|\}\}|\{([^{}]*)\}", source[2:-1])
    if "{{" in source or "}}" in source or len(parts) % 2 == 0:
        return None
    for literal, field in zip(parts[::2], [*parts[1::2], None], strict=False):
        text += literal.replace("%", "%%")
        if field is not None:
            kind = "r" if field.endswith("!r") else "d" if field.endswith(":d") else "s"
            operands.append(field if kind == "s" else field[:-2])
            text += f"%{kind}"
    if not operands:
        return None
    made = f"{quote}{text}{quote} % " + (operands[0] if len(operands) == 1 else f"({', '.join(operands)})")
    again = _code(f"({made})")
    value = again and getattr(again.tree.body[0], "value", None)
    return (
        made
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod) and _fstring(again, value) == source
        else None
    )


def _percent_to_fstring(code: _Code, rng: random.Random, pool: list[str]) -> Edit | None:
    """Real ``%`` formatting; where there is none, that of real f-strings, which are the answer."""
    forward: list[Change] = []
    back: list[Change] = []
    for node in code.nodes:
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mod)
            and (isinstance(node.left, ast.JoinedStr) or isinstance(getattr(node.left, "value", None), (str, bytes)))
        ):
            new = _fstring(code, node) if isinstance(node.left, ast.Constant) else None
            if new is None:
                return None
            forward.append((code.start(node), code.end(node), new))
        if isinstance(node, ast.JoinedStr) and node not in code.fixed:
            # A formatting binds less tightly than a literal does.
            loose = isinstance(code.parents[node], (ast.Attribute, ast.Subscript, ast.BinOp, ast.Await, ast.UnaryOp))
            old = None if loose else _percent(code, node)
            if old is not None:
                back.append((code.start(node), code.end(node), old))
    asks = [
        "Turn the % formatting into f-strings.",
        "Use f-strings instead of % formatting.",
        "Rewrite the % formatting with f-strings.",
    ]
    if forward:
        return _edit(code, rng, asks, forward)
    before = code.changed(back) if back else None
    if before is None:
        return None
    lines = rng.choice(_LINES_ONLY), _changed_lines(before, code.text)
    return Edit(before, rng.choice(asks), code.text, lines)


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


_NEGATED = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.GtE: "<",
    ast.Gt: "<=",
    ast.LtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_OPERATOR = re.compile(r"is\s+not\b|is\b|not\s+in\b|in\b|[=!<>]=|[<>]")


def _negated(code: _Code, test: ast.expr) -> str | None:
    """The source of the opposite condition."""
    source = code.source(test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return source.removeprefix("not").strip()
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        first, last = code.end(test.left), code.start(test.comparators[0])
        operator = _OPERATOR.search(code.text, first, last)
        return operator and (
            code.text[code.start(test) : operator.start()]
            + _NEGATED[type(test.ops[0])]
            + code.text[operator.end() : code.end(test)]
        )
    if isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)):
        return f"not {source}"
    return f"not ({source})"


def _invert_condition(code: _Code, rng: random.Random, pool: list[str]) -> Edit | None:
    places = []
    conditions = Counter(code.source(n.test) for n in code.nodes if isinstance(n, ast.If))
    for node in code.nodes:
        if not isinstance(node, ast.If) or not node.orelse or not code.text.startswith("if", code.start(node)):
            continue
        gap = [
            i
            for i in range(node.body[-1].end_lineno, node.orelse[0].lineno)
            if re.fullmatch(r" *else *: *", code.lines[i])
        ]
        header = node.test.end_lineno == node.lineno and code.lines[node.lineno - 1].endswith(":")
        if len(gap) == 1 and header and node.body[0].lineno > node.lineno and conditions[code.source(node.test)] == 1:
            places.append((node, gap[0]))
    if not places:
        return None
    node, split = rng.choice(places)
    test = code.source(node.test)
    opposite = _negated(code, node.test)
    if opposite is None:
        return None
    head, last = node.lineno, node.orelse[-1].end_lineno
    line = code.lines[head - 1]
    place = line.index("if", node.col_offset) + 2
    if line[place:].strip() != f"{test}:":  # in parentheses
        return None
    block = [f"{line[:place]} {opposite}:", *code.lines[split + 1 : last], code.lines[split], *code.lines[head:split]]
    made = _edit(
        code,
        rng,
        [
            f"Invert the condition `{test}` and swap the branches.",
            f"Negate `{test}` and exchange its two branches.",
            f"Turn the if statement with `{test}` around.",
        ],
        [(code.starts[head - 1], code.starts[last] - 1, "\n".join(block))],
    )
    return made and made._replace(
        part=(rng.choice(["Give only the if statement.", "Answer with the if statement only."]), "\n".join(block))
    )


# --- Bugs ---------------------------------------------------------------------------------------------------------

_WRONG_COMPARISON = {
    "==": ("!=",),
    "!=": ("==",),
    "<": ("<=", ">"),
    "<=": ("<", ">="),
    ">": (">=", "<"),
    ">=": (">", "<="),
    "is not": ("is",),
    "is": ("is not",),
    "in": ("not in",),
    "not in": ("in",),
}
_WRONG_OPERATOR = {
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "*",
    "//": "*",
    "%": "+",
    "&": "|",
    "|": "&",
    "<<": ">>",
    ">>": "<<",
    "and": "or",
    "or": "and",
    "+=": "-=",
    "-=": "+=",
}
_ANY_OPERATOR = re.compile(r"\band\b|\bor\b|//=?|<<|>>|[-+*/%&|]=?")


def _mutations(code: _Code, rng: random.Random) -> dict[str, list[Change]]:
    """One-token changes that a function can suffer, by kind."""
    out: dict[str, list[Change]] = {}

    def between(pattern: re.Pattern, first: ast.AST, last: ast.AST) -> re.Match | None:
        return pattern.search(code.text, code.end(first), code.start(last))

    for node in code.nodes:
        if node in code.fixed:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            token = between(_OPERATOR, node.left, node.comparators[0])
            if token and " ".join(token[0].split()) in _WRONG_COMPARISON:
                wrong = rng.choice(_WRONG_COMPARISON[" ".join(token[0].split())])
                out.setdefault("a wrong comparison", []).append((*token.span(), wrong))
        pair = None
        if isinstance(node, ast.BinOp) and not (
            isinstance(node.left, ast.Constant) and isinstance(node.left.value, (str, bytes))
        ):
            pair = node.left, node.right
        elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
            pair = tuple(node.values)
        elif isinstance(node, ast.AugAssign):
            pair = node.target, node.value
        token = pair and between(_ANY_OPERATOR, *pair)
        if token and token[0] in _WRONG_OPERATOR:
            out.setdefault("a wrong operator", []).append((*token.span(), _WRONG_OPERATOR[token[0]]))
        if (
            isinstance(node, ast.Constant)
            and type(node.value) is int
            and node.value < 100
            and isinstance(
                code.parents[node],
                (ast.Subscript, ast.Slice, ast.Compare, ast.BinOp, ast.AugAssign, ast.Return, ast.Call),
            )
        ):
            wrong = node.value + rng.choice([-1, 1] if node.value else [1])
            if code.source(node) == str(node.value):
                out.setdefault("a number that is off by one", []).append((code.start(node), code.end(node), str(wrong)))
    for function in code.functions:
        names = sorted(
            {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
            | {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        )
        if len(names) > 1:
            uses = [
                n
                for n in ast.walk(function)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names and n not in code.fixed
            ]
            for use in uses:
                wrong = rng.choice([n for n in names if n != use.id])
                out.setdefault("a wrong name", []).append((code.start(use), code.end(use), wrong))
    return out


def _fix_bug(code: _Code, rng: random.Random, pool: list[str]) -> Edit | None:
    mutations = _mutations(code, rng)
    if not mutations:
        return None
    kind = rng.choice(list(mutations))
    start, end, wrong = rng.choice(mutations[kind])
    broken = code.changed([(start, end, wrong)])
    if broken is None or broken == code.text:
        return None
    instruction = rng.choice(
        ["This code has one bug. Fix it.", f"This code has one bug: {kind}. Fix it.", f"Correct the one bug, {kind}."]
    )
    asks = rng.choice(["Give only the corrected line.", "Answer with the corrected line only."])
    return Edit(broken, instruction, code.text, (asks, _changed_lines(broken, code.text)))


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


def write_function(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """The real body of a function, or all of it, for its signature and docstring."""
    code = _code(text) if '"""' in text or "'''" in text else None
    node = code and _documented(code)
    if not node or len(node.body) == 2 and isinstance(node.body[1], (ast.Pass, ast.Raise)):
        return None
    last = node.body[0].end_lineno
    head, body = "\n".join(code.lines[:last]), "\n".join(code.lines[last:]).strip("\n")
    if len(body) > 500 or len(body) < 20:
        return None
    if rng.random() < 0.4:
        turn = rng.choice(["Write the body of this function.", f"Implement `{node.name}`. Give only the body."])
        return (f"{turn}\n\n{head}",), (body,)
    turn = rng.choice(["Write this function.", f"Complete the function `{node.name}`.", f"Implement `{node.name}`."])
    return (f"{turn}\n\n{head}",), (head + "\n".join(["", *code.lines[last:]]),)


def first_sentence(docstring: str) -> str | None:
    """The first sentence of a docstring's first paragraph on one line, None if the paragraph does not end one."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    end = next(
        (
            m.end()
            for m in re.finditer(r"\.(?=\s|$)", paragraph)
            if not re.search(r"(?:\b(?:e\.g|i\.e|etc|vs|cf)|\.\.)\.$", paragraph[: m.end()])
        ),
        None,
    )
    return paragraph[:end] if end else None


def summarise_docstring(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """The first sentence of a longer docstring, or the signature with a docstring that is that sentence."""
    code = _code(text) if '"""' in text or "'''" in text else None
    node = code and _documented(code)
    if not node:
        return None
    docstring = ast.get_docstring(node)
    sentence = first_sentence(docstring)
    if (
        sentence is None
        or not 10 <= len(sentence) <= 160
        or len(docstring) < len(sentence) + 20
        or '"' in sentence
        or ("\\" in sentence)
    ):
        return None
    if rng.random() < 0.5:
        turn = rng.choice(
            [
                "Give the first sentence of the docstring.",
                "Summarise the docstring by its first sentence.",
                f"What does `{node.name}` do? Quote the first sentence of its docstring.",
            ]
        )
        return (f"{turn}\n\n{text}",), (sentence,)
    first = node.body[0].lineno - 1
    indent = code.lines[first][: node.body[0].col_offset]
    turn = rng.choice(
        [
            "Give the signature with the first sentence of the docstring as its docstring.",
            f"Give the signature of `{node.name}` and shorten the docstring to its first sentence.",
        ]
    )
    return (f"{turn}\n\n{text}",), ("\n".join([*code.lines[:first], f'{indent}"""{sentence}"""']),)


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


# --- Pieces of a module's top level -------------------------------------------------------------------------------

_IMPORT = r"(?:import [\w.]+(?:, ?[\w.]+)*(?: as \w+)?|from [\w.]+ import \w+(?:, ?\w+)*(?: as \w+)?)"
_IMPORT_BLOCK = re.compile(rf"^( *){_IMPORT}(?:\n\1{_IMPORT})+$", re.MULTILINE)
#: Length in characters of import blocks, of functions of a run, and of a run.
IMPORT_CHARS = (40, 600)
FUNCTION_CHARS = (30, 360)
RUN_CHARS = (80, 640)


def import_blocks(module: Module) -> Iterator[Snippet]:
    """Runs of three import lines or more without a line between them, dedented."""
    for match in _IMPORT_BLOCK.finditer(module.text):
        text = textwrap.dedent(match[0])
        if text.count("\n") >= 2 and IMPORT_CHARS[0] <= len(text) <= IMPORT_CHARS[1] and text.isascii():
            yield Snippet(module.name, text)


def function_runs(module: Module) -> Iterator[Snippet]:
    """Runs of two to four small functions with nothing but blank lines between them, dedented."""
    lines = module.text.splitlines()
    run: list[str] = []
    last, indent, most = 0, -1, 2
    blocks = sorted(b.lines for b in _blocks(module) if b.lines is not None)
    for first, end in [*blocks, (len(lines) + 1, len(lines) + 1)]:
        head = lines[first - 1] if first <= len(lines) else ""
        depth = len(head) - len(head.lstrip())
        if run and first <= last:
            continue  # inside the function before
        usable = re.match(r" *(async )?def ", head)
        text = textwrap.dedent("\n".join(lines[first - 1 : end])).rstrip() if usable else ""
        small = usable and FUNCTION_CHARS[0] <= len(text) <= FUNCTION_CHARS[1] and text.isascii() and "\t" not in text
        follows = run and depth == indent and not any(s.strip() for s in lines[last : first - 1])
        whole = "\n\n".join([*run, text])
        if run and not (small and follows and len(run) < most and len(whole) <= RUN_CHARS[1]):
            if len(run) > 1 and sum(map(len, run)) >= RUN_CHARS[0]:
                yield Snippet(module.name, "\n\n".join(run))
                most = most % 3 + 2
            run = []
        if small:
            run.append(text)
            last, indent = end, depth


def _import_key(line: str) -> tuple[str, str]:
    return line.split()[1].rstrip(",").lower(), line


def sort_imports(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """Import lines, shuffled if they are in order already, sorted in one of three ways."""
    lines = text.split("\n")
    if len(set(lines)) != len(lines) or len(lines) < 3 or not all(re.fullmatch(_IMPORT, s) for s in lines):
        return None
    asks, key = rng.choice(
        [
            ("Sort the imports by module name.", _import_key),
            ("Put the import lines in the order of their modules.", _import_key),
            ("Sort the import lines alphabetically.", lambda s: s),
            (
                "Sort the imports by module name, `import` lines before `from` lines.",
                lambda s: (s[0] == "f", _import_key(s)),
            ),
        ]
    )
    ordered = sorted(lines, key=key)
    if ordered == lines or rng.random() < 0.5:
        rng.shuffle(lines)
    if ordered == lines or _code("\n".join(ordered)) is None:
        return None
    return (asks + "\n\n" + "\n".join(lines),), ("\n".join(ordered),)


def reorder_functions(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """Functions in alphabetical order, or in an order that the instruction gives."""
    code = _code(text)
    if code is None or len(code.tree.body) < 2 or not all(isinstance(n, _FUNCTIONS) for n in code.tree.body):
        return None
    functions = {n.name: "\n".join(code.lines[n.lineno - 1 : n.end_lineno]) for n in code.tree.body}
    if len(functions) != len(code.tree.body) or "\n\n".join(functions.values()) != text:
        return None
    names = sorted(functions)
    if names != list(functions) and rng.random() < 0.6:
        asks = rng.choice(["Put the functions in alphabetical order.", "Sort the functions by name."])
    else:
        while names == list(functions) or names == sorted(functions):
            names = rng.sample(list(functions), len(functions))
            if len(names) == 2:
                names = list(functions)[::-1]
                break
        asks = (
            rng.choice(["Put the functions in the order ", "Reorder the functions: "])
            + ", ".join(f"`{n}`" for n in names)
            + "."
        )
    return (f"{asks}\n\n{text}",), ("\n\n".join(functions[n] for n in names),)


# --- The makers ---------------------------------------------------------------------------------------------------

#: What a text must contain for an edit to be possible: spares parsing the others.
_NEEDED = {
    "percent-to-fstring": re.compile(r"""['"]\s*%|\bf['"]"""),
    "invert-condition": re.compile(r"\belse *:"),
    "change-default": re.compile(r"def \w+\([^)]*="),
    "add-parameter": re.compile(r"def \w+\("),
    "remove-parameter": re.compile(r"def \w+\(\s*(?!(?:self|cls)?\s*\))"),
    "type-hints": re.compile(r"^(?:async )?def \w+\([^)]*[=:]|->|:type |:param |Parameters\n|Args:|Arguments:"),
}
_EDITS: dict[str, Callable[[_Code, random.Random, list[str]], Edit | None]] = {
    "change-default": _change_default,
    "change-literal": _change_literal,
    "add-parameter": _add_parameter,
    "remove-parameter": _remove_parameter,
    "percent-to-fstring": _percent_to_fstring,
    "type-hints": _type_hints,
    "wrap-try": _wrap_try,
    "invert-condition": _invert_condition,
    "fix-bug": _fix_bug,
}
#: Edits that change the code they are given, so that they can be a second turn.
_LATER = tuple(name for name in _EDITS if name not in ("type-hints", "fix-bug"))


def edit(name: str, text: str, rng: random.Random, pool: list[str]) -> Edit | None:
    """One edit by name, None where the text does not allow it."""
    needed = _NEEDED.get(name)
    code = _code(text) if needed is None or needed.search(text) else None
    return _EDITS[name](code, rng, pool) if code else None


def _whole(made: Edit, rng: random.Random) -> bool:
    return made.part is None or len(made.after) <= WHOLE_CHARS and rng.random() < WHOLE_SHARE


def _maker(name: str) -> Callable[[str, random.Random, list[str]], Exchange | None]:
    def make(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
        made = edit(name, text, rng, pool)
        if made is None:
            return None
        if _whole(made, rng):
            return (f"{made.instruction}\n\n{made.before}",), (made.after,)
        asks, part = made.part
        return (f"{made.instruction} {asks}\n\n{made.before}",), (part,)

    make.__name__ = name.replace("-", "_")
    make.__doc__ = f"{TASKS[name].capitalize()}: the whole code or the changed part alone."
    return make


def two_turn_edit(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """Two different edits, the second of the first one's answer."""
    if len(text) > TWO_TURN_CHARS:
        return None
    first = first_name = second = None
    for first_name in rng.sample(list(_EDITS), len(_EDITS)):
        first = edit(first_name, text, rng, pool)
        if first:
            break
    if not first or len(first.after) > TWO_TURN_CHARS:
        return None
    for name in rng.sample(_LATER, len(_LATER)):
        second = edit(name, first.after, rng, pool) if name != first_name else None
        if second:
            break
    if not second:
        return None
    asks, answer = second.part if second.part and rng.random() >= WHOLE_SHARE else ("", second.after)
    now = f"Now {second.instruction[0].lower()}{second.instruction[1:]} {asks}".rstrip()
    return (f"{first.instruction}\n\n{first.before}", now), (first.after, answer)


#: Maker of each task and the kind of material it works on.
MAKERS: dict[str, tuple[Callable[[str, random.Random, list[str]], Exchange | None], str]] = {
    **{name: (_maker(name), "code") for name in _EDITS},
    "sort-imports": (sort_imports, "imports"),
    "reorder-functions": (reorder_functions, "functions"),
    "write-docstring": (write_docstring, "code"),
    "write-function": (write_function, "code"),
    "summarise-docstring": (summarise_docstring, "code"),
    "two-turn-edit": (two_turn_edit, "code"),
}
MAKERS = {name: MAKERS[name] for name in TASKS}
