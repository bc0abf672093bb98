"""Lookahead decoding (Fu et al. 2024): n-grams from a window of guesses that the target refines in the same passes."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np

from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.outputs import Outputs
from specdec_lib.decoding.tree import AuxiliaryTokens, DraftTree


class Pool:
    """For each token the n-grams seen after it, the latest last; the one seen longest ago makes room.

    Parameters
    ----------
    most : int
        N-grams of one token at most (G).

    Examples
    --------
    >>> from specdec_lib.drafters.lookahead import Pool
    >>> pool = Pool(most=2)
    >>> for ngram in ((6, 7), (6, 8), (9, 9)):
    ...     pool.add(5, ngram)
    >>> pool.after(5)
    [(6, 8), (9, 9)]
    """

    def __init__(self, most: int):
        self.most = most
        self._after: defaultdict[int, dict[tuple[int, ...], None]] = defaultdict(dict)

    def add(self, token: int, ngram: tuple[int, ...]) -> None:
        """Note that ``ngram`` was seen after ``token``."""
        known = self._after[token]
        known.pop(ngram, None)
        if len(known) == self.most:
            del known[next(iter(known))]
        known[ngram] = None

    def after(self, token: int) -> list[tuple[int, ...]]:
        """The n-grams of a token, the latest last."""
        return list(self._after.get(token, ()))


class Lookahead(Drafter):
    """Draft the pool's n-grams after the last token, and let a window of guesses ride along that fills the pool.

    The window has ``levels - 1`` rows. Its first row is a guess of the tokens to come, and the last token is its first column.
    Row l holds what the target said to row l - 1, one position later; column i of row l sees the first row up to column i and
    its own column of the rows between (the paper's figure 2). Each pass computes one more row, which completes in each column
    an n-gram of ``levels`` tokens: the first is its key in the pool, the others the n-gram. Then each row takes the place of
    the one above it, and the window moves on by one position.

    The first row starts with ``window + levels - 3`` tokens drawn from the prompt. The first ``levels - 2`` passes fill one row
    each, drop one column each and draft nothing. A pass over a full pool is ``(levels - 1) * (window + guesses)`` tokens wide.
    The released code replaces an end token within the window by a random one where it samples; here it stays.

    Parameters
    ----------
    window : int
        Columns of the full window (W), the last token's included.
    levels : int
        N: tokens of an n-gram with its key, 3 or more.
    guesses : int
        N-grams kept, and verified, for a token (G).
    merge : bool
        Verify common prefixes of n-grams once. The released code does not.
    seed : int
        Of the tokens that the first row starts with.
    prompt : bool
        Pool the n-grams of the prompt at the start, and those of the output as it grows, as the released code does if it is asked
        to.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import Lookahead
    >>> run = generate(model, prompt, Lookahead(window=5, levels=4, guesses=5), max_new_tokens=24)
    >>> max(step.width for step in run.steps) <= (4 - 1) * (5 + 5)
    True
    """

    replays = "never"
    capture = Capture(topk=1)

    def __init__(
        self,
        window: int = 7,
        levels: int = 5,
        guesses: int = 7,
        merge: bool = False,
        seed: int = 0,
        prompt: bool = False,
    ):
        self.window, self.levels = whole_number("window", window, 1), whole_number("levels", levels, 3)
        self.guesses = whole_number("guesses", guesses, 1)
        self.merge, self.seed, self.prompt = merge, seed, prompt

    def start(self, context: Context) -> None:
        prompt = context.tokens[: context.prompt_length]
        rng = random.Random(self.seed)
        #: Rows of the window; the first lacks its first column, which is the last token.
        self._rows = [[rng.choice(prompt) for _ in range(self.window + self.levels - 3)]]
        self.pool, self._pooled = Pool(self.guesses), 0

    @property
    def _filled(self) -> bool:
        return len(self._rows) == self.levels - 1

    def propose(self, context: Context, limit: int) -> DraftTree:
        if self.prompt:
            for place in range(self._pooled, len(context.tokens) - self.levels + 1):
                token, *ngram = context.tokens[place : place + self.levels]
                self.pool.add(token, tuple(ngram))
                self._pooled = place + 1
        drafts = self.pool.after(context.tokens[-1]) if self._filled else []
        tree = DraftTree.from_drafts((draft[:limit] for draft in drafts), self.merge)
        return tree.annotated(auxiliary=self._auxiliary(len(tree) + 1))

    def _auxiliary(self, size: int) -> AuxiliaryTokens:
        """The window, which rides behind the ``size`` tokens of root and tree."""
        first, *others = self._rows
        columns = len(first) + 1
        count = len(first) + columns * len(others)
        visible = np.zeros((count, size + count), dtype=bool)
        visible[:, 0] = True  # the last token
        # By row and column of the window: the place in the pass.
        places = np.concatenate([[0], np.arange(size, size + count)]).reshape(len(self._rows), columns)
        depths = np.arange(columns)[None, :] + np.arange(len(self._rows))[:, None]
        for row in range(len(self._rows)):
            for column in range(columns):
                if row or column:
                    seen = [*places[0, : column + 1], *places[1 : row + 1, column]]
                    visible[places[row, column] - size, seen] = True
        tokens = [*first, *(token for row in others for token in row)]
        return AuxiliaryTokens(tokens, depths.flatten()[1:], visible)

    def verified(self, tree: DraftTree, path: tuple[int, ...], outputs: Outputs) -> None:
        """Pool the n-grams that the pass completed, and move the window on."""
        if tree.auxiliary is None:
            return  # the last pass, for which nothing was asked
        first, *others = self._rows
        columns, riding = len(first) + 1, outputs.auxiliary_tokens[:, 0].tolist()
        if not others:
            self._rows = [first[1:], riding[: len(first)]]
        else:
            start = len(first) + columns * (len(others) - 1)
            new = riding[start : start + columns]
            if self._filled:
                for token, *ngram in zip([outputs.root, *first], *others, new, strict=True):
                    self.pool.add(token, tuple(ngram))
                self._rows = [others[0][1:], *others[1:], new]
            else:
                self._rows = [row[1:] for row in (first, *others, new)]
