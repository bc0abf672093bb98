"""Prompt lookup decoding (Saxena 2023): copy what followed the last n-gram where it occurred before."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_lib.decoding.checks import one_of, whole_number
from specdec_lib.decoding.contract import Context, Drafter, Evidence
from specdec_lib.decoding.tree import EMPTY, DraftTree

#: Tokens that a match is followed back at most; longer ones count as this long.
_LONGEST_MATCH = 32


def match_before(tokens: Sequence[int], place: int | None) -> int:
    """How many tokens before a place that was copied from equal the last ones.

    Parameters
    ----------
    tokens : sequence of int
    place : int or None

    Returns
    -------
    int
        At most 32; 0 without a place.

    Examples
    --------
    >>> from specdec_lib.drafters.prompt_lookup import match_before
    >>> match_before([5, 6, 7, 5, 6], place=2)
    2
    """
    match, end = 0, len(tokens)
    while (
        place is not None
        and match < min(_LONGEST_MATCH, place)
        and tokens[place - 1 - match] == tokens[end - 1 - match]
    ):
        match += 1
    return match


class PromptLookup(Drafter):
    """Draft the continuation of the first earlier occurrence of the last n-gram (PLD).

    N-grams are tried from ``max_ngram`` down to 1, over prompt and output. The first occurrence of each n-gram is indexed as
    tokens come, so a proposal costs the same at any context length. Without an occurrence nothing is drafted; the released code
    then drafts the token id 100.

    Parameters
    ----------
    max_ngram : int
        Longest n-gram looked up, in tokens.
    num_tokens : int
        Tokens drafted (K).
    variant : {"original", "transformers"}
        What happens where the continuation is shorter than ``num_tokens``. ``"original"``, the released code and Spec-Bench:
        the next shorter n-gram is tried, also where the continuation starts within the n-gram itself, or right after it.
        ``"transformers"``: the shorter continuation is drafted (there the default ``max_ngram`` is 2).

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import PromptLookup
    >>> run = generate(model, prompt, PromptLookup(max_ngram=3, num_tokens=10), max_new_tokens=24)
    >>> round(run.stats["tokens_per_forward"], 2)
    4.6
    """

    def __init__(self, max_ngram: int = 3, num_tokens: int = 10, variant: str = "original"):
        self.variant = one_of("variant", variant, ("original", "transformers"))
        self.max_ngram, self.num_tokens = (
            whole_number("max_ngram", max_ngram, 1),
            whole_number("num_tokens", num_tokens, 1),
        )
        #: Position that the last draft was copied from; None where nothing was drafted.
        self.source: int | None = None

    def start(self, context: Context) -> None:
        # For each n: where the first occurrence of an n-gram ends. An n-gram is the number whose digits in base
        # `vocabulary` are its tokens.
        self._ends: list[dict[int, int]] = [{} for _ in range(self.max_ngram)]
        self._indexed = 0
        self._found: list[int] = []
        self.source = None

    def propose(self, context: Context, limit: int) -> DraftTree:
        tokens, base, count = context.tokens, context.vocabulary, len(context.tokens)
        ends, longest = self._ends, self.max_ngram
        found = self._found
        for end in range(self._indexed + 1, count + 1):
            key, scale = 0, 1
            found = []
            for n in range(longest if longest < end else end):
                key += tokens[end - 1 - n] * scale
                scale *= base
                found.append(ends[n].setdefault(key, end))
        self._indexed, self._found = count, found
        # `found` holds, for n = 1, 2, ..., where the last n-gram first ended: at `count` itself if it is new.
        # If the first occurrence is too late for the variant, any later one is too.
        original = self.variant == "original"
        for n in range(len(found), 0, -1):
            end = found[n - 1]
            if end + self.num_tokens <= count and end < count - n if original else end < count:
                self.source = end
                return DraftTree.chain(tokens[end : end + min(self.num_tokens, limit)], copied_from=end)
        self.source = None
        return EMPTY

    def evidence(self, context: Context) -> Evidence:
        return Evidence(match_before(context.tokens, self.source))
