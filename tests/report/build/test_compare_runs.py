"""Two runs beside each other: what differs, and what of it is a time."""

from __future__ import annotations

import ast

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from specdec_lib import paths
from specdec_lib.__main__ import main
from specdec_lib.report.build import compare_runs, runner
from specdec_lib.report.display import record


def executed(folder, values, tables=None, name="01_speculative_decoding"):
    """An executed notebook that recorded ``values``, with CSV files beside it."""
    outputs = [
        new_output(
            "display_data",
            data={record._PREFIX + "text/plain": repr(value)},
            metadata={"scrapbook": {"name": key, "mime_prefix": record._PREFIX}},
        )
        for key, value in values.items()
    ]
    (folder / "files" / name).mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=[new_code_cell("", outputs=outputs)]), folder / f"{name}.ipynb")
    for table, text in (tables or {}).items():
        (folder / "files" / name / f"{table}.csv").write_text(text, encoding="utf-8")
    return folder


def both(tmp_path, first, second):
    return executed(tmp_path / "a", *first), executed(tmp_path / "b", *second)


def test_two_equal_runs_have_no_difference(tmp_path, capsys):
    one = ({"tokens": 3, "t_target_ms": 1.5}, {"tab-x": "task,rate\ncode,1.5\n"})
    a, b = both(tmp_path, one, one)
    assert compare_runs.compare(a, b) == []
    assert main(["compare", str(a), str(b)]) == 0
    assert "everything that is no time is the same" in capsys.readouterr().out


def test_a_time_may_differ_and_nothing_else(tmp_path, capsys):
    first, second = ({"tokens": 3, "t_target_ms": ms, "cost_ratio": ratio} for ms, ratio in ((1.5, 0.2), (1.6, 0.3)))
    a, b = both(tmp_path, (first,), (second,))
    assert {one.name: one.timed for one in compare_runs.compare(a, b)} == {"t_target_ms": True, "cost_ratio": True}
    assert main(["compare", str(a), str(b)]) == 0
    assert "2 times differ" in capsys.readouterr().out
    executed(b, {"tokens": 4, "t_target_ms": 1.5})
    assert main(["compare", str(a), str(b)]) == 1
    out = capsys.readouterr().out
    assert "tokens: 3 | 4" in out and "cost_ratio" in out


def test_values_notebooks_and_tables_of_one_side_are_told(tmp_path):
    a, b = both(tmp_path, ({"tokens": 3}, {"tab-x": "task\ncode\n"}), ({"more": 3},))
    executed(b, {}, name="02_datastore_construction")
    found = {(one.place, one.name) for one in compare_runs.compare(a, b)}
    assert found == {
        ("02_datastore_construction", "notebook"),
        ("01_speculative_decoding", "tokens"),
        ("01_speculative_decoding", "more"),
        ("01_speculative_decoding/tab-x", "table"),
    }
    assert not any(one.timed for one in compare_runs.compare(a, b))


def test_the_columns_of_a_table_are_compared_one_by_one(tmp_path):
    a, b = both(
        tmp_path,
        ({}, {"tab-decoding-time": "method,rate,outputs\nPLD,10,3\nplain,5,3\n", "tab-x": "task,rate\ncode,1\n"}),
        ({}, {"tab-decoding-time": "method,rate,outputs\nPLD,11,3\nplain,5,4\n", "tab-x": "task,rate\ncode,2\n"}),
    )
    found = {(one.place.split("/")[1], one.name): one.timed for one in compare_runs.compare(a, b)}
    # "rate" is a speed in one table and a share in the other.
    times = "tab-decoding-time"
    assert found == {(times, "rate"): True, (times, "outputs"): False, ("tab-x", "rate"): False}


def test_a_folder_without_notebooks_is_refused(tmp_path, capsys):
    a = executed(tmp_path / "a", {})
    assert main(["compare", str(a), str(tmp_path)]) == 2
    assert "no executed notebook in" in capsys.readouterr().err


@pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
def test_the_rules_name_notebooks_values_and_tables_that_there_are():
    root = paths.root()
    sources = {path.stem: path.read_text(encoding="utf-8") for path in (root / "notebooks").glob("*.ipynb")}
    assert set(compare_runs.TIMED_VALUES) <= set(sources)
    library = [path for path in (root / "specdec_lib").rglob("*.py") if path.stem != "compare"]
    everything = "\n".join([*sources.values(), *(path.read_text(encoding="utf-8") for path in library)])
    for table in compare_runs.TIMED_COLUMNS:
        assert f'"{table}' in everything.replace('\\"', '"'), table
    assert set(compare_runs.TIMED_BEGINNINGS) <= set(sources)


def names_in(notebook) -> tuple[set[str], set[str]]:
    """Strings in the code of a notebook: whole ones, and what those with something put in begin with."""
    whole, beginnings = set(), set()
    for cell in nbformat.read(str(notebook), as_version=4).cells:
        if cell.cell_type != "code":
            continue
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                whole.add(node.value)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                node = node.left
                while isinstance(node, ast.BinOp):
                    node = node.left
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    beginnings.add(node.value)
            elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
                beginnings.add(node.values[0].value)
    return whole, {text for text in beginnings if text.isidentifier()}


def made(name: str, whole: set[str], beginnings: set[str]) -> bool:
    return name in whole or any(name.startswith(text) for text in beginnings)


def begun(beginning: str, whole: set[str], beginnings: set[str]) -> bool:
    return any(text.startswith(beginning) for text in whole) or any(
        text.startswith(beginning) or beginning.startswith(text) for text in beginnings
    )


@pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
def test_every_name_in_the_rules_can_be_made_by_its_notebook():
    folder = paths.root() / "notebooks"
    for notebook, names in compare_runs.TIMED_VALUES.items():
        found = names_in(folder / f"{notebook}.ipynb")
        assert [name for name in sorted(names) if not made(name, *found)] == [], notebook
    for notebook, names in compare_runs.TIMED_BEGINNINGS.items():
        found = names_in(folder / f"{notebook}.ipynb")
        assert [name for name in names if not begun(name, *found)] == [], notebook


@pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
def test_every_name_in_the_rules_was_recorded_where_its_notebook_was_executed():
    """The sources tell only what a name with something put in begins with: an executed copy tells all of it."""
    folder = paths.root() / "book" / "notebooks"
    executed_copies = {path.stem: record.recorded(path) for path in folder.glob("*.ipynb")}
    if not executed_copies:
        pytest.skip("no executed notebooks in book/notebooks; python -m specdec_lib run makes them")
    for notebook, values in executed_copies.items():
        unknown = sorted(compare_runs.TIMED_VALUES.get(notebook, set()) - set(values))
        unknown += [b for b in compare_runs.TIMED_BEGINNINGS.get(notebook, ()) if not any(v.startswith(b) for v in values)]
        assert unknown == [], notebook


@pytest.mark.slow
@pytest.mark.notebooks
@pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
def test_a_chapter_run_twice_differs_in_nothing_but_times(tmp_path):
    """Slow: a whole notebook is executed, twice."""
    for name in ("a", "b"):
        assert not runner.run("smoke", only=["A1"], output=tmp_path / name, kept=tmp_path / "failed", force=True)
        assert not runner.run("smoke", only=["01"], output=tmp_path / name, kept=tmp_path / "failed", force=True)
    found = compare_runs.compare(tmp_path / "a", tmp_path / "b")
    assert [one for one in found if not one.timed] == []
    assert {one.name for one in found} & {"t_target_ms", "t_draft_ms"}, "the comparison sees no difference at all"
