"""SuffixDecoding (Oliaro et al. 2025): a tree of what followed the last tokens, sized by the length of the match."""

from __future__ import annotations

import math

import numpy as np

from specdec_lib.datastores.suffix_array import SuffixIndex
from specdec_lib.datastores.suffix_automaton import SuffixAutomaton
from specdec_lib.datastores.tokens import TokenStore, check_vocabulary
from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.contract import Context, Drafter, Evidence
from specdec_lib.decoding.tree import EMPTY, DraftTree

#: Least share of a node that can be asked for: the search keeps 1 / share nodes in view.
LEAST = 1e-4


def read_store(store: SuffixIndex | TokenStore | None) -> tuple[TokenStore | None, SuffixAutomaton]:
    """The tokens of a datastore, with or without a suffix array, and all of its documents in one automaton.

    Parameters
    ----------
    store : SuffixIndex, TokenStore or None

    Returns
    -------
    TokenStore or None
    SuffixAutomaton
        Empty without a store.

    Examples
    --------
    >>> from specdec_lib.datastores import build_tokens
    >>> from specdec_lib.drafters.suffix_decoding import read_store
    >>> store = build_tokens(folder / "store", [[5, 6, 7], [5, 8]], vocabulary=10, progress=False)
    >>> tokens, automaton = read_store(store)
    >>> automaton.text
    [5, 6, 7, -1, 5, 8, -1]
    """
    tokens, automaton = store.store if isinstance(store, SuffixIndex) else store, SuffixAutomaton()
    for place in range(0 if tokens is None else len(tokens)):
        automaton.extend(tokens.document(place).tolist())
        automaton.end_text()
    return tokens, automaton


class SuffixDecoding(Drafter):
    """Draft the tree of the largest score after any suffix of the text that occurred before.

    Prompt and output are one text, earlier outputs another, and a datastore, if there is one, a third. After each suffix of
    length p that occurs in one of them, the ``factor * p + offset`` likeliest nodes form a tree, whose score is the expected
    number of accepted tokens if counts were probabilities (:meth:`SuffixAutomaton.best_tree`). The best tree of the first text
    is drafted unless a later one has a larger score. The released code counts the output so far among the earlier ones too.
    Earlier outputs take some 170 bytes a token until :meth:`reset`.

    Parameters
    ----------
    store : SuffixIndex or TokenStore, optional
    factor, offset : float
        Nodes of a tree for each token of the match, 0 or more, and nodes besides.
    most : int
        Nodes of a tree at most.
    depth : int
        Tokens of match and draft together at most, 2 or more.
    least : float
        Smallest probability of a node, 1e-4 to 1.
    chains : bool
        Draft only the likeliest child of each node, as the released code does unless it is asked for trees.

    Examples
    --------
    The second answer to one prompt is drafted from the first:

    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import SuffixDecoding
    >>> drafter = SuffixDecoding()
    >>> runs = [generate(model, prompt, drafter, max_new_tokens=24) for _ in range(2)]
    >>> [len(run.steps) for run in runs]
    [6, 3]
    """

    def __init__(
        self,
        store: SuffixIndex | TokenStore | None = None,
        factor: float = 1.0,
        offset: float = 0.0,
        most: int = 64,
        depth: int = 64,
        least: float = 0.1,
        chains: bool = False,
    ):
        if not LEAST <= least <= 1:
            raise ValueError(f"least is {least!r}; expected a probability from {LEAST:g} to 1")
        if not 0 <= factor < math.inf:
            raise ValueError(f"factor is {factor!r}; expected a number, 0 or more")
        if not math.isfinite(offset):
            raise ValueError(f"offset is {offset!r}; expected a number")
        self.most, self.depth = whole_number("most", most, 1), whole_number("depth", depth, 2)
        self.factor, self.offset, self.least, self.chains = factor, offset, least, chains
        self.store, known = read_store(store)
        self._known = [] if self.store is None else [known]
        self._context: Context | None = None
        #: Tokens of the suffix that the last draft follows; 0 where nothing was drafted.
        self.match = 0
        self.reset()

    def reset(self) -> None:
        self._earlier = SuffixAutomaton()

    def start(self, context: Context) -> None:
        if self.store is not None:
            check_vocabulary(self.store, context.vocabulary, context.tokenizer)
        self._context, self._own = context, SuffixAutomaton()

    def propose(self, context: Context, limit: int) -> DraftTree:
        self._own.extend(context.tokens[len(self._own.text) :])
        recent, best, score, self.match = np.array(context.tokens[1 - self.depth :], np.int64), ([], [], []), 0.0, 0
        for automaton in (self._own, self._earlier, *self._known):
            if not automaton.text:
                continue
            *tree, match, found = automaton.best_tree(
                recent, self.factor, self.offset, self.most, self.depth, limit, self.least, score, self.chains
            )
            if match:
                best, score, self.match = tree, found, match
        tokens, parents, probabilities = best
        if not tokens:
            return EMPTY
        tree = DraftTree.unchecked(tokens, parents)
        tree.scores = probabilities
        return tree

    def evidence(self, context: Context) -> Evidence:
        return Evidence(self.match)

    def finish(self) -> None:
        """Remember the output for later prompts."""
        if self._context is not None:
            self._earlier.extend(self._context.tokens[self._context.prompt_length :])
            self._earlier.end_text()
            self._context = None
