"""What the README shows runs as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_notebook, new_output

from specdec_lib import paths
from specdec_lib.report.build import readme
from specdec_lib.report.build.params import UsageError
from specdec_lib.report.display import record

pytestmark = pytest.mark.skipif(
    paths.ROOT is None, reason="the README is in the repository, not in an installed package"
)


def test_python_of_the_readme_runs_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (paths.root() / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    scope: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    assert "tokens per forward pass" in capsys.readouterr().out
    # `custom_generate` through transformers gives what generate() gives.
    new = scope["out"][0, len(scope["prompt"]) :].tolist()
    assert new == scope["plain"].tokens[: len(new)]


def test_make_targets_of_the_readme_exist():
    makefile = (paths.root() / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake ([a-z-]+)", (paths.root() / "README.md").read_text(encoding="utf-8")))
    assert named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_table_of_chapters_says_what_the_committed_results_say():
    text = (paths.root() / "README.md").read_text(encoding="utf-8")
    results = json.loads((paths.DATA / "results" / "cpu" / "key_results.json").read_text(encoding="utf-8"))
    assert results["profile"] == "default"
    assert readme.put(text, readme.block(results)) == text, "make readme"


def test_the_committed_results_hold_what_the_table_and_the_figure_need_and_nothing_else():
    results = json.loads((paths.DATA / "results" / "cpu" / "key_results.json").read_text(encoding="utf-8"))
    found = {name: set(chapter["values"]) for name, chapter in results["chapters"].items()}
    assert found == {name: set(values) for name, values in readme.wanted().items()}
    assert set(readme.CHAPTERS) == {path.stem for path in (paths.root() / "notebooks").glob("*.ipynb")}


def test_a_drawing_that_fails_leaves_the_old_figure(tmp_path, monkeypatch):
    results = json.loads((paths.DATA / "results" / "cpu" / "key_results.json").read_text(encoding="utf-8"))

    def cut(self, out, **options):
        if isinstance(out, Path):
            out.write_text("<svg")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", cut)
    (tmp_path / "one.svg").write_text("the old one")
    with pytest.raises(KeyboardInterrupt):
        readme.draw(results, tmp_path / "one.svg")
    assert (tmp_path / "one.svg").read_text() == "the old one"
    assert [p.name for p in tmp_path.iterdir()] == ["one.svg"]


def test_the_figure_is_drawn_from_the_committed_results(tmp_path):
    results = json.loads((paths.DATA / "results" / "cpu" / "key_results.json").read_text(encoding="utf-8"))
    readme.draw(results, tmp_path / "one.svg")
    readme.draw(results, tmp_path / "two.svg")
    drawn = (tmp_path / "one.svg").read_bytes()
    assert drawn == (tmp_path / "two.svg").read_bytes() and b"</svg>" in drawn
    assert "(data/results/cpu/readme.svg)" in (paths.root() / "README.md").read_text(encoding="utf-8")
    assert (paths.DATA / "results" / "cpu" / "readme.svg").is_file()


def test_values_are_collected_from_default_runs_alone(tmp_path):
    with pytest.raises(UsageError, match="has not been executed"):
        readme.collect(tmp_path)
    for name, values in readme.wanted().items():
        outputs = [
            new_output(
                "display_data",
                data={record._PREFIX + "text/plain": "0.5"},
                metadata={"scrapbook": {"name": value, "mime_prefix": record._PREFIX}},
            )
            for value in values
        ]
        notebook = new_notebook(cells=[new_code_cell("", outputs=outputs)])
        notebook.metadata["specdec"] = {
            "profile": "default",
            "seconds": 1.0,
            "provenance": {
                "parameters": {"profile": "default"},
                "machine": {},
                "versions": {},
                "date": "",
                "commit": "",
            },
        }
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    results = readme.collect(tmp_path)
    assert results["chapters"]["04_pld_plus"]["values"]["t0_h_all"] == 0.5
    timed = {name: set() for name in results["chapters"]} | {"01_speculative_decoding": {"found_pld_time"}}
    assert readme.stale(results, results, timed) == []
    other = json.loads(json.dumps(results))
    other["chapters"]["04_pld_plus"]["values"]["t0_h_all"] = 0.6
    other["chapters"]["01_speculative_decoding"]["values"]["found_pld_time"] = "another time"
    assert readme.stale(results, other, timed) == ["04_pld_plus: t0_h_all is 0.6, committed 0.5"]
    for settings in ({"profile": "smoke"}, {"parameters": {"profile": "default", "seed": 1}}):
        notebook.metadata["specdec"]["profile"] = settings.get("profile", "default")
        notebook.metadata["specdec"]["provenance"] |= {"parameters": settings.get("parameters", {"profile": "default"})}
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
        with pytest.raises(UsageError, match="the README shows the default run"):
            readme.collect(tmp_path)


def test_a_readme_without_marks_is_refused():
    with pytest.raises(UsageError, match="lacks the lines"):
        readme.put("no marks", "x")
