"""What the README shows runs as it stands."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from specdec_lib import paths
from specdec_lib.report.build import readme
from specdec_lib.report.build.params import UsageError
from specdec_lib.report.claims import ledger, pictures, rules, second_run
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
    text = (paths.root() / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    assert named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_table_of_chapters_says_what_the_committed_results_say():
    text = (paths.root() / "README.md").read_text(encoding="utf-8")
    results = committed_values()
    assert results["profile"] == "default"
    assert readme.put(text, *readme.blocks(results)) == text, "make readme"
    # The minutes of the run stand in one place.
    assert len(re.findall(r"\b\d+ minutes \(profile", text)) == 1


def committed_values():
    return json.loads((paths.DATA / "results" / "cpu" / "key_results.json").read_text(encoding="utf-8"))


def intervals(text):
    """Every printed interval of a text, and a check that the reader's eye makes: digits, a dash, digits in brackets."""
    return [(float(low), float(high)) for low, high in re.findall(r"\(([\d.]+)\W+([\d.]+)\)", text)]


def test_no_comparison_of_the_table_has_an_interval_that_holds_no_difference():
    found = intervals(readme.block(committed_values()))
    assert len(found) > 20
    assert [ends for ends in found if ends[0] <= 1 <= ends[1]] == []


def test_what_an_interval_leaves_open_in_another_run_is_named_without_a_number():
    results = committed_values()
    systems = results["chapters"]["07_other_systems"]["values"]
    copying = results["chapters"]["04_pld_plus"]["values"]["equal0_h_over_pldt_all"]
    systems["paid_rest"] = "0.84 (0.80\u2060–\u20600.88)"
    copying |= {"value": 1.05, "low": 1.03, "high": 1.07}
    before = readme.block(results)
    assert "REST 0.84" in before and "times where both draft 10" in before
    # The same two undecided, and another one decided.
    results["chapters"]["06_gpu_benchmarks"]["values"]["said_composed_rest"] = "0.95 (0.93\u2060–\u20600.97)"
    systems["paid_rest"] = "0.99 (0.96\u2060–\u20601.02)"
    copying |= {"low": 0.9996}
    after = readme.block(results)
    assert "REST 0.95" in after and "REST 0.99" not in after and "times where both draft 10" not in after
    assert "as fast as plain decoding (not resolved: REST)" in after
    assert re.search(r"\(not resolved: [^)]*where both draft 10", after)
    # If nothing is left of a chapter, the row says so.
    nothing = dict.fromkeys(("said_ratio_rest", "said_ratio_rest_from_1"), "1.00 (0.97\u2060–\u20601.03)")
    results["chapters"]["03_dense_vs_sparse_retrieval"]["values"] |= nothing
    assert f"REST or DReSD? | {readme.NOT_DECIDED} |" in readme.block(results)


def test_chapters_5_and_8_are_told_from_the_committed_studies():
    studies = readme.studied()
    stopping, marks = studies["05_specdec_pp"], studies["08_one_tree"]
    assert stopping["study_prompts"] >= 700 and all(v.known for k, v in stopping.items() if k != "study_prompts")
    missed = marks["marks_missed"].count("the mark is")
    assert marks["marks"] == marks["marks_met"] + marks["marks_unresolved"] + missed
    assert f"not resolved. {marks['marks_missed']}." in readme.block(committed_values())


def test_the_committed_results_hold_what_the_table_and_the_figure_need_and_nothing_else():
    results = committed_values()
    needed = {name: set(values) for name, values in readme.wanted().items()}
    for name, chapter in results["chapters"].items():
        assert set(chapter["values"]) == needed[name]
    # A chapter that was never run by default is named as such, and no row of it claims a result.
    text = (paths.root() / "README.md").read_text(encoding="utf-8")
    assert text.count(readme.NOT_RUN) == len(set(needed) - set(results["chapters"]))
    assert set(readme.CHAPTERS) == {path.stem for path in (paths.root() / "notebooks").glob("*.ipynb")}


def test_the_figure_is_the_one_of_the_committed_results():
    results = committed_values()
    rows = readme.headlines(results)
    assert [asdict(row) for row in rows] == [asdict(row) for row in readme.headlines(json.loads(json.dumps(results)))]
    text = (paths.root() / "README.md").read_text(encoding="utf-8")
    for name, svg in pictures.reproduces_alone(rows).items():
        file = paths.DATA / "results" / "cpu" / f"what-reproduces-{name}.svg"
        assert file.read_text(encoding="utf-8") == svg + "\n", "make readme"
        assert f'"data/results/cpu/{file.name}"' in text
        # Read on a dark page as on a light one, and small enough to be loaded at once.
        assert "prefers-color-scheme:dark" in svg and len(svg) < 60_000


def test_the_committed_headlines_are_those_of_the_ledger():
    results = committed_values()
    told = [(row.claim, row.label, [(m.name, m.price) for m in row.marks]) for row in readme.headlines(results)]
    claims = sorted(rules.load_claims(), key=lambda claim: rules.PAPERS.index(claim.paper))
    assert told == [(c.id, h.label, list(h.ours.items())) for c in claims for h in c.headline], "make readme"


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
        declared = new_code_cell('profile: str = "default"  # said here', metadata={"tags": ["parameters"]})
        notebook = new_notebook(cells=[new_markdown_cell("# A title"), declared, new_code_cell("", outputs=outputs)])
        notebook.metadata["papermill"] = {"start_time": "2026-01-01T00:00", "end_time": "2026-01-01T00:01"}
        notebook.metadata["specdec"] = {
            "profile": "default",
            "seconds": 1.0,
            "provenance": {
                "parameters": {"profile": "default"},
                "machine": {"device": "cpu"},
                "versions": {},
                "date": "",
                "commit": "",
            },
        }
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    results = readme.collect(tmp_path)
    assert results["chapters"]["04_pld_plus"]["values"]["t0_h_over_pldt_all"] == 0.5
    timed = {name: set() for name in results["chapters"]} | {"01_speculative_decoding": {"rate_pld_code"}}
    assert readme.stale(results, results, timed) == []
    other = json.loads(json.dumps(results))
    other["chapters"]["04_pld_plus"]["values"]["t0_h_over_pldt_all"] = 0.6
    other["chapters"]["01_speculative_decoding"]["values"]["rate_pld_code"] = 9.0
    assert readme.stale(results, other, timed) == ["04_pld_plus: t0_h_over_pldt_all is 0.6, committed 0.5"]
    other = json.loads(json.dumps(results))
    first, second = (
        row for row in other["headlines"] if row["claim"] == "rest-table-1-speed" and "code" in row["label"]
    )
    first["marks"][0]["value"] = second["marks"][0]["value"] = 2.0
    timed["03_dense_vs_sparse_retrieval"] = {second["marks"][0]["name"]}
    (fault,) = readme.stale(results, other, timed)
    assert fault == (
        "headline rest-table-1-speed, Speed-up, code, greedy: real_code_speedup_rest is another, committed None"
    )
    for settings in ({"profile": "smoke"}, {"parameters": {"profile": "default", "seed": 1}}):
        notebook.metadata["specdec"]["profile"] = settings.get("profile", "default")
        notebook.metadata["specdec"]["provenance"] |= {"parameters": settings.get("parameters", {"profile": "default"})}
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
        with pytest.raises(UsageError, match="the README shows the default run"):
            readme.collect(tmp_path)


def test_the_claims_that_turn_with_the_seed_are_named(tmp_path, monkeypatch):
    for name, verdict in (("FIRST", "holds"), ("SECOND", "not resolved")):
        claims = {"one": {"verdict": verdict, "ours": {}}, "two": {"verdict": "holds", "ours": {}}}
        (tmp_path / name).write_text(json.dumps({"claims": claims}), encoding="utf-8")
        monkeypatch.setattr(second_run, name, tmp_path / name)
    said = "1 of 2 claims get another verdict: one (holds, then not resolved)."
    assert said in readme.block(committed_values())
    assert "Of the 2 statements of the papers that we tried to check, 2 hold here." in readme.block(committed_values())
    monkeypatch.setattr(second_run, "SECOND", tmp_path / "FIRST")
    assert "0 of 2 claims get another verdict. The" in readme.turned()
    monkeypatch.setattr(second_run, "FIRST", tmp_path / "missing")
    assert "make first-run" in readme.turned()
    assert not readme.verdicts()


def test_every_verdict_has_words():
    assert set(ledger.VERDICT_WORDS) == set(ledger.VERDICTS)


def test_a_readme_without_marks_is_refused():
    with pytest.raises(UsageError, match="lacks the lines"):
        readme.put("no marks", readme.block(committed_values()))
