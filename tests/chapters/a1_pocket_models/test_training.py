"""The recipe of the pocket pair: data, schedule, resuming, and an exported directory that loads."""
from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec_lib.chapters.a1_pocket_models import training, training_rows

TEXTS = ["def add(a, b):\n    return a + b\n", "class Point:\n    def move(self, dx):\n        self.x += dx\n"] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return training_rows.train_tokenizer(TEXTS, 300, 64)


@pytest.fixture(scope="module")
def sequences():
    rng = np.random.default_rng(0)
    return training_rows.Sequences(rng.integers(4, 300, (24, 17)).astype(np.int16), np.ones((24, 17), np.uint8))


def tiny(steps: int) -> training.Recipe:
    return training.Recipe(vocab_size=300, target=training.Shape(32, 2, 1, 48), draft=training.Shape(32, 1, 1, 48), length=16,
                         batch=4, target_steps=steps, warmup_steps=2)


def test_tokenizer_gives_back_any_text(tokenizer):
    for text in ["def f(x):\n        return x  # naïve 東京\t\n", "a\r\nb", "  x", "<|end|>", "1234567"]:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_conversation_is_the_chat_template_and_marks_answers_only(tokenizer):
    ids, is_answer = training_rows.conversation(tokenizer, ("rename a", "again"), ("def b", "def c"))
    messages = [{"role": "user", "content": "rename a"}, {"role": "assistant", "content": "def b"},
                {"role": "user", "content": "again"}, {"role": "assistant", "content": "def c"}]
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(messages, tokenize=False)
    marked = tokenizer.decode([i for i, a in zip(ids, is_answer, strict=True) if a])
    assert marked == "def b<|end|>def c<|end|>"


def test_each_epoch_sees_every_row_once_in_another_order(sequences):
    epochs = []
    for epoch in range(2):
        rows = np.concatenate([sequences.batch(epoch * 6 + i, 4, seed=0)[0] for i in range(6)])
        epochs.append(rows)
        assert sorted(map(tuple, rows)) == sorted(map(tuple, sequences.tokens))
    assert not np.array_equal(epochs[0], epochs[1])


def test_rate_warms_up_stays_and_falls_to_zero():
    recipe = training.Recipe(warmup_steps=10, decay_share=0.3)
    factors = [training.rate_factor(step, 100, recipe) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert all(f == 1.0 for f in factors[9:71])
    assert factors[100] == 0.0
    assert np.allclose(np.diff(factors[70:]), -1 / 30)


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path, sequences):
    def run(folder, steps_of_calls):
        folder.mkdir()
        for steps, total in steps_of_calls:
            torch.manual_seed(0)
            model = tiny(total).target.build(300)
            recipe = tiny(total)
            # A run that is stopped has the schedule of the whole run; only its loop ends early.
            curve = training.train(model, sequences, steps, dataclasses.replace(recipe, decay_share=1e-9), folder, "m", [],
                                 every=3, compiled=False)
        return model, curve

    whole, curve = run(tmp_path / "whole", [(6, 6)])
    parts, curve_of_parts = run(tmp_path / "parts", [(3, 6), (6, 6)])
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [r["loss"] for r in curve] == [r["loss"] for r in curve_of_parts]


def test_training_lowers_the_loss_and_distilling_brings_the_draft_nearer(tmp_path, sequences):
    recipe = tiny(40)
    torch.manual_seed(0)
    target, draft = recipe.target.build(300), recipe.draft.build(300)
    curve = training.train(target, sequences, 40, recipe, tmp_path, "target", [], every=10, compiled=False)
    assert curve[-1]["loss"] < curve[0]["loss"]

    def distance():
        x = torch.from_numpy(sequences.tokens.astype(np.int64))
        with torch.no_grad():
            p, q = target(x).logits.log_softmax(-1), draft(x).logits.log_softmax(-1)
        return float((p.exp() * (p - q)).sum(-1).mean())

    before = distance()
    training.train(draft, sequences, 40, recipe, tmp_path, "draft", [], teacher=target.eval(), every=10, compiled=False)
    assert distance() < 0.7 * before


def test_the_second_target_is_another_family_and_is_distilled_alike(tmp_path, sequences):
    recipe = dataclasses.replace(tiny(40), qwen=training.QwenShape(32, 2, 2, 1, 48))
    torch.manual_seed(0)
    target, qwen = recipe.target.build(300).eval(), recipe.qwen.build(300)
    assert (qwen.config.model_type, target.config.model_type) == ("qwen3", "llama")
    curve = training.train(qwen, sequences, 40, recipe, tmp_path, "qwen", [], teacher=target, every=10, compiled=False)
    assert all(row["distilling"] for row in curve)
    assert curve[-1]["loss"] < curve[0]["loss"]


def test_export_is_an_ordinary_directory_in_bfloat16(tmp_path, tokenizer):
    model = tiny(1).target.build(len(tokenizer)).eval()
    story = {"part": "target"}
    training.export(model, tokenizer, tmp_path / "m", story)
    training.export(model, tokenizer, tmp_path / "m", story)  # replaces the first
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert loaded.dtype == torch.bfloat16
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "m").encode("def add")])
    assert torch.allclose(loaded.float()(ids).logits, model(ids).logits, atol=0.05)
    assert json.loads((tmp_path / "m" / "training.json").read_text()) == story
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_accuracy_counts_answer_tokens_only(tokenizer):
    class Repeats(torch.nn.Module):
        """Predicts each token again."""

        def __init__(self):
            super().__init__()
            self.unused = torch.nn.Parameter(torch.zeros(1))

        def forward(self, ids, use_cache):
            return type("Out", (), {"logits": torch.nn.functional.one_hot(ids, 300).float()})

    probes = [("same", [5, 7, 7, 7], [0, 0, 1, 1]), ("other", [5, 7, 8, 8], [0, 0, 1, 1])]
    assert training.task_accuracy(Repeats(), probes) == {"same": 1.0, "other": 0.5}


def run_for(folder, sequences, recipe, teacher=None, name="m"):
    torch.manual_seed(recipe.seed)
    model = recipe.target.build(300)
    return training.train(model, sequences, recipe.target_steps, recipe, folder, name, [], teacher=teacher, every=3,
                        compiled=False)


def test_a_checkpoint_of_another_seed_is_refused_and_named(tmp_path, sequences):
    run_for(tmp_path, sequences, tiny(3))
    with pytest.raises(ValueError, match=r"m\.pt is of a run with another seed; delete it .* --work"):
        run_for(tmp_path, sequences, dataclasses.replace(tiny(3), seed=1))


def test_a_checkpoint_of_another_recipe_or_shape_is_refused(tmp_path, sequences):
    run_for(tmp_path, sequences, tiny(3))
    with pytest.raises(ValueError, match="another muon_rate;"):
        run_for(tmp_path, sequences, dataclasses.replace(tiny(3), muon_rate=1e-3))
    with pytest.raises(ValueError, match="another shape;"):
        run_for(tmp_path, sequences, dataclasses.replace(tiny(3), target=training.Shape(32, 1, 1, 48)))


def test_a_checkpoint_distilled_from_another_teacher_is_refused(tmp_path, sequences):
    old, new = (tiny(1).draft.build(300).eval() for _ in range(2))
    run_for(tmp_path, sequences, tiny(3), old)
    assert len(run_for(tmp_path, sequences, tiny(3), old)) == 1  # read back, not trained again
    for teacher in (new, None):
        with pytest.raises(ValueError, match=r"m\.pt is of a run with another teacher;"):
            run_for(tmp_path, sequences, tiny(3), teacher)


def test_a_run_may_be_lengthened_and_not_shortened(tmp_path, sequences):
    run_for(tmp_path, sequences, tiny(3))
    recipe = dataclasses.replace(tiny(6), draft_steps=7, qwen_steps=8)
    assert [row["step"] for row in run_for(tmp_path, sequences, recipe)] == [3, 6]
    with pytest.raises(ValueError, match=r"m\.pt is of a run of 6 steps already, 3 were asked for"):
        run_for(tmp_path, sequences, tiny(3))


def test_a_checkpoint_that_does_not_say_what_it_is_of_is_refused(tmp_path, sequences):
    run_for(tmp_path, sequences, tiny(3))
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    del state["key"]
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(ValueError, match=r"m\.pt does not say which seed, recipe and teacher"):
        run_for(tmp_path, sequences, tiny(3))


@pytest.fixture
def command(tmp_path, monkeypatch, tokenizer, sequences):
    """``main`` with a tiny recipe, a tokenizer and data that are there at once; gives a function of its arguments."""
    recipe = tiny(3)
    monkeypatch.setattr(training, "Recipe", lambda: recipe)
    monkeypatch.setattr(training.corpus, "stdlib_modules", lambda part: [])
    monkeypatch.setattr(training.pocket_data, "train_tokenizer", lambda *args: tokenizer)
    monkeypatch.setattr(training.pocket_data, "pack", lambda *args: sequences)
    monkeypatch.setattr(training, "make_probes", lambda *args: [])
    monkeypatch.setattr(torch, "compile", lambda function: function)
    places = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), "--device", "cpu"]
    return lambda *words: training.main([*places, "--draft-steps", "3", *words])


def test_the_command_refuses_another_seed_before_it_trains(command, tmp_path, capsys):
    assert command() == 0
    before = (tmp_path / "out" / "target" / "training.json").read_text()
    assert command("--seed", "1") == 2
    assert "target.pt is of a run with another seed" in capsys.readouterr().err
    assert (tmp_path / "out" / "target" / "training.json").read_text() == before
    assert json.loads(before)["recipe"]["seed"] == 0
    assert not (tmp_path / "work" / "sequences-1.safetensors").exists()


def test_the_command_refuses_a_draft_of_a_target_yet_to_be_trained_on(command, tmp_path, capsys):
    assert command() == 0 and command() == 0
    assert command("--target-steps", "6") == 2
    assert "draft.pt is of a run with another teacher" in capsys.readouterr().err
    assert command("--target-steps", "6", "--part", "target") == 0
    assert command("--target-steps", "6", "--part", "draft") == 2
    assert "draft.pt is of a run with another teacher" in capsys.readouterr().err
    (tmp_path / "work" / "draft.pt").unlink()
    assert command("--target-steps", "6") == 0


def half_written(original):
    """A function that writes a file, or a folder with one, and dies half-way."""

    def write(first, *args, **kwargs):
        original(first, *args, **kwargs)
        raise OSError("disk full")

    return write


def test_data_and_tokenizer_are_there_whole_or_not_at_all(command, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as failing:
        failing.setattr(training.PreTrainedTokenizerFast, "save_pretrained",
                        half_written(training.PreTrainedTokenizerFast.save_pretrained))
        assert command() == 2 and "disk full" in capsys.readouterr().err
    assert list((tmp_path / "work").iterdir()) == []
    with monkeypatch.context() as failing:
        failing.setattr(training, "save_file", half_written(training.save_file))
        assert command() == 2
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["tokenizer"]
    assert command() == 0


def test_the_curve_is_written_whole_or_not_at_all(tmp_path, sequences, monkeypatch):
    run_for(tmp_path, sequences, tiny(3))
    before = (tmp_path / "m.curve.json").read_text()
    monkeypatch.setattr(training.Path, "write_text", half_written(training.Path.write_text))
    with pytest.raises(OSError, match="disk full"):
        run_for(tmp_path, sequences, tiny(6))
    assert (tmp_path / "m.curve.json").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.curve.json", "m.pt"]
