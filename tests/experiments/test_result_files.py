"""Tables that say where they come from."""

from __future__ import annotations

import pytest

from specdec_lib.experiments import result_files

ABOUT = {"commit": "abc", "date": "2026-01-01", "machine": "one core", "command": "run: it"}


def test_what_is_written_is_read_with_numbers_as_numbers(tmp_path):
    rows = [
        {"set": "a, b # c", "tokens": 3, "share": 0.25, "none": None},
        {"set": "d", "tokens": 4, "share": 1.5, "none": 2},
    ]
    result_files.write(tmp_path / "new" / "table.csv", rows, ABOUT | {"layer": "4"})
    read = result_files.read(tmp_path / "new" / "table.csv")
    assert read.rows == rows and read.about == ABOUT | {"layer": "4"}


@pytest.mark.parametrize(
    ("rows", "about"),
    [([], ABOUT), ([{"a": 1}], {"commit": "abc"}), ([{"a": 1}], ABOUT | {"note": "two\nlines"})],
)
def test_a_table_without_rows_or_origin_is_refused(tmp_path, rows, about):
    with pytest.raises(ValueError, match="expected one or more, and commit, date, machine, command"):
        result_files.write(tmp_path / "table.csv", rows, about)
    assert not list(tmp_path.iterdir())


def test_a_file_that_does_not_say_where_it_comes_from_is_refused(tmp_path):
    (tmp_path / "table.csv").write_text("# commit: abc\na,b\n1,2\n")
    with pytest.raises(ValueError, match="does not say its date, machine, command"):
        result_files.read(tmp_path / "table.csv")


def test_a_line_above_the_table_that_names_nothing_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("# made by hand\na\n1\n")
    with pytest.raises(ValueError, match="the line '# made by hand' above its table"):
        result_files.read(path)
