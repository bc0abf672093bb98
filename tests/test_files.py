"""A file that is replaced: whole or as it was, and never two writers in one."""

from __future__ import annotations

import pytest

from specdec_lib.files import replacing


def test_the_file_is_there_once_the_block_has_ended(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as aside:
        aside.write_text("new")
        assert not path.exists() and aside.parent == tmp_path
    assert path.read_text() == "new" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as aside:
        aside.write_text("ha")
        raise error
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("there", [True, False])
def test_what_a_symbolic_link_leads_to_is_replaced_and_the_link_stays(tmp_path, there):
    large, path = tmp_path / "large-disk" / "a.txt", tmp_path / "a.txt"
    large.parent.mkdir()
    if there:
        large.write_text("old")
    path.symlink_to(large)
    with replacing(path) as aside:
        aside.write_text("new")
    assert path.is_symlink() and large.read_text() == "new" and [p.name for p in large.parent.iterdir()] == ["a.txt"]


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as first, replacing(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]
