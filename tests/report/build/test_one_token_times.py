"""Two chapters of one run that timed the same pass differently say so on their pages."""

from __future__ import annotations

from types import SimpleNamespace

import nbformat
import pytest
from docutils import nodes

from specdec_lib import paths
from specdec_lib.report.build import one_token_times
from specdec_lib.report.build.runner import METADATA


def chapter(folder, name, value, ms, threads=1, profile="default", given=None, dtype="float32"):
    """An executed notebook that recorded one time of a pass."""

    def output(key, what):
        prefix = "application/papermill.record/"
        return nbformat.v4.new_output(
            "display_data",
            {prefix + "text/plain": repr(what)},
            metadata={"scrapbook": {"name": key, "mime_prefix": prefix}},
        )

    declared = f'target: str = "pocket"  # model\ndevice: str = "auto"  # device\ndtype: str = "{dtype}"  # of weights'
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(declared, metadata={"tags": ["parameters"]}),
            nbformat.v4.new_code_cell("record()", outputs=[output(value, ms), output("torch_threads", threads)]),
        ],
        metadata={
            "papermill": {"parameters": given or {}},
            METADATA: {"profile": profile, "provenance": {"machine": {"processor": "a processor"}}},
        },
    )
    nbformat.write(notebook, str(folder / f"{name}.ipynb"))
    return one_token_times.read(folder / f"{name}.ipynb")


def test_times_of_one_pass_that_differ_by_more_than_a_quarter_are_named_on_both_pages(tmp_path):
    one = chapter(tmp_path, "01_one", "t_target_ms", 4.0)
    same = chapter(tmp_path, "02_same", "t_target_ms", 5.0)
    far = chapter(tmp_path, "05_far", "cost_t_target_target_alone_ms", 5.1)
    found = one_token_times.contradictions([one, same, far])
    assert found == {"01_one": [(one, far)], "05_far": [(far, one)]}
    text = one_token_times.box(found["01_one"]).text
    assert "4.00 ms on this page" in text and "5.10 ms in 05_far" in text


@pytest.mark.parametrize(
    "other", [{"threads": 2}, {"profile": "full"}, {"given": {"target": "big"}}, {"dtype": "bfloat16"}]
)
def test_other_models_types_threads_and_runs_are_not_compared(tmp_path, other):
    one = chapter(tmp_path, "01_one", "t_target_ms", 4.0)
    far = chapter(tmp_path, "05_far", "t_target_ms", 40.0, **other)
    assert one_token_times.contradictions([one, far]) == {}


def test_a_chapter_without_such_a_time_and_a_smoke_run_are_left_out(tmp_path):
    assert chapter(tmp_path, "02_none", "something_else", 4.0) is None
    assert chapter(tmp_path, "01_smoke", "t_target_ms", 4.0, profile="smoke") is None


def test_the_box_stands_below_the_title(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    chapter(folder, "01_one", "t_target_ms", 4.0)
    chapter(folder, "05_far", "t_target_ms", 8.0)

    def page(docname):
        section = nodes.section("", nodes.title("", "A chapter"), nodes.paragraph("", "text"))
        env = SimpleNamespace(docname=docname, srcdir=str(tmp_path), note_dependency=lambda path: None)
        document = nodes.Element("", section)
        one_token_times._add_box(SimpleNamespace(env=env), document)
        return section

    boxed = page("notebooks/05_far")
    assert isinstance(boxed[1], nodes.admonition) and "4.00 ms in 01_one" in boxed[1].astext()
    assert len(page("notebooks/02_other")) == 2 and len(page("intro")) == 2


def test_the_times_that_are_compared_are_those_that_chapters_record():
    sources = "".join(path.read_text(encoding="utf-8") for path in (paths.root() / "notebooks").glob("0[15]*.ipynb"))
    assert all(name in sources for name in one_token_times.NAMES[:2])
