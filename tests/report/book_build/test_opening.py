"""The figure on a chapter's first screen, a copy of one that the page draws later, and the times on the page on reruns."""

import io
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.console import nocolor

from specdec_lib.report.build import rerun

PICTURE = "<svg xmlns='http://www.w3.org/2000/svg'><title>drawn</title></svg>"
DRAWN = {"mystnb": {"figure": {"caption": "Rates $R$ by task.", "name": "fig-rates"}, "image": {"alt": "Bars by task"}}}


def build(folder, settings, write):
    """Build the one page that ``write`` puts into a folder; gives its HTML and the warnings."""
    source = folder / "source"
    source.mkdir(parents=True)
    (source / "conf.py").write_text(settings)
    write(source)
    nocolor()
    warnings = io.StringIO()
    Sphinx(source, source, folder / "html", folder / "trees", "html", status=None, warning=warnings).build()
    # Another test of this process may have registered Sphinx's nodes before.
    told = [line for line in warnings.getvalue().splitlines() if "already registered" not in line]
    return (folder / "html" / "index.html").read_text(encoding="utf-8"), "\n".join(told)


def chapter(folder, opening):
    """Build a book of one notebook whose first cell asks for a figure."""
    settings = (
        "extensions = ['myst_nb', 'specdec_lib.report.build.directives']\nnb_execution_mode = 'off'\nnumfig = True\n"
        "myst_enable_extensions = ['dollarmath']\n"
    )
    drawn = new_output("display_data", {"image/svg+xml": PICTURE})
    drawing = new_code_cell("draw()", metadata=DRAWN, outputs=[drawn])
    first = new_markdown_cell(f"# A chapter\n\n{opening}\n\nSee {{numref}}`fig-rates`.")
    notebook = new_notebook(cells=[first, new_markdown_cell("## Rates"), drawing])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return build(folder, settings, lambda source: nbformat.write(notebook, source / "index.ipynb"))


def test_the_picture_stands_first_and_its_figure_keeps_number_and_label_and_one_that_is_not_there_is_named(tmp_path):
    page, warnings = chapter(tmp_path, "```{opening} fig-rates\nCopying wins on editing.\n```")
    assert warnings == ""
    opening = page.index('class="opening')
    pictures = [match.start() for match in re.finditer(r'<img alt="Bars by task"', page)]
    figure = page.index('<figure class="align-default" id="fig-rates"')
    assert len(pictures) == 2 and opening < pictures[0] < figure < pictures[1]
    words = page[opening:figure]
    assert all(each in words for each in ("Copying wins on editing.", "by task.", 'href="#fig-rates"'))
    assert words.count("math") == page.count('id="fig-rates"') == 1 and "Fig. 1" in page
    told = "index: no figure is named 'fig-other' for its opening; expected one of fig-rates"
    with pytest.raises(SphinxError, match=told):
        chapter(tmp_path / "other", "```{opening} fig-other\n```")


def test_times_and_machine_come_from_the_executed_copies(tmp_path):
    machine = {"processor": "Some | CPU", "device": "cpu", "torch threads": "2"}
    for number, seconds in ((1, 90.0), (2, 120.0)):
        name = f"0{number}_small"
        content = new_notebook(cells=[new_markdown_cell(f"# Title {number}")])
        provenance = {"machine": machine, "date": "2026-01-01 00:00 UTC"}
        content.metadata["specdec"] = {"seconds": seconds, "provenance": provenance}
        nbformat.write(content, tmp_path / f"{name}.ipynb")
    (tmp_path / "files" / "01_small").mkdir(parents=True)
    (tmp_path / "files" / "01_small" / "tab-x.csv").write_bytes(b"x" * 1_000_000)
    text = rerun.times_text(tmp_path.glob("*.ipynb"), 2_000_000_000)
    assert "| [](notebooks/01_small.ipynb) | 90 | 1.0 | Some \\| CPU, 2 threads |" in text
    assert "Together they took 4 minutes" in text and "2.0 GB" in text  # 210 s
