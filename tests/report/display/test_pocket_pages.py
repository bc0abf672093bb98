"""Tables and figures of the page on the pocket pair."""

import math

import pytest

from specdec_lib.chapters.a1_pocket_models import training_rows
from specdec_lib.chapters.a1_pocket_models.page_values import Aim
from specdec_lib.chapters.a1_pocket_models.wrong_tokens import FirstWrong
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import pocket_pages

COPYING = dict.fromkeys(training_rows.COPYING_TASKS, 0.5)
EDITING = {task: 0.25 for task in training_rows.TASK_SHARES if task not in COPYING}


def story(accuracies, before=0):
    curve = [
        {"tokens": 1e6 * (i + 1), "accuracy": accuracy, "heldout": {"celery": 3.0 - i}}
        for i, accuracy in enumerate(accuracies)
    ]
    return {
        "curve": curve,
        "start": {"tokens": before},
        "heldout_loss": {"512": {"celery": 0.0}, "2048": {"celery": 1.0}},
    }


def test_the_curve_of_a_group_of_tasks_has_the_steps_that_measured_all_of_it():
    told = {"target": story([COPYING, COPYING | EDITING], before=2e6), "draft": {"curve": []}}
    target, draft = pocket_pages.learning(told).axes
    copying, editing = target.get_lines()
    assert [list(copying.get_xdata()), list(copying.get_ydata())] == [[3, 4], [0.5, 0.5]]
    assert [list(editing.get_xdata()), list(editing.get_ydata())] == [[4], [0.25]]
    assert not draft.get_lines()


def test_the_curve_of_a_text_begins_where_the_weights_began():
    (ax,) = pocket_pages.heldout_curve(story([COPYING, COPYING], before=2e6)).axes
    assert [list(line.get_xdata()) + list(line.get_ydata()) for line in ax.get_lines()] == [[3, 4, 3.0, 2.0]]


def test_no_two_texts_look_alike():
    told = story([COPYING])
    told["curve"][0]["heldout"] = dict.fromkeys(("stdlib", "celery", "luigi", "mitmproxy", "sunpy"), 2.5)
    (ax,) = pocket_pages.heldout_curve(told).axes
    assert len({(line.get_color(), line.get_marker()) for line in ax.get_lines()}) == 5
    assert len({line.get_color() for line in ax.get_lines()}) == 5


def test_perplexity_stands_beside_each_text_for_each_window():
    (row,) = pocket_pages.windows(story([])).frame.to_dict("records")
    assert row == {"text": "celery", "512": 1.0, "2048": pytest.approx(math.e)}


@pytest.mark.parametrize(
    ("value", "low", "high", "aim", "verdict"),
    [
        (0.7, 0.98, 1.0, "98% or more", "below"),
        (0.3, 0.0, 0.2, "20% or less", "above"),
        (0.7, 0.6, 0.8, "60% to 80%", "reached"),
        (0.7, 0.7, 1.0, "70% or more", "not resolved"),
    ],
)
def test_an_aim_is_said_by_its_ends(value, low, high, aim, verdict):
    (row,) = pocket_pages.aims(
        [Aim("rename", "tokens right", Interval(value, value - 0.05, value + 0.05), low, high)]
    ).frame.to_dict("records")
    assert (row["aim"], row["verdict"]) == (aim, verdict)


def test_each_wrong_answer_has_its_mark_at_its_first_wrong_token():
    wrong = [FirstWrong("rename", 3, 9, "new"), FirstWrong("outline", 5, 9, "end"), FirstWrong("rename", 7, 9, "new")]
    (ax,) = pocket_pages.wrong_chart(wrong).axes
    places = {line.get_label(): list(line.get_xdata()) for line in ax.get_lines()}
    assert places == {
        "a new token": [3, 7],
        "where copying begins again": [],
        "inside copied text": [],
        "the end of the answer": [5],
    }
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rename", "outline"]
