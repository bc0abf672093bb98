"""The recipe of the pocket pair: data, schedule, resuming, and an exported directory that loads."""
from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec_lib.models import pocket, pocket_data

TEXTS = ["def add(a, b):\n    return a + b\n", "class Point:\n    def move(self, dx):\n        self.x += dx\n"] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return pocket_data.train_tokenizer(TEXTS, 300, 64)


@pytest.fixture(scope="module")
def sequences():
    rng = np.random.default_rng(0)
    return pocket_data.Sequences(rng.integers(4, 300, (24, 17)).astype(np.int16), np.ones((24, 17), np.uint8))


def tiny(steps: int) -> pocket.Recipe:
    return pocket.Recipe(vocab_size=300, target=pocket.Shape(32, 2, 1, 48), draft=pocket.Shape(32, 1, 1, 48), length=16,
                         batch=4, target_steps=steps, warmup_steps=2)


def test_tokenizer_gives_back_any_text(tokenizer):
    for text in ["def f(x):\n        return x  # naïve 東京\t\n", "a\r\nb", "  x", "<|end|>", "1234567"]:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_conversation_is_the_chat_template_and_marks_answers_only(tokenizer):
    ids, is_answer = pocket_data.conversation(tokenizer, ("rename a", "again"), ("def b", "def c"))
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
    recipe = pocket.Recipe(warmup_steps=10, decay_share=0.3)
    factors = [pocket.rate_factor(step, 100, recipe) for step in range(101)]
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
            curve = pocket.train(model, sequences, steps, dataclasses.replace(recipe, decay_share=1e-9), folder, "m", [],
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
    curve = pocket.train(target, sequences, 40, recipe, tmp_path, "target", [], every=10, compiled=False)
    assert curve[-1]["loss"] < curve[0]["loss"]

    def distance():
        x = torch.from_numpy(sequences.tokens.astype(np.int64))
        with torch.no_grad():
            p, q = target(x).logits.log_softmax(-1), draft(x).logits.log_softmax(-1)
        return float((p.exp() * (p - q)).sum(-1).mean())

    before = distance()
    pocket.train(draft, sequences, 40, recipe, tmp_path, "draft", [], teacher=target.eval(), every=10, compiled=False)
    assert distance() < 0.7 * before


def test_the_second_target_is_another_family_and_is_distilled_alike(tmp_path, sequences):
    recipe = dataclasses.replace(tiny(40), qwen=pocket.QwenShape(32, 2, 2, 1, 48))
    torch.manual_seed(0)
    target, qwen = recipe.target.build(300).eval(), recipe.qwen.build(300)
    assert (qwen.config.model_type, target.config.model_type) == ("qwen3", "llama")
    curve = pocket.train(qwen, sequences, 40, recipe, tmp_path, "qwen", [], teacher=target, every=10, compiled=False)
    assert all(row["distilling"] for row in curve)
    assert curve[-1]["loss"] < curve[0]["loss"]


def test_export_is_an_ordinary_directory_in_bfloat16(tmp_path, tokenizer):
    model = tiny(1).target.build(len(tokenizer)).eval()
    story = {"part": "target"}
    pocket.export(model, tokenizer, tmp_path / "m", story)
    pocket.export(model, tokenizer, tmp_path / "m", story)  # replaces the first
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
    assert pocket.task_accuracy(Repeats(), probes) == {"same": 1.0, "other": 0.5}
