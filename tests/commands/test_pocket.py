"""The commands ``pocket`` and ``pocket-data``: what they write, and what they refuse before any training."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from specdec_lib.__main__ import main
from specdec_lib.chapters.a1_pocket_models import training, training_rows, training_text


@dataclass(frozen=True)
class Small(training.Recipe):
    """The recipe with tiny models and three steps; the vocabulary is that of the tokenizer that is there."""

    target: training.Shape = training.Shape(32, 2, 1, 48)
    draft: training.Shape = training.Shape(32, 1, 1, 48)
    length: int = 16
    long_length: int = 16
    tokens_per_step: int = 64
    target_steps: int = 3
    draft_steps: int = 3


class Drawn:
    """Rows of tokens that are there at once."""

    def __init__(self, *_):
        pass

    def block(self, number, count, length, tasks):
        tokens = np.random.default_rng([number, len(tasks)]).integers(4, 4096, (count, length + 1))
        return tokens, np.ones(tokens.shape, np.float32)


@pytest.fixture
def pocket(tmp_path, monkeypatch):
    """The command on a tiny recipe, text and probes; gives a function of further words."""
    tokens = np.arange(4, 1000, dtype=np.uint16)
    text = training_text.TrainingText(tokens, {"stdlib": tokens}, {}, "fingerprint")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus.json").write_text('{"tokens": 996}')
    monkeypatch.setattr(training, "Recipe", Small)
    monkeypatch.setattr(training_text, "load", lambda folder: text)
    monkeypatch.setattr(training_rows, "Rows", Drawn)
    monkeypatch.setattr(training, "make_probes", lambda *_, **__: [])
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    places = [word for name in ("data", "out", "work") for word in (f"--{name}", str(tmp_path / name))]
    return lambda *words: main(["pocket", *places, "--device", "cpu", *words])


def test_a_target_and_a_draft_are_trained_and_exported_with_their_story(pocket, tmp_path):
    assert pocket() == 0 and pocket("--part", "draft") == 0
    for part in ("target", "draft"):
        story = json.loads((tmp_path / "out" / part / "training.json").read_text())
        assert story["part"] == part and story["corpus"] == {"tokens": 996} and story["recipe"]["seed"] == 0
        assert [row["step"] for row in story["curve"]] == [3] and story["shape"] == vars(getattr(Small(), part))
    assert story["curve"][0]["distilling"]  # the second half of a draft's steps
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["draft", "target"]


def test_another_seed_is_refused_before_it_trains(pocket, tmp_path, capsys):
    assert pocket() == 0
    before = (tmp_path / "out" / "target" / "training.json").read_text()
    assert pocket("--seed", "1") == 2
    assert "target.pt is of a run with another seed" in capsys.readouterr().err
    assert (tmp_path / "out" / "target" / "training.json").read_text() == before


def test_a_draft_of_a_target_that_has_changed_is_refused(pocket, tmp_path, capsys):
    assert pocket() == 0 and pocket("--part", "draft") == 0
    (tmp_path / "work" / "target.pt").unlink()
    assert pocket("--steps", "5") == 0
    assert pocket("--part", "draft") == 2
    assert "draft.pt is of a run with another teacher" in capsys.readouterr().err
    (tmp_path / "work" / "draft.pt").unlink()
    assert pocket("--part", "draft") == 0


def test_text_that_was_not_prepared_is_told(tmp_path, capsys):
    places = ["--data", str(tmp_path), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert main(["pocket", *places]) == 2
    assert "holds no prepared corpus; run make pocket-data" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_text_is_fetched_and_prepared_in_one_folder(tmp_path, monkeypatch, capsys):
    called = []

    def prepare(tokenizer, folder, corpus):
        called.append((folder, len(tokenizer)))
        (folder / "corpus.json").write_text('{"tokens": 3}')

    monkeypatch.setattr(training_text, "conversation_files", lambda corpus: called.append("sets"))
    monkeypatch.setattr(training_text, "fetch", lambda corpus, folder: called.append(folder))
    monkeypatch.setattr(training_text, "prepare", prepare)
    assert main(["pocket-data", "--folder", str(tmp_path)]) == 0
    assert called == ["sets", tmp_path / "packages", (tmp_path, 4096)] and '{"tokens": 3}' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (OSError("pip could not fetch first 1.0: no network"), 2, "error: pip could not fetch first 1.0: no network"),
        (KeyboardInterrupt(), 130, "interrupted; the same command goes on with the packages that are missing"),
    ],
)
def test_packages_that_cannot_be_had_are_told(error, status, says, tmp_path, monkeypatch, capsys):
    def fetch(corpus, folder):
        raise error

    monkeypatch.setattr(training_text, "conversation_files", lambda corpus: [])
    monkeypatch.setattr(training_text, "fetch", fetch)
    assert main(["pocket-data", "--folder", str(tmp_path)]) == status
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("folder", [None, "sets"])
def test_missing_data_sets_are_told_before_anything_is_fetched(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SPECDEC_DATASETS", raising=False)
    if folder:
        (tmp_path / folder).mkdir()
        monkeypatch.setenv("SPECDEC_DATASETS", str(tmp_path / folder))
    monkeypatch.setattr(training_text, "fetch", lambda *_: pytest.fail("packages are fetched first"))
    assert main(["pocket-data", "--folder", str(tmp_path / "pocket")]) == 2
    told = capsys.readouterr().err
    assert "conversations of corpus.yml need" in told and ("jsonl" in told) == bool(folder)
    assert not (tmp_path / "pocket").exists()
