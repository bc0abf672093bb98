"""Which occurrence of a text drafters copy from: two compared (figure 2 of PLD+), and the best in hindsight."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from specdec_lib.decoding.contract import Context, Drafter
from specdec_lib.decoding.replay import replay
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.experiments.recorded_runs import Recording, replay_all
from specdec_lib.experiments.statistics import Counts


class Choice(NamedTuple):
    """A place where two drafters copied from different occurrences: for each the position of the first token copied, its draft,
    and how many tokens of it were accepted. ``position`` is that of the last token before the drafts."""

    recording: Recording
    position: int
    sources: tuple[int, int]
    drafts: tuple[list[int], list[int]]
    accepted: tuple[int, int]


def choices(recording: Recording, drafter: Drafter) -> dict[int, tuple[int, list[int], int]]:
    """For each position of a last token after which a replay drafted: the position of the first token copied, the draft,
    and how many of its tokens were accepted."""
    (run,) = replay_all([recording], drafter)
    chosen, place = {}, run.prompt_length
    for step in run.steps:
        if step.tree.copied_from is not None:
            chosen[place] = (step.tree.copied_from, step.tree.tokens, step.accepted)
        place += len(step.tokens)
    return chosen


class _Both(Drafter):
    """Asks two drafters at every token of a recorded run, counts where each has more tokens accepted, and drafts nothing."""

    def __init__(self, first: Drafter, second: Drafter, text: Sequence[int]):
        self.both, self.text, self.more = (first, second), text, [0, 0]
        self.capture = first.capture | second.capture

    def start(self, context: Context) -> None:
        for drafter in self.both:
            drafter.start(context)

    def propose(self, context: Context, limit: int) -> DraftTree:
        coming = self.text[len(context.tokens) :]
        first, second = (_agreed(drafter.propose(context, limit).tokens, coming) for drafter in self.both)
        if first != second:
            self.more[second > first] += 1
        return EMPTY


def _agreed(draft: Sequence[int], coming: Sequence[int]) -> int:
    """How many tokens of a draft the text goes on with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(draft, coming, strict=False)))


def won_and_lost(recordings: Sequence[Recording], first: Drafter, second: Drafter) -> Counts:
    """For each output, the tokens after which ``second`` has more tokens accepted than ``first``, and those after which it has
    fewer, both drafting after the same text."""
    found = []
    for recording in recordings:
        both = _Both(first, second, [*recording.trace.prompt, *recording.trace.tokens])
        replay_all([recording], both)
        found.append((both.more[1], both.more[0]))
    return Counts(*zip(*found, strict=True))


def wrong_occurrence(
    recordings: Sequence[Recording], first: Drafter, second: Drafter, longest: int = 260
) -> Choice | None:
    """The place where ``second`` copies from another occurrence in the prompt and leads most in accepted tokens, if there is one.

    Prompts of more than ``longest`` tokens are passed over: they do not fit a picture.
    """
    best = None
    for recording in recordings:
        length = len(recording.trace.prompt)
        if recording.looped or recording.turn or length > longest:
            continue
        ours, theirs = choices(recording, second), choices(recording, first)
        for place in ours.keys() & theirs.keys():
            a, b = theirs[place], ours[place]
            better = b[2] - a[2] > (best.accepted[1] - best.accepted[0] if best else 0)
            inside = max(a[0] + a[2], b[0] + b[2]) < length
            if better and inside and a[0] != b[0]:
                best = Choice(recording, place, (a[0], b[0]), (a[1], b[1]), (a[2], b[2]))
    return best


class BestOccurrence(Drafter):
    """Copies from the earlier occurrence of the last token whose continuation agrees longest with the text to come.

    No rule that copies at most ``num_tokens`` tokens after an earlier occurrence of the last token needs fewer passes,
    whichever occurrences it takes: one token further on, the same occurrence reaches at least as far, so it never pays
    to accept less. PLD+ is such a rule, and so is PLD with n-grams of any length. ``text`` holds prompt and whole output.
    """

    def __init__(self, text: Sequence[int], num_tokens: int):
        if not isinstance(num_tokens, int) or num_tokens < 1:
            raise ValueError(f"num_tokens is {num_tokens!r}; expected a whole number, 1 or more")
        self.text, self.num_tokens = text, num_tokens
        self._places: dict[int, list[int]] = {}
        self._indexed = 0

    def start(self, context: Context) -> None:
        self._places, self._indexed = {}, 0

    def propose(self, context: Context, limit: int) -> DraftTree:
        text, last = self.text, len(context.tokens) - 1
        for place in range(self._indexed, last):
            self._places.setdefault(text[place], []).append(place)
        self._indexed = last
        most = min(self.num_tokens, limit, len(text) - 1 - last)
        longest = start = 0
        for place in self._places.get(text[last], ()):
            length, room = 0, min(most, last - place)  # the continuation ends with the tokens there are
            while length < room and text[place + 1 + length] == text[last + 1 + length]:
                length += 1
            if length > longest:
                longest, start = length, place + 1
        return DraftTree.chain(list(text[start : start + longest])) if longest else EMPTY


def replay_hindsight(recordings: Sequence[Recording], num_tokens: int) -> list[Generation]:
    """Replay each recording with the best occurrence at every step, drafts of at most ``num_tokens``."""
    return [replay(r.trace, BestOccurrence([*r.trace.prompt, *r.trace.tokens], num_tokens)) for r in recordings]
