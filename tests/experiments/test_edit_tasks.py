"""Tasks that edit code: each answer against the described edit, made on the syntax tree or the tokens instead of the text."""

from __future__ import annotations

import ast
import io
import random
import re
import tokenize
from functools import cache

import pytest

from specdec_lib.chapters.a1_pocket_models import training_rows
from specdec_lib.experiments import edit_tasks, made_tasks
from specdec_lib.experiments.corpus import Module, stdlib_modules

POOL = ["zebra", "quark", "lemon"]
EDITS = (
    "change-default",
    "change-literal",
    "add-parameter",
    "remove-parameter",
    "percent-to-fstring",
    "type-hints",
    "wrap-try",
    "invert-condition",
    "fix-bug",
)


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


def tokens(text: str) -> list[str]:
    return [t.string for t in tokenize.generate_tokens(io.StringIO(text + "\n").readline)]


def quoted(edit: edit_tasks.Edit) -> list[str]:
    return re.findall(r"`([^`]*)`", edit.instruction)


def functions(tree: ast.AST, name: str) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == name]


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


def test_change_default_by_hand():
    edit = made("change-default", "def f(a, b=True, *, c=None):\n    return a", 5)
    assert re.search(r"`b` to `False`|`c` to `(.*?)`", edit.instruction)
    edit = made("change-default", "def f(a, b=True):\n    return a, b")
    assert edit.after == "def f(a, b=False):\n    return a, b" and edit.part[1] == "def f(a, b=False):"
    assert made("change-default", "def f(a, b):\n    return a, b") is None


def test_change_literal_by_hand():
    # Neither the default nor the number in the comment is a literal of the body.
    edit = made("change-literal", "def f(a=3):\n    # 3 is not 7\n    return [a, 3, 7, x7, 'id', 'id']")
    new = next(v for v in quoted(edit) if v.strip("'") in POOL)
    assert edit.after == f"def f(a=3):\n    # 3 is not 7\n    return [a, 3, 7, x7, {new}, {new}]"


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
    "before, after",
    [
        ("def f(a, b=5):\n    return f(a, a) + b", "def f(a):\n    return f(a) + 5"),
        ("def f(b=5, *, c):\n    return f(b=b, c=c)", "def f(*, c):\n    return f(c=c)"),
        ("def f(self, b=5):\n    return self.f(b) + self.f()", "def f(self):\n    return self.f() + self.f()"),
        ("def f(b=5):\n    return b.x", None),
        ("def f(b=5):\n    b = 3\n    return b", None),
        ("def f(b=5):\n    return g(f, b)", None),
        ("def f(b=5):\n    '''b'''\n    return b", None),
        ("def f(b=5):\n    return f'{b}'", None),
    ],
)
def test_remove_parameter_by_hand(before, after):
    results = {e and e.after for e in (made("remove-parameter", before, seed) for seed in range(8))}
    assert after in results and (after is not None or results == {None})


@pytest.mark.parametrize(
    "before, after",
    [
        (
            "def f(a):\n    return '%s is %d%% of %r' % (a, a.b, a[0])",
            "def f(a):\n    return f'{a} is {a.b:d}% of {a[0]!r}'",
        ),
        ('x = "{%s}" % a', 'x = f"{{{a}}}"'),
        ("x = r'\\d%s' % a", "x = fr'\\d{a}'"),
        ("x = '%5s' % a", None),
        ("x = '%s' % a['b']", None),
        ("x = '%s %s' % a", None),
        ("x = 'a' '%s' % a", None),
        ("x = 'it\\'s %s' % a", "x = f'it\\'s {a}'"),
    ],
)
def test_percent_to_fstring_by_hand(before, after):
    edit = made("percent-to-fstring", before)
    assert (edit and edit.after) == after


def test_real_fstrings_are_asked_for_from_percent_formatting():
    edit = made("percent-to-fstring", "x = f'{a.b!r}, 5% of {c:d}'\ny = f'{a:>5}'")
    assert (
        edit.before == "x = '%r, 5%% of %d' % (a.b, c)\ny = f'{a:>5}'"
        and edit.after == "x = f'{a.b!r}, 5% of {c:d}'\ny = f'{a:>5}'"
    )


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


@pytest.mark.parametrize(
    "test, opposite",
    [
        ("a == b", "a != b"),
        ("a < b", "a >= b"),
        ("a is not b", "a is b"),
        ("a in b", "a not in b"),
        ("not a", "a"),
        ("a", "not a"),
        ("a.b(c)", "not a.b(c)"),
        ("a and b", "not (a and b)"),
        ("a < b < c", "not (a < b < c)"),
    ],
)
def test_invert_condition_by_hand(test, opposite):
    edit = made(
        "invert-condition",
        f"def f(a, b, c):\n    if {test}:\n        x = 1\n        y = 2\n    else:\n        # why\n        x = 3\n"
        "    return x",
    )
    assert edit.part[1] == f"    if {opposite}:\n        # why\n        x = 3\n    else:\n        x = 1\n        y = 2"
    assert edit.after == f"def f(a, b, c):\n{edit.part[1]}\n    return x"


def test_an_inverted_condition_computes_the_same():
    text = "def f(a, b):\n    if a < b:\n        c = a\n    elif a == b:\n        c = 10 * a\n    else:\n        c = b\n    return c"
    assert made("invert-condition", text) is None  # the else belongs to the elif
    text = "def f(a, b):\n    if a < b:\n        c = a\n    else:\n        if a == b:\n            c = 9\n        else:\n            c = b\n    return c"
    for seed in range(6):
        before, after = {}, {}
        exec(text, before)
        exec(made("invert-condition", text, seed).after, after)
        assert all(before["f"](a, b) == after["f"](a, b) for a in range(4) for b in range(4))


def test_sort_imports_by_hand():
    text = "import sys\nfrom os import path\nimport os.path\nimport abc"
    answers = {edit_tasks.sort_imports(text, random.Random(s), POOL)[1][0] for s in range(30)}
    assert answers == {
        "import abc\nfrom os import path\nimport os.path\nimport sys",
        "from os import path\nimport abc\nimport os.path\nimport sys",
        "import abc\nimport os.path\nimport sys\nfrom os import path",
    }


def test_reorder_functions_by_hand():
    text = "def b():\n    return 1\n\ndef a(x):\n    return 2"
    turns, answers = edit_tasks.reorder_functions(text, random.Random(0), POOL)
    assert answers == ("def a(x):\n    return 2\n\ndef b():\n    return 1",) and turns[0].endswith(text)


@pytest.mark.parametrize(
    "docstring, sentence",
    [
        ("Do this, e.g. that. Then stop.", "Do this, e.g. that."),
        ("Return x.y\nof z. More.", "Return x.y of z."),
        ("No end\n\nMore. Text.", None),
        ("One.", "One."),
        ("Wait... what. Yes.", "Wait... what."),
    ],
)
def test_first_sentence(docstring, sentence):
    assert edit_tasks.first_sentence(docstring) == sentence


DOCUMENTED = 'def f(a):\n    """Add one to a.\n\n    It returns the sum.\n    """\n    b = a + 1\n    return b'


def test_docstring_tasks_by_hand():
    pieces = DOCUMENTED.split("\n")
    docstring = {
        (m[0].split("\n\n", 1)[1], a[0])
        for m, a in (edit_tasks.write_docstring(DOCUMENTED, random.Random(s), POOL) for s in range(9))
    }
    bare = "\n".join(pieces[:1] + pieces[5:])
    assert docstring == {(bare, "\n".join(pieces[:5])), (bare, '"""Add one to a.\n\nIt returns the sum.\n"""')}
    function = {
        (m[0].split("\n\n", 1)[1], a[0])
        for m, a in (edit_tasks.write_function(DOCUMENTED, random.Random(s), POOL) for s in range(9))
    }
    head = "\n".join(pieces[:5])
    assert function == {(head, "\n".join(pieces[5:])), (head, DOCUMENTED)}
    summary = {a[0] for _, a in (edit_tasks.summarise_docstring(DOCUMENTED, random.Random(s), POOL) for s in range(9))}
    assert summary == {"Add one to a.", 'def f(a):\n    """Add one to a."""'}


def test_fix_bug_by_hand():
    text = "def f(a):\n    return a < 1"
    wrong = {made("fix-bug", text, seed).before for seed in range(40)}
    assert wrong == {f"def f(a):\n    return a {op} 1" for op in ("<=", ">")} | {
        f"def f(a):\n    return a < {n}" for n in (0, 2)
    }
    assert made("fix-bug", "def f():\n    pass") is None


def test_pieces_of_a_module():
    module = Module(
        "m",
        "import a\nfrom b import c, d\nimport e as f\n\nimport lonely\n\n\ndef one():\n    return 1 + 2 + 3\n\n\n\ndef two(x):\n"
        "    def inner():\n        return x\n    return inner, x, x\n\n# why\ndef three():\n    return 'some more text here'\n\nX = 3\n\n"
        + "class C:\n"
        + "\n".join(f"    def m{i}(self):\n        return {i}, 'some more text here'\n" for i in range(5)),
    )
    assert [s.text for s in edit_tasks.import_blocks(module)] == ["import a\nfrom b import c, d\nimport e as f"]
    runs = [re.findall(r"^def (\w+)", s.text, re.MULTILINE) for s in edit_tasks.function_runs(module)]
    assert runs == [["one", "two"], ["m0", "m1", "m2", "m3"]]


# --- Properties over held-out text -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EDITS)
def test_both_sides_of_an_edit_compile_and_its_part_holds_the_change(name):
    assert len(edits(name)) == 60
    for edit in edits(name):
        compile(edit.before, "before", "exec")
        compile(edit.after, "after", "exec")
        old, new = edit.before.split("\n"), edit.after.split("\n")
        if edit.part is None:  # lines went, none came
            assert name == "remove-parameter" and not set(new) - set(old)
            continue
        part = edit.part[1].split("\n")
        assert set(new) - set(old) <= set(part) <= set(new)


def test_changed_defaults_are_the_only_change():
    counts = set()
    for edit in edits("change-default"):
        names = quoted(edit)
        if edit.instruction.startswith(("Change the default of", "Let")):
            names = [names[1], names[0], names[2]]
        elif edit.instruction[0] == "`":
            names = [names[0], names[2], names[1]]
        tree = ast.parse(edit.before)
        (node,) = functions(tree, names[0])
        a = node.args
        positional = [p.arg for p in a.posonlyargs + a.args]
        for parameter, value in zip(names[1::2], names[2::2], strict=False):
            if parameter in positional:
                a.defaults[positional.index(parameter) - len(positional)] = expression(value)
            else:
                a.kw_defaults[[p.arg for p in a.kwonlyargs].index(parameter)] = expression(value)
        counts.add(len(names))
        assert dump(tree) == dump(edit.after)
    assert counts == {3, 5}


def test_changed_literals_are_the_only_tokens_that_differ():
    counts = set()
    for edit in edits("change-literal"):
        names = quoted(edit)
        first, second = names[::2], names[1::2]
        new = dict(
            zip(second, first, strict=False) if edit.instruction.startswith("Use") else zip(first, second, strict=False)
        )
        before = tokens(edit.before)
        assert set(new) <= set(before)
        assert [new.get(t, t) for t in before] == tokens(edit.after)
        counts.add(len(new))
    assert counts == {1, 2}


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


def test_removed_parameter_is_the_value_wherever_it_was_used():
    for edit in edits("remove-parameter"):
        names = quoted(edit)
        name, function, value = (names[1], names[0], names[2]) if edit.instruction[0] == "`" else names
        tree = ast.parse(edit.before)
        (node,) = functions(tree, function)
        a = node.args
        place = [p.arg for p in a.args].index(name)
        method = a.args[0].arg in ("self", "cls")
        from_end = place - len(a.args)
        if -from_end <= len(a.defaults):
            del a.defaults[from_end]
        del a.args[place]
        Swap(
            lambda n, name=name, value=value: expression(value) if isinstance(n, ast.Name) and n.id == name else None
        ).visit(node)
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
            called = getattr(call.func, "id", getattr(call.func, "attr", None))
            if called == function:
                call.keywords = [k for k in call.keywords if k.arg != name]
                at = place - (isinstance(call.func, ast.Attribute) and method)
                del call.args[at : at + 1]
        assert dump(tree) == dump(edit.after)


def test_fstrings_format_as_the_percent_signs_did():
    for edit in edits("percent-to-fstring"):
        before, after = ast.parse(edit.before), ast.parse(edit.after)
        olds = [
            n
            for n in ast.walk(before)
            if isinstance(n, ast.BinOp)
            and isinstance(n.op, ast.Mod)
            and isinstance(n.left, ast.Constant)
            and isinstance(n.left.value, str)
        ]
        known = {dump(n) for n in ast.walk(before) if isinstance(n, ast.JoinedStr)}
        news = [
            n
            for n in ast.walk(after)
            if isinstance(n, ast.JoinedStr)
            and n.values
            and dump(n) not in known
            and not all(isinstance(v, ast.Constant) for v in n.values)
        ]
        assert olds and len(olds) == len(news)
        for old, new in zip(olds, news, strict=False):
            operands = old.right.elts if isinstance(old.right, ast.Tuple) else [old.right]
            fields = [v for v in new.values if isinstance(v, ast.FormattedValue)]
            assert [dump(o) for o in operands] == [dump(v.value) for v in fields]
            for i, field in enumerate(fields):
                field.value = ast.Constant(10**i)
            text = eval(compile(ast.fix_missing_locations(ast.Expression(new)), "new", "eval"))
            assert text == old.left.value % tuple(10**i for i in range(len(fields)))


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


def test_swapping_the_branches_back_gives_the_code_before():
    opposite = {ast.Eq: ast.NotEq, ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.Is: ast.IsNot, ast.In: ast.NotIn}
    opposite |= {b: a for a, b in opposite.items()}
    for edit in edits("invert-condition"):
        source = re.search(r"`(.*)`", edit.instruction)[1]
        condition = dump(expression(f"({source})"))
        tree = ast.parse(edit.before)
        (node,) = (n for n in ast.walk(tree) if isinstance(n, ast.If) and dump(n.test) == condition)
        node.body, node.orelse = node.orelse, node.body
        if isinstance(node.test, ast.Compare) and len(node.test.ops) == 1:
            node.test.ops = [opposite[type(node.test.ops[0])]()]
        elif isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not):
            node.test = node.test.operand
        else:
            node.test = ast.UnaryOp(ast.Not(), node.test)
        assert dump(tree) == dump(edit.after)


def test_a_bug_is_one_token():
    kinds = set()
    for edit in edits("fix-bug"):
        wrong, right = (
            [" ".join(t.split()) for t in tokens(re.sub(r"\b(is|not)\s+(not|in)\b", r"\1_\2", text))]
            for text in (edit.before, edit.after)
        )
        assert len(wrong) == len(right) and sum(a != b for a, b in zip(wrong, right, strict=False)) == 1
        assert dump(edit.before) != dump(edit.after)
        kinds |= set(re.findall("comparison|operator|number|name", edit.instruction))
    assert kinds == {"comparison", "operator", "number", "name"}


def test_sorted_imports_import_the_same_in_order_of_module():
    for prompt in made_tasks.prompts("sort-imports", 60):
        asks, given = prompt.turns[0].split("\n\n", 1)
        lines = prompt.reference.split("\n")
        assert sorted(lines) == sorted(given.split("\n")) and lines != given.split("\n")
        modules = [
            "." * n.level + (n.module or "") if isinstance(n, ast.ImportFrom) else n.names[0].name
            for n in ast.parse(prompt.reference).body
        ]
        plain = [isinstance(n, ast.Import) for n in ast.parse(prompt.reference).body]
        if asks == "Sort the import lines alphabetically.":
            assert lines == sorted(lines)
        elif "before `from`" in asks:
            first = sum(plain)
            assert plain == sorted(plain, reverse=True)
            assert all(m == sorted(m, key=str.lower) for m in (modules[:first], modules[first:]))
        else:
            assert modules == sorted(modules, key=str.lower)


def test_reordered_functions_are_the_same_in_the_order_asked_for():
    for prompt in made_tasks.prompts("reorder-functions", 60):
        asks, given = prompt.turns[0].split("\n\n", 1)
        before, after = ({n.name: dump(n) for n in ast.parse(t).body} for t in (given, prompt.reference))
        assert before == after and list(before) != list(after)
        assert list(after) == (re.findall(r"`(\w+)`", asks) or sorted(after))


def test_docstrings_and_bodies_are_the_real_ones():
    texts = {m.name: m.text for m in stdlib_modules("heldout")}
    for task in ("write-docstring", "write-function"):
        for prompt in made_tasks.prompts(task, 40):
            real = {re.sub(r"\s+", " ", line.strip()) for line in texts[prompt.meta["module"]].split("\n")}
            assert all(re.sub(r"\s+", " ", line.strip()) in real for line in prompt.reference.split("\n"))
            compile(
                re.sub(r"^(?= )", "if True:\n", prompt.reference, count=1).replace("return", "0,"),
                "answer",
                "exec",
                1024,
            )


def test_summaries_are_the_beginning_of_the_docstring():
    for prompt in made_tasks.prompts("summarise-docstring", 60):
        node = ast.parse(prompt.turns[0].split("\n\n", 1)[1]).body[0]
        whole = " ".join(ast.get_docstring(node).split())
        short = prompt.reference
        if short.startswith(("def ", "async def ")):
            short = ast.get_docstring(ast.parse(short).body[0])
        assert whole.startswith(short) and short.endswith(".") and short != whole


def test_second_edit_is_another_one_of_the_first_answer():
    for prompt in made_tasks.prompts("two-turn-edit", 60):
        first, second = prompt.meta["answers"]
        compile(first, "first", "exec")
        assert prompt.turns[1].startswith("Now ") and first != second
        if "only" not in prompt.turns[1]:
            assert "\n" not in prompt.turns[1] and "\n" in first


# --- Registration, training and the measure -----------------------------------------------------------------------


@pytest.mark.parametrize("task", list(edit_tasks.TASKS))
def test_held_out_text_gives_a_hundred_prompts_that_vary_in_wording(task):
    prompts = made_tasks.prompts(task, 100)
    assert len({p.turns[0] for p in prompts}) == 100
    assert all(len(p.reference) > 0 and p.text.isascii() for p in prompts)


def test_training_shares_cover_each_task():
    shares = training_rows.TASK_SHARES
    assert set(shares) == set(made_tasks.MAKERS) and sum(shares.values()) == pytest.approx(1)
    assert sum(shares[t] for t in edit_tasks.TASKS) == pytest.approx(0.55)


def copied_share(before: str, answer: str, run: int = 4) -> float:
    """Share of the answer's words, marks and indented line breaks in runs that occur before it, longest first."""
    given, said = (re.findall(r"\w+|[^\w\s]|\n *", text) for text in (before, answer))
    text, copied, at = "\0".join(["", *given, ""]), 0, 0
    while at < len(said):
        length = 0
        while at + length < len(said) and "\0".join(["", *said[at : at + length + 1], ""]) in text:
            length += 1
        copied += length if length >= run else 0
        at += length if length >= run else 1
    return copied / len(said)


def test_several_tasks_copy_a_third_to_four_fifths_of_their_answers():
    shares = {}
    for task in made_tasks.MAKERS:
        prompts = made_tasks.prompts(task, 30)
        for prompt in prompts:
            *earlier, answer = prompt.meta["answers"]
            before = "\n".join(text for pair in zip(prompt.turns, [*earlier, ""], strict=True) for text in pair)
            shares[task] = shares.get(task, 0) + copied_share(before, answer) / len(prompts)
    assert sum(0.3 <= share <= 0.8 for share in shares.values()) >= 6
    assert min(shares[t] for t in ("rename", "remove-docstring", "quote-lines", "reorder-functions")) > 0.9
