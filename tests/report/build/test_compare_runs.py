"""Two runs beside each other: what differs, and what of it is a time."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from specdec_lib import paths
from specdec_lib.__main__ import main
from specdec_lib.report.build import compare_runs, runner
from specdec_lib.report.display import record
from tests.report.notebook_factory import write_notebook


def executed(folder, values, tables=None, name="01_speculative_decoding", timed=(), marked=True):
    """An executed notebook that recorded ``values``, with CSV files beside it; without marks as older versions left it.

    ``timed`` names values, and columns as ``"table/column"``.
    """
    outputs = []
    for key, value in values.items():
        metadata = {"scrapbook": {"name": key, "mime_prefix": record._PREFIX}}
        if marked:
            metadata[record.MARKS] = {"timed": key in timed}
        outputs.append(new_output("display_data", {record._PREFIX + "text/plain": repr(value)}, metadata=metadata))
    (folder / "files" / name).mkdir(parents=True, exist_ok=True)
    for table, text in (tables or {}).items():
        (folder / "files" / name / f"{table}.csv").write_text(text, encoding="utf-8")
        columns = [one.removeprefix(f"{table}/") for one in timed if one.startswith(f"{table}/")]
        metadata = {record.MARKS: {"table": table, "timed": columns}} if marked else {}
        outputs.append(new_output("display_data", {"text/plain": text}, metadata=metadata))
    nbformat.write(new_notebook(cells=[new_code_cell("", outputs=outputs)]), folder / f"{name}.ipynb")
    return folder


def both(tmp_path, first, second, timed=()):
    return executed(tmp_path / "a", *first, timed=timed), executed(tmp_path / "b", *second, timed=timed)


def test_two_equal_runs_have_no_difference(tmp_path, capsys):
    one = ({"tokens": 3, "t_target_ms": 1.5}, {"tab-x": "task,rate\ncode,1.5\n"})
    a, b = both(tmp_path, one, one)
    assert compare_runs.compare(a, b) == []
    assert main(["compare", str(a), str(b)]) == 0
    assert "everything that is no time is the same" in capsys.readouterr().out


def test_a_time_may_differ_and_nothing_else(tmp_path, capsys):
    first, second = ({"tokens": 3, "rate": rate} for rate in (0.2, 0.3))
    a, b = both(tmp_path, (first,), (second,), timed=["rate"])
    assert {one.name: one.timed for one in compare_runs.compare(a, b)} == {"rate": True}
    assert main(["compare", str(a), str(b)]) == 0
    assert "1 times differ" in capsys.readouterr().out
    executed(b, {"tokens": 4, "rate": 0.3}, timed=["rate"])
    assert main(["compare", str(a), str(b)]) == 1
    out = capsys.readouterr().out
    assert "tokens: 3 | 4" in out and "1 times differ: 01_speculative_decoding: rate" in out


@pytest.mark.parametrize(("old", "times"), [("a", True), ("b", True), ("ab", False)])
def test_of_two_runs_the_one_with_marks_says_what_is_a_time(tmp_path, old, times):
    for name, value in (("a", 1), ("b", 2)):
        timed, marked = ["ms", "tab-x/rate"], name not in old
        executed(tmp_path / name, {"ms": value}, {"tab-x": f"rate\n{value}\n"}, timed=timed, marked=marked)
    found = {one.name: one.timed for one in compare_runs.compare(tmp_path / "a", tmp_path / "b")}
    assert found == {"ms": times, "rate": times}


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
        ({}, {"tab-time": "method,rate,outputs\nPLD,10,3\nplain,5,3\n", "tab-x": "task,rate\ncode,1\n"}),
        ({}, {"tab-time": "method,rate,outputs\nPLD,11,3\nplain,5,4\n", "tab-x": "task,rate\ncode,2\n"}),
        timed=["tab-time/rate"],  # a speed in one table and a share in the other
    )
    found = {(one.place.split("/")[1], one.name): one.timed for one in compare_runs.compare(a, b)}
    assert found == {("tab-time", "rate"): True, ("tab-time", "outputs"): False, ("tab-x", "rate"): False}


def test_what_a_notebook_marks_reaches_the_comparison(tmp_path):
    """Through the kernel and the runner: two runs of a clock and of a number differ in the clock."""
    clock = [
        "import time, pandas as pd\nframe = pd.DataFrame({'method': ['PLD'], 'rate': [time.perf_counter()]})",
        "report.record('time_now', time.perf_counter(), timed=True)\nreport.record('ms', 3)",
        "report.Table(frame, 'tab-x', 'c', timed=['rate'])",
    ]
    write_notebook(tmp_path / "notebooks", clock)
    folders = {"notebooks": tmp_path / "notebooks", "kept": tmp_path / "failed"}
    for name in ("a", "b"):
        assert not runner.run("smoke", output=tmp_path / name, force=True, **folders)
    found = compare_runs.compare(tmp_path / "a", tmp_path / "b")
    assert [(one.name, one.timed) for one in found] == [("time_now", True), ("rate", True)]


def test_a_folder_without_notebooks_is_refused(tmp_path, capsys):
    a = executed(tmp_path / "a", {})
    assert main(["compare", str(a), str(tmp_path)]) == 2
    assert "no executed notebook in" in capsys.readouterr().err


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
