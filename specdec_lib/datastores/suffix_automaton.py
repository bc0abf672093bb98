"""A suffix automaton that grows with its text: every substring, how often it occurs, and where it first ended.

It is the smallest automaton that reads all substrings (Blumer et al. 1985). All strings of one state end at the same places.
Several texts may share one automaton; no substring crosses from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_lib.decoding.compiled import compiled

# Rows of the table of states: longest string, suffix link, occurrences, end of the first one, first transition.
LENGTH, LINK, COUNT, END, FIRST = range(5)
# Rows of the table of transitions: from, token, to, next transition of the same state.
SOURCE, TOKEN, TARGET, NEXT = range(4)
# Entries of the sizes: states, transitions, the state of the whole current text.
STATES, EDGES, LAST = range(3)
#: Stands between two texts.
SEPARATOR = -1


@compiled
def _slot(edges, slots, state, token):
    """The hash table's place of a transition: that which holds it, or the free one where it would go."""
    mask = len(slots) - 1
    number = np.uint64(state) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(token) * np.uint64(0xBF58476D1CE4E5B9)
    place = np.int64((number ^ (number >> np.uint64(29))) & np.uint64(mask))
    while slots[place] >= 0:
        edge = slots[place]
        if edges[SOURCE, edge] == state and edges[TOKEN, edge] == token:
            break
        place = (place + 1) & mask
    return place


@compiled
def _edge(edges, slots, state, token):
    """Transition of a state by a token; -1 where there is none."""
    return slots[_slot(edges, slots, state, token)]


@compiled
def _connect(states, edges, slots, sizes, state, token, target):
    edge = sizes[EDGES]
    sizes[EDGES] += 1
    edges[SOURCE, edge], edges[TOKEN, edge], edges[TARGET, edge] = state, token, target
    edges[NEXT, edge] = states[FIRST, state]
    states[FIRST, state] = edge
    slots[_slot(edges, slots, state, token)] = edge


@compiled
def _new_state(states, sizes, length, end):
    state = sizes[STATES]
    sizes[STATES] += 1
    states[LENGTH, state], states[LINK, state], states[COUNT, state] = length, 0, 0
    states[END, state], states[FIRST, state] = end, -1
    return state


@compiled
def _split(states, edges, slots, sizes, state, token, target):
    """Part the strings of ``target`` that are no longer than the state's with the token from the longer ones."""
    part = _new_state(states, sizes, states[LENGTH, state] + 1, states[END, target])
    states[LINK, part], states[COUNT, part] = states[LINK, target], states[COUNT, target]
    edge = states[FIRST, target]
    while edge >= 0:
        _connect(states, edges, slots, sizes, part, edges[TOKEN, edge], edges[TARGET, edge])
        edge = edges[NEXT, edge]
    states[LINK, target] = part
    while state >= 0:
        edge = _edge(edges, slots, state, token)
        if edges[TARGET, edge] != target:
            break
        edges[TARGET, edge] = part
        state = states[LINK, state]
    return part


@compiled
def _follower(states, edges, slots, sizes, state, token, edge):
    """The state of the longest string of ``state`` plus ``token``, split off if that state has longer strings."""
    target = edges[TARGET, edge]
    if states[LENGTH, target] == states[LENGTH, state] + 1:
        return target
    return _split(states, edges, slots, sizes, state, token, target)


@compiled
def _append(states, edges, slots, sizes, tokens, end):
    """Append tokens to the current text; the first of them stands at ``end``."""
    for token in tokens:
        state = sizes[LAST]
        edge = _edge(edges, slots, state, token)
        if edge >= 0:  # an earlier text began alike
            new = _follower(states, edges, slots, sizes, state, token, edge)
        else:
            new = _new_state(states, sizes, states[LENGTH, state] + 1, end)
            while state >= 0 and edge < 0:
                _connect(states, edges, slots, sizes, state, token, new)
                state = states[LINK, state]
                if state >= 0:
                    edge = _edge(edges, slots, state, token)
            if state >= 0:
                states[LINK, new] = _follower(states, edges, slots, sizes, state, token, edge)
        sizes[LAST] = new
        while new > 0:
            states[COUNT, new] += 1
            new = states[LINK, new]
        end += 1


@compiled
def _fill_slots(edges, slots, count):
    for edge in range(count):
        slots[_slot(edges, slots, edges[SOURCE, edge], edges[TOKEN, edge])] = edge


@compiled
def _follow(states, edges, slots, state, length, tokens):
    for token in tokens:
        edge = _edge(edges, slots, state, token)
        while edge < 0 and state > 0:
            state = states[LINK, state]
            length = states[LENGTH, state]
            edge = _edge(edges, slots, state, token)
        if edge >= 0:
            state = edges[TARGET, edge]
            length += 1
    return state, length


@compiled
def _best_nodes(states, edges, state, budget, depth, least, chains, frontier, nodes, share):
    """Write the likeliest nodes after a state, and return their number and the sum of their probabilities.

    A node's probability is its count over that of the state. The likeliest node that is left comes next; among equals that of
    the earlier parent, then of the smaller token. At most 1 / ``least`` nodes may come next, as they are not in one another's
    paths. With ``chains`` the likeliest child of each node comes next, and no other.
    """
    whole, total, size, waiting = states[COUNT, state], 0, 0, 0
    parent, at, level, frontier_count = -1, state, 0, frontier[4]
    while True:
        edge = states[FIRST, at] if level < depth else -1
        while edge >= 0:
            target = edges[TARGET, edge]
            if states[COUNT, target] / whole >= least:
                frontier[0, waiting], frontier[1, waiting], frontier[2, waiting] = parent, edges[TOKEN, edge], target
                frontier[3, waiting], frontier_count[waiting] = level + 1, states[COUNT, target]
                waiting += 1
            edge = edges[NEXT, edge]
        if waiting == 0 or size == budget:
            return size, total / whole
        best = 0
        for i in range(1, waiting):
            if frontier_count[i] > frontier_count[best] or (
                frontier_count[i] == frontier_count[best]
                and (frontier[0, i], frontier[1, i]) < (frontier[0, best], frontier[1, best])
            ):
                best = i
        nodes[0, size], nodes[1, size], share[size] = frontier[1, best], frontier[0, best], frontier_count[best] / whole
        total += frontier_count[best]
        parent, at, level = size, frontier[2, best], frontier[3, best]
        size += 1
        waiting = 0 if chains else waiting - 1
        frontier[:, best] = frontier[:, waiting]


@compiled
def _best_tree(states, edges, slots, context, rule, nodes, share):
    """Write the tree of the largest score, if that is more than ``score``; its number of nodes, match and score."""
    factor, offset, most, depth, limit, least, score, chains = rule
    state, length = _follow(states, edges, slots, 0, 0, context)
    room = int(1 / least) + 2
    frontier = np.zeros((5, room), np.int64)
    own_nodes, own_share = np.zeros_like(nodes), np.zeros_like(share)
    size, matched = 0, 0
    tried, tried_depth = -1, 0
    while length > 0:
        if states[LENGTH, states[LINK, state]] == length:
            state = states[LINK, state]
        budget = int(min(most, factor * length + offset + 1e-6))
        deepest = min(limit, depth - length)
        # The nodes of one depth have probabilities that sum to at most 1, and a shorter string of the same state has a part of
        # the tree of a longer one: neither can have a larger score.
        if min(budget, deepest) > score and (state != tried or deepest != tried_depth):
            tried, tried_depth = state, deepest
            count, total = _best_nodes(
                states, edges, state, budget, deepest, least, chains, frontier, own_nodes, own_share
            )
            if total > score:  # of equals the longest match, which comes first
                size, matched, score = count, length, total
                nodes[:, :count], share[:count] = own_nodes[:, :count], own_share[:count]
        length -= 1
    return size, matched, score


class SuffixAutomaton:
    """All substrings of one text or of several, with counts; ``text`` holds them, :data:`SEPARATOR` between two.

    Examples
    --------
    >>> from specdec_lib.datastores.suffix_automaton import SuffixAutomaton
    >>> automaton = SuffixAutomaton()
    >>> automaton.extend([5, 6, 7, 5, 6])
    >>> state, length = automaton.repeated()
    >>> length, automaton.continuation(state, 2)
    (2, [7, 5])
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self._capacity = 0
        self._states, self._edges = np.zeros((5, 0), np.int32), np.zeros((4, 0), np.int32)
        self._sizes = np.zeros(3, np.int64)
        self._make_room(256)
        self._sizes[STATES] = 1
        self._states[:, 0] = 0, -1, 0, 0, -1

    def _make_room(self, tokens: int) -> None:
        """Tables for so many tokens: at most two states and three transitions each, and twice as many slots."""
        self._capacity = tokens
        for name, rows, size in (("_states", 5, 2 * tokens + 2), ("_edges", 4, 3 * tokens + 3)):
            old = getattr(self, name)
            new = np.zeros((rows, size), np.int32)
            new[:, : old.shape[1]] = old
            setattr(self, name, new)
        self._slots = np.full(1 << (2 * self._edges.shape[1]).bit_length(), -1, np.int32)
        _fill_slots(self._edges, self._slots, self._sizes[EDGES])

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the current text."""
        needed = len(self.text) + len(tokens)
        if needed > self._capacity:
            self._make_room(max(needed, 2 * self._capacity))
        start = len(self.text)
        self.text.extend(tokens)
        _append(*self._tables, self._sizes, np.asarray(tokens, np.int64), start)

    def end_text(self) -> None:
        """End the current text: the next tokens appended begin another one."""
        if self.text and self.text[-1] != SEPARATOR:
            self.text.append(SEPARATOR)
            self._sizes[LAST] = 0

    @property
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._states, self._edges, self._slots

    def follow(self, tokens: Sequence[int], state: int = 0, length: int = 0) -> tuple[int, int]:
        """The longest suffix that occurs, of some tokens after the given state's.

        Parameters
        ----------
        tokens : sequence of int
        state, length : int
            What an earlier call returned.

        Returns
        -------
        state, length : int
            Valid until the automaton grows.

        Examples
        --------
        >>> from specdec_lib.datastores.suffix_automaton import SuffixAutomaton
        >>> automaton = SuffixAutomaton()
        >>> automaton.extend([5, 6, 7])
        >>> state, length = automaton.follow([9, 5, 6])
        >>> length, automaton.continuation(state, 4)
        (2, [7])
        """
        state, length = _follow(*self._tables, state, length, np.asarray(tokens, np.int64))
        return int(state), int(length)

    def repeated(self) -> tuple[int, int]:
        """The state and the length of the longest suffix of the one text that also occurs before its end."""
        state = int(self._states[LINK, self._sizes[LAST]]) if self._sizes[LAST] else 0
        return state, int(self._states[LENGTH, state])

    def shorter(self, state: int) -> int:
        """The state of the longest suffix of a state's strings that occurs at more places; 0 is the empty string's."""
        return max(0, int(self._states[LINK, state]))

    def continuation(self, state: int, length: int) -> list[int]:
        """At most ``length`` tokens that follow the first occurrence of a state's strings in the same text."""
        start = int(self._states[END, state]) + 1
        tokens = self.text[start : start + length]
        return tokens[: tokens.index(SEPARATOR)] if SEPARATOR in tokens else tokens

    def best_tree(
        self,
        context: Sequence[int],
        factor: float,
        offset: float,
        most: int,
        depth: int,
        limit: int,
        least: float,
        score: float = 0.0,
        chains: bool = False,
    ) -> tuple[list[int], list[int], list[float], int, float]:
        """SuffixDecoding's draft: of the trees after each matching suffix of the context that of the largest score.

        After a suffix of length p the tree takes the ``min(most, factor * p + offset)`` likeliest nodes. A node's probability
        is the product of count(child) / count(parent) over its path, and the score of a tree is the sum of its nodes' (Oliaro
        et al. 2025, section 4).

        Parameters
        ----------
        context : sequence of int
        factor, offset : float
        most : int
        depth : int
            Most tokens of match and draft together.
        limit : int
            Most tokens of the draft.
        least : float
            Smallest probability of a node, above 0.
        score : float
            Which the score must exceed.
        chains : bool
            Whether a tree has no branches.

        Returns
        -------
        tokens, parents : list of int
            Empty where no tree exceeds ``score``.
        probabilities : list of float
        match : int
            Length of the suffix.
        score : float

        Examples
        --------
        >>> from specdec_lib.datastores.suffix_automaton import SuffixAutomaton
        >>> automaton = SuffixAutomaton()
        >>> for text in ([5, 6, 7], [5, 6, 7], [5, 6, 8]):
        ...     automaton.extend(text)
        ...     automaton.end_text()
        >>> tokens, parents, probabilities, match, score = automaton.best_tree(
        ...     [5, 6], factor=1.0, offset=0.0, most=8, depth=16, limit=8, least=0.1
        ... )
        >>> tokens, match, round(score, 2)
        ([7, 8], 2, 1.0)
        """
        nodes, share = np.zeros((2, max(most, 1)), np.int32), np.zeros(max(most, 1))
        rule = factor, offset, most, depth, limit, least, score, chains
        size, match, score = _best_tree(*self._tables, np.asarray(context, np.int64), rule, nodes, share)
        return nodes[0, :size].tolist(), nodes[1, :size].tolist(), share[:size].tolist(), int(match), float(score)
