"""When the pages are rendered again, and when they are not."""

from __future__ import annotations

import pytest

from specdec_lib.report.build import book


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose pages are "rendered" into one file, and how often that was done."""
    for folder in ("book/notebooks", "book/pictures", "specdec_lib", "data", "notebooks", "_build/html"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "book" / "intro.md").write_text("# One")
    (tmp_path / "_config.yml").write_text("title: x")
    rendered = []

    def render(root):
        rendered.append(root)
        (root / "_build" / "html" / "intro.html").write_text("page")
        return root / "_build" / "html" / "intro.html"

    monkeypatch.setattr(book, "render", render)
    monkeypatch.setattr(book, "executed_profiles", lambda folder: {})
    return tmp_path, rendered


def test_pages_made_from_the_same_are_not_rendered_again(repository, capsys):
    root, rendered = repository
    assert book.build(root) == book.build(root) == root / "_build" / "html" / "intro.html"
    assert len(rendered) == 1 and "as it was built before" in capsys.readouterr().out
    (root / "book" / "pictures" / "drawn.svg").write_text("<svg/>")  # drawn by the build itself
    book.build(root)
    assert len(rendered) == 1


@pytest.mark.parametrize(
    "changed", ["book/intro.md", "book/notebooks/01.ipynb", "specdec_lib/x.py", "data/claims.yml", "_config.yml"]
)
def test_a_change_of_anything_they_are_made_from_renders_them_again(repository, changed):
    root, rendered = repository
    book.build(root)
    (root / changed).write_text("other")
    book.build(root)
    assert len(rendered) == 2


def test_pages_that_were_taken_away_or_not_finished_are_rendered_again(repository, monkeypatch):
    root, rendered = repository
    book.build(root)
    (root / "_build" / "html" / "intro.html").unlink()
    book.build(root)
    (root / "book" / "intro.md").write_text("# Two")

    def fail(root):
        raise book.BookError("a warning")

    with monkeypatch.context() as patch:
        patch.setattr(book, "render", fail)
        with pytest.raises(book.BookError):
            book.build(root)
    (root / "book" / "intro.md").write_text("# One")
    book.build(root)
    assert len(rendered) == 3
