"""The notebooks: sound as they lie there, and right when run with the smallest parameters."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import nbformat
import pytest

from specdec_lib import paths
from specdec_lib.report import numbers
from specdec_lib.report.build import check, runner
from tests.report.notebook_identities import IDENTITIES

ROOT = paths.ROOT or Path()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
IMAGES = {"image/svg+xml", "image/png"}


@each_notebook
def test_the_source_is_sound(notebook):
    assert check.check_notebook(notebook) == []


def test_the_profiles_name_only_what_the_notebooks_declare():
    assert check.check_profiles(ROOT / "notebooks") == []


def test_pages_and_notebooks_are_all_listed_and_labels_unique():
    assert check.check_pages(ROOT) == []


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Of executed copies: the book just made (``make test-notebooks``), or one for runs with the smoke profile."""
    return Path(os.environ.get("SPECDEC_EXECUTED") or tmp_path_factory.mktemp("executed"))


@pytest.fixture(scope="session")
def executed(folder):
    """The executed copy of a notebook, run once a session where there is none."""
    if "SPECDEC_EXECUTED" in os.environ:
        return lambda notebook: nbformat.read(folder / notebook.name, as_version=4)

    @functools.cache
    def run(name: str) -> list:
        return runner.run("smoke", only=[name], output=folder, kept=folder / "failed")

    def get(notebook: Path) -> nbformat.NotebookNode:
        for failure in run(notebook.stem):
            pytest.fail(failure.message, pytrace=False)
        return nbformat.read(str(folder / notebook.name), as_version=4)

    return get


@pytest.mark.notebooks
@each_notebook
def test_it_runs_and_its_page_is_clean(notebook, executed):
    content = executed(notebook)
    outputs = [(cell, output) for cell in content.cells for output in cell.get("outputs", [])]
    assert not [output.text for _, output in outputs if output.output_type == "stream" and output.name == "stderr"]
    for cell, output in outputs:
        data = output.get("data", {})
        assert "np." not in str(data.get("text/markdown", ""))
        if IMAGES & set(data):
            assert cell.metadata.get("mystnb", {}).get("figure"), f"a figure without a caption: {cell.source[:80]!r}"


@pytest.mark.notebooks
@each_notebook
def test_its_numbers_hold_what_must_hold(notebook, executed, folder):
    executed(notebook)
    values: dict = {}
    for path in (folder / "files" / notebook.stem).glob("[0-9A-Z][0-9].csv"):
        saved = numbers.read(path)
        values |= {key: each.words if each.value is None else each.value for key, each in saved.items()}
    assert values, "the notebook saves no number, so nothing can be checked"
    identities = IDENTITIES.get(notebook.stem[:2])
    assert identities, f"tests/report/notebook_identities.py says nothing about {notebook.stem}"
    values["of"] = lambda start: [value for key, value in values.items() if key.startswith(start)]
    assert [identity for identity in identities if not eval(identity, {}, values)] == []
