"""The loops of :class:`specdec_lib.drafters.one_tree.OneTree`: merge drafts, score their nodes, choose which to verify.

A node is described by :data:`FEATURES` numbers for each source that proposes it and one for each pair of sources that do. The
target's next token after a node is one of its children or none of them: a conditional logit with an outside option of score 0,

    p(x | v) = exp(w . phi(x)) / (1 + sum over children y of v of exp(w . phi(y))),

so the children's probabilities sum to less than 1, and what several sources propose is learned instead of multiplied.
"""

from __future__ import annotations

import numpy as np

from specdec_lib.decoding.compiled import compiled
from specdec_lib.lazy import former_names

__getattr__ = former_names(__name__, judged="visit_emitted")

#: Longest matches of the buckets of a node's features; a longer one is of the last bucket.
BUCKETS = np.array([0, 1, 2, 3, 5, 10, 20], np.int64)
#: Names of a source's features. The match is the number of tokens before the node that source and context share, the
#: draft's own tokens included; the share is the source's own estimate of the token given its parent, the support the number
#: of occurrences that it rests on.
FEATURES = (
    *(f"match {name}" for name in ("0", "1", "2", "3", "4-5", "6-10", "11-20", "21+")),
    "log share",
    "log depth",
    "right lately",
    "right in a row",
    "log support",
    "log candidates",
    "margin",
    "log rank",
    "similarity",
    "log attention",
)
_PER_SOURCE = len(FEATURES)
#: Scores beyond these are cut: a probability is never rounded to 0 or 1.
_LARGEST_SCORE = 12.0
#: Rows of the nodes' numbers.
TOKEN, PARENT, DEPTH, NEXT_SIBLING, FIRST_CHILD, RENAMED, RANKS = range(7)


class MergedTree:
    """Arrays of a trie and its features, filled anew at each step.

    The first ``count`` entries are filled. ``first_child``, int64 (room + 1,), and ``next_sibling``, int64 (room,), are the
    children as linked lists; entry 0 of ``first_child`` is the root's, entry ``i + 1`` that of node ``i``. They are rows of
    ``nodes``, as are ``tokens``, ``parents`` and ``depths``, int64 (room,). ``features`` are
    float64 (room, :func:`width`); ``conditional`` and ``probability``, float64 (room,), are estimates of p(node | parent) and of
    the node being on the target's path.

    Parameters
    ----------
    sources : int
    room : int
        Nodes at most.

    Examples
    --------
    Two sources propose two drafts that begin alike:

    >>> from specdec_lib import DraftTree
    >>> from specdec_lib.decoding.contract import Evidence
    >>> from specdec_lib.drafters.merged_tree import MergedTree
    >>> from specdec_lib.drafters.tree_probabilities import TreeProbabilities
    >>> merged = MergedTree(sources=2, room=8)
    >>> for source, tokens in enumerate(([5, 6], [5, 8])):
    ...     known = Evidence(match=4, similarity=[0.0, 0.0])
    ...     merged.add(source, DraftTree.chain(tokens), [1.0, 1.0], known, lately=0.0, streak=0, limit=8)
    >>> merged.tokens[: merged.count].tolist(), merged.parents[: merged.count].tolist()
    ([5, 6, 8], [-1, 0, 0])
    >>> merged.score(TreeProbabilities.unfitted(["one", "other"]).weights)
    >>> bool(merged.probability[0] > merged.probability[1])
    True
    """

    def __init__(self, sources: int, room: int):
        self.sources, self.room, self.count = sources, room, 0
        self.nodes = np.full((7, room + 1), -1, np.int64)
        self.tokens, self.parents, self.depths, self.next_sibling = self.nodes[:FIRST_CHILD, :room]
        self.first_child = self.nodes[FIRST_CHILD]
        self.proposed = np.zeros((room, sources), np.bool_)
        self.features = np.zeros((room, width(sources)))
        self.conditional, self.probability = np.zeros((2, room))
        self._order = np.zeros(room, np.int64)

    def clear(self) -> None:
        """Forget the nodes."""
        self.features[: self.count] = 0.0
        self.proposed[: self.count] = False
        self.count = 0
        self.first_child[0] = -1

    def add(self, source, draft, shares, known, lately, streak, limit) -> None:
        """Merge one source's draft, cut at its limit and at the room there is.

        Parameters
        ----------
        source : int
        draft : DraftTree
        shares : sequence of float
            The source's own estimates of each node's path.
        known : Evidence
        lately : float
            Log-odds of the source having been right lately.
        streak : int
            Its tokens in a row that were right.
        limit : int
            Deepest node taken.
        """
        size = min(len(draft), self.room)
        drafted = np.array([draft.tokens[:size], draft.parents[:size]], np.int64)
        estimates = np.empty((2, size))
        estimates[0], estimates[1] = shares[:size], known.similarity[:size]
        found = [known.match, lately, streak, known.support, known.candidates, known.margin, known.attention]
        kept = self.nodes, self.proposed, self.features
        self.count = _add(source, limit, self.count, drafted, estimates, np.array(found, np.float64), *kept)

    def score(self, weights: np.ndarray) -> None:
        """Fill ``conditional`` and ``probability``."""
        _score(self.count, self.parents, self.features, weights, self.conditional, self.probability)

    def best(self, curve: np.ndarray, sunk: float) -> tuple[list[int], list[int], np.ndarray, float]:
        """The parent-closed subtree of the largest (1 + sum of P) / (cost of its pass + ``sunk``).

        A node is never likelier than its parent, so the best subtree of each size is the likeliest nodes, whatever the costs.

        Parameters
        ----------
        curve : float64 array of shape (n,)
            Costs of passes over 1, 2, ..., n tokens.
        sunk : float
            What the step has cost already.

        Returns
        -------
        tokens, parents : list of int
            Of the draft.
        nodes : int64 array
            Its nodes in the merged tree.
        rate : float
            Expected tokens per unit of cost.
        """
        size, rate = _best(self.count, self.probability, curve, sunk, self._order)
        nodes = self._order[:size].copy()
        parents = _positions(nodes, self.nodes)
        return self.tokens[nodes].tolist(), parents.tolist(), nodes, rate

    def whose(self, nodes: np.ndarray) -> np.ndarray:
        """Which sources propose each of some nodes, int64: bit ``i`` for source ``i``."""
        return _whose(nodes, self.proposed)


def width(sources: int) -> int:
    """Numbers that describe a node: :data:`FEATURES` for each source and one for each pair.

    Parameters
    ----------
    sources : int

    Returns
    -------
    int

    Examples
    --------
    >>> from specdec_lib.drafters.merged_tree import FEATURES, width
    >>> width(3) == 3 * len(FEATURES) + 3
    True
    """
    return sources * _PER_SOURCE + sources * (sources - 1) // 2


@compiled
def _add(source, limit, count, drafted, estimates, evidence, nodes, proposed, features):
    tokens, parents, shares, similarity = drafted[0], drafted[1], estimates[0], estimates[1]
    match, lately, streak, support, candidates, margin, attention = evidence
    first_child, next_sibling, renamed, ranks = nodes[FIRST_CHILD], nodes[NEXT_SIBLING], nodes[RENAMED], nodes[RANKS]
    room, sources = proposed.shape
    begin = source * _PER_SOURCE
    ranks[:] = 0
    for i in range(len(tokens)):
        parent = -1 if parents[i] < 0 else renamed[parents[i]]
        renamed[i] = -2
        if parent == -2:
            continue
        depth = 1 if parent < 0 else nodes[DEPTH, parent] + 1
        if depth > limit:
            continue
        node = first_child[parent + 1]
        while node >= 0 and nodes[TOKEN, node] != tokens[i]:
            node = next_sibling[node]
        if node < 0:
            if count == room:
                continue
            node = count
            count += 1
            nodes[TOKEN, node], nodes[PARENT, node], nodes[DEPTH, node] = tokens[i], parent, depth
            next_sibling[node] = first_child[parent + 1]
            first_child[parent + 1] = node
            first_child[node + 1] = -1
        renamed[i] = node
        for other in range(sources):
            if proposed[node, other] and other != source:
                low, high = min(source, other), max(source, other)
                # Pairs (0, 1), (0, 2), ..., (1, 2), ... follow the sources' own features.
                pair = low * sources - low * (low + 1) // 2 + high - low - 1
                features[node, sources * _PER_SOURCE + pair] = 1.0
        proposed[node, source] = True
        row = features[node, begin : begin + _PER_SOURCE]
        if row[:8].any():
            continue  # a batch's later branch through the same node
        longest = match + depth - 1 if match > 0 else 0
        bucket = 0
        while bucket < len(BUCKETS) and longest > BUCKETS[bucket]:
            bucket += 1
        row[bucket] = 1.0
        whole = 1.0 if parents[i] < 0 else max(shares[parents[i]], 1e-9)
        row[8] = np.log(min(1.0, max(shares[i] / whole, 1e-4)))
        row[9] = np.log(np.float64(depth))
        row[10] = lately
        row[11] = np.log1p(streak)
        row[12] = np.log(max(support * whole, 1.0))
        row[13] = candidates / depth
        row[14] = margin / depth
        # The source's own order of what it proposes after one parent, best first.
        row[15] = np.log1p(np.float64(ranks[parent + 1]))
        ranks[parent + 1] += 1
        row[16] = similarity[i] / depth
        row[17] = attention / depth
    return count


@compiled
def _score(count, parents, features, weights, conditional, probability):
    above = np.ones(count + 1)
    for node in range(count):
        score = 0.0
        for j in range(len(weights)):
            score += features[node, j] * weights[j]
        conditional[node] = np.exp(min(_LARGEST_SCORE, max(-_LARGEST_SCORE, score)))
        above[parents[node] + 1] += conditional[node]
    for node in range(count):
        conditional[node] /= above[parents[node] + 1]
        probability[node] = conditional[node] * (1.0 if parents[node] < 0 else probability[parents[node]])


@compiled
def _best(count, probability, curve, sunk, order):
    order[:count] = np.argsort(-probability[:count], kind="mergesort")
    total, best, size = 1.0, 1.0 / (curve[0] + sunk), 0
    for n in range(1, min(count, len(curve) - 1) + 1):
        total += probability[order[n - 1]]
        rate = total / (curve[n] + sunk)
        if rate > best:
            best, size = rate, n
    return size, best


@compiled
def _positions(chosen, nodes):
    """Parents of some nodes by their places among those nodes."""
    out = np.empty(len(chosen), np.int64)
    for place in range(len(chosen)):
        nodes[RENAMED, chosen[place]] = place
        parent = nodes[PARENT, chosen[place]]
        out[place] = -1 if parent < 0 else nodes[RENAMED, parent]
    return out


@compiled
def _whose(chosen, proposed):
    out = np.zeros(len(chosen), np.int64)
    for place in range(len(chosen)):
        for source in range(proposed.shape[1]):
            out[place] |= np.int64(proposed[chosen[place], source]) << source
    return out


@compiled
def visit_emitted(emitted, nodes, visited):
    """Walk down the emitted tokens; the number of nodes whose children could be judged.

    The first row of ``visited`` gets the parents (-1: the root) whose next token is known, the second the child that was
    emitted, or -1 for none.
    """
    parent, count = -1, 0
    for token in emitted:
        node = nodes[FIRST_CHILD, parent + 1]
        if node < 0:
            break
        while node >= 0 and nodes[TOKEN, node] != token:
            node = nodes[NEXT_SIBLING, node]
        visited[0, count], visited[1, count] = parent, node
        count += 1
        if node < 0:
            break
        parent = node
    return count


@compiled
def judge_sources(visited, count, nodes, proposed, lately, streak):
    """Count for each source how often its tokens were right lately, and in a row, at the nodes of :func:`visit_emitted`."""
    for source in range(len(lately)):
        for i in range(count):
            asked, node = False, nodes[FIRST_CHILD, visited[0, i] + 1]
            while node >= 0 and not asked:
                asked = proposed[node, source]
                node = nodes[NEXT_SIBLING, node]
            if asked:
                right = visited[1, i] >= 0 and proposed[visited[1, i], source]
                lately[source] += 0.1 * ((1.0 if right else 0.0) - lately[source])
                streak[source] = streak[source] + 1 if right else 0
        lately[source] = min(0.98, max(0.02, lately[source]))


@compiled
def learn(visited, count, nodes, features, conditional, weights, scale, rate):
    """One step of Adagrad for each judged parent: raise the likelihood of what was emitted after it."""
    gradient = np.empty(len(weights))
    for i in range(count):
        gradient[:] = 0.0
        node = nodes[FIRST_CHILD, visited[0, i] + 1]
        while node >= 0:
            error = (1.0 if node == visited[1, i] else 0.0) - conditional[node]
            for j in range(len(weights)):
                gradient[j] += error * features[node, j]
            node = nodes[NEXT_SIBLING, node]
        for j in range(len(weights)):
            if gradient[j] != 0.0:
                scale[j] += gradient[j] * gradient[j]
                weights[j] += rate * gradient[j] / np.sqrt(scale[j])
