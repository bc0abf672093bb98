"""The static checks find the faults they name, and none in a sound notebook."""

import json
import re

import pytest

from specdec_lib.report.build import check
from tests.report.notebook_factory import write_notebook


def spoil(path, change):
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(check.canonical(content), encoding="utf-8")


@pytest.mark.parametrize(("change", "told"), [
    (lambda nb: nb["cells"][1].update(execution_count=1), "outputs"),
    (lambda nb: nb["cells"][4].update(source="# Second"), "headings of the first level"),
    (lambda nb: nb["cells"][2]["metadata"].clear(), "tagged 'parameters'"),
    (lambda nb: nb["cells"][2].update(source='profile: str = "default"'), "no comment"),
    (lambda nb: nb["cells"][2].update(source="alpha: float = 1.0  # a"), "profile: str"),
    (lambda nb: nb["cells"][3].update(source="1"), "check_parameters"),
    (lambda nb: nb["cells"][5].update(source="x = 1\n" * 15), "15 lines"),
    (lambda nb: nb["cells"][5].update(source='open("/home/me/x")'), "absolute path"),
    (lambda nb: nb["cells"][5].update(source="def"), "not Python"),
    (lambda nb: nb["cells"][5]["metadata"].update(mystnb={"figure": {"caption": "c"}}), "fig-"),
    (lambda nb: nb["cells"][5]["metadata"].update(mystnb={"figure": {"name": "fig-a"}}), "alt text"),
    (lambda nb: nb["cells"][5]["metadata"].update(tags=["hide-cell"]), "say what it holds"),
    (lambda nb: nb["metadata"]["kernelspec"].update(name="julia"), "python3"),
    (lambda nb: nb.update(nbformat_minor=4), "valid|4.5"),
])  # fmt: skip
def test_each_fault_is_found_and_named(tmp_path, change, told):
    path = write_notebook(tmp_path)
    spoil(path, change)
    faults = check.check_notebook(path)
    assert any(any(part in fault for part in told.split("|")) for fault in faults), faults


def test_a_sound_notebook_has_no_fault_and_its_parameters_cell_a_line_for_each_parameter(tmp_path):
    path = write_notebook(tmp_path)
    assert check.check_notebook(path) == []
    many = "".join(f"number_{i}: int = {i}  # one of many\n" for i in range(20))
    spoil(path, lambda nb: nb["cells"][2].update(source=f'profile: str = "default"  # named on the page\n{many}'))
    assert check.check_notebook(path) == []

    path.write_text(json.dumps(json.loads(path.read_text())), encoding="utf-8")
    assert any("canonically" in fault for fault in check.check_notebook(path))


def test_a_sound_book_has_no_fault_and_pages_and_claims_that_cannot_be_read_are_found(tmp_path):
    toc = "format: jb-book\nroot: intro\nparts:\n- chapters:\n  - file: notebooks/01_small\n"
    write_notebook(tmp_path / "notebooks")
    (tmp_path / "book" / "notebooks").mkdir(parents=True)
    path = tmp_path / "data" / "claims.yml"
    path.parent.mkdir()
    for file, text in (
        (tmp_path / "book" / "intro.md", "# Title\n"),
        (tmp_path / "book" / "_toc.yml", toc),
        (path, "[]\n"),
    ):
        file.write_text(text)
    assert check.check_all(tmp_path) == []
    for text, told in (
        ("- id: a\n  paper: rest\n    note: too deep\n", "claims.yml: mapping values are not allowed here"),
        ("id: a\n", "claims.yml: .*expected a list of claims"),
        ("- a\n", "claims.yml: .*expected a list of claims"),
        ("- id: a\n", "claims.yml: "),
    ):
        path.write_text(text)
        (fault,) = check.check_all(tmp_path)
        assert re.match(told, fault)
    path.unlink()
    assert any("claims.yml" in fault for fault in check.check_all(tmp_path))
    (tmp_path / "book" / "intro.md").unlink()
    write_notebook(tmp_path / "notebooks", name="02_other")
    faults = check.check_pages(tmp_path)
    assert any("'intro'" in fault for fault in faults) and any("02_other" in fault for fault in faults)
