"""Tasks by name: every name works, limits and seeds choose, and what is not there is refused in words; the book's prompts."""

import json
import re
from collections import Counter

import pytest
from batched import Known, decode_together

from specdec_lib import Sampling, generate, paths
from specdec_lib.decoding.contract import Context
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.tasks import load_task
from tests.experiments.published_formats import HUMANEVAL, jsonl, write


@pytest.fixture
def root(tmp_path):
    """A folder with twenty HumanEval problems and no other set."""
    rows = [HUMANEVAL | {"task_id": f"HumanEval/{k}"} for k in range(20)]
    write(tmp_path / "humaneval/HumanEval.jsonl", jsonl(*rows))
    return tmp_path


def test_the_environment_variable_names_the_root_and_an_argument_overrides_it(root, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SPECDEC_DATASETS", str(root))
    assert len(load_task("humaneval")) == 20
    other = tmp_path_factory.mktemp("other")
    write(other / "humaneval/HumanEval.jsonl", jsonl(HUMANEVAL))
    assert len(load_task("humaneval", other)) == len(load_task("humaneval", str(other))) == 1


def test_a_limit_gives_the_first_prompts_and_a_seed_permutes_the_file_before(root):
    for limit, count in ((None, 20), (0, 0), (1, 1), (7, 7), (20, 20), (99, 20)):
        assert [p.id for p in load_task("humaneval", root, limit=limit)] == [f"HumanEval/{k}" for k in range(count)]
    in_order = load_task("humaneval", root)
    shuffled = load_task("humaneval", root, seed=42)
    assert shuffled != in_order and sorted(p.id for p in shuffled) == sorted(p.id for p in in_order)
    assert load_task("humaneval", root, seed=42, limit=5) == shuffled[:5]
    assert load_task("humaneval", root, seed=43) != shuffled


# A call that is refused before any file is looked for, the error and what it says.
REFUSED = [
    ("humanevl", {}, ValueError, "task 'humanevl' is unknown. Did you mean 'humaneval'? There are 'summarisation'"),
    ("nothing like it", {}, ValueError, "task 'nothing like it' is unknown. There are"),
    ("conversation/all", {}, ValueError, "task 'conversation/all' is unknown"),
    ("gsm8k/test", {}, ValueError, "task 'gsm8k/test' is unknown; 'gsm8k' has no subsets"),
    ("spec-bench/", {}, ValueError, "task 'spec-bench/' is unknown; 'spec-bench' has 'mt_bench', 'translation'"),
    (7, {}, ValueError, "name is 7; expected the name of a task"),
    ("spec-bench/qa", {"subset": "rag"}, ValueError, "subset is 'rag', but task 'spec-bench/qa' names another"),
    ("humaneval", {"split": "x"}, TypeError, "task 'humaneval' has no option 'split'; expected 'seed', 'style'"),
    ("conversation", {"style": "x"}, TypeError, "task 'conversation' has no option 'style'; expected 'half'"),
]
REFUSED += [
    (task, {name: value}, ValueError, f"{name} is {value!r}; expected a whole number")
    for task, name, values in (
        ("humaneval", "limit", (-1, 1.5, "3", True)), ("conversation", "limit", (-1, True)),
        ("no such task", "limit", (-1,)), ("humaneval", "seed", (-1, 0.5, "1", False)),
    )
    for value in values
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "error", "says"), REFUSED)
def test_a_wrong_call_is_refused_before_any_file_is_looked_for(tmp_path, name, options, error, says):
    with pytest.raises(error, match=re.escape(says)):
        load_task(name, tmp_path / "nowhere", **options)


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
    # A wrong guess is no longer drafted.
    known = Known([4, 5, 6, 7], length=2)
    context = Context([1, 2, 4], 2, 96, Sampling())
    assert known.propose(context, 9).tokens == [5, 6]
    context.tokens += [9]
    assert known.propose(context, 9).tokens == []
