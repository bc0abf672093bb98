"""Tasks that edit code: each answer against the described edit, made on the syntax tree or the tokens instead of the text."""

from __future__ import annotations

import ast
import random
import re
from functools import cache

import pytest

from specdec_lib.experiments import edit_tasks, made_tasks
from specdec_lib.experiments.corpus import stdlib_modules

POOL = ["zebra", "quark", "lemon"]
EDITS = ("add-parameter", "type-hints", "wrap-try")


@cache
def edits(name: str, most: int = 60) -> tuple[edit_tasks.Edit, ...]:
    """Edits of held-out pieces."""
    pieces, pool = made_tasks._split_materials("heldout")
    rng = random.Random(name)
    code = list(pieces["code"])
    rng.shuffle(code)
    made = (edit_tasks.edit(name, piece.text, rng, pool) for piece in code)
    return tuple(e for _, e in zip(range(most), (e for e in made if e is not None), strict=False))


def dump(tree: ast.AST | str) -> str:
    return ast.dump(ast.parse(tree) if isinstance(tree, str) else tree)


def expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


class Swap(ast.NodeTransformer):
    """Puts another node in the place of each node for which ``new`` gives one."""

    def __init__(self, new):
        self.new = new

    def visit(self, node):
        other = self.new(node)
        return self.generic_visit(node) if other is None else other


# --- Hand-written examples ---------------------------------------------------------------------------------------


def made(name, text, seed=0):
    return edit_tasks.edit(name, text, random.Random(seed), POOL)


def test_add_parameter_by_hand():
    edit = next(
        e for e in (made("add-parameter", "def f(a, **rest):\n    return a + 70", seed) for seed in range(20)) if e
    )
    name = re.search("|".join(POOL), edit.instruction)[0]
    assert edit.after == f"def f(a, {name}=70, **rest):\n    return a + {name}"
    edit = made("add-parameter", "def f():\n    return f() + f()")
    name, default, value = re.search(r"`(\w+)(?:=|` with the default `)(\w+)`.*`\w+=(\w+)`", edit.instruction).groups()
    assert edit.after == f"def f({name}={default}):\n    return f({name}={value}) + f({name}={value})"


@pytest.mark.parametrize(
    "docstring, signature",
    [
        (
            (
                '"""Do.\n\n    Parameters\n    ----------\n    a : int\n        One.\n    b, c : list of str, optional\n        Two.\n\n    Returns\n'
                '    -------\n    bool\n        Yes.\n    """'
            ),
            "def f(a: int, b: list[str] = None, *, c: list[str] = 3) -> bool:",
        ),
        (
            '"""Do.\n\n    :param int a: one\n    :type c: string\n    :rtype: dict\n    """',
            "def f(a: int, b=None, *, c: str = 3) -> dict:",
        ),
        (
            '"""Do.\n\n    Args:\n        a (int or None): one\n        b (Path): two\n\n    Returns:\n        float: three\n    """',
            "def f(a: int | None, b: Path = None, *, c=3) -> float:",
        ),
    ],
)
def test_type_hints_by_hand(docstring, signature):
    before = f"def f(a, b=None, *, c=3):\n    {docstring}\n    return a"
    edit = made("type-hints", before)
    assert edit.before == before and edit.part[1] == signature
    assert edit.after == before.replace("def f(a, b=None, *, c=3):", signature)


def test_hints_of_an_annotated_function_move_to_its_docstring():
    for seed in range(8):
        text = 'def f(a: int, b: str = "x") -> list[int]:\n    """Do it."""\n    return [a]'
        edit = made("type-hints", text, seed)
        assert edit.before.startswith('def f(a, b="x"):\n    """Do it.\n\n') and edit.part[1] == text.split("\n")[0]
        assert edit_tasks.named_types(ast.get_docstring(ast.parse(edit.before).body[0])) == {
            "a": "int",
            "b": "str",
            "return": "list[int]",
        }


@pytest.mark.parametrize(
    "named, hint",
    [
        ("int", "int"),
        ("string, optional", "str"),
        ("list of int", "list[int]"),
        ("int or None", "int | None"),
        ("the number of things", None),
        ("array_like", None),
        ("`Path`", "Path"),
        ("{'a', 'b'}", None),
    ],
)
def test_types_as_docstrings_name_them(named, hint):
    assert edit_tasks.annotation(named) == hint


def test_wrap_try_by_hand():
    edit = made("wrap-try", "def f(a):\n    b = 1\n    g(a,\n      b)  # why\n    return b")
    (error,) = re.search(r"    except (.*):\n        .*\n    return b$", edit.after).groups()
    assert edit.after.startswith("def f(a):\n    b = 1\n    try:\n        g(a,\n          b)  # why\n    except ")
    assert error.removesuffix(" as error") in edit.instruction and "try:\n" in edit.part[1]


DOCUMENTED = 'def f(a):\n    """Add one to a.\n\n    It returns the sum.\n    """\n    b = a + 1\n    return b'


def test_write_docstring_by_hand():
    pieces = DOCUMENTED.split("\n")
    docstring = {
        (m[0].split("\n\n", 1)[1], a[0])
        for m, a in (edit_tasks.write_docstring(DOCUMENTED, random.Random(s), POOL) for s in range(9))
    }
    bare = "\n".join(pieces[:1] + pieces[5:])
    assert docstring == {(bare, "\n".join(pieces[:5])), (bare, '"""Add one to a.\n\nIt returns the sum.\n"""')}


# --- Properties over held-out text -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EDITS)
def test_both_sides_of_an_edit_compile_and_its_part_holds_the_change(name):
    assert len(edits(name)) == 60
    for edit in edits(name):
        compile(edit.before, "before", "exec")
        compile(edit.after, "after", "exec")
        old, new = edit.before.split("\n"), edit.after.split("\n")
        part = edit.part[1].split("\n")
        assert set(new) - set(old) <= set(part) <= set(new)


def test_taking_the_added_parameter_out_gives_the_code_before():
    kinds = set()
    for edit in edits("add-parameter", 200):
        new, default = next(
            m.groupdict().values()
            for m in (
                re.match(pattern, edit.instruction)
                for pattern in (
                    r"Add a parameter `(?P<new>\w+)=(?P<default>.*?)` to",
                    r"Give .* parameter `(?P<new>\w+)` with the default `(?P<default>\w+)`;",
                    r"Make `(?P<default>.*)` a parameter `(?P<new>\w+)`",
                    r"Turn the value `(?P<default>.*)` in .* parameter `(?P<new>\w+)`",
                )
            )
            if m
        )
        if edit.instruction[0] in "MT":
            new, default = default, new
        tree = ast.parse(edit.after)
        owner = [
            n for n in ast.walk(tree) if isinstance(n, ast.arguments) and new in {a.arg for a in n.args + n.kwonlyargs}
        ]
        (a,) = owner
        if a.args and a.args[-1].arg == new:
            assert dump(a.defaults.pop()) == dump(expression(default))
            a.args.pop()
        else:
            assert a.kwonlyargs.pop().arg == new and dump(a.kw_defaults.pop()) == dump(expression(default))
        passed = 0
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
            values = [k for k in call.keywords if k.arg == new]
            assert all(f"`{new}={ast.unparse(k.value)}`" in edit.instruction for k in values)
            call.keywords = [k for k in call.keywords if k.arg != new]
            passed += len(values)
        kinds.add(passed > 0)
        tree = Swap(
            lambda n, new=new, default=default: expression(default) if isinstance(n, ast.Name) and n.id == new else None
        ).visit(tree)
        assert dump(tree) == dump(edit.before)
    assert kinds == {False, True}


def test_hints_are_those_of_the_docstring_and_nothing_else_changes():
    for edit in edits("type-hints"):
        tree = ast.parse(edit.after)
        node = tree.body[0]
        docstring = ast.get_docstring(node)
        hinted = [
            a for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) if a.annotation is not None
        ]
        assert hinted or node.returns is not None
        for a in hinted:
            assert re.search(rf"\b{a.arg}\b", docstring)
            a.annotation = None
        node.returns = None
        assert dump(tree) == dump(edit.before)


def test_unwrapping_the_try_statement_gives_the_code_before():
    for edit in edits("wrap-try"):
        known = [dump(n) for n in ast.walk(ast.parse(edit.before)) if isinstance(n, ast.Try)]
        unwrapped = set()
        tree = ast.parse(edit.after)
        for n in ast.walk(tree):
            for field in ("body", "orelse", "finalbody"):
                block = getattr(n, field, None)
                for i, statement in enumerate(block if isinstance(block, list) else []):
                    if isinstance(statement, ast.Try) and len(statement.body) == 1 and dump(statement) not in known:
                        block[i] = statement.body[0]
                        unwrapped.add(dump(tree) == dump(edit.before))
                        block[i] = statement
        assert True in unwrapped


def test_docstrings_are_the_real_ones():
    texts = {m.name: m.text for m in stdlib_modules("heldout")}
    for prompt in made_tasks.prompts("write-docstring", 40):
        real = {re.sub(r"\s+", " ", line.strip()) for line in texts[prompt.meta["module"]].split("\n")}
        assert all(re.sub(r"\s+", " ", line.strip()) in real for line in prompt.reference.split("\n"))
