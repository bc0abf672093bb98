"""What each token of a pass attends to, by position: the rule of a sliding window over a tree."""

from __future__ import annotations

import torch


def in_window(visible: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, window: int | None) -> torch.Tensor:
    """What a sliding window leaves of what each token may attend to.

    A token attends to itself and the ``window - 1`` positions before it, the rule of transformers. It goes by position:
    a node of a tree has that of its depth, wherever it lies in the block.

    Parameters
    ----------
    visible : bool tensor, shape (n, length)
        Committed tokens and ancestors of each, itself included.
    rows : int64 tensor, shape (n,)
        Positions of the tokens.
    columns : int64 tensor, shape (length,)
        Positions of what they may attend to.
    window : int, optional
        In tokens; None for attention over the whole context.

    Returns
    -------
    bool tensor, shape (n, length)
    """
    return visible if window is None else visible & (columns > rows[:, None] - window)
