"""A number in prose says what it is, and leads to the cell that makes it."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from specdec_lib.experiments.statistics.intervals import Interval, pooled_rate
from specdec_lib.report import numbers
from specdec_lib.report.build import directives, sources
from tests.report.book_build.test_opening import build

CELLS = [
    new_code_cell("rows = read()", id="reads"),
    new_code_cell("rates = {m: rate(rows, m) for m in ('a', 'b')}", id="rates"),
    new_code_cell("ratio = rates['a'] / rates['b']", id="ratio"),
    new_code_cell("hidden = 1", id="removed", metadata={"tags": ["remove-cell"]}),
    new_code_cell("def fold(rates):\n    return rates", id="function"),
    new_code_cell(
        "report.save('09', {'of_rows': len(rows), 'both': fold(rates) + len(rows), 'ratio': ratio, 'typed': 7,\n"
        "                   'hidden': hidden}, measured={'seconds': took(ratio)})",
        id="saves",
    ),
]


def test_a_number_is_made_by_the_last_cell_that_assigns_what_is_saved(tmp_path):
    path = tmp_path / "09_x.ipynb"
    nbformat.write(new_notebook(cells=CELLS), path)
    assert sources.made_in(path) == {"of_rows": "reads", "both": "rates", "ratio": "ratio", "seconds": "ratio"}


def test_a_table_that_a_function_gave_has_its_keys_in_the_output_of_the_cell_that_saved_it(tmp_path):
    cell = new_code_cell(
        "report.save('09', [of(rows), {'typed': 7, 'ratio': ratio}, of(rates)], measured=spent(ratio))"
    )
    keys = [["one", "two"], ["typed", "ratio"], ["three"], ["seconds"]]
    cell.outputs = [new_output("display_data", {numbers.KEYS: keys})]
    path = tmp_path / "09_x.ipynb"
    nbformat.write(new_notebook(cells=[*CELLS[:-1], cell]), path)
    made = {"one": "reads", "two": "reads", "ratio": "ratio", "three": "rates", "seconds": "ratio"}
    assert sources.made_in(path) == made


def test_a_number_shows_its_key_and_prompts_and_leads_to_its_cell_which_is_on_the_page(tmp_path, monkeypatch):
    table = {
        "ratio": numbers.Number(1.5, 1.2, 1.8, prompts=12),
        "typed": numbers.Number(7),
        "seconds": numbers.Number(2.0, 1.0, 3.0, measured=True),
    }
    monkeypatch.setattr(directives, "current_claims", lambda: ({"09": table, "seconds": table}, None))
    prose = "{num}`09/ratio:.1f`, {num}`09/typed:d`, {num}`seconds/ratio.value:.1f`, {num}`09/seconds:.0f`."

    def write(source):
        (source / "notebooks").mkdir()
        notebook = new_notebook(cells=[new_markdown_cell(f"# Nine\n\n{prose}"), *CELLS])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, source / "notebooks" / "09_x.ipynb")
        (source / "index.md").write_text(f"# A book\n\n{prose}\n\n```{{toctree}}\nnotebooks/09_x\n```\n")

    settings = "extensions = ['myst_nb', 'specdec_lib.report.build.directives']\nnb_execution_mode = 'off'\n"
    page, warnings = build(tmp_path, settings, write)
    assert warnings == ""
    found = re.findall(r'<(a|span) class="number" data-about="([^"]*)"(?: href="([^"]*)")?[^>]*>([^<]*)<', page)
    assert found == [
        ("a", "09/ratio · 12 prompts · 95 % interval", "notebooks/09_x.html#cell-ratio", "1.5 (1.2\u2060–\u20601.8)"),
        ("a", "09/typed · count", "notebooks/09_x.html", "7"),
        ("span", "seconds/ratio · 12 prompts · 95 % interval", "", "1.5"),
        ("a", "09/seconds · time, of the published run", "notebooks/09_x.html#cell-ratio", "2 (1\u2060–\u20603)"),
    ]
    chapter = (tmp_path / "html" / "notebooks" / "09_x.html").read_text(encoding="utf-8")
    assert 'href="../notebooks/09_x.html#cell-ratio"' in chapter
    assert 'id="cell-ratio"' in chapter


@pytest.mark.parametrize("prompts, count", [(None, 3), (["a", "a", "b"], 2), (["a", "b", "b"], 1)])
def test_an_interval_knows_how_many_prompts_count_in_it(prompts, count):
    above, below = ([1, 2, 3], [2, 3, 4]) if count > 1 else ([0, 2, 3], [0, 3, 4])
    interval = pooled_rate((above, below), prompts)
    assert interval.prompts == count
    assert f"{interval:.1f}" == f"{Interval(*interval[:3]):.1f}"


def test_prompts_are_kept_with_a_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = numbers.read(numbers.save("09", {"rate": Interval(1.0, 0.5, 1.5, 12), "typed": 3}))
    assert (kept["rate"].prompts, kept["typed"].prompts) == (12, None)
