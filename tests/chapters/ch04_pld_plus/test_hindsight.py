"""The best occurrence in hindsight needs as few passes as the best of all sequences of choices."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib.chapters.ch04_pld_plus.occurrences import BestOccurrence, replay_hindsight
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.recorded_runs import replay_all
from tests.experiments.made import made_up


def fewest_passes(text, prompt_length, longest):
    """Passes after the prefill, the least over every occurrence and every draft length at every step."""

    @cache
    def passes(last):  # position of the last token written
        if last == len(text) - 1:
            return 0
        reached = {last + 1}
        for start in (j for j in range(last) if text[j] == text[last]):
            for length in range(1, min(longest, last - start) + 1):
                accepted = 0
                while (
                    accepted < length
                    and last + 1 + accepted < len(text)
                    and text[start + 1 + accepted] == text[last + 1 + accepted]
                ):
                    accepted += 1
                reached.add(min(last + accepted + 1, len(text) - 1))
        return 1 + min(map(passes, reached))

    return passes(prompt_length)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=9, max_size=40), st.integers(1, 6))
def test_no_sequence_of_occurrences_and_lengths_needs_fewer_passes(text, longest):
    known = made_up(text[:6], text[6:])
    (run,) = replay_hindsight([known], longest)
    assert run.tokens == text[6:]
    assert len(run.steps) == fewest_passes(tuple(text), 6, longest)
    for drafter in (PromptLookup(3, longest), PromptLookup(3, longest, "transformers"), PromptLookup(1, longest)):
        assert len(replay_all([known], drafter)[0].steps) >= len(run.steps)


def test_the_continuation_ends_with_the_tokens_there_are():
    """After 1 2 1 the occurrence at 0 is followed by 2 1 alone: the third token of the output is not copied from itself."""
    known = made_up([1, 2], [1, 2, 1, 2])
    (run,) = replay_hindsight([known], 10)
    assert [step.accepted for step in run.steps] == [2]
    assert [step.tree.tokens for step in run.steps] == [[2, 1]]


def test_a_draft_length_below_one_is_refused():
    with pytest.raises(ValueError, match="num_tokens is 0"):
        BestOccurrence([1, 2], 0)
