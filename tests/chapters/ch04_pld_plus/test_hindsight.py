"""The best occurrence in hindsight needs as few passes as the best of all sequences of choices."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib.chapters.ch04_pld_plus.occurrences import (
    BestOccurrence,
    replay_hindsight,
    won_and_lost,
    wrong_occurrence,
)
from specdec_lib.decoding.contract import Context, Drafter
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.recorded_runs import replay_all
from tests.experiments.made import made_up


def agreed(draft, coming):
    """How many tokens of a draft come."""
    pairs = enumerate(zip(draft, coming, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(draft), len(coming)))


def fewest_passes(text, prompt_length, longest):
    """Passes after the prefill, the least over every occurrence and every draft length at every step."""

    @cache
    def passes(last):  # position of the last token written
        if last == len(text) - 1:
            return 0
        reached = {last + 1}
        for start in (j for j in range(last) if text[j] == text[last]):
            for length in range(1, min(longest, last - start) + 1):
                accepted = agreed(text[start + 1 : start + 1 + length], text[last + 1 :])
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


def test_a_draft_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="num_tokens is 0"):
        BestOccurrence([1, 2], 0)


class Fixed(Drafter):
    """Copies three tokens from places named by position."""

    def __init__(self, places):
        self.places = places

    def propose(self, context, limit):
        place = self.places.get(len(context.tokens) - 1)
        if place is None:
            return EMPTY
        return DraftTree.chain(context.tokens[place : place + min(limit, 3)], copied_from=place)


def test_the_wrong_occurrence_is_where_the_second_has_most_more_accepted():
    prompt = [1, 2, 3, 4, 5, 1, 6, 7, 8, 9, 20, 21]
    known = made_up(prompt, [1, 6, 7, 8, 30, 31, 1, 2, 40, 41])
    first, second = Fixed({12: 1, 18: 1}), Fixed({12: 6, 18: 6})
    choice = wrong_occurrence([known], first, second)
    assert (choice.position, choice.sources, choice.accepted) == (12, (1, 6), (0, 3))
    assert choice.drafts == ([2, 3, 4], [6, 7, 8])
    assert wrong_occurrence([known], second, second) is None
    assert wrong_occurrence([known], first, second, longest=5) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=12, max_size=40))
def test_a_wrong_occurrence_is_one_in_fact_and_every_token_at_which_one_has_more_accepted_is_counted(text):
    known = made_up(text[:8], text[8:])
    drafters = [PromptLookup(longest, 3, "transformers") for longest in (1, 3)]
    gains = []
    for end in range(9, len(text) - 1):  # with room for a draft and the target's own token
        context, accepted = Context(text[:end], 8, 50, Sampling()), []
        for drafter in drafters:
            drafter.start(context)
            accepted.append(agreed(drafter.propose(context, len(text) - end).tokens, text[end:]))
        gains.append(accepted[1] - accepted[0])
    assert won_and_lost([known], *drafters) == ((sum(g > 0 for g in gains),), (sum(g < 0 for g in gains),))
    choice = wrong_occurrence([known], *drafters)
    if choice is not None:
        for source, draft, accepted in zip(choice.sources, choice.drafts, choice.accepted, strict=True):
            assert text[source : source + len(draft)] == draft and text[source - 1] == text[choice.position]
            assert accepted == agreed(draft, text[choice.position + 1 :])
        assert choice.accepted[1] > choice.accepted[0] and choice.sources[0] != choice.sources[1]
