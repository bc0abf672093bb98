"""What heads are trained on, and the heads that ship with the pocket pair."""

from __future__ import annotations

import pytest

from specdec_lib import generate, paths
from specdec_lib.drafters import SpecDecPP
from specdec_lib.experiments import head_training, recorded_runs
from specdec_lib.experiments.tasks import load_task
from specdec_lib.heads.acceptance import AcceptanceHead

SHIPPED = paths.POCKET / "head"


@pytest.fixture(scope="module")
def pocket():
    return recorded_runs.load_pair("pocket", "pocket-draft", "cpu", "float32")


@pytest.mark.parametrize("count", [2, 7, 20, 360])
def test_each_response_is_in_one_part_and_both_keep_the_order(count):
    fit, held_out = head_training.parted(range(count))
    assert sorted(fit + held_out) == list(range(count))
    assert fit and held_out and fit == sorted(fit) and held_out == sorted(held_out)
    assert (fit, held_out) == head_training.parted(range(count)), "the same parts each time"


@pytest.mark.parametrize("name", ["acceptance", "acceptance-confidence"])
def test_the_shipped_heads_are_for_the_shipped_draft(pocket, name):
    model, draft, tokenizer = pocket
    head = AcceptanceHead.load(SHIPPED / f"{name}.safetensors", draft)
    prompt = recorded_runs.render(load_task("conversation", limit=1)[0], tokenizer)
    run = generate(model, prompt, SpecDecPP(draft, head), max_new_tokens=24)
    assert run.tokens == generate(model, prompt, max_new_tokens=24).tokens
    assert head.sees_confidence == name.endswith("confidence")
