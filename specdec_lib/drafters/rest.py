"""REST (He et al. 2024): draft what followed the longest suffix of the context in a datastore."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from specdec_lib.datastores.sharded import Question, ShardedSuffixIndex, open_suffix_index
from specdec_lib.datastores.suffix_array import Match, SuffixIndex, longest_suffix
from specdec_lib.datastores.tokens import TokenStore, check_vocabulary
from specdec_lib.datastores.trie import Room, best_nodes, take_matches
from specdec_lib.decoding.checks import one_of, whole_number
from specdec_lib.decoding.compiled import compiled
from specdec_lib.decoding.contract import Context, Drafter, Evidence
from specdec_lib.decoding.tree import EMPTY, DraftTree


@compiled
def _draft(store, question, most, room):
    """Search, take at most ``question.keep`` matches, write the ``most`` best nodes; their number and the match."""
    tokens, suffixes, first, keys = store
    context = question.context
    found, start, stop, _ = longest_suffix(tokens, suffixes, first, keys, context, len(context), question.max_ngram)
    if found < question.min_ngram:
        return 0, found, start, stop
    rule = question.keep, question.length, question.uniform, question.seed
    taken = take_matches(tokens, suffixes, start, stop, rule, room.counts, room.entries)
    size = best_nodes(tokens, room.entries, taken, question.length, most, room)
    return size, found, start, stop


class Rest(Drafter):
    r"""Draft the best nodes of the trie of continuations of the longest matching suffix.

    The longest suffix of ``min_ngram`` to ``max_ngram`` tokens that the store continues is looked up; at most ``max_matches`` of
    its occurrences are taken. Their continuations of at most ``length`` tokens, cut at the end of their document, form a trie. A
    node weighs as many of them as pass through it; ``choices`` nodes are drafted (REST, Algorithms 1 and 2), none without a match.

    Parameters
    ----------
    store : SuffixIndex, ShardedSuffixIndex, TokenStore or path
        A datastore with a suffix array; one of many shards drafts as one store of all their documents, random draws excepted.
    max_ngram, min_ngram : int
        Longest and shortest suffix looked up, in tokens.
    max_matches : int
        Most occurrences taken (k).
    length : int
        Depth of the trie (m).
    choices : int
        Nodes drafted (c).
    subsample : {"lexicographic", "uniform"}
        Which of more than ``max_matches`` occurrences are taken. ``"lexicographic"``: the first by the token ids that follow, a
        biased choice. ``"uniform"``: each is equally likely, one from each of ``max_matches`` equal parts of the range.
    selection : {"exact", "released", "random"}
        ``"exact"``: the nodes of largest weight (ties: less depth, then smaller token ids), which form a tree. ``"released"``:
        what the released code keeps of them (:func:`released_selection`). ``"random"``: the baseline of the paper's table 3,
        ``choices // length`` of all occurrences drawn at random, each with its whole continuation.
    seed : int
        Of the draws and of the released code's arbitrary orders; the same context then gives the same draft.
    rows : int, optional
        With the released selection, draft only this many of the paths it keeps, in arbitrary order: REST as DReSD's released
        code runs it, with ``max_ngram=64, min_ngram=3, rows=10``.

    Raises
    ------
    StoreError
        If the store has no suffix array, or, when a generation starts, holds the tokens of another tokenizer.

    Notes
    -----
    The paper names no shortest suffix and no number of occurrences. The released code takes 2, and the first 5000 in each chunk.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.datastores import build_from_texts
    >>> from specdec_lib.drafters import Rest
    >>> texts = ["def multiply(x, y):\n    return x * y\n\ndef divide(x, y):\n    return x / y\n"]
    >>> store = build_from_texts(folder / "store", texts, tokenizer, progress=False)
    >>> run = generate(model, prompt, Rest(store), max_new_tokens=24)
    >>> round(run.stats["tokens_per_forward"], 2)
    1.77
    """

    def __init__(
        self,
        store: SuffixIndex | ShardedSuffixIndex | TokenStore | str | Path,
        max_ngram: int = 16,
        min_ngram: int = 2,
        max_matches: int = 5000,
        length: int = 10,
        choices: int = 64,
        subsample: str = "lexicographic",
        selection: str = "exact",
        seed: int = 0,
        rows: int | None = None,
    ):
        self.max_ngram, self.min_ngram = (
            whole_number("max_ngram", max_ngram, 1),
            whole_number("min_ngram", min_ngram, 1),
        )
        self.max_matches, self.choices = (
            whole_number("max_matches", max_matches, 1),
            whole_number("choices", choices, 1),
        )
        self.length, self.seed = whole_number("length", length, 1), whole_number("seed", seed)
        self.rows = None if rows is None else whole_number("rows", rows, 1)
        self.subsample = one_of("subsample", subsample, ("lexicographic", "uniform"))
        self.selection = one_of("selection", selection, ("exact", "released", "random"))
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram is {min_ngram}, max_ngram {max_ngram}; expected min_ngram <= max_ngram")
        if selection == "random" and self.choices < self.length:
            raise ValueError(f"choices is {choices}, length {length}; expected choices >= length, one continuation")
        if rows is not None and selection != "released":
            raise ValueError(f"rows is {rows} with selection {selection!r}; expected selection 'released', or no rows")
        if self.seed >= 2**63:
            raise ValueError(f"seed is {seed}; expected a whole number below 2**63")
        self.index = store if isinstance(store, SuffixIndex | ShardedSuffixIndex) else open_suffix_index(store)
        #: The match that the last proposal came from; shorter than ``min_ngram`` where nothing was drafted.
        self.last = Match(0, 0, 0)
        taken = min(self.max_matches, max(1, self.index.entries))
        # The released rule looks at the whole trie.
        self._most = taken * self.length if selection == "released" else min(self.choices, taken * self.length)
        size = taken * min(self.length, self._most + 1)
        shapes = (taken,), (self.index.store.vocabulary + 1,), (2, taken), (5, size), (size,), (4, self._most)
        self._room = Room(*(np.zeros(shape, np.int32) for shape in shapes))

    def start(self, context: Context) -> None:
        check_vocabulary(self.index.store, context.vocabulary, context.tokenizer)
        self.last = Match(0, 0, 0)

    def evidence(self, context: Context) -> Evidence:
        return Evidence(self.last.length, min(self.last.stop - self.last.start, self.max_matches))

    def propose(self, context: Context, limit: int) -> DraftTree:
        tail, length = np.array(context.tokens[-self.max_ngram :], np.int64), min(self.length, limit)
        random = self.selection == "random"
        keep = self.choices // self.length if random else self.max_matches
        uniform = random or self.subsample == "uniform"
        question = Question(tail, self.max_ngram, self.min_ngram, keep, length, uniform, self.seed)
        if random:
            return self._at_random(question)
        size, *match = (
            self._of_shards(question) if self._sharded else _draft(self.index.arrays, question, self._most, self._room)
        )
        self.last = Match(*match)
        if size == 0:
            return EMPTY
        tokens, parents, weights = self._room.nodes[:3, :size].tolist()
        if self.selection == "released":
            seeds = np.random.SeedSequence([self.seed, *match]).generate_state(2)
            kept = released_selection(tokens, parents, weights, self.choices, *seeds.tolist(), rows=self.rows)
            renamed = {-1: -1} | {node: i for i, node in enumerate(kept)}
            return DraftTree.unchecked([tokens[node] for node in kept], [renamed[parents[node]] for node in kept])
        taken = min(self.last.stop - self.last.start, self.max_matches)
        tree = DraftTree.unchecked(tokens, parents)
        tree.scores = [weight / taken for weight in weights]
        return tree

    @property
    def _sharded(self) -> bool:
        return isinstance(self.index, ShardedSuffixIndex)

    def _of_shards(self, question: Question) -> tuple[int, int, int, int]:
        """Write the nodes of all shards' trie; their number and the match."""
        match, tokens, entries = self.index.gather(question)
        size, room = 0, self._room
        if len(entries):
            size = best_nodes(tokens, entries, len(entries), question.length, self._most, room)
        return size, *match

    def _at_random(self, question: Question) -> DraftTree:
        if self._sharded:
            self.last, tokens, entries = self.index.gather(question)
            rows = [tokens[entry + 1 : entry + 1 + question.length].tolist() for entry in entries]
            separator = self.index.store.vocabulary
            return DraftTree.from_drafts(row[: row.index(separator)] if separator in row else row for row in rows)
        self.last = match = self.index.longest(question.context.tolist(), self.max_ngram)
        if match.length < self.min_ngram:
            return EMPTY
        places = self.index.positions(match)
        rng = np.random.default_rng([self.seed, *match])
        drawn = rng.choice(len(places), min(len(places), question.keep), replace=False)
        continued = self.index.store.continuation
        return DraftTree.from_drafts(continued(int(places[i]) + 1, question.length) for i in np.sort(drawn))


def released_selection(
    tokens: Sequence[int],
    parents: Sequence[int],
    weights: Sequence[int],
    choices: int,
    first_seed: int,
    second_seed: int,
    rows: int | None = None,
) -> list[int]:
    """Nodes that REST's released code verifies, for one of the orders its hash maps may have.

    The nodes of a whole trie go through a bounded heap in the first order: a full heap takes a node only for a strictly lighter
    one, and gives up the lightest, among equals the one whose path comes last. The nodes left are put in the second order and
    then by cost, the number of different tokens on the path; the most expensive are dropped until the sum of the costs is no
    more than ``choices``. What remains is completed with its ancestors, of the first ``rows`` paths in the second order where a
    number is given.

    Where a path repeats tokens the completed tree can still be too large, which the released code answers with an error; here
    more are dropped until it fits.

    Parameters
    ----------
    tokens, parents, weights : sequence of int, length n
        The trie: each node's token, its parent (-1: the root) and how many continuations pass through it; parents first.
    choices : int
        Most nodes kept (c).
    first_seed, second_seed : int
        Of the two orders.
    rows : int, optional

    Returns
    -------
    list of int
        Nodes, ascending and closed under "parent of".

    Examples
    --------
    >>> from specdec_lib.drafters.rest import released_selection
    >>> released_selection([5, 6, 8], [-1, 0, 0], [3, 2, 1], choices=3, first_seed=0, second_seed=1)
    [0, 2]
    """
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    # The outcome depends only on which of the ties at the border come in first, and which are given up again.
    border = sorted(weights, reverse=True)[min(choices, len(weights)) - 1]
    above = [node for node, weight in enumerate(weights) if weight > border]
    kept: list[int] = []
    heavier = 0
    for node in np.random.default_rng(first_seed).permutation(len(tokens)).tolist():
        if weights[node] == border and len(kept) + heavier < choices:
            kept.append(node)
        elif weights[node] > border:
            heavier += 1
            if len(kept) + heavier > choices:
                kept.remove(max(kept, key=paths.__getitem__))
    kept += above
    kept.sort()
    arbitrary = [kept[i] for i in np.random.default_rng(second_seed).permutation(len(kept)).tolist()]
    order = sorted(arbitrary, key=lambda node: -len(set(paths[node])))
    total = sum(len(set(paths[node])) for node in order)
    first = 0
    while total > choices:
        total -= len(set(paths[order[first]]))
        first += 1
    while len(closed := _with_ancestors(order[first:], parents)) > choices:
        first += 1
    if rows is not None:
        left = set(order[first:])
        closed = _with_ancestors([node for node in arbitrary if node in left][:rows], parents)
    return sorted(closed)


def _with_ancestors(nodes: Sequence[int], parents: Sequence[int]) -> set[int]:
    closed: set[int] = set()
    for node in nodes:
        while node >= 0 and node not in closed:
            closed.add(node)
            node = parents[node]
    return closed
