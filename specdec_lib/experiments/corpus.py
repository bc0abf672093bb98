"""Text that every reader already has: the Python standard library, split once and for all by a hash.

Training, datastores and prompts must never share a module. The side a module falls on is a function of its
name alone, so it is the same on every machine and for every Python version; a package and its tests
(``json``, ``test.test_json``) always fall on the same side.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import re
import sysconfig
import textwrap
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

#: Share of modules that neither training nor a datastore may see, in percent.
HELDOUT_PERCENT = 10
SPLITS = ("train", "heldout")
_SKIPPED = {"site-packages", "dist-packages", "__pycache__", "lib2to3", "bad_coding", "encodings", "test_lib2to3"}


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name and its text."""

    name: str
    text: str


@dataclass(frozen=True)
class Snippet:
    """One function or class, dedented, and the module it comes from."""

    module: str
    text: str


def split_key(relative_path: Path) -> str:
    """The name that decides a file's side: its top-level package, without ``test`` and ``test_``."""
    parts = list(relative_path.with_suffix("").parts)
    while len(parts) > 1 and parts[0] in ("test", "tests"):
        parts = parts[1:]
    return parts[0].removeprefix("test_").strip("_")


def side(key: str) -> str:
    """``"heldout"`` for the names whose hash falls in the first :data:`HELDOUT_PERCENT` of 100 buckets."""
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 100
    return "heldout" if bucket < HELDOUT_PERCENT else "train"


@lru_cache(maxsize=2)
def stdlib_modules(split: str) -> tuple[Module, ...]:
    """Every readable standard-library source file of one side, in order of name.

    Parameters
    ----------
    split : {"train", "heldout"}

    Raises
    ------
    ValueError
        If ``split`` is neither.
    FileNotFoundError
        If this Python has no standard-library sources (some minimal installations strip them).
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED.intersection(relative.parts) or side(split_key(relative)) != split:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if len(text) > 200:
            modules.append(Module(".".join(relative.with_suffix("").parts), text))
    if not modules:
        raise FileNotFoundError(
            f"no Python sources under {root}: this Python was installed without the text of "
            "its standard library; use one that has it (python.org, conda or a distribution)"
        )
    return tuple(modules)


@dataclass(frozen=True)
class _Block:
    """A module, a class or a function: its first and last line, None of a module, and its docstring."""

    lines: tuple[int, int] | None
    docstring: str


@contextmanager
def _without_collection() -> Iterator[None]:
    """Syntax trees hold no cycles, and a collection that their many nodes set off goes over all that is loaded."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


@cache
def _blocks(module: Module) -> tuple[_Block, ...]:
    """The blocks of a module, outer ones first; none where this Python cannot parse it."""
    found, defined = [], (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    with _without_collection():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                waiting = deque([ast.parse(module.text)])
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ()
        while waiting:
            node = waiting.popleft()
            if isinstance(node, (ast.Module, *defined)):
                lines = (node.lineno, node.end_lineno) if isinstance(node, defined) else None
                found.append(_Block(lines, ast.get_docstring(node) or ""))
            # Only statements hold definitions, and these are the fields of statements.
            for name in node._fields:
                inner = getattr(node, name) if name in ("body", "handlers", "orelse", "finalbody", "cases") else None
                if isinstance(inner, list):
                    waiting.extend(inner)
    return tuple(found)


def definitions(module: Module, min_chars: int, max_chars: int) -> Iterator[Snippet]:
    """Functions and classes of a module whose text length lies in ``[min_chars, max_chars]``.

    Nested definitions are given too; a file that this Python cannot parse gives none.
    """
    lines = module.text.splitlines()
    for block in _blocks(module):
        if block.lines is not None:
            first, last = block.lines
            text = textwrap.dedent("\n".join(lines[first - 1 : last])).rstrip()
            if min_chars <= len(text) <= max_chars and text.isascii() and "\t" not in text:
                yield Snippet(module.name, text)


_PARAGRAPH = re.compile(r"[A-Z][^\n]*(?:\n[^\n]+)*")


def paragraphs(module: Module, min_chars: int, max_chars: int) -> Iterator[Snippet]:
    """Paragraphs of prose in a module's docstrings, line breaks undone, of ``min_chars`` to ``max_chars``."""
    for holder in _blocks(module):
        for block in holder.docstring.split("\n\n"):
            text = " ".join(block.split())
            letters = sum(c.isalpha() or c == " " for c in text)
            if (
                min_chars <= len(text) <= max_chars
                and text.isascii()
                and _PARAGRAPH.match(text)
                and letters > 0.85 * len(text)
                and ">>>" not in text
            ):
                yield Snippet(module.name, text)
