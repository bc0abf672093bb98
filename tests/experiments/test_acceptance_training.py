"""What heads are trained on, and the heads that ship with the pocket pair."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_lib import generate, paths
from specdec_lib.drafters import SpecDecPP
from specdec_lib.experiments import acceptance_training, recorded_runs
from specdec_lib.experiments.tasks import load_task
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.acceptance_data import examples, load_data

SHIPPED = paths.POCKET / "head"


@pytest.fixture(scope="module")
def pocket():
    return recorded_runs.load_pair("pocket", "pocket-draft", "cpu", "float32")


def test_training_prompts_come_from_modules_that_are_not_held_out(pocket, monkeypatch):
    asked = []

    def load(task, limit, **options):
        asked.append((task, limit, options))
        return load_task("outline", limit=limit, seed=2)

    monkeypatch.setattr(acceptance_training, "load_task", load)
    prompts = acceptance_training.training_prompts(pocket[2], ["rename", "humaneval"], 3, 7)
    assert asked == [("rename", 3, {"split": "train", "seed": 7}), ("humaneval", 3, {"seed": 7})]
    expected = [recorded_runs.render(p, pocket[2]) for p in load_task("outline", limit=3, seed=2)]
    assert prompts == [ids for ids in expected for _ in range(2)], "the tasks come in turn"
    assert not acceptance_training.training_prompts(pocket[2], ["rename"], 3, 7, longest=5)


def test_each_of_six_tasks_in_turn_is_trained_on_and_held_out():
    responses = [(i, i % 6) for i in range(360)]
    fit, held_out = acceptance_training.parted(responses)
    assert len(held_out) == 36
    assert {task for _, task in fit} == {task for _, task in held_out} == set(range(6))


@pytest.mark.parametrize("count", [2, 7, 20, 360])
def test_each_response_is_in_one_part_and_both_keep_the_order(count):
    fit, held_out = acceptance_training.parted(range(count))
    assert sorted(fit + held_out) == list(range(count))
    assert fit and held_out and fit == sorted(fit) and held_out == sorted(held_out)
    assert (fit, held_out) == acceptance_training.parted(range(count)), "the same parts each time"


def test_the_shipped_heads_were_chosen_by_the_held_out_part(pocket):
    draft = pocket[1]
    parts = acceptance_training.parted(load_data(SHIPPED / "data", draft))
    for name in ("acceptance", "acceptance-confidence"):
        story = AcceptanceHead.load(SHIPPED / f"{name}.safetensors", draft).story
        drawn = [examples(draft, part, story["mixing"], story["training"]["seed"]) for part in parts]
        assert [story["examples"], story["held_out_examples"]] == [len(part) for part in drawn]


@pytest.mark.parametrize("name", ["acceptance", "acceptance-confidence"])
def test_the_shipped_heads_are_for_the_shipped_draft(pocket, name):
    model, draft, tokenizer = pocket
    head = AcceptanceHead.load(SHIPPED / f"{name}.safetensors", draft)
    prompt = recorded_runs.render(load_task("outline", limit=1, seed=3)[0], tokenizer)
    run = generate(model, prompt, SpecDecPP(draft, head), max_new_tokens=24)
    assert run.tokens == generate(model, prompt, max_new_tokens=24).tokens
    assert head.sees_confidence == name.endswith("confidence")


def test_the_shipped_data_are_for_the_shipped_pair(pocket):
    responses = load_data(SHIPPED / "data", pocket[1])
    assert len(responses) >= 300 and 0.5 < np.concatenate([r.acceptance for r in responses]).mean() < 0.95
