"""What the README shows runs as it stands, and its numbers are those of the committed tables."""

import re

import pytest

from specdec_lib import paths
from specdec_lib.report import numbers
from specdec_lib.report.build import readme
from specdec_lib.report.numbers import Number, NumberError

pytestmark = pytest.mark.skipif(
    paths.ROOT is None, reason="the README is in the repository, not in an installed package"
)


@pytest.mark.parametrize("model", ["pocket", pytest.param("smollm2", marks=pytest.mark.realmodel)])
def test_python_of_the_readme_runs_in_order(model, capsys):
    text = (paths.root() / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text.replace('"smollm2"', f'"{model}"'), re.DOTALL)
    assert len(blocks) == 2
    scope: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    assert re.search(r"prompt lookup: \d+\.\d s, \d+\.\d tokens per pass", capsys.readouterr().out)
    # `custom_generate` through transformers gives what generate() gives.
    new = scope["out"][0, len(scope["prompt"]) :].tolist()
    assert new == scope["plain"].tokens[: len(new)]


def test_a_marked_number_is_renewed_and_nothing_else():
    tables = {"04": {"a": Number(1.25, 1.0, 1.5), "n": Number(1234)}}
    text = "One 1.2 and <!--04/a:.1f-->9<!----> of <!--04/n:,d--><!----> or <!--04/n-->x<!---->."
    new = "One 1.2 and <!--04/a:.1f-->1.2 (1.0\u2060–\u20601.5)<!----> of <!--04/n:,d-->1,234<!----> or <!--04/n-->1234<!---->."
    assert readme.renewed(text, tables) == readme.renewed(new, tables) == new
    with pytest.raises(NumberError, match="04/b"):
        readme.renewed("<!--04/b-->1<!---->", tables)


def test_the_readme_and_its_figure_are_those_of_the_committed_tables():
    text = (paths.root() / "README.md").read_text(encoding="utf-8")
    assert len(readme._NUMBER.findall(text)) >= 6
    assert readme.renew(paths.root()) == [], "make readme"
    drawing = (numbers.COMMITTED / "what-reproduces.svg").read_text(encoding="utf-8")
    assert "data/results/cpu/what-reproduces.svg" in text and len(drawing) < 100_000
    # Without a ground of its own it is read on a dark page as on a light one.
    assert "fill: #ffffff" not in drawing
