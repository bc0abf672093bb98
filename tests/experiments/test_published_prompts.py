"""The papers' own sets as they are asked: sizes, forms, and what is too long."""

from __future__ import annotations

import pytest

from specdec_lib import load_model
from specdec_lib.experiments import published_prompts
from specdec_lib.experiments.prompt import Prompt
from tests.experiments.published_formats import HUMANEVAL, jsonl, write


def test_humaneval_is_continued_for_rest_and_asked_in_a_chat_for_specdec_pp(tmp_path):
    rows = [HUMANEVAL | {"task_id": f"HumanEval/{k}"} for k in range(3)]
    write(tmp_path / "humaneval/HumanEval.jsonl", jsonl(*rows))
    plain, chat = (published_prompts.load(name, tmp_path) for name in ("humaneval", "humaneval-chat"))
    assert [p.text for p in plain] == [HUMANEVAL["prompt"]] * 3 and not any(p.chat for p in plain)
    assert all(p.chat and HUMANEVAL["prompt"] in p.text and "### Response:" in p.text for p in chat)


def test_an_unknown_set_is_refused_by_name():
    with pytest.raises(ValueError, match="'mt-bench'; expected one of spec-bench, humaneval"):
        published_prompts.load("mt-bench")


def test_prompts_are_left_out_above_the_longest_length_alone(monkeypatch):
    _, tokenizer = load_model("pocket")
    prompts = [Prompt(f"{count}", "words", ("a " * count,), chat=False) for count in (3, 40)]
    longest = len(tokenizer(prompts[1].text)["input_ids"])
    for most, kept in ((longest, prompts), (longest - 1, prompts[:1])):
        monkeypatch.setattr(published_prompts, "LONGEST", most)
        assert published_prompts.short_enough(prompts, tokenizer) == kept


@pytest.mark.realdata
@pytest.mark.parametrize("name", published_prompts.SETS)
def test_a_real_set_has_distinct_prompts_and_no_more_than_its_limits(name):
    prompts, parts = published_prompts.load(name), published_prompts.SETS[name]
    assert len({(p.task, p.id) for p in prompts}) == len(prompts)
    assert {p.task for p in prompts} == {part.task for part in parts}
    for part in parts:
        count = sum(p.task == part.task for p in prompts)
        assert count == part.limit or part.limit is None
