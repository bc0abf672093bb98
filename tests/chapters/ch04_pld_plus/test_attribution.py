"""Attribution by copying against runs made by hand and against real runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_lib import Capture, DraftTree, record, replay
from specdec_lib.chapters.ch04_pld_plus import attribution
from specdec_lib.chapters.ch04_pld_plus.alignment import Alignment
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.drafters import PromptLookup, PromptLookupAttention, PromptLookupHidden
from specdec_lib.experiments.comparison import same_steps
from tests import families
from tests.chaos import Recycling


def step(draft, accepted, own=1, source=None):
    return Step(
        DraftTree.chain(draft, copied_from=source),
        tuple(range(accepted)),
        (*draft[:accepted], *[9] * own),
        0.0,
        0.0,
        0.0,
    )


RUN = Generation(
    [9, 1, 2, 3, 9, 9, 4, 5, 9, 6, 7],
    [step([1, 2, 3, 8], 3, source=4), step([], 0), step([4, 5, 8], 2, source=11), step([6, 7], 2, own=0, source=19)],
    "length",
    20,
    0.0,
)


@pytest.mark.parametrize(
    "least, expected",
    [
        (1, [-1, 4, 5, 6, -1, -1, 11, 12, -1, 19, -1]),
        (2, [-1, 4, 5, 6, -1, -1, 11, 12, -1, 19, -1]),
        (3, [-1, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1]),
        (4, [-1] * 11),
    ],
)
def test_accepted_spans_long_enough_come_from_their_source_if_it_is_in_the_prompt(least, expected):
    assert attribution.attributed(RUN, least).tolist() == expected


def test_attributed_tokens_stand_where_they_are_attributed_to(library):
    prompt = families.prompt(3, 40, 12)
    drafter = PromptLookupHidden(1, 8)
    answer = [*prompt[10:25], *prompt[3:9], *prompt[20:30]]
    run = replay(attribution.forced(library["llama-gqa"], prompt, answer, drafter.capture), drafter)
    places = attribution.attributed(run, 1)
    assert (places >= 0).any()
    assert all(prompt[p] == t for p, t in zip(places, answer, strict=True) if p >= 0)


@pytest.mark.parametrize("family", ["llama-gqa", "qwen3"])
def test_forced_to_say_what_it_says_a_model_is_replayed_as_recorded(library, family):
    model, prompt = library[family], families.prompt(3, 30, 12)
    drafter = PromptLookupHidden(1, 8)
    trace = record(model, prompt, max_new_tokens=30, eos_token_id=[], capture=drafter.capture)
    forced = attribution.forced(model, prompt, trace.tokens, drafter.capture)
    torch.testing.assert_close(forced.hidden[1], trace.hidden[1], rtol=1e-4, atol=1e-4)
    assert same_steps(replay(forced, drafter), replay(trace, drafter))


def test_what_a_forced_model_found_likely_is_what_a_recorded_one_did(library):
    model, prompt = library["llama-gqa"], families.prompt(3, 30, 12)
    trace = record(model, prompt, max_new_tokens=30, eos_token_id=[], capture=Capture(topk=3))
    forced = attribution.forced(model, prompt, trace.tokens, Capture(topk=3))
    np.testing.assert_allclose(forced.outputs.logprobs, trace.outputs.logprobs, atol=1e-4)
    runs = [replay(each, Recycling(everywhere=False)) for each in (forced, trace)]
    assert same_steps(*runs) and any(step.accepted for step in runs[0].steps)


def test_scores_are_counts_of_tokens():
    truth = Alignment([1] * 10, [1] * 6, np.array([1, 1, 1, 0, 1, 1], bool), np.array([3, 4, 5, -1, 7, -1]))
    found = attribution.count(truth, np.array([3, 4, 6, 2, -1, 8, -1]))
    assert found == attribution.Counts(copied=5, attributed=5, found=4, exact=2, locatable=3)
    scores = (found + found).scores()
    assert scores == pytest.approx({"precision": 0.8, "recall": 0.8, "f1": 0.8, "exact": 2 / 3})
    assert all(np.isnan(value) for value in attribution.Counts().scores().values())


def test_score_joins_answers_and_finds_copies_exactly(library):
    model = library["llama-gqa"]
    prompt = list(range(10, 50))
    answer = [60, *prompt[5:25], 61]
    truth = Alignment(prompt, answer, np.array([0, *[1] * 20, 0], bool), np.array([-1, *range(5, 25), -1]))
    each = attribution.count_each(
        model,
        [truth, truth],
        {"PLD": PromptLookup(1, 30, "transformers"), "h": PromptLookupHidden(1, 30, generated=False)},
        (2, 30),
    )
    rows = attribution.score(each)
    by_key = {(row["method"], row["least"]): row for row in rows}
    # The first copied token has no earlier one to be found by, so it is the target's own.
    assert by_key["h", 2]["recall"] == by_key["PLD", 2]["recall"] == 19 / 20
    assert by_key["h", 2]["precision"] == by_key["h", 2]["exact"] == 1.0
    assert by_key["h", 30]["recall"] == 0.0 and np.isnan(by_key["h", 30]["precision"])
    assert by_key["h", 2]["tokens"] == 40
    for row in rows:
        for key in ("precision", "recall", "f1"):
            assert row[f"{key}_interval"].value == pytest.approx(row[key], nan_ok=True)
    assert attribution.change(each["h", 30], each["h", 2], "copied") == pytest.approx((-19 / 20,) * 3)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda m: attribution.attributed(Generation([1, 2, 3], [step([2], 1)], "length", 1, 0.0), 1),
            "does not say where it was copied from",
        ),
        (lambda m: attribution.forced(m, [1], [], Capture()), "1 and 0 tokens"),
        (
            lambda m: attribution.forced(m, [1] * 100, [2] * 100, Capture()),
            "200 tokens and the model's context is 128",
        ),
        (
            lambda m: attribution.count_each(
                m,
                [Alignment([1], [2], np.ones(1, bool), np.zeros(1, int))],
                {"a": PromptLookupAttention([(0, 0)])},
                (2,),
            ),
            "attribute with hidden states",
        ),
        (
            lambda m: attribution.count(Alignment([1], [2, 3], np.ones(2, bool), np.zeros(2, int)), np.zeros(1)),
            "1 positions",
        ),
    ],
)
def test_what_cannot_be_attributed_is_refused(library, call, message):
    with pytest.raises(ValueError, match=message):
        call(library["llama"])
