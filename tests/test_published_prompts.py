"""The papers' own sets as they are asked: sizes, forms, ways to decode, and what is too long."""

from __future__ import annotations

import published_prompts
import pytest

from specdec_lib.experiments.prompt import Prompt
from tests.experiments.published_formats import HUMANEVAL, jsonl, write


def test_humaneval_is_continued_for_rest_and_asked_in_a_chat_for_specdec_pp(tmp_path, tokenizer):
    rows = [HUMANEVAL | {"task_id": f"HumanEval/{k}"} for k in range(3)]
    write(tmp_path / "humaneval/HumanEval.jsonl", jsonl(*rows))
    plain, chat = (
        [prompt for prompt, _ in published_prompts.load(name, tokenizer, tmp_path)]
        for name in ("humaneval", "humaneval-chat")
    )
    assert [p.text for p in plain] == [HUMANEVAL["prompt"]] * 3 and not any(p.chat for p in plain)
    assert all(p.chat and HUMANEVAL["prompt"] in p.text and "### Response:" in p.text for p in chat)


def test_the_first_prompts_are_also_sampled_as_the_paper_samples(tmp_path, tokenizer):
    count = published_prompts.SETS["humaneval"][0].first + 1
    rows = [HUMANEVAL | {"task_id": f"HumanEval/{k}"} for k in range(count)]
    write(tmp_path / "humaneval/HumanEval.jsonl", jsonl(*rows))
    *first, last = (samplings for _, samplings in published_prompts.load("humaneval", tokenizer, tmp_path))
    assert [s.greedy for s in last] == [True]
    for samplings in first:
        assert samplings[0].greedy
        assert [(s.temperature, s.top_p, s.seed) for s in samplings[1:]] == [(0.8, 0.95, seed) for seed in range(3)]


def test_an_unknown_set_is_refused_by_name(tokenizer):
    with pytest.raises(ValueError, match="'mt-bench'; expected one of spec-bench, humaneval"):
        published_prompts.load("mt-bench", tokenizer)


def test_prompts_are_left_out_above_the_longest_length_alone(monkeypatch, tokenizer):
    prompts = [Prompt(f"{count}", "words", ("a " * count,), chat=False) for count in (3, 40)]
    longest = len(tokenizer(prompts[1].text)["input_ids"])
    for most, kept in ((longest, prompts), (longest - 1, prompts[:1])):
        monkeypatch.setattr(published_prompts, "LONGEST", most)
        assert published_prompts.short_enough(prompts, tokenizer) == kept


@pytest.mark.realdata
@pytest.mark.parametrize("name", published_prompts.SETS)
def test_a_real_set_has_distinct_prompts_and_no_more_than_its_limits(name, tokenizer, monkeypatch):
    monkeypatch.setattr(published_prompts, "LONGEST", 10**6)
    prompts, parts = [prompt for prompt, _ in published_prompts.load(name, tokenizer)], published_prompts.SETS[name]
    assert len({(p.task, p.id) for p in prompts}) == len(prompts)
    assert {p.task for p in prompts} == {part.task for part in parts}
    for part in parts:
        count = sum(p.task == part.task for p in prompts)
        assert count == part.limit or part.limit is None
