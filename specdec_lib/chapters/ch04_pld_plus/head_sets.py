"""Sets of attention heads for PLD+ (a): the best ones, those of one block, all of them, random ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

Heads = list[tuple[int, int]]
Shape = tuple[int, int]
#: Numbers of best heads that are tried, as far as there are so many.
COUNTS = (1, 2, 3, 4, 6, 8, 10, 15, 20, 30, 50, 100, 200, 300)


def every(shape: Shape) -> Heads:
    """All (block, head) pairs of a model of ``shape`` = (blocks, heads a block), in order.

    Raises
    ------
    ValueError
        If either number is below 1.
    """
    blocks, heads = shape
    if blocks < 1 or heads < 1:
        raise ValueError(f"shape is {shape}; expected (blocks, heads a block), each 1 or more")
    return [(block, head) for block in range(blocks) for head in range(heads)]


def of_block(shape: Shape, block: int) -> Heads:
    """The heads of one block, counted from 0.

    Raises
    ------
    ValueError
        If there is no such block.
    """
    if not 0 <= block < shape[0]:
        raise ValueError(f"block is {block}; expected 0 to {shape[0] - 1}")
    return [pair for pair in every(shape) if pair[0] == block]


def random_heads(shape: Shape, count: int, seed: int) -> Heads:
    """``count`` different heads, each set of that size equally likely; the same for the same seed.

    Raises
    ------
    ValueError
        If there are not so many heads, or ``count`` is below 1.
    """
    known = every(shape)
    if not 1 <= count <= len(known):
        raise ValueError(f"count is {count}; expected 1 to {len(known)}, the heads of the model")
    chosen = np.random.default_rng(seed).choice(len(known), count, replace=False)
    return [known[i] for i in sorted(chosen.tolist())]


def draws(shape: Shape, count: int, number: int, seed: int = 0) -> Iterator[Heads]:
    """``number`` sets of random heads, of seeds ``seed``, ``seed`` + 1, ..."""
    for i in range(number):
        yield random_heads(shape, count, seed + i)


def tried(ranked: Sequence[tuple[int, int]], shape: Shape) -> dict[str, Heads]:
    """Sets of the best of ``ranked`` heads by their number, up to all of these, and ``"every"`` head of the model."""
    counts = [count for count in COUNTS if count < len(ranked)] + [len(ranked)]
    return {str(count): list(ranked[:count]) for count in counts} | {"every": every(shape)}
