"""``python -m specdec_lib recordings`` writes what the shipped models decoded, and says where it comes from."""

from __future__ import annotations

import json
import os

import pytest

from specdec_lib import paths
from specdec_lib.cli import main
from specdec_lib.experiments import recordings
from specdec_lib.models.loading import load_model


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(recordings.FRESH, raising=False)
    monkeypatch.setattr(paths, "RECORDINGS", tmp_path / "committed.npz")
    return recordings.identity(load_model("pocket", "cpu", "float32")[0])


def decode(weights, key="ab" * 16):
    """Stands for a run of the notebooks that decodes one prompt."""

    def run(profile, **options):
        recordings.keep(key, recordings.Answer([5, 6, 7], "length"), weights)
        return []

    return run


def test_a_run_of_the_notebooks_is_committed_and_nothing_older(target, monkeypatch):
    decode(target, "cd" * 16)("default")
    monkeypatch.setattr("specdec_lib.report.build.runner.run", decode(target))
    assert main(["recordings"]) == 0
    about = json.loads(paths.RECORDINGS.with_suffix(".json").read_text())
    assert (about["outputs"], about["tokens"]) == (1, 3) and target in about["models"]
    assert about["command"] == "python -m specdec_lib recordings" and about["machine"]["cores"]
    assert about["commit"] and about["date"] and about["profile"] == "default"
    assert recordings.kept("ab" * 16) == ([5, 6, 7], "length")
    assert main(["recordings", "--from-cache"]) == 0
    assert json.loads(paths.RECORDINGS.with_suffix(".json").read_text())["outputs"] == 2


def test_a_run_that_failed_commits_nothing(target, monkeypatch):
    monkeypatch.setattr("specdec_lib.report.build.runner.run", lambda profile, **options: ["a failure"])
    assert main(["recordings"]) == 1
    assert not paths.RECORDINGS.exists()


def test_a_fresh_run_names_its_folder_and_executes_everything(target, monkeypatch):
    asked = []

    def run(profile, only, overrides, force, **options):
        asked.append((force, os.environ.get(recordings.FRESH)))
        return []

    monkeypatch.setattr("specdec_lib.report.build.runner.run", run)
    assert main(["run", "--fresh"]) == 0 and main(["run"]) == 0
    (fresh, plain) = asked
    assert fresh[0] and fresh[1] and plain == (False, None)
