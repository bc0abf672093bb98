"""The worked example of chapter 1 is what rejection sampling does, and every step of it is shown."""

import re

import matplotlib.pyplot as plt
import method_examples
import pytest

from specdec_lib import Sampling, load_model
from specdec_lib.report import plots
from specdec_lib.report.display import mechanisms, worked_example
from specdec_lib.report.numbers import Number


def check(example):
    """Coins, residuals and tokens are as the rule has them."""
    for one in example["passes"]:
        outcomes = [look["coin"] < min(1, look["p"] / look["q"]) for look in one["looks"]]
        assert outcomes == [True] * one["accepted"] + [False] * (len(one["looks"]) - one["accepted"])
        assert len(one["looks"]) == min(one["accepted"] + 1, len(one["drafted"]))
        assert all(sum(row["q"] for row in look["likely"]) <= 1 + 1e-9 for look in one["looks"])
        if len(one["looks"]) > one["accepted"]:  # a token was rejected
            lost = 1 - min(1, sum(min(row["p"], row["q"]) for row in one["likely"]))
            for row in one["likely"]:
                assert (row["rest"] == 0) == (row["p"] <= row["q"])
                # The residual is the difference, scaled up: by no less than where all other tokens were rejected too.
                assert row["rest"] >= max(0, row["p"] - row["q"]) / max(lost, 1e-9) - 1e-9 or row["rest"] == 0


def test_the_kept_example_has_a_rejected_token_its_replacement_and_a_bonus_token():
    example = worked_example.load()
    check(example)
    assert [one["accepted"] for one in example["passes"]] == [0, 4]
    assert sum(len(one["looks"]) for one in example["passes"]) == 5
    html = worked_example.figure(example, Number(1.5), Number(0.25))
    # Two drafts, five coins, a replacement and a bonus token.
    assert re.findall(r"<b>Step (\d)\.", html) == [str(number) for number in range(1, 10)]
    assert html.count("<section") == html.count('type="radio"') == 9
    # 4 passes of the draft model and one of the target, twice, for 6 tokens.
    assert "<span>5.0</span>" in html and "<span>6.0</span>" in html and "the bonus token" in html
    assert "<script" not in html


def test_what_is_kept_is_what_the_rule_does_with_other_models():
    model, tokenizer = load_model("pocket")
    draft = load_model("pocket-draft")[0]
    story = method_examples.STORY | {"sampling": Sampling(temperature=1.0, seed=3)}
    example = method_examples.worked(model, draft, tokenizer, **story, passes=6)
    check(example)
    assert len({one["accepted"] for one in example["passes"]}) > 1
    assert worked_example.figure(example, Number(1.5), Number(0.25)).count("the bonus token") == sum(
        one["accepted"] == len(one["drafted"]) for one in example["passes"]
    )


@pytest.mark.parametrize("page", mechanisms.MECHANISMS)
def test_no_word_of_a_mechanism_leaves_its_sketch(page):
    with plt.rc_context(plots.STYLE):
        figure = mechanisms.MECHANISMS[page]()
        figure.draw_without_rendering()
    words = [word for ax in figure.axes for word in ax.texts if word.get_text()]
    for word in words:
        box = word.get_window_extent()
        assert box.x0 >= -2 and box.y0 >= -2, word.get_text()
        assert box.x1 <= figure.bbox.x1 + 2 and box.y1 <= figure.bbox.y1 + 2, word.get_text()
    assert len(words) > 8
