"""The book's prompts: as many as promised, each once, in two halves of the same kinds; and decoding them together."""

import json
from collections import Counter

import pytest
from batched import Known, decode_together

from specdec_lib import Sampling, generate, paths
from specdec_lib.decoding.contract import Context
from specdec_lib.experiments import prompts

#: Prompts of each file at least: what the book's data page promises.
LEAST = {"documents": 40, "code_edits": 40, "sentence_edits": 40, "paragraph_edits": 40, "conversation": 60, "math": 40}
WRITTEN = tuple(prompts.FILES)


@pytest.mark.parametrize("name", LEAST)
def test_each_file_has_enough_prompts_and_two_halves_of_the_same_kinds(name):
    path = paths.DATA / "prompts" / f"{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= LEAST[name] and len({row["id"] for row in rows}) == len(rows)
    kinds = {half: Counter(row["kind"] for row in rows if f"-{half}-" in row["id"]) for half in ("choose", "report")}
    assert kinds["choose"] == kinds["report"] and kinds["choose"].total() * 2 == len(rows)


def test_no_prompt_is_in_both_halves_and_all_are_asked_once():
    chosen, reported = prompts.load("choose", WRITTEN), prompts.load("report", WRITTEN)
    asked = [(prompt.task, prompt.turns) for prompt in (*chosen, *reported)]
    assert len(set(asked)) == len(asked)
    assert {prompt.id for prompt in chosen}.isdisjoint(prompt.id for prompt in reported)
    assert all(turn.strip() == turn for _, turns in asked for turn in turns)


def test_a_limit_takes_the_first_of_each_task_and_what_is_not_there_is_refused_by_name():
    some = prompts.load("report", ("mathematics", "conversation"), 3)
    assert [prompt.task for prompt in some] == ["mathematics"] * 3 + ["conversation"] * 3
    assert some[:3] == prompts.load("report", ("mathematics",))[:3]
    with pytest.raises(ValueError, match="half is 'both'; expected one of choose, report"):
        prompts.load("both", WRITTEN)
    with pytest.raises(ValueError, match="task is 'news'"):
        prompts.load("report", ("news",))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, seed=5), Sampling(1.2, 0.9, seed=6)])
def test_decoding_together_writes_what_each_prompt_alone_does(llama, sampling):
    asked = [[5, 7, 9], [3] * 11, [1, 2, 3, 4, 5], [8]]
    together = decode_together(llama, asked, [sampling] * len(asked), 12, 2)
    for ids, run in zip(asked, together, strict=True):
        assert run.tokens == generate(llama, ids, None, sampling, 12, [2]).tokens
        assert len(run.steps) <= 2


def test_a_wrong_guess_is_no_longer_drafted():
    known = Known([4, 5, 6, 7], length=2)
    context = Context([1, 2, 4], 2, 96, Sampling())
    assert known.propose(context, 9).tokens == [5, 6]
    context.tokens += [9]
    assert known.propose(context, 9).tokens == []
