"""``stopping`` measures the drafts whose numbers its file lacks, and no other one."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from specdec_lib import paths
from specdec_lib.chapters.ch05_specdec_pp import wide_study
from specdec_lib.commands import stopping

OPTIONS = ["--prompts", "2", "--greedy-prompts", "2", "--temperatures", "0", "1", "--head-seeds", "1", "--epochs", "1"]


@pytest.fixture
def measured(monkeypatch):
    """What each call measured, as draft and temperature; a number stands for the measurement."""
    calls = []

    def measure(target, drafts, tokenizer, answers, plan, times, alone, known):
        done = {(row.draft, row.temperature) for row in known}
        calls.append([(name, t) for t in plan.temperatures for name in drafts if (name, t) not in done])
        for name, temperature in calls[-1]:
            rest = ("editing", 2, 2, "speed-up", "", float(len(calls)), 0.5, 9.0, float("nan"), float("nan"))
            yield [wide_study.Row(name, drafts[name].num_parameters(), temperature, *rest)]

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
    assert measured == [[("draft", 0.0), ("draft", 1.0)]] and first == {("draft", 0.0): 1.0, ("draft", 1.0): 1.0}
    assert story["missing_drafts"] == ["draft_small", "draft_large"]
    assert run(models, output)[0] == first and measured[1:] == [[]]
    assert "draft at 0 is measured already" in capsys.readouterr().out
    shutil.copytree(models / "draft", models / "draft_small")
    both, story = run(models, output)
    assert measured[2:] == [[("draft_small", 0.0), ("draft_small", 1.0)]]
    assert both == first | {("draft_small", 0.0): 3.0, ("draft_small", 1.0): 3.0}
    assert list(story["drafts"]) == ["draft", "draft_small"]
    assert list(story["made"]) == ["draft at 0", "draft at 1", "draft_small at 0", "draft_small at 1"]
    assert story["seconds"] == sum(how["seconds"] for how in story["made"].values())


def test_only_what_an_option_is_about_is_measured_anew(models, tmp_path, measured):
    output = tmp_path / "stopping.csv"
    run(models, output, "--temperatures", "1")
    found, _ = run(models, output)
    assert measured == [[("draft", 1.0)], [("draft", 0.0)]]
    assert list(found) == [("draft", 0.0), ("draft", 1.0)]  # in order, whatever was measured first
    run(models, output, "--greedy-prompts", "3")
    run(models, output, "--greedy-prompts", "3", "--output-seeds", "1")
    run(models, output, "--greedy-prompts", "3", "--output-seeds", "1", "--epochs", "2")
    assert measured[2:] == [[("draft", 0.0)], [("draft", 1.0)], [("draft", 0.0), ("draft", 1.0)]]


def test_other_models_are_measured_anew(models, tmp_path, measured):
    output = tmp_path / "stopping.csv"
    run(models, output)
    shutil.copytree(models / "draft", models / "draft_small")
    run(models, output)
    weights = models / "draft_small" / "model.safetensors"
    changed = {name: tensor + 1 for name, tensor in load_file(weights).items()}
    save_file(changed, weights, metadata={"format": "pt"})
    run(models, output)
    assert measured[2:] == [[("draft_small", 0.0), ("draft_small", 1.0)]]
