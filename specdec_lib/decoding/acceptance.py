"""Which draft tokens are kept, and which token the target adds.

Both rules leave the target's distribution as it is. Exact match draws the target's own token at each node visited and
follows it; the emitted tokens are those of plain decoding with the same seed. Rejection sampling (Leviathan et al. 2023,
Algorithm 1; Chen et al. 2023, Algorithm 2) needs the draft's probabilities and is exact in distribution. Of several children drawn
without replacement each is tried in turn, as EAGLE's released code does (Li et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import torch

from specdec_lib.decoding.cache import on_device
from specdec_lib.decoding.sampling import ACCEPT, RESIDUAL, TARGET, Sampling, invert_cdf, invert_cdfs, not_numbers
from specdec_lib.decoding.tree import DraftTree


def exact_match(
    tree: DraftTree, draw: Callable[[int, list[int]], int | None], stop: Container[int]
) -> tuple[list[int], int | None]:
    """Walk the tree along the target's own tokens.

    Parameters
    ----------
    tree : DraftTree
    draw : callable
        ``draw(node, path)`` gives the target's token after ``node`` (-1 for the root), which the tokens ``path`` lead to; None
        where a recorded run has no further token.
    stop : container of int
        Tokens that end the output.

    Returns
    -------
    list of int
        The accepted nodes, from the root's child down.
    int or None
        The draw that left the tree; None if the path ends with a token of ``stop``.

    Examples
    --------
    >>> from specdec_lib import DraftTree
    >>> from specdec_lib.decoding.acceptance import exact_match
    >>> target = [5, 8, 9]
    >>> exact_match(DraftTree.from_drafts([[5, 6], [5, 8]]), lambda node, path: target[len(path)], stop=())
    ([0, 2], 9)
    """
    node, path, tokens = -1, [], []
    while True:
        token = draw(node, tokens)
        if token is None:
            return path, None
        child = tree.child(node, token)
        if child is None:
            return path, token
        path.append(child)
        tokens.append(token)
        if token in stop:
            return path, None
        node = child


def acceptance_probability(p: float, q: float) -> float:
    """Probability of keeping a drafted token, min(1, p/q) (Leviathan et al. 2023, Algorithm 1).

    Parameters
    ----------
    p, q : float
        Probability of the token under the target and under the draft; ``q`` is above 0.

    Returns
    -------
    float

    Examples
    --------
    >>> from specdec_lib.decoding.acceptance import acceptance_probability
    >>> acceptance_probability(0.2, 0.8)
    0.25
    """
    return min(1.0, p / q)


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Distribution to draw from after a rejection, norm(max(p - q, 0)) (Leviathan et al. 2023, Algorithm 1).

    Parameters
    ----------
    p, q : float64 tensor of shape (..., vocabulary)
        Distributions of the target and of the draft.

    Returns
    -------
    float64 tensor of shape (..., vocabulary)
        ``p`` itself where the two are equal.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.acceptance import residual
    >>> p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.75, 0.25, 0.0])
    >>> residual(p, q)
    tensor([0., 0., 1.])
    """
    rest = (p - q).clamp_min_(0.0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, p)


def as_wide(q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """``q`` over as many token ids as ``p``: rows of padding, which one model has more of, have no probability.

    Parameters
    ----------
    q, p : float tensor of shape (..., vocabulary)

    Returns
    -------
    float tensor of shape (..., vocabulary of ``p``)
        Of the type and on the device of ``p``.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.acceptance import as_wide
    >>> as_wide(torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.5, 0.25]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    missing = p.shape[-1] - q.shape[-1]
    return torch.nn.functional.pad(q.to(p), (0, missing)) if missing else q.to(p)


def rejection(
    tree: DraftTree,
    probabilities: Callable[[int, list[int]], torch.Tensor],
    sampling: Sampling,
    position: int,
    stop: Container[int],
) -> tuple[list[int], int | None]:
    """Speculative sampling over a tree whose tokens are drawn from ``tree.probabilities``.

    The children of a node are tried in their order: each with the draft's distribution without those before it, and the
    target's without what that distribution had at each rejection.

    Parameters
    ----------
    tree : DraftTree
    probabilities : callable
        ``probabilities(node, path)`` gives the target's distribution after ``node``, float64 of shape (vocabulary,).
    sampling : Sampling
        Bound to the prompt (:meth:`~specdec_lib.Sampling.for_prompt`).
    position : int
        Of the first drafted token, in prompt and output together.
    stop : container of int
        After one of these nothing is drawn.

    Returns
    -------
    list of int
        The accepted nodes, from the root's child down.
    int or None
        The target's own next token, as :func:`exact_match` gives it.

    Examples
    --------
    Where target and draft agree every token is accepted, and the target adds one:

    >>> import torch
    >>> from specdec_lib import DraftTree, Sampling
    >>> from specdec_lib.decoding.acceptance import rejection
    >>> q = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    >>> tree = DraftTree([1, 2], [-1, 0], probabilities=q)
    >>> rows = {-1: q[0], 0: q[1], 1: q[0]}
    >>> rejection(tree, lambda node, path: rows[node], Sampling(1.0), position=7, stop=())
    ([0, 1], 1)
    """
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(child)
    node, path, tokens = -1, [], []
    while True:
        p, tried = probabilities(node, tokens), children.get(node, [])
        q = as_wide(tree.probabilities[tried[0]], p) if tried else None
        for rank, child in enumerate(tried):
            token = tree.tokens[child]
            chance = acceptance_probability(float(p[token]), float(q[token]))
            if sampling.uniform(position, ACCEPT, salt=rank) < chance:
                break
            p = residual(p, q)
            if rank + 1 < len(tried):
                q = without_token(q, token)
        else:
            return path, invert_cdf(p, sampling.uniform(position, RESIDUAL if tried else TARGET))
        node = child
        path.append(node)
        tokens.append(token)
        position += 1
        if token in stop:
            return path, None


def without_token(q: torch.Tensor, token: int) -> torch.Tensor:
    """A distribution without one of its tokens.

    Parameters
    ----------
    q : float tensor of shape (vocabulary,)
    token : int

    Returns
    -------
    float tensor of shape (vocabulary,)

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.acceptance import without_token
    >>> without_token(torch.tensor([0.5, 0.25, 0.25]), 0)
    tensor([0.0000, 0.5000, 0.5000])
    """
    rest = q.index_fill(0, torch.tensor([token], device=q.device), 0.0)
    return rest / rest.sum()


def draw_without_replacement(q: torch.Tensor, uniforms: Sequence[float]) -> list[int]:
    """Tokens drawn without replacement from a distribution, in turn.

    Parameters
    ----------
    q : float tensor of shape (vocabulary,)
    uniforms : sequence of float
        A number in [0, 1) for each draw.

    Returns
    -------
    list of int
        Fewer than asked for where the distribution has no more.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.acceptance import draw_without_replacement
    >>> draw_without_replacement(torch.tensor([0.5, 0.5, 0.0]), [0.9, 0.1, 0.3])
    [1, 0]
    """
    tokens: list[int] = []
    for uniform in uniforms:
        token = invert_cdf(q, uniform)
        if not float(q[token]) > 0:
            break
        tokens.append(token)
        q = q.index_fill(0, torch.tensor([token], device=q.device), 0.0)
    return tokens


def rejection_at_once(
    tree: DraftTree, p: torch.Tensor, sampling: Sampling, position: int, stop: Container[int]
) -> tuple[list[int], int | None]:
    """:func:`rejection` over a chain, with every node's outcome computed beforehand: the host waits for the device once.

    Parameters
    ----------
    tree : DraftTree
        A chain of n nodes with ``probabilities``.
    p : float64 tensor of shape (n + 1, vocabulary)
        The target's distributions after the root and after each node.
    sampling, position, stop
        As for :func:`rejection`.

    Returns
    -------
    list of int
        The accepted nodes.
    int or None
        The target's own next token.

    Raises
    ------
    FloatingPointError
        If a row that is needed holds NaN.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib import DraftTree, Sampling
    >>> from specdec_lib.decoding.acceptance import rejection_at_once
    >>> p = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    >>> tree = DraftTree.chain([1, 2], probabilities=p[:2])
    >>> rejection_at_once(tree, p, Sampling(1.0), position=7, stop=())
    ([0, 1], 0)
    """
    count = len(tree)
    q = as_wide(tree.probabilities, p)
    drafted = on_device(tree.tokens, p.device, torch.long)
    rests = residual(p[:count], q)
    # A token rejected at one position is drawn anew there; the last row is that of the token after the whole draft.
    draws = invert_cdfs(
        torch.cat([rests, p[count:]]),
        [*(sampling.uniform(position + i, RESIDUAL) for i in range(count)), sampling.uniform(position + count)],
    )
    both = [rows[:count].gather(1, drafted[:, None])[:, 0] for rows in (p, q)]
    read = torch.cat([*both, draws.to(p), p[:, 0].isnan().to(p)]).tolist()
    targets, drafts = read[:count], read[count : 2 * count]
    tokens, broken = read[2 * count : -count - 1], read[-count - 1 :]
    path: list[int] = []
    for node, token in enumerate(tree.tokens):
        if broken[node]:
            raise not_numbers()
        if sampling.uniform(position + node, ACCEPT) >= acceptance_probability(targets[node], drafts[node]):
            return path, int(tokens[node])
        path.append(node)
        if token in stop:
            return path, None
    if broken[count]:
        raise not_numbers()
    return path, int(tokens[count])
