"""The sums of the measurements, on times that are given."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from specdec_lib import DraftTree, Generation
from specdec_lib.commands import bench
from specdec_lib.decoding.results import Step
from specdec_lib.report import benchmarks


def test_the_overhead_is_told_by_step_of_what_two_runs_of_transformers_differ_in(monkeypatch):
    """One token a step: a run of n tokens more than another has n steps more, whatever came from the prefill."""
    run = Generation([5] * 9, [Step(DraftTree.chain([]), (), (5,), 0.0, 0.002, 0.0)] * 8, "length", 128, 1.0)
    monkeypatch.setattr(benchmarks, "generate", lambda *args, **kwargs: run)
    monkeypatch.setattr(benchmarks, "_bare_forward", lambda *args: 1.5)
    monkeypatch.setattr(benchmarks, "_bare_forward_transformers", lambda *args: 2.5)
    # 30 s of what comes once, then 4 ms a token.
    lengths = iter([32, 128] * 2)

    def timed(call):
        count = next(lengths)
        return 30 + 0.004 * count, SimpleNamespace(shape=(1, 128 + count))

    monkeypatch.setattr(benchmarks, "_seconds", timed)
    (row,) = benchmarks.loop(True)
    assert row["value"] == pytest.approx(2 - 1.5)
    assert row["peer_value"] == pytest.approx(4 - 2.5)


def test_one_trees_own_work_is_measured_on_drafts_that_overlap():
    """Three drafts of 64 tokens share some: fewer nodes than tokens are merged, and more than one draft has."""
    rows = benchmarks.tree(True)
    assert [row["name"] for row in rows] == ["tree_choose_us", "tree_learn_us"]
    assert all(row["value"] > 0 and row["unit"] == "µs" and 64 < row["merged_nodes"] < 192 for row in rows)


@pytest.fixture
def counted(monkeypatch):
    """Sections whose only row is how often they were measured."""
    calls = {"loop": 0, "dense": 0}

    def measuring(name):
        def rows(quick):
            calls[name] += 1
            return [benchmarks.row(name, name, "ms", [calls[name]])]

        return rows

    monkeypatch.setattr(benchmarks, "SECTIONS", {name: measuring(name) for name in calls})
    return calls


def test_only_measures_one_section_again_and_leaves_the_others_as_they_are(counted, tmp_path):
    out = tmp_path / "bench.json"
    assert bench.main(["--out", str(out)]) == 0
    before = json.loads(out.read_text())["sections"]
    assert bench.main(["--out", str(out), "--only", "dense"]) == 0
    after = json.loads(out.read_text())["sections"]
    assert after["loop"] == before["loop"] and counted == {"loop": 1, "dense": 2} and list(after) == ["loop", "dense"]
    assert after["dense"]["provenance"]["command"].endswith("--only dense")
    assert {"commit", "date", "load", "machine", "seconds", "versions"} <= set(after["dense"]["provenance"])


@pytest.mark.parametrize("words", [["--only", "wide"], ["--quick"]])
def test_what_would_spoil_the_file_is_refused_before_anything_is_measured(counted, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(words)
    assert counted == {"loop": 0, "dense": 0}
    assert ("wide" if "wide" in words else "--out") in capsys.readouterr().err
