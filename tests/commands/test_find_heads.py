"""The command ``find-heads``, once ``heads``: what it writes, reads again and refuses."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specdec_lib import load_model, paths
from specdec_lib.__main__ import main
from specdec_lib.commands import find_heads
from specdec_lib.experiments.input_guided import calibration_prompts
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.heads.induction import InductionHeads, identify


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two random models with a tokenizer and chat template, as directories."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(paths.POCKET / "target")
    out = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        folder = tmp_path_factory.mktemp("model")
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=48,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        out.append(folder)
    return out


def call(folder, out, *more):
    return main(
        [
            "find-heads",
            "--target",
            str(folder),
            "--out",
            str(out),
            "--task",
            "replace-word",
            "--prompts",
            "2",
            "--max-new-tokens",
            "6",
            "--device",
            "cpu",
            *more,
        ]
    )


def test_the_file_holds_what_identify_finds_and_is_refused_for_another_model(folders, tmp_path, capsys):
    out = tmp_path / "heads.json"
    assert call(folders[0], out) == 0
    model, tokenizer = load_model(folders[0], "cpu")
    prompts = [render(p, tokenizer) for p in calibration_prompts(["replace-word"], 2)]
    expected, read = identify(model, prompts, 6, progress=False), InductionHeads.load(out, model)
    assert read.ranked() == expected.ranked() and read.copied == expected.copied
    assert f"{len(read.ranked())} of 4 heads" in capsys.readouterr().out
    before = out.read_bytes()
    assert call(folders[0], out) == 0
    assert "--force identifies them again" in capsys.readouterr().out
    assert call(folders[1], out) == 2
    assert "made for another model" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert call(folders[1], out, "--force") == 0
    assert InductionHeads.load(out, load_model(folders[1], "cpu")[0]).copied > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "nonsense"], "'nonsense' is unknown"),
        (["--prompts", "0"], "--prompts is 0; expected 1 or more"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0; expected 1 or more"),
    ],
)
def test_mistakes_are_told_before_the_model_is_loaded(tmp_path, capsys, monkeypatch, options, message):
    def loaded(*_):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(find_heads, "load_model", loaded)
    out = tmp_path / "heads.json"
    assert main(["heads", "--target", "pocket", "--out", str(out), *options]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_a_missing_folder_or_model_is_told(folders, tmp_path, capsys):
    out = tmp_path / "heads.json"
    assert call(folders[0], tmp_path / "no" / "heads.json") == 2
    assert "no folder" in capsys.readouterr().err
    assert call(tmp_path / "none", out) == 2
    assert "no model in" in capsys.readouterr().err
    assert not out.exists()
