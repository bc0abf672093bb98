"""The numbers and aims of appendix A1."""

import json
import math
from types import SimpleNamespace

import nbformat
import pytest

from specdec_lib import paths
from specdec_lib.chapters.a1_pocket_models import page_values
from specdec_lib.chapters.a1_pocket_models.wrong_tokens import FirstWrong, Forced, proportion
from specdec_lib.experiments import edit_tasks
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.build import params

ROWS = [
    {
        "task": task,
        "prompts": 2,
        "target": Interval(0.9, 0.85, 0.95),
        "right": Interval(0.25, 0.2, 0.3),
        "looped": Interval(0.5, 0.4, 0.6),
        "agreement": Interval(0.7, 0.6, 0.8),
    }
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
    tokens, answers = page_values.aims_by_task(ROWS, ["rename"], 0.98, 0.15)
    assert (tokens.value.value, tokens.low, tokens.verdict) == (0.9, 0.98, "below")
    assert (answers.value.value, answers.low, answers.verdict) == (0.25, 0.15, "reached")
    assert len(page_values.editing_aims(ROWS, 0.9, 0.3)) == 2 * len(edit_tasks.MAKERS)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.6, 1.0, "below"),
        (0.4, 0.6, "reached"),
        (0.0, 0.3, "above"),
        (0.45, 1.0, "not resolved"),
        (0.0, 0.55, "not resolved"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(low, high, verdict):
    assert page_values.Aim("rename", "tokens right", Interval(0.5, 0.4, 0.59), low, high).verdict == verdict
    assert (
        page_values.Aim("rename", "tokens right", Interval(0.5, math.nan, math.nan), low, high).verdict
        == "not resolved"
    )


def test_loops_are_those_of_code_completion_and_may_be_few():
    assert page_values.loop_aim(ROWS, 0.2).verdict == "above" and page_values.loop_aim(ROWS, 0.7).verdict == "reached"


def test_a_longer_window_has_to_lower_the_loss_of_the_texts():
    (aim,) = page_values.window_aims(TARGET)
    assert aim.value.value == pytest.approx(4.9 / 5.0) and aim.verdict == "not resolved"
    assert page_values.window_aims({"recipe": TARGET["recipe"]}) == []


def story(losses, seconds=(100.0, 300.0)):
    curve = [
        {
            "step": 10 * (i + 1),
            "tokens": 1000 * (i + 1),
            "seconds": spent,
            "heldout": {"celery": loss, "luigi": loss + 1},
        }
        for i, (loss, spent) in enumerate(zip(losses, seconds, strict=True))
    ]
    return {"curve": curve, "start": {"tokens": 500}, "steps": curve[-1]["step"], "recipe": {"last_share": 0.2}}


def test_the_stop_is_told_by_the_rates_and_by_three_places_of_the_held_out_loss():
    losses = [9, 8, 7, 6, 5, 4.5, 4.25, 4, 2, 1.5]
    told = page_values.stop(story(losses, [100.0 * (i + 1) ** 2 for i in range(10)]))
    assert (told["slowest"], told["fastest"], told["steps_done"]) == (pytest.approx(1000 / 1900), 10.0, 100)
    assert told["hours_missing"] == pytest.approx((150e6 - 10_500) / 1 / 3600)
    # The rate is constant up to step 80, whose middle is step 40; a text's loss is half a nat from the mean of the two.
    assert told["heldout_middle"] == pytest.approx((7 + 6 + 5) / 3 + 0.5)
    assert told["heldout_constant"] == pytest.approx((4.5 + 4.25 + 4) / 3 + 0.5)
    assert told["heldout_end"] == 2.0


def first(prompts=2, looped=0.5, seed=0):
    return {
        "seed": seed,
        "loop_tokens": 128,
        "tokens": 5,
        "rows": [{"task": row["task"], "prompts": prompts, "looped": looped} for row in ROWS],
    }


def test_the_first_edition_answered_the_prompts_of_the_default_parameters():
    told = json.loads((paths.POCKET / "first_edition.json").read_text())
    cells = nbformat.read(paths.ROOT / "notebooks" / "A1_pocket_models.ipynb", as_version=4).cells
    declared = next(cell.source for cell in cells if "parameters" in cell.metadata.get("tags", []))
    defaults = {name: each.default for name, each in params.parse_declarations(declared).items()}
    prompts = {row["task"]: row["prompts"] for row in told["rows"]}
    assert prompts.pop("code-completion") == defaults["completions"]
    assert set(prompts.values()) == {defaults["prompts_per_task"]}
    assert (told["seed"], told["loop_tokens"]) == (defaults["seed"], defaults["loop_tokens"])


def test_what_is_said_of_the_first_edition_has_the_interval_of_its_loops():
    said = page_values.first_edition(first(prompts=40, looped=0.25))
    assert said["first_tokens"] == 5e-6 and said["first_loop_length"] == 128
    assert said["first_loops"] == f"{page_values.first_loops(first(prompts=40, looped=0.25)):.0%}"
    assert page_values.first_loops(first(prompts=40, looped=0.25)).value == 0.25


def completion(module, looped):
    return SimpleNamespace(prompt=SimpleNamespace(meta={"module": module}), looped=looped)


def test_packages_with_one_prompt_say_nothing_of_where_loops_come_from():
    some = [completion(f"{name}.a", name == "a") for name in "abc" for _ in range(2)]
    assert page_values.loop_sources([*some, completion("d.a", True)]) == {
        "loop_packages": 1,
        "loop_packages_asked": 3,
    }


def test_completions_that_end_at_once_do_not_count_among_those_that_may_loop():
    some = [
        SimpleNamespace(tokens=[0] * length, looped=looped) for length, looped in [(1, False)] * 6 + [(9, True)] * 4
    ]
    some += [SimpleNamespace(tokens=[0] * 9, looped=False)] * 6
    assert page_values.single_tokens(some) == {
        "ended_at_once": f"{proportion([True] * 6 + [False] * 10):.0%}",
        "loops_of_others": f"{proportion([True] * 4 + [False] * 6):.0%}",
    }


def test_answers_go_wrong_where_their_tokens_are_missed():
    """Of 40 wrong answers 30 fail at a new token; of the copied tokens all are right, of the new ones two in ten."""
    wrong = [FirstWrong("rename", 3, 9, "new" if i < 30 else "copied") for i in range(40)]
    wrong += [FirstWrong("outline", 3, 9, "copied")] * 9
    read = [Forced("rename", ["copied", "new"] * 10, [i % 2 == 0 or i < 4 for i in range(20)]) for _ in range(5)]
    curve = [{"step": 100 * i, "accuracy": {"rename": 0.1 * i, "outline": 0.0}} for i in range(1, 6)]
    about = {"curve": curve, "steps": 500, "recipe": {"last_share": 0.2}}
    said = page_values.why_missed(wrong, read, about, ["rename"])
    assert {name: text.split()[0] for name, text in said.items()} == {
        "edited": "75%",
        "missing": "100%",
        "copies_right": "100%",
        "edits_right": "20%",
        "gain": "20.0%",
    }


def test_the_learning_curve_is_read_before_its_rate_falls():
    def about(accuracies):
        curve = [
            {"step": 100 * (i + 1), "accuracy": {"rename": v, "outline": v + 0.01 * i}}
            for i, v in enumerate(accuracies)
        ]
        return {"curve": curve, "steps": 500, "recipe": {"last_share": 0.2}}

    # Steps 100 to 400 have a constant rate; their second half begins at 200.
    gain = page_values.last_gain(about([0.1, 0.5, 0.6, 0.7, 0.9]), ["rename", "outline"])
    assert gain.value == pytest.approx(0.2 + 0.01) and gain.low > 0


def test_models_stand_together_with_their_agreement_and_perplexity():
    told = {"target": {**story([2.0, 1.5]), "parameters": 9, "heldout_loss": {"512": {"a": 1.0, "b": 3.0}}}}
    told["draft"] = {**story([2.0, 1.5]), "parameters": 3}
    target, draft = page_values.models(told, {"draft": Interval(0.7, 0.6, 0.8)}, ["512"])
    assert target["512"].value == pytest.approx(math.exp(2)) and target["agreement"] is None
    assert (draft["tokens"], draft["agreement"].value, draft["512"]) == (2500, 0.7, None)


def test_the_folder_of_the_pair_says_how_many_tokens_the_target_saw():
    about = json.loads((paths.POCKET / "target" / "training.json").read_text())
    told = (paths.POCKET / "README.md").read_text()
    assert f"has seen {page_values.tokens_seen(about) / 1e6:.1f} million tokens" in told
    assert about["start"]


def test_what_a_target_can_do_is_kept_without_what_belongs_to_its_draft(tmp_path):
    page_values.keep(tmp_path / "kept.json", "fingerprint", 120, 3, 128, ROWS[:1])
    told = json.loads((tmp_path / "kept.json").read_text())
    row = {"task": "rename", "prompts": 2, "target": 0.9, "right": 0.25, "looped": 0.5}
    assert told == {"target": "fingerprint", "tokens": 120, "seed": 3, "loop_tokens": 128, "rows": [row]}
