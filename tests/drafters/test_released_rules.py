"""Each system against the rule of its released code, written here in numpy from what that code does: both see the same logits.

They draft the same tokens, or differ as the system's page says.
"""

import itertools
import zlib
from collections import Counter

import numpy as np
import pytest
import released_rules
import torch

from specdec_lib import Context, Outputs, Sampling
from specdec_lib.decoding.acceptance import draw_without_replacement, rejection
from specdec_lib.decoding.sampling import ACCEPT, DRAFT, RESIDUAL, invert_cdf
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import Lookahead, SamDecoding, SuffixDecoding, TokenRecycling
from specdec_lib.drafters.eagle import Eagle
from specdec_lib.drafters.eagle2 import Eagle2
from specdec_lib.drafters.hydra import Hydra
from specdec_lib.drafters.medusa import Medusa
from tests.datastores.stores import tree_paths
from tests.drafters.test_head_drafters import heads_of, proposed, rows_along
from tests.families import prompt

VOCABULARY, STEPS = 12, 40


def logits_after(text) -> np.ndarray:
    """What a made target says after a text: random numbers that depend on its last two tokens."""
    return np.random.default_rng(zlib.crc32(bytes(text[-2:]))).normal(size=VOCABULARY)


def likely(texts, k: int) -> np.ndarray:
    """The ``k`` most likely tokens after each text, int64 (n, k)."""
    return np.array([np.argsort(-logits_after(text), kind="stable")[:k] for text in texts], np.int64).reshape(-1, k)


def steps_of(drafter, start, released, steps=STEPS):
    """Decode with a drafter; by step its draft's paths and those that ``released(tokens, prompt_length)`` gives before it.

    ``released`` is told of each pass by ``released.saw(tokens, tree)``.
    """
    context = Context([*start, int(likely([start], 1)[0, 0])], len(start), VOCABULARY, Sampling())
    k = max(drafter.capture.topk, 1)
    context.prompt_outputs = likely([start[: i + 1] for i in range(len(start))], k)
    drafter.start(context)
    found = []
    for _ in range(steps):
        tokens = list(context.tokens)
        theirs = released(tokens)
        tree = drafter.propose(context, 99)
        riding = tree.auxiliary
        ways = [tokens, *(tokens + [tree.tokens[i] for i in tree.path(node)] for node in range(len(tree)))]
        behind = []
        if riding is not None:
            seen = [[tokens[-1], *tree.tokens, *riding.tokens][i] for i in range(tree.width)]
            for row in riding.visible:
                order = sorted(np.flatnonzero(row), key=lambda i: (tree.block_depths[i], i))
                behind.append([*tokens[:-1], *(seen[i] for i in order)])
        path, node = [], -1
        while (child := tree.child(node, int(likely([ways[node + 1]], 1)[0, 0]))) is not None:
            path.append(child)
            node = child
        emitted = [tree.tokens[i] for i in path] + [int(likely([ways[node + 1]], 1)[0, 0])]
        found.append((tree, theirs, tokens, emitted))
        released.saw(tokens, tree, ways, behind, emitted)
        context.tokens += emitted
        rows = likely(ways, k), likely(behind, k)
        drafter.verified(tree, tuple(path), Outputs(rows[0], rows[0] * 0.0, rows[1], rows[1] * 0.0, tokens[-1]))
    drafter.finish()
    return found


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    return set(tree_paths(tree.tokens, tree.parents))


class ReleasedRecycling:
    """A table of zeros; each node of a fixed tree carries an entry of its parent's row."""

    def __init__(self, nodes, prompt=None):
        self.nodes, self.table = nodes, np.zeros((VOCABULARY, 8), np.int64)
        self.read = set()
        if prompt is not None:
            for i, token in enumerate(prompt):
                self.table[token] = likely([prompt[: i + 1]], 8)[0]
                self.read.add(token)

    def __call__(self, tokens):
        """Paths of the draft; those that hold a token proposed by a row of zeros are left out, as ours does."""
        ways = {-1: ()}
        for node, (parent, rank) in enumerate(self.nodes):
            above = (tokens[-1], *ways[parent])[-1] if ways[parent] is not None else None
            known = above in self.read
            ways[node] = (*ways[parent], int(self.table[above, rank])) if known else None
        return {way for node, way in ways.items() if node >= 0 and way is not None}

    def saw(self, tokens, tree, ways, behind, emitted):
        for way in ways:
            self.table[way[-1]] = likely([way], 8)[0]
            self.read.add(way[-1])


def test_token_recycling():
    ours = TokenRecycling((4, 6, 3))
    released = ReleasedRecycling(ours._nodes)
    found = steps_of(ours, [1, 2, 3, 1, 2], released)
    assert all(paths_of(tree) == theirs for tree, theirs, *_ in found)
    assert max(len(tree) for tree, *_ in found) == 13


class ReleasedSam(ReleasedRecycling):
    """The longest match of the text decides: what followed it, or the recycling table."""

    def __init__(self, nodes, prompt, count, threshold):
        super().__init__(nodes, prompt)
        self.count, self.threshold = count, threshold

    def __call__(self, tokens):
        text, matches = tokens[:-1], []
        for length in range(len(tokens) - 1, 0, -1):
            ends = [end for end in range(length, len(text) + 1) if text[end - length : end] == tokens[-length:]]
            if ends and (not matches or len(ends) > matches[-1][2]):
                matches.append((length, ends[0], len(ends)))  # a state of the automaton: a longest string of its places
        if not matches or matches[0][0] < self.threshold:
            return super().__call__(tokens)
        self.rooms = [len(text) - end for _, end, _ in matches]
        enough = next((m for m, room in zip(matches, self.rooms, strict=True) if room > self.count), matches[-1])
        return tuple(text[enough[1] : enough[1] + self.count])


def test_sam_decoding():
    count, start = 6, [1, 2, 3, 1, 2, 5, 4]
    ours = SamDecoding(num_tokens=count, threshold=2)
    ours.drafter = TokenRecycling((4, 6, 3), prompt=True)
    released = ReleasedSam(ours.drafter._nodes, start, count, 2)
    kinds = Counter()
    for tree, theirs, tokens, _ in steps_of(ours, start, released):
        if isinstance(theirs, set):
            assert paths_of(tree) == theirs
            kinds["recycled"] += 1
        else:
            same = tuple(tree.tokens) == theirs
            # Ours counts the newest token as one that follows, and asks for two tokens fewer.
            assert (
                same or tuple(tree.tokens[:-1]) == theirs or any(count - 1 <= room <= count for room in released.rooms)
            )
            kinds["the same copy" if same else "another copy"] += 1
    assert kinds["recycled"] > 3 and kinds["the same copy"] > 3, kinds


class ReleasedLookahead:
    """A window of rows and a pool of lists, the oldest of which leaves."""

    def __init__(self, ours, prompt, pooled):
        self.ours, self.pool, self.pooled, self.done = ours, {}, pooled, 0
        self.window = None
        if pooled:
            self._text(prompt)

    def _add(self, token, ngram):
        known = self.pool.setdefault(token, [])
        if ngram in known:
            known.remove(ngram)
        known.append(ngram)
        del known[: -self.ours.guesses]

    def _text(self, tokens):
        levels = self.ours.levels
        for place in range(self.done, len(tokens) - levels + 1):
            self._add(tokens[place], tuple(tokens[place + 1 : place + levels]))
            self.done = place + 1

    def __call__(self, tokens):
        if self.window is None:
            self.window = [list(self.ours._rows[0]) if hasattr(self.ours, "_rows") else None]
        full = len(self.window) == self.ours.levels - 1
        return {*self.pool.get(tokens[-1], [])} if full else set()

    def saw(self, tokens, tree, ways, behind, emitted):
        rows, levels = self.window, self.ours.levels
        # Guess i of the last row is followed by what the target says to its column; the first column is the last token's.
        grid = [[tokens[-1], *rows[0]], *rows[1:]]
        new = []
        for column in range(len(grid[0])):
            read = [*tokens[:-1], *grid[0][: column + 1], *(row[column] for row in grid[1:])]
            new.append(int(likely([read], 1)[0, 0]))
        if len(rows) == levels - 1:
            for column in range(len(new)):
                self._add(grid[0][column], (*(row[column] for row in grid[1:]), new[column]))
            self.window = [rows[1][1:], *rows[2:], new]
        elif len(rows) == 1:
            self.window = [rows[0][1:], new[1:]]
        else:
            self.window = [row[1:] for row in (*rows, new)]
        if self.pooled:
            self._text(tokens + emitted)


@pytest.mark.parametrize("pooled", [False, True])
def test_lookahead(pooled):
    start = [1, 2, 3, 1, 2, 5, 4, 1, 2, 3]
    ours = Lookahead(3, 4, 3, prompt=pooled)
    drafted = 0
    for tree, theirs, *_ in steps_of(ours, start, ReleasedLookahead(ours, start, pooled)):
        leaves = set(range(len(tree))) - set(tree.parents)
        assert {tuple(tree.tokens[i] for i in tree.path(leaf)) for leaf in leaves} == theirs
        drafted += len(theirs)
    assert drafted > 10
    # Declared: of an accepted n-gram the released code leaves the last token to the next pass.
    assert released_rules.ReleasedLookahead(3, 4, 3).levels - 2 == 2


class ReleasedSuffix:
    """Suffixes of growing length in two texts: the likeliest path, or the likeliest nodes, after each; the best score wins."""

    def __init__(self, prompt_length, earlier, chains):
        self.prompt_length, self.earlier, self.chains = prompt_length, earlier, chains

    def _counts(self, texts, pattern):
        return sum(tuple(t[i : i + len(pattern)]) == pattern for t in texts for i in range(len(t) - len(pattern) + 1))

    def _draft(self, texts, tokens, factor, least, most):
        best, score = [], 0.0
        for length in range(1, min(len(tokens), 63) + 1):
            pattern = tuple(tokens[-length:])
            if not self._counts(texts, pattern):
                break
            draft, waiting = [], {(): 1.0}
            while len(draft) < min(most, int(factor * length + 1e-6)):
                options = []
                for way, share in list(waiting.items())[-1 if self.chains else 0 :]:
                    for token in range(VOCABULARY):
                        child = (*way, token)
                        count = self._counts(texts, (*pattern, *child))
                        if count and child not in waiting:
                            p = share * count / self._counts(texts, (*pattern, *way))
                            if p >= least:
                                options.append((-p, list(waiting).index(way), token, child))
                if not options:
                    break
                p, _, _, child = min(options)
                waiting[child] = -p
                draft.append(child)
            total = sum(waiting[child] for child in draft)
            if draft and total >= score - 1e-12:
                best, score = draft, total
        return best, score

    def __call__(self, tokens):
        own, score = self._draft([tokens], tokens, 1.0, 0.1, 8)
        other, more = self._draft([*self.earlier, tokens[self.prompt_length :]], tokens, 1.0, 0.1, 8)
        return set(other if more > score + 1e-12 else own)

    def saw(self, *seen):
        pass


@pytest.mark.parametrize("chains", [False, True])
def test_suffix_decoding(chains):
    start, earlier = [1, 2, 3, 1, 2, 5], [[3, 1, 2, 4, 4, 2], [2, 5, 6, 1, 2, 4]]
    ours = released_rules.ReleasedSuffixDecoding(most=8, chains=chains)
    plain = SuffixDecoding(most=8, chains=chains)
    for text in earlier:
        for drafter in (ours, plain):
            drafter._earlier.extend(text)
            drafter._earlier.end_text()
    found = steps_of(ours, start, ReleasedSuffix(len(start), earlier, chains), 12)
    assert all(paths_of(tree) == theirs for tree, theirs, *_ in found)
    others = steps_of(plain, start, ReleasedSuffix(len(start), earlier, chains), 12)
    # Declared: the output so far is not among our earlier ones; some drafts are others then.
    assert 0 < sum(paths_of(tree) == theirs for tree, theirs, *_ in others) <= len(others)


def filled(children, after):
    """Paths of a released tree: each node's children are the most likely tokens of ``after(path)``, in turn."""
    found, level = set(), [("", ())]
    while level:
        below = []
        for way, path in level:
            if way in children:
                best = np.argsort(-after(path), kind="stable")
                for rank in range(children[way]):
                    below.append((f"{way}{rank}", (*path, int(best[rank]))))
        found |= {path for _, path in below}
        level = below
    return found


@pytest.mark.parametrize(
    ("name", "kind", "tree"),
    [
        ("medusa", Medusa, released_rules.MEDUSA),
        ("hydra deep", Hydra, released_rules.MEDUSA),
        ("eagle", Eagle, released_rules.EAGLE),
    ],
)
def test_medusa_hydra_and_eagle(llama, name, kind, tree):
    heads, tokens = heads_of(llama, name), prompt(3, 11)
    known = {}

    def after(path):
        # Medusa's heads do not read the tokens drafted before; Hydra's tree is Medusa's.
        key = len(path) if name == "medusa" else path
        if key not in known:
            known[key] = rows_along(llama, heads, tokens, path, len(path) + 1).numpy()
        return known[key]

    drafter = kind(llama, heads, released_rules.shape_of(tree))
    assert paths_of(proposed(llama, drafter, tokens, 9)) == filled(tree, after)


def test_eagle_2(llama):
    heads, tokens, branches, levels, nodes = heads_of(llama, "eagle2"), prompt(4, 9), 4, 3, 11

    def chances(path):
        return rows_along(llama, heads, tokens, path, len(path) + 1).double().numpy()

    worth, level = {}, [((), 0.0)]
    for _ in range(levels):
        candidates = []
        for path, value in level:
            row = chances(path)
            for token in np.argsort(-row, kind="stable")[:branches]:
                candidates.append(((*path, int(token)), value + row[token]))
        worth |= dict(candidates)
        level = sorted(candidates, key=lambda each: -each[1])[:branches]
    theirs = set(sorted(worth, key=lambda path: -worth[path])[:nodes])
    assert paths_of(proposed(llama, Eagle2(llama, heads, nodes, levels, branches), tokens, 9)) == theirs


@pytest.mark.parametrize("seed", range(30))
def test_eagle_s_children_are_tried_as_released(seed):
    """With the same random numbers the same children are accepted, and the same token is added."""
    rng = np.random.default_rng(seed)
    p = {way: rng.dirichlet(np.ones(6)) for way in [(), *itertools.product(range(6), repeat=1)]}
    p |= {way: rng.dirichlet(np.ones(6)) for way in itertools.product(range(6), repeat=2)}
    q, sampling = rng.dirichlet(np.ones(6), 2), Sampling(1.0, seed=seed)
    rows = torch.tensor(q)
    first = draw_without_replacement(rows[0], [sampling.uniform(0, DRAFT, rank) for rank in range(3)])
    second = draw_without_replacement(rows[1], [sampling.uniform(1, DRAFT, rank) for rank in range(2)])
    tree = DraftTree([*first, *second], [-1, -1, -1, 0, 0], rows[[0, 0, 0, 1, 1]])
    path, token = rejection(tree, lambda _, before: torch.tensor(p[tuple(before)]), sampling, 0, ())

    emitted, children = [], {(): (first, q[0]), (first[0],): (second, q[1])}
    while True:
        target, (tried, draft) = p[tuple(emitted)].copy(), children.get(tuple(emitted), ((), None))
        position, taken = len(emitted), None
        for rank, child in enumerate(tried):
            gone = draft[list(tried[:rank])].sum()
            if sampling.uniform(position, ACCEPT, rank) < target[child] / (draft[child] / (1 - gone)):
                taken = child
                break
            left = draft.copy()
            left[list(tried[:rank])] = 0  # the siblings before it
            target = np.maximum(target - left / left.sum(), 0)
            target /= target.sum()
        if taken is None:
            stream = (RESIDUAL,) if len(tried) else ()
            emitted.append(invert_cdf(torch.tensor(target), sampling.uniform(position, *stream)))
            break
        emitted.append(taken)
    assert [tree.tokens[i] for i in path] + [token] == emitted
