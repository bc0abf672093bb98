"""Which package imports which: one way through the layers, and nothing of the extras in what a user imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from specdec_lib import paths

#: What only the book, a dense index or a cluster needs, and which takes a second and more to import.
EXTRAS = {
    "pandas", "matplotlib", "papermill", "nbformat", "nbclient", "jupyter_client", "jupyter_book", "IPython",
    "sphinx", "faiss", "ray",
}  # fmt: skip
PUBLIC = (
    "specdec_lib", "specdec_lib.drafters", "specdec_lib.datastores", "specdec_lib.heads.acceptance",
    "specdec_lib.heads.induction", "specdec_lib.heads.training", "specdec_lib.models.loading",
    "specdec_lib.models.embedding", "specdec_lib.decoding.generate", "specdec_lib.decoding.transformers_generate",
)  # fmt: skip


@pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
def test_imports_go_one_way_and_chapters_stand_alone(monkeypatch, capsys):
    from importlinter.cli import lint_imports

    monkeypatch.chdir(paths.ROOT)
    assert lint_imports(no_cache=True, no_logo=True) == 0, capsys.readouterr().out


def test_what_a_user_imports_loads_nothing_of_the_extras():
    program = (
        f"import sys\nfrom importlib import import_module\nfor name in {PUBLIC!r}: import_module(name)\n"
        f"print(*sorted({EXTRAS!r} & set(sys.modules)))"
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


def test_a_drafter_is_imported_without_the_others_and_their_stores():
    program = (
        "import sys\nfrom specdec_lib.drafters import PromptLookup\n"
        "print(*(name for name in sys.modules if name.partition('.')[0] in ('specdec_lib', 'faiss', 'numba')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=paths.PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    loaded = done.stdout.split()
    assert "specdec_lib.drafters.prompt_lookup" in loaded and len(loaded) <= 20
    assert not [name for name in loaded if name.startswith(("faiss", "numba", "specdec_lib.datastores"))]
