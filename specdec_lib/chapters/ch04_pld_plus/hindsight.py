"""What choosing the occurrence can give at best: a drafter that knows the text to come."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_lib.decoding.contract import Context, Drafter
from specdec_lib.decoding.replay import replay
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.experiments.recorded_runs import Recording


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
