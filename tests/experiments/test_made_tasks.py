"""Mechanical tasks: the answers against independent ways of finding them, and the split of the text."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
from pathlib import Path

import pytest

from specdec_lib.experiments import corpus, made_tasks

CHAT = [t for t in made_tasks.TASKS if t != "code-completion"]


def asked(prompt, pattern):
    return re.match(pattern, prompt.turns[0]).groups()


def body(prompt):
    return prompt.turns[0].split("\n\n", 1)[1]


@pytest.mark.parametrize("task", list(made_tasks.TASKS))
def test_same_seed_same_prompts_and_another_seed_others(task):
    first, again, other = (made_tasks.prompts(task, 8, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert len({p.id for p in first}) == 8 and all(p.task == task for p in first)


def test_prompts_do_not_depend_on_the_builtins_of_the_interpreter(monkeypatch, tmp_path):
    """A notebook's kernel has other builtins than plain Python, and each version of Python has its own."""
    made_tasks.prompts("rename", 1)  # what is kept of it in the cache is no help to the other module
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    for name in ("display", "get_ipython", "value", "name"):
        monkeypatch.setattr(builtins, name, print, raising=False)
    monkeypatch.delattr(builtins, "exit", raising=False)
    spec = importlib.util.spec_from_file_location("specdec_lib.experiments._elsewhere", made_tasks.__file__)
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    for task in ("rename", "two-turn", "replace-word"):
        assert elsewhere.prompts(task, 20) == made_tasks.prompts(task, 20)
    snippet = corpus.Snippet("module", "display exit value print sorted self for ExceptionGroup __name__")
    assert elsewhere.name_pool([snippet]) == made_tasks.name_pool([snippet]) == ["display", "exit", "value"]


@pytest.mark.parametrize("task", CHAT)
def test_prompts_come_from_the_side_asked_for(task):
    for split in corpus.SPLITS:
        for prompt in made_tasks.prompts(task, 5, split=split):
            key = corpus.split_key(Path(prompt.meta["module"].replace(".", "/") + ".py"))
            assert corpus.side(key) == split


def test_no_module_is_on_both_sides():
    train, heldout = ({m.name for m in corpus.stdlib_modules(s)} for s in corpus.SPLITS)
    assert train and heldout and not train & heldout


@pytest.mark.parametrize("name, other", [("json", "test.test_json"), ("test.test_email.test_parser", "email.parser")])
def test_a_package_and_its_tests_are_on_one_side(name, other):
    keys = [corpus.split_key(Path(n.replace(".", "/") + ".py")) for n in (name, other)]
    assert keys[0] == keys[1]


def test_rename_changes_each_word_and_nothing_else():
    for prompt in made_tasks.prompts("rename", 20):
        old, new = asked(prompt, r"Rename `(\w+)` to `(\w+)`")
        words = [new if w == old else w for w in re.split(r"(\W)", body(prompt))]
        assert prompt.reference == "".join(words)
        assert prompt.reference != body(prompt)


def test_removed_docstring_leaves_the_same_program():
    for prompt in made_tasks.prompts("remove-docstring", 20):
        before, after = ast.parse(body(prompt)), ast.parse(prompt.reference)
        assert ast.get_docstring(before.body[0]) is not None
        before.body[0].body = before.body[0].body[1:]
        assert ast.dump(before) == ast.dump(after)


def test_quoted_lines_are_those_with_the_word():
    for prompt in made_tasks.prompts("quote-lines", 20):
        (word,) = asked(prompt, r"Quote the lines with `(\w+)`")
        kept = [s for s in body(prompt).split("\n") if word in re.split(r"\W", s)]
        assert prompt.reference.split("\n") == kept and len(kept) >= 2


def test_replaced_word_is_gone_and_the_length_of_the_text_stays():
    for prompt in made_tasks.prompts("replace-word", 20):
        old, new = asked(prompt, r"Replace `(\w+)` by `(\w+)`")
        assert old not in re.split(r"\W", prompt.reference)
        assert prompt.reference == " ".join(re.sub(rf"\b{old}\b", new, w) for w in body(prompt).split(" "))


def test_outline_lists_the_definitions_that_python_sees():
    for prompt in made_tasks.prompts("outline", 20):
        code = body(prompt)
        if code.startswith(" "):  # a method with a string that reaches the margin keeps its indentation
            code = f"if True:\n{code}"
        names = [
            n.name
            for n in ast.walk(ast.parse(code))
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        ]
        listed = re.findall(r"(?:def|class) (\w+)", prompt.reference)
        # Text in a docstring may look like a definition; what Python sees must be there.
        assert not set(names) - set(listed)


def test_completion_is_the_rest_after_the_quoted_line():
    for prompt in made_tasks.prompts("complete", 20):
        (line,) = asked(prompt, r"Continue from the line `(.*)`\.")
        head = body(prompt)[: -len(prompt.reference)]
        assert body(prompt).endswith(prompt.reference) and head.rstrip("\n").split("\n")[-1].strip() == line


def test_second_turn_builds_on_the_first_answer():
    for prompt in made_tasks.prompts("two-turn", 20):
        first, second = prompt.meta["answers"]
        old, new = re.search(r"rename `(\w+)` to `(\w+)`", prompt.turns[1]).groups()
        assert second == prompt.reference
        assert [new if t == old else t for t in re.split(r"(\W)", first)] == re.split(r"(\W)", second)


@pytest.mark.parametrize("task", list(made_tasks.TASKS))
def test_no_two_prompts_are_made_from_one_piece_of_text(task):
    pieces = [p.text[:160] if not p.chat else body(p) for p in made_tasks.prompts(task, 120)]
    assert len(set(pieces)) == len(pieces)


def test_completion_prompts_are_followed_by_their_reference_in_the_module():
    texts = {m.name: m.text for m in corpus.stdlib_modules("heldout")}
    for prompt in made_tasks.prompts("code-completion", 8):
        assert prompt.text + prompt.reference in texts[prompt.meta["module"]]
        assert prompt.text.endswith("\n") and not prompt.chat


@pytest.mark.parametrize(
    "task, n, split, message",
    [
        ("renam", 3, "heldout", "renam"),
        ("rename", -1, "heldout", "-1"),
        ("rename", 3, "test", "test"),
        ("rename", 10**6, "heldout", "only"),
        ("code-completion", 10**6, "heldout", "only"),
    ],
)
def test_bad_requests_are_named(task, n, split, message):
    with pytest.raises(ValueError, match=message):
        made_tasks.prompts(task, n, split=split)
