"""Lossy: the sampling rules of the released codes of REST, DReSD, Medusa and Hydra, for comparison only.

The first two draw the target's token anew for every row of the draft and every position in it, and keep the row that matches
longest, the first of equals. A token on R rows gets R chances, so the output does not have the target's distribution:
with one drafted token of probability p on R rows it is emitted with probability 1 - (1 - p)^(R + 1) under REST's rule
and 1 - (1 - p)^R under DReSD's. Rows that part at once are kept less often than by one draw a node, because
independent draws can all miss.

Typical acceptance, the rule of Medusa (Cai et al. 2024, section 2.3.1) and Hydra, draws nothing: a drafted token is kept if its
probability exceeds min(epsilon, delta exp(-H)), H being the entropy of the target's distribution there. The longest path of
kept tokens is emitted and then the most likely token, so that one text follows from each prompt whatever the seed.

Nothing in the library decodes with these rules;
:func:`specdec_lib.decoding.acceptance.exact_match` draws once for each node.
"""

from __future__ import annotations

import torch

from specdec_lib.decoding.tree import DraftTree

#: What follows the kept row: ``"rest"`` draws a token anew, ``"dresd"`` takes the row's own that did not match.
RULES = ("rest", "dresd")
#: With typical acceptance: all rules whose bias :func:`released_law` tells.
LOSSY = (*RULES, "typical")
#: Of typical acceptance, as released.
EPSILON, DELTA = 0.09, 0.3


def _check_rule(rule: str) -> None:
    if rule not in LOSSY:
        raise ValueError(f"rule is {rule!r}; expected one of {', '.join(LOSSY)}")


def typical_acceptance(
    tree: DraftTree, probabilities: torch.Tensor, epsilon: float = EPSILON, delta: float = DELTA
) -> tuple[list[int], int]:
    """Accept as the released codes of Medusa and Hydra do at a temperature: the accepted nodes, and the next token.

    Of the longest paths whose tokens are all kept the most likely one is accepted, then comes the target's most likely token.

    Parameters
    ----------
    tree : DraftTree
    probabilities : float64 tensor, shape (nodes + 1, vocabulary)
        The target's distribution after the root and after each node.
    epsilon, delta : float
        A token is kept if its probability exceeds ``min(epsilon, delta * exp(-entropy))``, the entropy in nats.
    """
    bars = torch.minimum(torch.tensor(epsilon), delta * (-torch.special.entr(probabilities).sum(-1)).exp())
    chances: dict[int, float] = {-1: 1.0}
    best, depths = -1, tree.depths
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        chance = float(probabilities[parent + 1, token])
        if parent not in chances or not chance > float(bars[parent + 1]):
            continue
        chances[node] = chances[parent] * chance
        longer = best < 0 or depths[node] > depths[best]
        if longer or (depths[node] == depths[best] and chances[node] > chances[best]):
            best = node
    return tree.path(best), int(probabilities[best + 1].argmax())


def rows(tree: DraftTree) -> list[list[int]]:
    """Nodes of each path from a child of the root to a leaf, in the order of the leaves.

    Rows that the released codes hold twice, or beside a longer row that begins with them, are one row here, so that
    the bias found is no larger than theirs.
    """
    inner = set(tree.parents)
    paths: list[list[int]] = []
    for leaf in range(len(tree)):
        if leaf not in inner:
            path = [leaf]
            while tree.parents[path[-1]] >= 0:
                path.append(tree.parents[path[-1]])
            paths.append(path[::-1])
    return paths


def _survival(tree: DraftTree, row: list[int], probabilities: torch.Tensor) -> list[float]:
    """P(the first k tokens of a row match), k from 0 to one more than its length (where it is 0)."""
    chances, node = [1.0], -1
    for child in row:
        chances.append(chances[-1] * float(probabilities[node + 1, tree.tokens[child]]))
        node = child
    return [*chances, 0.0]


def released_law(tree: DraftTree, probabilities: torch.Tensor, rule: str) -> torch.Tensor:
    """Exact distribution of the first token emitted where each row draws anew.

    ``"dresd"`` follows the last draw of the best row, ``"rest"`` draws once more after it.

    With s_r(k) the probability that row r matches in its first k tokens, row r is kept at length k with probability
    (s_r(k) - s_r(k+1)) times the product of 1 - s_q(k) over the rows q before it and of 1 - s_q(k+1) over those after.

    Parameters
    ----------
    tree : DraftTree
    probabilities : float64 tensor, shape (nodes + 1, vocabulary)
        The target's distribution after the root and after each node.
    rule : {"rest", "dresd", "typical"}

    Returns
    -------
    float64 tensor, shape (vocabulary,)
        Under ``"typical"`` it is sure of one token.
    """
    _check_rule(rule)
    if rule == "typical":
        path, token = typical_acceptance(tree, probabilities)
        law = torch.zeros_like(probabilities[0])
        law[tree.tokens[path[0]] if path else token] = 1.0
        return law
    root, paths = probabilities[0], rows(tree)
    if not paths:
        return root.clone()
    survival = [_survival(tree, row, probabilities) for row in paths]

    def reaches(row: int, k: int) -> float:
        return survival[row][k] if k < len(survival[row]) else 0.0

    law, none = torch.zeros_like(root), 1.0
    for r, path in enumerate(paths):
        none *= 1.0 - reaches(r, 1)
        for k in range(1, len(path) + 1):
            kept = reaches(r, k) - reaches(r, k + 1)
            for q in range(len(paths)):
                if q != r:
                    kept *= 1.0 - reaches(q, k if q < r else k + 1)
            law[tree.tokens[path[0]]] += kept
    rest = root.clone()
    if rule == "dresd":
        rest[tree.tokens[paths[0][0]]] = 0.0
        total = float(rest.sum())
        rest = rest / total if total > 0 else root
    return law + none * rest


def released_accepted(tree: DraftTree, probabilities: torch.Tensor, rule: str = "rest") -> float:
    """Expected length of the accepted path; under ``"rest"`` and ``"dresd"`` the sum over k of 1 - prod_r (1 - s_r(k)).

    Parameters
    ----------
    tree, probabilities, rule
        As for :func:`released_law`.
    """
    _check_rule(rule)
    if rule == "typical":
        return float(len(typical_acceptance(tree, probabilities)[0]))
    survival = [_survival(tree, row, probabilities) for row in rows(tree)]
    expected = 0.0
    for k in range(1, tree.depth + 1):
        missed = 1.0
        for chances in survival:
            missed *= 1.0 - (chances[k] if k < len(chances) else 0.0)
        expected += 1.0 - missed
    return expected


def exact_accepted(tree: DraftTree, probabilities: torch.Tensor) -> float:
    """Expected length of the accepted path when one token is drawn for each node.

    It is the sum over nodes of the probability that the target emits the path to the node.

    Parameters
    ----------
    tree, probabilities
        As for :func:`released_law`.
    """
    reached: list[float] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        before = reached[parent] if parent >= 0 else 1.0
        reached.append(before * float(probabilities[parent + 1, token]))
    return sum(reached)


def total_variation(p: torch.Tensor, q: torch.Tensor) -> float:
    """Total variation distance of two distributions, half the sum of absolute differences."""
    return 0.5 * float((p - q).abs().sum())
