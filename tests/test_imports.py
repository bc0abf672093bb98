"""Which package imports which: one way through the layers, and nothing of the extra ``book`` in what a user imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import specdec_lib
from specdec_lib import paths

#: What only the book needs, and which takes a second and more to import.
BOOK = {
    "pandas",
    "matplotlib",
    "papermill",
    "nbformat",
    "nbclient",
    "jupyter_client",
    "jupyter_book",
    "IPython",
    "sphinx",
}
PUBLIC = (
    "specdec_lib",
    "specdec_lib.drafters",
    "specdec_lib.datastores",
    "specdec_lib.heads.acceptance",
    "specdec_lib.heads.induction",
    "specdec_lib.heads.training",
    "specdec_lib.models.loading",
    "specdec_lib.models.embedding",
    "specdec_lib.decoding.generate",
    "specdec_lib.decoding.transformers_generate",
)


@pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
def test_imports_go_one_way_and_chapters_stand_alone(monkeypatch, capsys):
    from importlinter.cli import lint_imports

    monkeypatch.chdir(paths.ROOT)
    assert lint_imports(no_cache=True, no_logo=True) == 0, capsys.readouterr().out


def test_what_a_user_imports_loads_nothing_of_the_book():
    program = (
        f"import sys\nfrom importlib import import_module\nfor name in {PUBLIC!r}: import_module(name)\n"
        f"print(*sorted({BOOK!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=paths.PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.split() == []


def test_every_public_name_is_found_where_type_checkers_are_told_it_is():
    """The names that are imported on first use are those of the imports that only type checkers read."""
    tree = ast.parse(Path(specdec_lib.__file__).read_text(encoding="utf-8"))
    told = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("specdec_lib.")
        for alias in node.names
    }
    assert told == {name: f"specdec_lib.{home}" for name, home in specdec_lib._HOMES.items()}
    for name, module in told.items():
        assert getattr(specdec_lib, name) is getattr(import_module(module), name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        specdec_lib.nothing  # noqa: B018
