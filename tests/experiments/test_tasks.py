"""Tasks by name: every name works, limits and seeds choose, and what is not there is refused in words."""

import re

import pytest

from specdec_lib.experiments.tasks import load_task
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


def test_every_prompt_of_a_subset_carries_the_name_that_loads_it(tmp_path):
    row = {"question_id": 1, "category": "qa", "turns": ["Who?"]}
    write(tmp_path / "spec_bench/question.jsonl", jsonl(row))
    (prompt,) = load_task("spec-bench", tmp_path, subset="qa")
    assert prompt.task == "spec-bench/qa" and load_task(prompt.task, tmp_path) == [prompt]


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
    *(
        (task, {"limit": limit}, ValueError, f"limit is {limit!r}; expected a whole number of 0 or more")
        for limit in (-1, 1.5, "3", True)
        for task in ("humaneval", "conversation", "no such task")
    ),
    *(
        ("humaneval", {"seed": seed}, ValueError, f"seed is {seed!r}; expected a whole number")
        for seed in (-1, 0.5, "1", False)
    ),
]


@pytest.mark.parametrize(("name", "options", "error", "says"), REFUSED)
def test_a_wrong_call_is_refused_before_any_file_is_looked_for(tmp_path, name, options, error, says):
    with pytest.raises(error, match=re.escape(says)):
        load_task(name, tmp_path / "nowhere", **options)
