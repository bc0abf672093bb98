"""Checkpoints in pieces, the compact training text, and runs that end in time and go on elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import time

import numpy as np
import pytest
import torch

from specdec_lib.chapters.a1_pocket_models import carrying, training, training_text


def test_a_file_in_pieces_comes_back_and_a_newer_version_takes_its_place(tmp_path):
    file, pieces, back = tmp_path / "m.pt", tmp_path / "pieces", tmp_path / "there" / "m.pt"
    assert not carrying.join(pieces, back), "no pieces"
    for size in (25, 0, 30):
        file.write_bytes(np.random.default_rng(size).bytes(size))
        written = carrying.split(file, pieces, 10)
        assert [piece.stat().st_size for piece in written] == [10] * (size // 10) + ([size % 10] if size % 10 else [])
        assert sorted(p.name for p in pieces.iterdir()) == sorted([*(p.name for p in written), "m.pt.pieces.json"])
        assert carrying.join(pieces, back) and back.read_bytes() == file.read_bytes()


def test_pieces_that_are_missing_or_damaged_are_named(tmp_path):
    file, back = tmp_path / "m.pt", tmp_path / "back" / "m.pt"
    file.write_bytes(bytes(range(25)))
    _, second, third = carrying.split(file, tmp_path / "pieces", 10)
    second.write_bytes(b"0123456789")
    with pytest.raises(ValueError, match=rf"{second.name} is damaged: .* copy it again"):
        carrying.join(tmp_path / "pieces", back)
    second.write_bytes(bytes(range(10, 20)))
    third.unlink()
    with pytest.raises(ValueError, match=f"{third.name} is missing; expected 3 pieces"):
        carrying.join(tmp_path / "pieces", back)
    assert not back.exists()
    with pytest.raises(ValueError, match="size is 0"):
        carrying.split(file, tmp_path, 0)


def test_a_split_that_was_stopped_leaves_the_earlier_version(tmp_path, monkeypatch):
    file, pieces, back = tmp_path / "m.pt", tmp_path / "pieces", tmp_path / "back" / "m.pt"
    file.write_bytes(b"first version")
    carrying.split(file, pieces, 5)
    file.write_bytes(b"second version")
    monkeypatch.setattr(carrying.json, "dumps", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        carrying.split(file, pieces, 5)
    assert carrying.join(pieces, back) and back.read_bytes() == b"first version"


@pytest.fixture
def prepared(tmp_path):
    """A folder as pocket-data leaves one."""
    folder, rng = tmp_path / "data", np.random.default_rng(0)
    folder.mkdir()
    stream, heldout = rng.integers(0, 4096, 1000).astype(np.uint16), rng.integers(0, 4096, 50).astype(np.uint16)
    np.save(folder / "stream.npy", stream)
    np.save(folder / "heldout-stdlib.npy", heldout)
    modules = [["a.py", "def add(first, second):\n    return first + second\n"]]
    (folder / "snippet_modules.json.gz").write_bytes(gzip.compress(json.dumps(modules).encode()))
    story = {"tokens": 1000, "fingerprint": hashlib.sha256(stream.tobytes()).hexdigest()[:16],
             "heldout_tokens": {"stdlib": 50}}  # fmt: skip
    (folder / "corpus.json").write_text(json.dumps(story))
    return folder


@pytest.mark.parametrize("tokens", [300, 5000])
def test_a_compact_text_is_the_first_tokens_of_the_prepared_one(prepared, tmp_path, tokens):
    file = tmp_path / "text.zip"
    assert carrying.compact(prepared, tokens, file) == file.stat().st_size
    there = carrying.unpack(file, tmp_path / "there")
    own, ours = training_text.load(prepared), training_text.load(there)
    np.testing.assert_array_equal(ours.stream, own.stream[:tokens])
    np.testing.assert_array_equal(ours.heldout["stdlib"], own.heldout["stdlib"])
    assert ours.materials == own.materials
    assert (ours.fingerprint == own.fingerprint) == (tokens >= 1000), "another text trains another model"
    assert ours.fingerprint == hashlib.sha256(np.asarray(ours.stream).tobytes()).hexdigest()[:16]
    before = (there / "stream.npy").stat().st_mtime_ns
    carrying.unpack(file, there)
    assert (there / "stream.npy").stat().st_mtime_ns == before, "what lies there is not written again"


def test_what_is_no_compact_text_is_refused(prepared, tmp_path):
    (tmp_path / "no.zip").write_bytes(b"text")
    with pytest.raises(ValueError, match="no.zip is no training text; expected a file of pocket-data --compact"):
        carrying.unpack(tmp_path / "no.zip", tmp_path / "there")
    with pytest.raises(ValueError, match="tokens is 0"):
        carrying.compact(prepared, 0, tmp_path / "x.zip")
    with pytest.raises(FileNotFoundError, match="holds no prepared corpus"):
        carrying.compact(tmp_path, 5, tmp_path / "x.zip")


class Steps:
    """Rows of a step, drawn from a generator that its number seeds."""

    def __init__(self, steps: int):
        self.steps = steps

    def __call__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.random.default_rng(step).integers(0, 64, (2, 9))
        return tokens, np.ones((2, 9), np.float32)


def trained(work, steps=6, **options):
    work.mkdir(exist_ok=True)
    torch.manual_seed(0)
    recipe = training.Recipe(vocab_size=64, target=training.Shape(32, 1, 1, 48), tokens_per_step=16, warmup_steps=2)
    model = recipe.target.build(64)
    curve = training.train(model, Steps(steps), recipe, work, "m", [], {}, "text", every=2, compiled=False, **options)
    return model, curve


def test_a_run_that_ends_in_time_goes_on_from_its_pieces_on_another_machine(tmp_path):
    whole, curve = trained(tmp_path / "whole")
    assert [row["step"] for row in curve] == [2, 4, 6]
    # Time is over at once: each call ends after its first checkpoint.
    for call in range(3):
        model, parts = trained(tmp_path / f"machine-{call}", pieces=tmp_path / "pieces", until=time.monotonic())
        assert [row["step"] for row in parts] == [2, 4, 6][: call + 1]
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert [row["loss"] for row in parts] == [row["loss"] for row in curve]
    # Of a finished run the pieces hold the weights.
    again, _ = trained(tmp_path / "last", pieces=tmp_path / "pieces")
    for ours, theirs in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_run_ends_before_a_checkpoint_that_would_come_too_late(tmp_path, monkeypatch):
    moments = iter([0.0, 10.0, 20.0, 30.0, 40.0])
    monkeypatch.setattr(training.time, "monotonic", lambda: next(moments))
    _, curve = trained(tmp_path / "work", steps=8, until=29.0)
    assert [row["step"] for row in curve] == [2, 4]


def test_rows_made_ahead_for_a_gpu_are_those_of_each_step(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)

    class Card:
        """Takes the way of a GPU, to the CPU."""

        type = "cuda"

    moved = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, **how: moved(self, "cpu"))
    steps = Steps(5)
    for step, (tokens, weights) in enumerate(training.rows_of_steps(steps, 2, Card()), start=2):
        expected = steps(step)
        np.testing.assert_array_equal(tokens, expected[0])
        np.testing.assert_array_equal(weights, expected[1])
    assert step == 4 and math.isfinite(float(weights.sum()))
