"""REST (He et al. 2024): draft what followed the longest suffix of the context in a datastore."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from specdec_lib.datastores.compiled import compiled
from specdec_lib.datastores.sharded import Question, ShardedSuffixIndex, open_suffix_index
from specdec_lib.datastores.suffix_array import Match, SuffixIndex, longest_suffix
from specdec_lib.datastores.tokens import TokenStore
from specdec_lib.datastores.trie import best_nodes, take_matches
from specdec_lib.decoding.checks import whole
from specdec_lib.decoding.contract import Context, Drafter
from specdec_lib.decoding.tree import EMPTY, DraftTree

_SUBSAMPLES = ("lexicographic", "uniform")
_SELECTIONS = ("exact", "released", "random")


@compiled
def _draft(
    tokens,
    suffixes,
    first,
    keys,
    context,
    count,
    max_ngram,
    min_ngram,
    max_matches,
    length,
    choices,
    uniform,
    seed,
    entries,
    counts,
    scratch,
    candidates,
    heap,
    nodes,
):
    """Search, take at most ``max_matches`` matches, write the best nodes; their number and the match."""
    found, start, stop, _ = longest_suffix(tokens, suffixes, first, keys, context, count, max_ngram)
    if found < min_ngram:
        return 0, found, start, stop
    taken = take_matches(tokens, suffixes, start, stop, max_matches, length, uniform, seed, counts, entries)
    size = best_nodes(tokens, entries, taken, length, choices, counts, scratch, candidates, heap, nodes)
    return size, found, start, stop


class Rest(Drafter):
    """Draft the best nodes of the trie of continuations of the longest matching suffix.

    The longest suffix of the context with ``min_ngram`` to ``max_ngram`` tokens that the store continues is
    looked up; at most ``max_matches`` of its occurrences are taken; their continuations of at most ``length``
    tokens, cut at the end of their document, form a trie whose nodes weigh as many continuations as pass
    through them; ``choices`` nodes are drafted (REST, Algorithms 1 and 2). Without a match the draft is
    empty.

    Parameters
    ----------
    store : SuffixIndex, ShardedSuffixIndex, TokenStore or path
        A datastore with a suffix array, or one of many shards. The drafts of shards are those of one store of all their
        documents, except where ``subsample`` is ``"uniform"`` and there are more than ``max_matches`` occurrences, and
        except with the random selection: there each occurrence is as likely as any, but other ones are drawn.
    max_ngram, min_ngram : int
        Longest and shortest suffix looked up. The paper's algorithm has no lower bound; the released code
        stops at 2.
    max_matches : int
        Occurrences taken (k; 5000 in the released code, for each of its chunks; not in the paper).
    length : int
        Depth of the trie (m).
    choices : int
        Nodes drafted (c).
    subsample : {"lexicographic", "uniform"}
        Which occurrences are taken where there are more than ``max_matches``. ``"lexicographic"``, the
        released code: those whose continuations come first in order of token ids, a biased choice. Its order
        is that of a suffix array of the tokens as they are; ours is reversed, so the occurrences are selected
        by their continuations, in time proportional to their number. The trie is that of the released rule
        for a store in one chunk, but that released continuations run on into the next document.
        ``"uniform"``: each occurrence is equally likely to be taken, one from each of ``max_matches`` equal
        parts of the range; in time proportional to ``max_matches``.
    selection : {"exact", "released", "random"}
        ``"exact"``: the ``choices`` nodes of largest weight (ties: less depth, then smaller token ids), which
        form a tree. ``"released"``: what the released code keeps of them (see :func:`released_selection`).
        ``"random"``: the baseline of the paper's table 3, ``choices // length`` of all occurrences drawn at
        random, each with its whole continuation; ``max_matches`` and ``subsample`` then have no effect.
    seed : int
        Of the uniform draw and of the released code's arbitrary orders; the same context then gives the same
        draft.
    rows : int, optional
        With the released selection, draft only this many of the paths it keeps, in arbitrary order: REST as
        DReSD's released code runs it, with ``max_ngram=64, min_ngram=3, rows=10``.

    Attributes
    ----------
    last : Match
        The match that the last proposal came from; its length is below ``min_ngram`` where nothing was drafted.

    Raises
    ------
    ValueError
        If a number is below 1, ``min_ngram`` above ``max_ngram`` or a switch unknown; at the start of a
        generation, if the target has fewer token ids than the store.
    StoreError
        If the store cannot be opened.
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
        max_ngram, min_ngram = whole("max_ngram", max_ngram, 1), whole("min_ngram", min_ngram, 1)
        max_matches, choices = whole("max_matches", max_matches, 1), whole("choices", choices, 1)
        length, seed = whole("length", length, 1), whole("seed", seed)
        if min_ngram > max_ngram:
            raise ValueError(
                f"min_ngram is {min_ngram}, max_ngram {max_ngram}; expected min_ngram no larger than max_ngram"
            )
        for name, value, known in (("subsample", subsample, _SUBSAMPLES), ("selection", selection, _SELECTIONS)):
            if value not in known:
                raise ValueError(f"{name} is {value!r}; expected one of {', '.join(known)}")
        if selection == "random" and choices < length:
            raise ValueError(
                f"choices is {choices}, length {length}; the random selection needs room for one "
                "continuation, choices no smaller than length"
            )
        if rows is not None:
            rows = whole("rows", rows, 1)
            if selection != "released":
                raise ValueError(
                    f"rows is {rows} with selection {selection!r}; expected selection 'released', or no rows"
                )
        if seed >= 2**63:
            raise ValueError(f"seed is {seed}; expected a whole number below 2**63")
        self.index = store if isinstance(store, SuffixIndex | ShardedSuffixIndex) else open_suffix_index(store)
        self.max_ngram, self.min_ngram, self.max_matches = max_ngram, min_ngram, max_matches
        self.length, self.choices, self.seed = length, choices, seed
        self.subsample, self.selection, self.rows = subsample, selection, rows
        self.last = Match(0, 0, 0)
        taken = min(max_matches, max(1, self.index.entries))
        # The released rule looks at the whole trie.
        most = taken * length if selection == "released" else min(choices, taken * length)
        room = taken * min(length, most + 1)
        self._context = np.zeros(max_ngram, np.int64)
        self._entries, self._scratch = np.zeros(taken, np.int32), np.zeros((2, taken), np.int32)
        self._counts = np.zeros(self.index.store.vocabulary + 1, np.int32)
        self._candidates, self._heap = np.zeros((5, room), np.int32), np.zeros(room, np.int32)
        self._nodes = np.zeros((4, most), np.int32)
        self._most = most

    def __repr__(self) -> str:
        return (
            f"Rest({str(self.index.store.path)!r}, max_ngram={self.max_ngram}, "
            f"min_ngram={self.min_ngram}, max_matches={self.max_matches}, length={self.length}, "
            f"choices={self.choices}, subsample={self.subsample!r}, selection={self.selection!r}, "
            f"seed={self.seed}, rows={self.rows})"
        )

    def start(self, context: Context) -> None:
        if self.index.store.vocabulary > context.vocabulary:
            raise ValueError(
                f"the datastore {self.index.store.path} has {self.index.store.vocabulary} token "
                f"ids, the target {context.vocabulary}: they do not share a tokenizer; build a "
                "store for this model"
            )
        self.last = Match(0, 0, 0)

    def propose(self, context: Context, limit: int) -> DraftTree:
        tail = context.tokens[-self.max_ngram :]
        if self.selection == "random":
            return self._at_random(tail, min(self.length, limit))
        if isinstance(self.index, ShardedSuffixIndex):
            size, *match = self._of_shards(tail, min(self.length, limit))
        else:
            size, *match = self._of_store(tail, min(self.length, limit))
        self.last = Match(*match)
        if size == 0:
            return EMPTY
        tokens, parents = self._nodes[0, :size].tolist(), self._nodes[1, :size].tolist()
        if self.selection == "released":
            seeds = np.random.SeedSequence([self.seed, *match]).generate_state(2)
            kept = released_selection(
                tokens, parents, self._nodes[2, :size].tolist(), self.choices, *seeds.tolist(), rows=self.rows
            )
            renamed = {-1: -1} | {node: i for i, node in enumerate(kept)}
            tokens, parents = [tokens[node] for node in kept], [renamed[parents[node]] for node in kept]
            return DraftTree.unchecked(tokens, parents)
        taken = min(self.last.stop - self.last.start, self.max_matches)
        tree = DraftTree.unchecked(tokens, parents)
        tree.scores = (self._nodes[2, :size] / taken).tolist()
        return tree

    def _of_store(self, tail: list[int], length: int) -> tuple[int, int, int, int]:
        """Write the nodes of one store's trie; their number and the match."""
        self._context[: len(tail)] = tail
        return _draft(
            *self.index.arrays,
            self._context,
            len(tail),
            self.max_ngram,
            self.min_ngram,
            self.max_matches,
            length,
            self._most,
            self.subsample == "uniform",
            self.seed,
            self._entries,
            self._counts,
            self._scratch,
            self._candidates,
            self._heap,
            self._nodes,
        )

    def _question(self, tail: list[int], length: int, keep: int, uniform: bool) -> Question:
        context = np.array(tail, np.int64)
        return Question(context, self.max_ngram, self.min_ngram, keep, length, uniform, self.seed)

    def _of_shards(self, tail: list[int], length: int) -> tuple[int, int, int, int]:
        """Write the nodes of all shards' trie; their number and the match."""
        question = self._question(tail, length, self.max_matches, self.subsample == "uniform")
        match, tokens, entries = self.index.gather(question)
        size = 0
        if len(entries):
            size = best_nodes(
                tokens,
                entries,
                len(entries),
                length,
                self._most,
                self._counts,
                self._scratch,
                self._candidates,
                self._heap,
                self._nodes,
            )
        return size, *match

    def _at_random(self, tail: list[int], depth: int) -> DraftTree:
        if isinstance(self.index, ShardedSuffixIndex):
            self.last, tokens, entries = self.index.gather(
                self._question(tail, depth, self.choices // self.length, uniform=True)
            )
            rows = [tokens[entry + 1 : entry + 1 + depth].tolist() for entry in entries]
            separator = self.index.store.vocabulary
            return DraftTree.from_drafts(row[: row.index(separator)] if separator in row else row for row in rows)
        self.last = match = self.index.longest(tail, self.max_ngram)
        if match.length < self.min_ngram:
            return EMPTY
        places = self.index.positions(match)
        drawn = np.random.default_rng([self.seed, *match]).choice(
            len(places), min(len(places), self.choices // self.length), replace=False
        )
        return DraftTree.from_drafts(self.index.store.continuation(int(places[i]) + 1, depth) for i in np.sort(drawn))


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

    The nodes go through a bounded heap in the first order: a full heap takes a node only for a strictly
    lighter one, and gives up the lightest, among equals the one whose path comes last. The nodes left are put
    in the second order and then by cost, the number of different tokens on the path; the most expensive are
    dropped until the sum of the costs is no more than ``choices``. What remains is completed with its
    ancestors.

    The sum counts a shared prefix once for each node below it, so that far fewer than ``choices`` nodes
    remain. A path that repeats a token costs less than it is long: then the completed tree can be too large,
    which the released code answers with an error; here more are dropped until it fits.

    Parameters
    ----------
    tokens, parents, weights : sequence of int, length n
        A whole trie; a parent comes before its children.
    choices : int
    first_seed, second_seed : int
        The two arbitrary orders.
    rows : int, optional
        Keep only this many of the paths that remain at the end, those that come first in the second order: DReSD's
        code takes the first rows of what REST's returns.

    Returns
    -------
    list of int
        Indices in ascending order, closed under "parent of".
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
