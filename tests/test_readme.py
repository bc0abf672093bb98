"""What the README shows runs as it stands."""
from __future__ import annotations

import re

import pytest

from specdec_lib import paths

pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="the README is in the repository, not in an installed package")


def test_python_of_the_readme_runs_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (paths.root() / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    scope: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    assert "tokens per forward pass" in capsys.readouterr().out
    # `custom_generate` through transformers gives what generate() gives.
    new = scope["out"][0, len(scope["prompt"]):].tolist()
    assert new == scope["plain"].tokens[: len(new)]


def test_make_targets_of_the_readme_exist():
    makefile = (paths.root() / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake ([a-z-]+)", (paths.root() / "README.md").read_text(encoding="utf-8")))
    assert named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
