"""The numbers and aims of appendix A1."""

import json

import pytest

from specdec_lib.chapters.a1_pocket_models import page_values
from specdec_lib.experiments import edit_tasks

ROWS = [
    {"task": task, "prompts": 2, "target": 0.9, "right": 0.25, "looped": 0.5, "agreement": 0.7}
    for task in ("rename", "code-completion", *edit_tasks.MAKERS)
]
TARGET = {
    "recipe": {"length": 512, "long_length": 2048},
    "heldout_loss": {"512": {"celery": 3.0, "luigi": 2.0}, "2048": {"celery": 2.7, "luigi": 2.2}},
    "start": {"tokens": 100},
    "curve": [{"tokens": 10}, {"tokens": 20}],
}


def test_tokens_seen_are_those_of_this_run_and_of_those_before():
    assert page_values.tokens_seen(TARGET) == 120
    assert page_values.tokens_seen({"curve": [{"tokens": 7}]}) == 7


def test_each_task_has_an_aim_for_its_tokens_and_one_for_its_answers():
    tokens, answers = page_values.aims_by_task(ROWS, ["rename"], 0.98, 0.25)
    assert (tokens.value, tokens.low, tokens.reached) == (0.9, 0.98, False)
    assert (answers.value, answers.low, answers.reached) == (0.25, 0.25, True)
    assert len(page_values.editing_aims(ROWS, 0.9, 0.3)) == 2 * len(edit_tasks.MAKERS)


def test_loops_are_those_of_code_completion_and_may_be_few():
    assert not page_values.loop_aim(ROWS, 0.2).reached and page_values.loop_aim(ROWS, 0.5).reached


def test_a_longer_window_has_to_lower_the_loss_of_a_text():
    celery, luigi = page_values.window_aims(TARGET)
    assert (celery.value, celery.reached) == (pytest.approx(0.9), True)
    assert (luigi.value, luigi.reached) == (pytest.approx(1.1), False)
    assert page_values.window_aims({"recipe": TARGET["recipe"]}) == []


def test_what_a_target_can_do_is_kept_without_what_belongs_to_its_draft(tmp_path):
    page_values.keep(tmp_path / "kept.json", "fingerprint", 120, 3, ROWS[:1])
    told = json.loads((tmp_path / "kept.json").read_text())
    row = {"task": "rename", "prompts": 2, "target": 0.9, "right": 0.25, "looped": 0.5}
    assert told == {"target": "fingerprint", "tokens": 120, "seed": 3, "rows": [row]}
