"""Tables, notices and a chapter's numbers: what they put on a page and save, and what is refused."""

import csv
import io
import math
import re

import numpy as np
import pandas as pd
import pytest

from specdec_lib import paths
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.report import numbers, run_context
from specdec_lib.report.display import provenance, session
from specdec_lib.report.display.tables import MISSING, Markup, Table, format_cell
from specdec_lib.report.numbers import Number, NumberError

FRAME = pd.DataFrame({"task": ["a|b", "<i>"], "rate": [0.123456, np.nan], "n": [12345, 2]})


@pytest.mark.parametrize(("value", "spec", "text"), [
    (0.123456, None, "0.123"), (12345, None, "12,345"), (0.5, ".1%", "50.0%"), (3.0, ",d", "3"),
    (np.nan, ".2f", MISSING), (None, None, MISSING), (True, None, "True"), ("x", ".2f", "x"),
    (2, lambda value: f"{value}×", "2×"), (Interval(1.25, 1.125, 1.5), ".2f", "1.25 (1.12\u2060–\u20601.50)"),
    (Interval(0.5, 0.25, 1), ".0%", "50% (25%\u2060–\u2060100%)"), (Interval(1.5, np.nan, np.nan), ".2f", "1.50"),
    (Interval(np.nan, np.nan, np.nan), ".1f", "–"),
])  # fmt: skip
def test_a_cell_is_formatted_as_asked(value, spec, text):
    assert format_cell(value, spec) == text


def test_a_table_is_a_numbered_myst_table_with_numbers_to_the_right():
    lines = Table(FRAME, "tab-x", "A caption.", formats={"rate": ".2f"}).to_myst().splitlines()
    assert lines[:2] == [":::{table} A caption.", ":name: tab-x"]
    assert "| task | rate | n |" in lines and "|:--|--:|--:|" in lines
    assert r"| a\|b | 0.12 | 12,345 |" in lines and rf"| \<i\> | {MISSING} | 2 |" in lines


HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!-- a", "&lt;b&gt; &amp; &#60;",
    "[a](javascript:alert(1))", "![a](http://example.com/a.png)", "<http://example.com>", "https://example.com/a?b=1",
    "www.example.com", "a@example.com", "{raw}`<b>`", "{download}`a <../../x>`", "{ref}`x`", "{{ version }}", "$x^2$",
    "$$x$$", "\\(x\\)", "`code`", "**bold** _a_ ~~b~~", "[^1]", "[a]{.class}", "# heading", "- item", "a|b",
    "a \\| b", "back\\", "\\<i>", "::: ends", "two\nlines", "a\u2028:::\u2028b", "a\x85|b|", "0.12", "12,345",
    "v1.5 of i.e. this", "!", "a: b", "–",
]  # fmt: skip


def rendered(text: str):
    """Tokens of the book's own Markdown parser with its extensions."""
    import yaml
    from markdown_it.renderer import RendererHTML
    from myst_parser.config.main import MdParserConfig
    from myst_parser.parsers.mdit import create_md_parser

    extensions = yaml.safe_load((paths.root() / "_config.yml").read_text())["parse"]["myst_enable_extensions"]
    parser = create_md_parser(MdParserConfig(enable_extensions=set(extensions)), RendererHTML)
    return parser.parse(text, {})


def test_a_cell_shows_its_text_and_nothing_in_it_comes_to_life():
    frame = pd.DataFrame({"text": HOSTILE, "n": range(len(HOSTILE))})
    myst = Table(frame, "tab-x", "c", columns={"text": "T", "n": "N"}).to_myst()
    (fence,) = rendered(myst)
    assert fence.type == "colon_fence" and len(fence.content.splitlines()) == 5 + len(HOSTILE)
    cells = [token for token in rendered("\n".join(fence.content.splitlines()[3:])) if token.type == "inline"][2:]
    assert {child.type for cell in cells for child in cell.children} <= {"text", "text_special"}
    shown = ["".join(child.content for child in cell.children) for cell in cells[::2]]
    assert shown == [re.sub(r"[\n\u2028\x85]", " ", text) for text in HOSTILE]
    assert [cell.content for cell in cells[1::2]] == [str(i) for i in range(len(HOSTILE))]


def test_a_column_of_markup_and_named_headings_stay_what_they_are_and_names_of_columns_are_shown():
    frame = pd.DataFrame({"rule": ["best $K$ | {ref}`x`"], "a_b": [1]})
    table = Table(frame, "tab-x", "c", columns={"rule": r"$\alpha$", "a_b": "N"}, formats={"rule": Markup})
    assert r"| $\alpha$ | N |" in table.to_myst() and r"| best $K$ \| {ref}`x` | 1 |" in table.to_myst()
    assert "best $K$ | {ref}`x`" in table.to_html()
    assert r"| rule | a\_b |" in Table(frame, "tab-x", "c").to_myst()


@pytest.fixture
def run(tmp_path, monkeypatch):
    context = run_context.RunContext("04_x", str(tmp_path / "files" / "04_x"), "")
    monkeypatch.setenv(run_context.VARIABLE, context.dumps())
    return tmp_path


def test_times_of_the_published_machine_stand_beside_those_of_this_build(run, monkeypatch, tmp_path):
    monkeypatch.setattr(numbers, "COMMITTED", tmp_path)
    monkeypatch.setattr(
        provenance, "machine", lambda: {"processor": "A", "cores": "4", "torch threads": "3", "device": "cpu"}
    )
    (tmp_path / "times.json").write_text('{"processor": "B", "cores": "2", "torch threads": "2", "device": "cpu"}')
    (tmp_path / "09.csv").write_text(f"{','.join(numbers.COLUMNS)}\ncounted,2,,,,,,\nspent,0.5,0.25,1,yes,,,\n")
    numbers.save("09", {"counted": 2}, measured={"spent": 0.125, "new": 3})
    table = session.times_table("09").to_myst()
    assert "| Number | Published run: B, 2 cores, 2 threads, cpu | This run: A, 4 cores, 3 threads, cpu |" in table
    assert [line for line in table.splitlines() if line.startswith("| ")][1:] == [
        "| spent | 0.5 (0.25\u2060–\u20601) | 0.125 |"
    ]


def test_inside_a_run_the_csv_is_written_unformatted_with_the_ends_of_intervals_and_linked(run):
    frame = FRAME.assign(gain=[Interval(1.25, 1.125, 1.5), None])
    bundle = Table(frame, "tab-x", "c", formats={"rate": ".1f"})._repr_mimebundle_()
    assert "{download}`CSV <files/04_x/tab-x.csv>`" in bundle["text/markdown"]
    assert "1.25 (1.12" in bundle["text/plain"]
    rows = list(csv.DictReader(io.StringIO((run / "files" / "04_x" / "tab-x.csv").read_text())))
    ends = {"gain": "1.25", "gain_low": "1.125", "gain_high": "1.5"}
    assert rows[0] == {"task": "a|b", "rate": "0.123456", "n": "12345", **ends}
    assert rows[1] == {"task": "<i>", "rate": "", "n": "2", **dict.fromkeys(ends, "")}


def test_only_a_page_of_a_readers_own_parameters_carries_a_notice_which_names_them():
    parameters = session.Parameters(target="my-model")
    assert session.notice(parameters) is None
    parameters.changed = ("target",)
    text = session.notice(parameters)._repr_mimebundle_()["text/markdown"]
    assert "{admonition}" in text and "(target)" in text


def test_what_is_saved_is_read_back(run):
    counted = {
        "ratio": Interval(1.23456789, 1.0, 1.5), "unknown": Interval(1.5, math.nan, math.nan), "count": 12,
        "share": 1.0, "scalar": np.float64(0.25), "yes": np.bool_(True), "name": "160m, a shape", "nan": math.nan,
        "none": None,
    }  # fmt: skip
    path = numbers.save("04", counted, measured={"seconds": 2.5})
    found = numbers.read(path)
    assert path == run / "files" / "04_x" / "04.csv" and list(found) == [*counted, "seconds"]
    assert found["ratio"] == Number(1.23457, 1.0, 1.5)
    assert f"{found['unknown']:.2f}" == "1.50" and f"{found['ratio']:.2f}" == "1.23 (1.00\u2060–\u20601.50)"
    kinds = {name: type(found[name].value) for name in ("count", "share", "scalar", "yes")}
    assert kinds == {"count": int, "share": float, "scalar": float, "yes": int}
    assert found["name"].words == "160m, a shape" and f"{found['nan']:.2f}" == f"{found['none']}" == numbers.MISSING
    assert found["seconds"].measured and not found["count"].measured
    assert numbers.read(numbers.executed_files(run)["04"]) == found
    assert numbers.look_up("04/count", {"04": found}).value == 12


def test_several_tables_are_saved_in_order_and_the_cell_says_the_keys_of_each(run, capsys):
    path = numbers.save("04", [{"a": 1, "b": 2}, {"c": 3}], measured={"d": 0.5})
    assert list(numbers.read(path)) == ["a", "b", "c", "d"]
    assert str([["a", "b"], ["c"], ["d"]]) in capsys.readouterr().out


def test_counts_of_published_rows_go_to_the_published_numbers_and_times_stay(run, tmp_path, monkeypatch):
    monkeypatch.setattr(numbers, "COMMITTED", tmp_path / "published")
    numbers.COMMITTED.mkdir()
    path = numbers.save("04", {"rate": 1.5, "gone": 3}, measured={"seconds": 2.5})
    (numbers.COMMITTED / "04.csv").write_bytes(path.read_bytes())
    numbers.save("04", {"rate": 1.25, "new": 4}, measured={"seconds": 9.0, "later": 1.0}, published=True)
    found = numbers.read(numbers.COMMITTED / "04.csv")
    assert {key: number.value for key, number in found.items()} == {
        "rate": 1.25,
        "new": 4,
        "seconds": 2.5,
        "later": 1.0,
    }
    before = (numbers.COMMITTED / "04.csv").read_bytes()
    numbers.save("04", {"rate": 1.25, "new": 4}, measured={"seconds": 7.0, "later": 3.0}, published=True)
    assert (numbers.COMMITTED / "04.csv").read_bytes() == before


NEAR = {"04": {"h10_over_pld10": Number(1.0)}}


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("call, error, words", [
    (lambda: Table(FRAME, "tab-x", "c", columns={"nope": "x"}), ValueError, "'nope'"),
    (lambda: Table(FRAME, "tab-x", "c", formats={"nope": "d"}), ValueError, "'nope'"),
    *((lambda name=name: Table(FRAME, name, "c"), ValueError, "table name") for name in ("speed", "tab-Speed", "tab-")),
    (lambda: numbers.save("04", {"a b": 1}), NumberError, "'a b' is no key"),
    (lambda: numbers.save("04", {"a": [1]}), NumberError, "'a' is a list"),
    (lambda: numbers.save("04", {"a": 1}, {"a": 2}), NumberError, "counted and measured"),
    (lambda: numbers.save("04", [{"a": 1}, {"a": 2}]), NumberError, "in two tables"),
    (lambda: numbers.look_up("04/h10_over_pld", NEAR), NumberError, "'04/h10_over_pld'; did you mean h10_over_pld10"),
    (lambda: numbers.look_up("05/x", NEAR), NumberError, "no key of that chapter is near"),
])  # fmt: skip
def test_what_no_page_could_show_save_or_find_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("value", ["x` <b>now</b> `y", "`<b>", "``` <b>x</b> ``", "a | <b>`\n<b>", "`", " ", "plain"])
def test_a_value_of_the_provenance_stays_code_whatever_it_holds(value):
    render = pytest.importorskip("myst_parser.parsers.mdit").create_md_parser
    from markdown_it.renderer import RendererHTML
    from myst_parser.config.main import MdParserConfig

    facts = {"parameters": {"task": value, "<b>n`": "m"}}
    text = provenance.Provenance(facts)._repr_mimebundle_()["text/markdown"]
    table = text.split("\n\n", 1)[1].rsplit(":::", 1)[0]
    page = render(MdParserConfig(), RendererHTML).render(table)
    assert "<b>" not in page and page.count("<code>") == 2
