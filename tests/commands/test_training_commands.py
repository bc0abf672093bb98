"""``train-acceptance-head``, ``train-heads`` and ``find-heads``: what they write and go on with, on tiny models."""

from __future__ import annotations

import pytest
import torch

from specdec_lib import generate, load_model, paths
from specdec_lib.cli import main
from specdec_lib.experiments import head_training, recorded_runs
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.experiments.tasks import choosing_prompts, load_task
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.drafting import KINDS, DraftHead
from specdec_lib.heads.induction import InductionHeads, identify
from specdec_lib.methods import METHODS
from specdec_lib.models.fingerprint import fingerprint
from tests.families import build, prompt, save

ROWS = {"medusa": "Medusa", "hydra": "Hydra", "eagle": "EAGLE"}


def test_an_acceptance_head_is_trained_and_training_goes_on_with_its_data(tmp_path, capsys, monkeypatch):
    tokenizer = recorded_runs.load_pair("pocket", "pocket-draft", "cpu", "float32")[2]
    prompts = [render(p, tokenizer) for p in load_task("short text editing", limit=6)]
    monkeypatch.setattr(head_training, "training_prompts", lambda *arguments: prompts)
    words = ["train-acceptance-head", "--out", str(tmp_path / "heads" / "head.safetensors"), "--device", "cpu"]
    words += [
        "--data",
        str(tmp_path / "data"),
        "--task",
        "mathematics",
        "--task",
        "short text editing",
        "--prompts",
        "3",
    ]
    words += "--max-new-tokens 12 --epochs 2 --target pocket --draft pocket-draft".split()
    assert main([*words, "--seeds", "2"]) == 0
    draft, _ = load_model("pocket-draft", "cpu")
    head = AcceptanceHead.load(tmp_path / "heads" / "head.safetensors", draft)
    assert (head.depth, head.tied, head.sees_confidence) == (3, True, False)
    assert head.story["mixing"] == 0.15 and len(head.story["curve"]) == 2 and head.story["data"]["labels"] == "decoding"
    second = AcceptanceHead.load(tmp_path / "heads" / "head-1.safetensors", draft)
    assert (head.story["training"]["seed"], second.story["training"]["seed"]) == (0, 1)
    assert not torch.equal(head.out.weight, second.out.weight)
    before = (tmp_path / "data" / "shard-00000.safetensors").stat().st_mtime_ns
    assert main([*words, "--mixing", "none", "--sees-confidence"]) == 0
    assert (tmp_path / "data" / "shard-00000.safetensors").stat().st_mtime_ns == before
    again = AcceptanceHead.load(tmp_path / "heads" / "head.safetensors", draft)
    assert again.sees_confidence and again.story["mixing"] is None
    assert "written to" in capsys.readouterr().out


@pytest.fixture
def few(monkeypatch):
    """A few prompts instead of tasks, which the tokenizers of the tiny models cannot read."""
    monkeypatch.setattr(head_training, "training_prompts", lambda *arguments: [prompt(i, 9) for i in range(6)])


@pytest.mark.parametrize("family", ["llama-gqa", "qwen3", "gemma3"])
def test_heads_of_every_kind_are_trained_for_a_model_of_one_s_own(tmp_path, capsys, few, family):
    folder = save(build(family), tmp_path / "model")
    words = ["train-heads", "--target", str(folder), "--out", str(tmp_path / "out"), "--data", str(tmp_path / "data")]
    words += ["--device", "cpu", "--epochs", "2", "--max-new-tokens", "8", "--batch", "2"]
    assert main(words) == 0
    model, _ = load_model(folder, "cpu")
    for kind in KINDS:
        heads = DraftHead.load(tmp_path / "out" / f"{kind}.safetensors", model)
        assert heads.target == fingerprint(model) and len(heads.accuracies) > 1
        drafter = METHODS[ROWS[kind]].drafter(model, heads)
        assert generate(model, prompt(1, 9), drafter, max_new_tokens=12).tokens == (
            generate(model, prompt(1, 9), None, max_new_tokens=12).tokens
        )
    before = (tmp_path / "data" / "shard-00000.safetensors").stat().st_mtime_ns
    more = ["--kind", "hydra", "--prefix", "--layers", "2", "--own-vocabulary"]
    assert main([*words, *more]) == 0
    again = DraftHead.load(tmp_path / "out" / "hydra.safetensors", model)
    assert again.prefix is not None and again.options["vocabulary"] == model.config.vocab_size
    assert (tmp_path / "data" / "shard-00000.safetensors").stat().st_mtime_ns == before
    assert "first choice right by depth" in capsys.readouterr().out


def test_the_file_of_heads_holds_what_identify_finds_and_is_refused_for_another_model(tmp_path, capsys):
    folders = [paths.POCKET / "target", paths.POCKET / "draft"]
    out = tmp_path / "heads.json"

    def call(folder, *more):
        words = ["--task", "short text editing", "--prompts", "2", "--max-new-tokens", "6", "--device", "cpu"]
        return main(["find-heads", "--target", str(folder), "--out", str(out), *words, *more])

    assert call(folders[0]) == 0
    model, tokenizer = load_model(folders[0], "cpu")
    expected = identify(
        model, [render(p, tokenizer) for p in choosing_prompts(["short text editing"], 2)], 6, progress=False
    )
    read = InductionHeads.load(out, model)
    assert read.ranked() == expected.ranked() and read.copied == expected.copied
    assert f"{len(read.ranked())} of {read.peaks.size} heads" in capsys.readouterr().out
    before = out.read_bytes()
    assert call(folders[0]) == 0
    assert "--force identifies them again" in capsys.readouterr().out
    assert call(folders[1]) == 2
    assert "made for another model" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert call(folders[1], "--force") == 0
    assert call(tmp_path / "none", "--force") == 2
    assert "no model in" in capsys.readouterr().err
