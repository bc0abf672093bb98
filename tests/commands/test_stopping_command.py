"""``stopping`` measures the drafts whose numbers its file lacks, and no other one."""

from __future__ import annotations

import json
import shutil

import pytest

from specdec_lib import paths
from specdec_lib.chapters.ch05_specdec_pp import wide_study
from specdec_lib.commands import stopping
from specdec_lib.experiments.statistics import Interval

OPTIONS = ["--prompts", "2", "--greedy-prompts", "2", "--temperatures", "0", "1", "--head-seeds", "1", "--epochs", "1"]


@pytest.fixture
def measured(monkeypatch):
    """The drafts that were measured, each call's; a number stands for the measurement."""
    calls = []

    def measure(target, drafts, tokenizer, answers, plan, times, alone):
        calls.append(list(drafts))
        for temperature in plan.temperatures:
            for name, draft in drafts.items():
                value = Interval(float(len(calls)), 0.5, 9.0)
                rest = ("editing", 2, 2, "speed-up", "", *value, float("nan"), float("nan"))
                yield [wide_study.Row(name, draft.num_parameters(), temperature, *rest)]

    monkeypatch.setattr(wide_study, "measure", measure)
    return calls


@pytest.fixture
def models(tmp_path):
    """The shipped pair and its head's data in a folder to which drafts can be added."""
    for name in ("target", "draft", "head"):
        shutil.copytree(paths.POCKET / name, tmp_path / "models" / name)
    return tmp_path / "models"


def run(models, output, *more):
    assert stopping.main(["--models", str(models), "--output", str(output), *OPTIONS, *more]) == 0
    story = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    return {(row.draft, row.temperature): row.value for row in wide_study.read(output)}, story


def test_a_draft_is_measured_once_and_one_that_is_added_joins_it(models, tmp_path, measured, capsys):
    output = tmp_path / "stopping.csv"
    first, story = run(models, output)
    assert measured == [["draft"]] and first == {("draft", 0.0): 1.0, ("draft", 1.0): 1.0}
    assert story["missing_drafts"] == ["draft_small", "draft_large"]
    assert run(models, output)[0] == first and measured == [["draft"]]
    assert "draft is measured already" in capsys.readouterr().out
    shutil.copytree(models / "draft", models / "draft_small")
    both, story = run(models, output)
    assert measured == [["draft"], ["draft_small"]]
    assert both == first | {("draft_small", 0.0): 2.0, ("draft_small", 1.0): 2.0}
    assert list(story["made"]) == list(story["drafts"]) == ["draft", "draft_small"]
    assert story["seconds"] == sum(how["seconds"] for how in story["made"].values())


def test_other_options_and_drafts_that_were_interrupted_are_measured_anew(models, tmp_path, measured):
    output = tmp_path / "stopping.csv"
    run(models, output)
    run(models, output, "--max-new-tokens", "48")
    assert measured == [["draft"], ["draft"]]
    output.write_text("".join(output.read_text().splitlines(keepends=True)[:-1]))  # without its last temperature
    run(models, output, "--max-new-tokens", "48")
    assert measured == [["draft"], ["draft"], ["draft"]]
