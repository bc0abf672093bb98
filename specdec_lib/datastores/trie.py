"""The trie of what followed a match, best nodes first, without building the rest of it.

A node is a prefix of the continuations of the matches, and its weight their number (REST, section 3.2, Algorithm 2). A node
never weighs more than its parent, so nodes come out in order of weight from a heap that holds only children of nodes that came
out before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specdec_lib.decoding.compiled import compiled


class Room(NamedTuple):
    """Arrays that a search writes into, int32; candidates are at most ``matches * min(length, choices + 1)``.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.trie import Room
    >>> matches, length, choices, vocabulary = 4, 2, 8, 10
    >>> size = matches * min(length, choices + 1)
    >>> shapes = (matches,), (vocabulary + 1,), (2, matches), (5, size), (size,), (4, choices)
    >>> room = Room(*(np.zeros(shape, np.int32) for shape in shapes))
    >>> room.nodes.shape
    (4, 8)
    """

    entries: np.ndarray  # (matches,)
    counts: np.ndarray  # (vocabulary + 1,), zeros before and after
    scratch: np.ndarray  # (2, matches)
    candidates: np.ndarray  # (5, candidates)
    heap: np.ndarray  # (candidates,)
    nodes: np.ndarray  # (4, choices)


@compiled
def _mix(number):
    """One step of SplitMix64 (Steele, Lea, Flood 2014): 64 bits that look random from any 64 bits."""
    z = np.uint64(number) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def sample_uniform(suffixes, start, stop, keep, seed, out):
    """Draw entries of a range, one from each of as many equal parts, by ``seed`` and the range alone.

    Parameters
    ----------
    suffixes : int array
    start, stop : int
        The range of entries.
    keep : int
        Entries drawn, at most as many as the range has.
    seed : int
    out : int32 array of shape (keep,) or longer
        Gets them.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.trie import sample_uniform
    >>> out = np.zeros(2, np.int32)
    >>> sample_uniform(np.arange(10, 18, dtype=np.int32), 0, 8, 2, 1, out)
    >>> bool(10 <= out[0] < 14 <= out[1] < 18)
    True
    """
    size = stop - start
    state = _mix(np.uint64(seed) ^ _mix(np.uint64(start)) ^ (np.uint64(stop) << np.uint64(32)))
    for i in range(keep):
        begin, end = start + i * size // keep, start + (i + 1) * size // keep
        state = _mix(state)
        out[i] = suffixes[begin + np.int64(state % np.uint64(end - begin))]


@compiled
def sample_smallest(tokens, suffixes, start, stop, keep, length, counts, out):
    """Take the entries of a range whose continuations come first in order of token ids.

    A continuation that its document cuts off comes before those that extend it.

    Parameters
    ----------
    tokens, suffixes : int arrays
        Of a store and of its suffix array.
    start, stop : int
        The range of entries.
    keep : int
        Entries taken.
    length : int
        Tokens to which continuations are cut.
    counts : int array of shape (vocabulary + 1,)
        Scratch: zeros before and after.
    out : int32 array of shape (keep,) or longer
        Gets the entries.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores import build_suffix_array, build_tokens
    >>> from specdec_lib.datastores.trie import sample_smallest
    >>> store = build_tokens(folder / "store", [[5, 8], [5, 6], [5, 7]], vocabulary=10, progress=False)
    >>> index = build_suffix_array(store, progress=False)
    >>> match, out = index.longest([5]), np.zeros(2, np.int32)
    >>> sample_smallest(
    ...     store.tokens, index.suffixes, match.start, match.stop, 2, 1, np.zeros(11, np.int32), out
    ... )
    >>> sorted(store.continuation(int(position) + 1, 1) for position in out)
    [[6], [7]]
    """
    separator = np.int64(tokens[0])
    entries = suffixes[start:stop].copy()
    begin, end = 0, len(entries)  # entries[:begin] are taken; entries[begin:end] tie, and some of them are
    for depth in range(1, length + 1):
        ended = 0
        for i in range(begin, end):
            token = np.int64(tokens[entries[i] + depth])
            if token == separator:
                ended += 1
            else:
                counts[token] += 1
        # The token at which the wanted number is reached; -1 for a continuation that has ended.
        border = np.int64(-1)
        total = ended
        while begin + total < keep:
            border += 1
            total += counts[border]
        for i in range(begin, end):
            token = np.int64(tokens[entries[i] + depth])
            if token != separator:
                counts[token] = 0
        # Three parts in place: before the border, at it, after it.
        low, i, high = begin, begin, end
        while i < high:
            token = np.int64(tokens[entries[i] + depth])
            if token == separator:
                token = -1
            if token < border:
                entries[low], entries[i] = entries[i], entries[low]
                low += 1
                i += 1
            elif token == border:
                i += 1
            else:
                high -= 1
                entries[high], entries[i] = entries[i], entries[high]
        begin, end = low, high
        if border < 0 or end == keep:
            break
    out[:keep] = entries[:keep]


@compiled
def take_matches(tokens, suffixes, start, stop, rule, counts, out):
    """Write the matches taken of a range of entries: all, or as many as are asked for by one of the two rules.

    Parameters
    ----------
    tokens, suffixes, start, stop, counts
        As for :func:`sample_smallest`.
    rule : (int, int, bool, int)
        Most matches, tokens to which continuations are cut, whether to draw with :func:`sample_uniform`, and its seed.
    out : int32 array
        Gets the entries.

    Returns
    -------
    int
        Number of matches taken.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores import build_suffix_array, build_tokens
    >>> from specdec_lib.datastores.trie import take_matches
    >>> store = build_tokens(folder / "store", [[5, 8], [5, 6], [5, 7]], vocabulary=10, progress=False)
    >>> index = build_suffix_array(store, progress=False)
    >>> match, out = index.longest([5]), np.zeros(3, np.int32)
    >>> counts = np.zeros(11, np.int32)
    >>> rules = (2, 1, False, 0), (5, 1, False, 0)
    >>> [take_matches(store.tokens, index.suffixes, match.start, match.stop, rule, counts, out) for rule in rules]
    [2, 3]
    """
    most, length, uniform, seed = rule
    if stop - start <= most:
        out[: stop - start] = suffixes[start:stop]
        return stop - start
    if uniform:
        sample_uniform(suffixes, start, stop, most, seed, out)
    else:
        sample_smallest(tokens, suffixes, start, stop, most, length, counts, out)
    return most


@compiled
def _before(a, b, weight, depth, token, parent, node_token, node_parent):
    """Whether candidate ``a`` comes out before ``b``: more weight, then less depth, then smaller path."""
    if weight[a] != weight[b]:
        return weight[a] > weight[b]
    if depth[a] != depth[b]:
        return depth[a] < depth[b]
    x, y, of_x, of_y = parent[a], parent[b], token[a], token[b]
    while x != y:
        of_x, of_y = node_token[x], node_token[y]
        x, y = node_parent[x], node_parent[y]
    return of_x < of_y


@compiled
def best_nodes(tokens, entries, count, length, choices, room):
    """Write the best nodes of the trie of what followed some matches (REST, section 3.2, Algorithm 2).

    They come by weight, largest first, then depth and path, smallest first.

    Parameters
    ----------
    tokens : int array
        Of a store, with separators.
    entries : int32 array
        ``entries[:count]`` are the positions of the matches in ``tokens``; their order is lost.
    count : int
    length : int
        Longest path.
    choices : int
        Most nodes.
    room : Room
        Row by row ``room.nodes`` receives token, parent (-1 for the root), weight and depth. The rest is scratch.

    Returns
    -------
    int
        Number of nodes.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores import build_tokens
    >>> from specdec_lib.datastores.trie import Room, best_nodes
    >>> store = build_tokens(folder / "store", [[5, 6, 7], [5, 6, 8]], vocabulary=10, progress=False)
    >>> shapes = (2,), (11,), (2, 2), (5, 4), (4,), (4, 3)
    >>> room = Room(*(np.zeros(shape, np.int32) for shape in shapes))
    >>> found = best_nodes(store.tokens, np.array([1, 5], np.int32), 2, 2, 3, room)
    >>> room.nodes[:3, :found].tolist()
    [[6, 7, 8], [-1, 0, 0], [2, 1, 1]]
    """
    separator = np.int64(tokens[0])
    _, counts, scratch, candidates, heap, nodes = room
    moved, distinct = scratch
    weight, depth, token, parent, place = candidates
    node_token, node_parent, node_weight, node_depth = nodes
    known, queued, done = 0, 0, 0
    node, begin, end, level = -1, 0, count, 0
    while True:
        # Split the matches entries[begin:end], which share the path to `node`, by the token that follows it.
        different = 0
        for i in range(begin, end):
            follows = np.int64(tokens[entries[i] + level + 1])
            if follows != separator:
                if counts[follows] == 0:
                    distinct[different] = follows
                    different += 1
                counts[follows] += 1
        # At most choices - done nodes will come out: a child lighter than so many siblings never does.
        # Weights are compared by their number of bits, which is enough to drop the long tail.
        least = 1
        if different > choices - done:
            while True:
                heavy = 0
                for i in range(different):
                    if counts[distinct[i]] >= 2 * least:
                        heavy += 1
                if heavy < choices - done:
                    break
                least *= 2
        offset = begin
        for i in range(different):
            follows = distinct[i]
            size = counts[follows]
            if size < least:
                counts[follows] = -1
                continue
            weight[known], depth[known], token[known] = size, level + 1, follows
            parent[known], place[known] = node, offset
            counts[follows] = offset
            offset += size
            slot = queued
            queued += 1
            while slot > 0:
                above = (slot - 1) // 2
                if not _before(known, heap[above], weight, depth, token, parent, node_token, node_parent):
                    break
                heap[slot] = heap[above]
                slot = above
            heap[slot] = known
            known += 1
        if level + 1 < length:
            for i in range(begin, end):
                follows = np.int64(tokens[entries[i] + level + 1])
                if follows != separator and counts[follows] >= 0:
                    moved[counts[follows]] = entries[i]
                    counts[follows] += 1
            entries[begin:offset] = moved[begin:offset]
        for i in range(different):
            counts[distinct[i]] = 0
        # Take the best candidate; go on with one that has more to split.
        while True:
            if queued == 0 or done == choices:
                return done
            best = heap[0]
            queued -= 1
            last = heap[queued]
            slot = 0
            while 2 * slot + 1 < queued:
                below = 2 * slot + 1
                if below + 1 < queued and _before(
                    heap[below + 1], heap[below], weight, depth, token, parent, node_token, node_parent
                ):
                    below += 1
                if not _before(heap[below], last, weight, depth, token, parent, node_token, node_parent):
                    break
                heap[slot] = heap[below]
                slot = below
            heap[slot] = last
            node_token[done], node_parent[done] = token[best], parent[best]
            node_weight[done], node_depth[done] = weight[best], depth[best]
            done += 1
            if depth[best] < length and done < choices:
                node, begin, level = done - 1, place[best], depth[best]
                end = begin + weight[best]
                break
