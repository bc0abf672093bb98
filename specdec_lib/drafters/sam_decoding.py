"""SAM-Decoding (Hu et al. 2024): the longest match decides which source drafts."""

from __future__ import annotations

from specdec_lib.datastores.suffix_array import SuffixIndex
from specdec_lib.datastores.suffix_automaton import SuffixAutomaton
from specdec_lib.datastores.tokens import TokenStore, check_vocabulary
from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.contract import Context, Drafter, Evidence, WrappedDrafter
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters.suffix_decoding import read_store
from specdec_lib.drafters.token_recycling import TokenRecycling

#: Nodes at each depth of the tree that Token Recycling drafts within the released code, 60 in all.
LEVELS = (7, 20, 21, 8, 4)


class SamDecoding(WrappedDrafter):
    """Copy what followed the longest match in the text or in a datastore, or ask another drafter where both are short.

    Let l be the length of the longest suffix of prompt and output that occurs earlier in them, and m that of the longest suffix
    that occurs in the datastore. If max(l, m - ``bias``) is at least ``threshold``, the draft is the chain of tokens after the
    first occurrence of the longer match, the text's own if l >= m - ``bias``. Otherwise, or where nothing follows in the store,
    the auxiliary drafter drafts; the released code pads such drafts with token 0. If fewer than
    ``num_tokens`` tokens follow a match in the text itself, a shorter match is taken: the longest that so many tokens follow, or
    else the shortest. So does the released code, which asks for two tokens more.

    Parameters
    ----------
    auxiliary : Drafter, optional
        Token Recycling or EAGLE in the paper; it learns from every pass. By default Token Recycling with the released code's
        tree of 60 nodes, which learns from the prompt too.
    store : SuffixIndex or TokenStore, optional
    num_tokens : int
        Tokens of a chain at most: 39 and the root are the 40 of the released code.
    threshold : int
        Shortest match that is copied from, in tokens.
    bias : int
        How much longer the store's match has to be than the text's own.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import PromptLookup, SamDecoding
    >>> run = generate(model, prompt, SamDecoding(threshold=3), max_new_tokens=24)
    >>> round(run.stats["tokens_per_forward"], 2)
    4.6
    >>> SamDecoding(PromptLookup(), threshold=3).replays
    'any'
    """

    # Of a drafter, its auxiliary's; of the class, that of the published one, Token Recycling.
    replays = "never"

    def __init__(
        self,
        auxiliary: Drafter | None = None,
        store: SuffixIndex | TokenStore | None = None,
        num_tokens: int = 39,
        threshold: int = 5,
        bias: int = 5,
    ):
        super().__init__(TokenRecycling(LEVELS, prompt=True) if auxiliary is None else auxiliary)
        self.num_tokens, self.threshold = (
            whole_number("num_tokens", num_tokens, 1),
            whole_number("threshold", threshold, 1),
        )
        self.bias = bias
        self.store, self._static = read_store(store)

    def start(self, context: Context) -> None:
        if self.store is not None:
            check_vocabulary(self.store, context.vocabulary, context.tokenizer)
        self._own, self._match = SuffixAutomaton(), (0, 0)
        super().start(context)

    def propose(self, context: Context, limit: int) -> DraftTree:
        draft = self._copied(context)
        return DraftTree.chain(draft[:limit]) if draft else super().propose(context, limit)

    def evidence(self, context: Context) -> Evidence:
        return Evidence()  # the other drafter's would say nothing of a copy

    def _copied(self, context: Context) -> list[int]:
        """Return the tokens to copy; empty if both matches are short."""
        new = context.tokens[len(self._own.text) :]
        self._own.extend(new)
        self._match = self._static.follow(new, *self._match)
        state, own = self._own.repeated()
        static = self._match[1] - self.bias
        if max(own, static) < self.threshold:
            return []
        if static > own:
            return self._static.continuation(self._match[0], self.num_tokens)
        draft = self._own.continuation(state, self.num_tokens)
        while len(draft) < self.num_tokens and (state := self._own.shorter(state)):
            draft = self._own.continuation(state, self.num_tokens)
        return draft
