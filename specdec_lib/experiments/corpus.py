"""Text that every reader already has: the sources of the Python standard library."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_SKIPPED = {"site-packages", "dist-packages", "__pycache__", "lib2to3", "bad_coding", "encodings", "test_lib2to3"}


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name and its text."""

    name: str
    text: str


@cache
def stdlib_modules() -> tuple[Module, ...]:
    """Every readable source file of the standard library, in order of name; FileNotFoundError if this Python has none."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED.intersection(relative.parts):
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
