"""The command ``train-acceptance-head``, once ``head``: what it writes, goes on with and refuses."""

from __future__ import annotations

import pytest
import torch

from specdec_lib import load_model
from specdec_lib.__main__ import main
from specdec_lib.experiments import acceptance_training, recorded_runs
from specdec_lib.experiments.tasks import load_task
from specdec_lib.heads.acceptance import AcceptanceHead


@pytest.fixture(scope="module")
def pocket():
    return recorded_runs.load_pair("pocket", "pocket-draft", "cpu", "float32")


def test_the_command_trains_a_head_and_goes_on_with_its_data(tmp_path, capsys, monkeypatch, pocket):
    prompts = [recorded_runs.render(p, pocket[2]) for p in load_task("outline", limit=6, seed=5)]
    monkeypatch.setattr(acceptance_training, "training_prompts", lambda *arguments: prompts)
    words = [
        "train-acceptance-head",
        "--out",
        str(tmp_path / "head.safetensors"),
        "--data",
        str(tmp_path / "data"),
        "--device",
        "cpu",
        "--tasks",
        "outline",
        "quote-lines",
        "--prompts",
        "3",
        "--max-new-tokens",
        "12",
        "--epochs",
        "2",
        "--depth",
        "1",
    ]
    assert main([*words, "--seeds", "2"]) == 0
    draft, _ = load_model("pocket-draft", "cpu")
    head = AcceptanceHead.load(tmp_path / "head.safetensors", draft)
    assert (head.depth, head.tied, head.sees_confidence) == (1, True, False)
    assert head.story["mixing"] == 0.15 and len(head.story["curve"]) == 2 and head.story["data"]["labels"] == "decoding"
    second = AcceptanceHead.load(tmp_path / "head-1.safetensors", draft)
    assert (head.story["training"]["seed"], second.story["training"]["seed"]) == (0, 1)
    assert not torch.equal(head.out.weight, second.out.weight)
    before = (tmp_path / "data" / "shard-00000.safetensors").stat().st_mtime_ns
    assert main(["head", *words[1:], "--mixing", "none", "--untied", "--sees-confidence"]) == 0
    assert (tmp_path / "data" / "shard-00000.safetensors").stat().st_mtime_ns == before
    again = AcceptanceHead.load(tmp_path / "head.safetensors", draft)
    assert again.sees_confidence and not again.tied and again.story["mixing"] is None
    assert "written to" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--depth", "7"], "depth is 7"),
        (["--reject-weight", "0"], "reject_weight is 0"),
        (["--temperature", "-1"], "temperature"),
        (["--tasks", "no-such-task"], "no-such-task"),
        (["--mixing", "1"], "mixing is 1"),
        (["--seeds", "0"], "seeds is 0"),
    ],
)
def test_bad_options_are_told_and_nothing_is_written(tmp_path, capsys, words, says):
    out = tmp_path / "head.safetensors"
    assert (
        main(["train-acceptance-head", "--out", str(out), "--data", str(tmp_path / "data"), "--device", "cpu", *words])
        == 2
    )
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())
