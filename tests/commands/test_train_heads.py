"""The command ``train-heads``: what it writes, goes on with and refuses, on tiny models of several families."""

from __future__ import annotations

import json

import pytest

from specdec_lib import generate, load_model, paths
from specdec_lib.__main__ import main
from specdec_lib.experiments import head_training
from specdec_lib.heads.drafting import KINDS, DraftHead
from specdec_lib.methods import METHODS
from specdec_lib.models.fingerprint import fingerprint
from tests.families import build, prompt, save

ROWS = {"medusa": "Medusa", "hydra": "Hydra", "eagle": "EAGLE"}


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
    told = json.loads((tmp_path / "out" / "accuracies.json").read_text())
    assert told["target"] == fingerprint(model) and set(told["kinds"]) == set(KINDS)
    for kind in KINDS:
        heads = DraftHead.load(tmp_path / "out" / f"{kind}.safetensors", model)
        assert told["kinds"][kind]["top1"] == [row[0] for row in heads.accuracies]
        drafter = METHODS[ROWS[kind]].drafter(model, heads)
        assert generate(model, prompt(1, 9), drafter, max_new_tokens=12).tokens == (
            generate(model, prompt(1, 9), None, max_new_tokens=12).tokens
        )
    before = (tmp_path / "data" / "answers-00000.safetensors").stat().st_mtime_ns
    more = ["--kind", "hydra", "--prefix", "--layers", "2", "--own-vocabulary", "--loss", "total-variation"]
    assert main([*words, *more]) == 0
    again = DraftHead.load(tmp_path / "out" / "hydra.safetensors", model)
    assert again.prefix is not None and again.options["vocabulary"] == model.config.vocab_size
    assert again.story["training"]["loss"] == "total-variation"
    assert (tmp_path / "data" / "answers-00000.safetensors").stat().st_mtime_ns == before
    assert set(json.loads((tmp_path / "out" / "accuracies.json").read_text())["kinds"]) == set(KINDS)
    assert "first choice right by depth" in capsys.readouterr().out


def test_losses_are_compared_on_the_same_answers_and_no_heads_are_written(tmp_path, capsys, few):
    folder = save(build("llama-gqa"), tmp_path / "model")
    words = ["train-heads", "--target", str(folder), "--kind", "medusa", "--data", str(tmp_path / "data")]
    words += [
        "--out",
        str(tmp_path / "out"),
        "--device",
        "cpu",
        "--epochs",
        "2",
        "--max-new-tokens",
        "8",
        "--batch",
        "2",
    ]
    assert main([*words, "--compare-losses", str(tmp_path / "losses.json")]) == 0
    told = json.loads((tmp_path / "losses.json").read_text())
    assert told["provenance"]["parameters"]["epochs"] == 2 and not (tmp_path / "out").exists()
    assert set(told["losses"]) == {"published", "total-variation"} and told["answers"] + told["held_out"] == 6
    # What a training with that loss alone finds on these answers.
    assert main([*words, "--loss", "total-variation"]) == 0
    alone = json.loads((tmp_path / "out" / "accuracies.json").read_text())["kinds"]["medusa"]
    assert told["losses"]["total-variation"]["top1"] == alone["top1"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--epochs", "0"], "epochs is 0"),
        (["--rate", "-1"], "rate is -1.0"),
        (["--tasks", "no-such-task"], "no-such-task"),
    ],
)
def test_bad_options_are_told_and_nothing_is_written(tmp_path, capsys, words, says):
    own = ["--out", str(tmp_path / "out"), "--data", str(tmp_path / "data"), "--device", "cpu"]
    assert main(["train-heads", *own, *words]) == 2
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_shipped_heads_are_small_and_tell_how_often_they_are_right():
    folder = paths.POCKET / "heads"
    told = json.loads((folder / "accuracies.json").read_text())
    for kind in KINDS:
        heads = DraftHead.load(folder / f"{kind}.safetensors")
        assert heads.target == told["target"] and told["kinds"][kind]["top1"] == [row[0] for row in heads.accuracies]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 6_000_000
