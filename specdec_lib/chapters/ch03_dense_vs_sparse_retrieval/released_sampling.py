"""Lossy: the sampling rules of the released codes of REST and DReSD, for comparison only.

Both draw the target's token again for every row of the draft and every position in it, and keep the row that matches
longest, the first of equals. A token on R rows gets R chances, so the output does not have the target's distribution:
with one drafted token of probability p on R rows it is emitted with probability 1 - (1 - p)^(R + 1) under REST's rule
and 1 - (1 - p)^R under DReSD's. Rows that part at once are kept less often than by one draw a node, because
independent draws can all miss.

Nothing in the library decodes with these rules; :func:`specdec_lib.decoding.acceptance.exact_match` draws once for each node.
Below, ``probabilities`` is a float64 tensor of shape (nodes + 1, vocabulary): the target's distribution after the root and
after each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd
import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.checks import one_of
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.sampling import distribution
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.experiments.runs.all_cores import on_all_cores
from specdec_lib.experiments.runs.recorded_runs import Recording
from specdec_lib.experiments.statistics.intervals import Counts, Interval, pooled_rate

#: What follows the kept row: ``"rest"`` draws a token again, ``"dresd"`` takes the row's own that did not match.
RULES = ("rest", "dresd")


def rows(tree: DraftTree) -> list[list[int]]:
    """Nodes of each path from a child of the root to a leaf, in the order of the leaves.

    Rows that the released codes hold twice, or next to a longer row that begins with them, are one row here, so that
    the bias found is no larger than theirs.
    """
    inner = set(tree.parents)
    return [tree.path(leaf) for leaf in range(len(tree)) if leaf not in inner]


def _survival(tree: DraftTree, row: list[int], probabilities: torch.Tensor) -> list[float]:
    """P(the first k tokens of a row match), k from 0 to the depth of the tree and one more; 0 beyond the row."""
    chances, node = [1.0], -1
    for child in row:
        chances.append(chances[-1] * float(probabilities[node + 1, tree.tokens[child]]))
        node = child
    return chances + [0.0] * (tree.depth + 2 - len(chances))


def released_distribution(tree: DraftTree, probabilities: torch.Tensor, rule: str) -> torch.Tensor:
    """Exact distribution of the first token emitted where each row draws again: float64, shape (vocabulary,).

    ``"dresd"`` follows the last draw of the best row, ``"rest"`` draws once more after it.
    With s_r(k) the probability that row r matches in its first k tokens, row r is kept at length k with probability
    (s_r(k) - s_r(k+1)) times the product of 1 - s_q(k) over the rows q before it and of 1 - s_q(k+1) over those after.
    """
    one_of("rule", rule, RULES)
    law = torch.zeros_like(probabilities[0])
    root, paths = probabilities[0], rows(tree)
    if not paths:
        return root.clone()
    survival = [_survival(tree, row, probabilities) for row in paths]
    none = 1.0
    for r, path in enumerate(paths):
        none *= 1.0 - survival[r][1]
        for k in range(1, len(path) + 1):
            kept = survival[r][k] - survival[r][k + 1]
            for q in range(len(paths)):
                if q != r:
                    kept *= 1.0 - survival[q][k if q < r else k + 1]
            law[tree.tokens[path[0]]] += kept
    rest = root.clone()
    if rule == "dresd":
        rest[tree.tokens[paths[0][0]]] = 0.0
        total = float(rest.sum())
        rest = rest / total if total > 0 else root
    return law + none * rest


def released_accepted(tree: DraftTree, probabilities: torch.Tensor) -> float:
    """Expected length of the accepted path under either rule: the sum over k of 1 - prod_r (1 - s_r(k))."""
    survival = torch.tensor([_survival(tree, row, probabilities) for row in rows(tree)], dtype=torch.float64)
    return float((1 - (1 - survival).prod(0))[1:].sum()) if len(survival) else 0.0


def exact_accepted(tree: DraftTree, probabilities: torch.Tensor) -> float:
    """Expected length of the accepted path when one token is drawn for each node: the sum over nodes of the probability
    that the target emits the path to the node."""
    reached: list[float] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        before = reached[parent] if parent >= 0 else 1.0
        reached.append(before * float(probabilities[parent + 1, token]))
    return sum(reached)


def total_variation(p: torch.Tensor, q: torch.Tensor) -> float:
    """Total variation distance of two distributions, half the sum of absolute differences."""
    return 0.5 * float((p - q).abs().sum())


class Bias(NamedTuple):
    """What a rule does to the target's distribution: total variation over the steps with a draft, and the draft tokens
    expected to be accepted under the rule and with one draw a node, which is lossless."""

    steps: int
    mean: Interval
    largest: float
    accepted: Interval
    accepted_exactly: Interval


def bias_counts(
    model: PreTrainedModel, recordings: Sequence[Recording], runs: Sequence[Generation], rule: str
) -> pd.DataFrame:
    """Rows of what a rule of :data:`RULES`, their ``method``, does to the drafts of sampled runs, from the target's probabilities.

    ``tokens`` after the first; ``steps`` with a draft; of these the sums of the total variation ``distance``, whose ``largest`` is
    kept too, and of the draft tokens expected to be ``accepted`` under the rule and ``accepted_exactly``, with one draw a node.
    ``runs`` are runs or replays of the sampled ``recordings`` with a drafter. Greedy recordings are a ValueError.
    """

    def measured(recording: Recording, run: Generation) -> list[tuple[float, float, float]]:
        trace, found = recording.trace, []
        if trace.sampling.greedy:
            raise ValueError(f"{recording.prompt.id!r} was recorded greedily; the rules differ only when sampling")
        with torch.inference_mode(), Target(model, 0, capacity=len(trace.prompt) + len(trace.tokens) + 256) as target:
            unread, root = list(trace.prompt), trace.tokens[0]
            for step in run.steps:
                if len(step.tree):
                    if unread:
                        target.extend(unread)
                    p = distribution(target.verify(root, step.tree), trace.sampling).cpu()
                    distance = total_variation(released_distribution(step.tree, p, rule), p[0])
                    found.append((distance, released_accepted(step.tree, p), exact_accepted(step.tree, p)))
                    target.commit(step.path)
                    unread = []
                else:  # read with the next draft
                    unread.append(root)
                root = step.tokens[-1]
        return found

    found = on_all_cores([partial(measured, *each) for each in zip(recordings, runs, strict=True)])
    sums = [tuple(map(sum, zip(*own, strict=True))) or (0.0, 0.0, 0.0) for own in found]
    return pd.DataFrame(
        {
            "task": recording.task,
            "prompt": recording.prompt.id,
            "turn": recording.turn,
            "seed": recording.trace.sampling.seed,
            "temperature": recording.trace.sampling.temperature,
            "method": rule,
            "tokens": len(recording.trace.tokens) - 1,
            "steps": len(own),
            "distance": distance,
            "largest": max((row[0] for row in own), default=0.0),
            "accepted": accepted,
            "accepted_exactly": exactly,
        }
        for recording, own, (distance, accepted, exactly) in zip(recordings, found, sums, strict=True)
    )


def bias(rows: pd.DataFrame) -> Bias:
    """What the rows of :func:`bias_counts` of one rule come to; ValueError if no step of them has a draft."""
    if not rows.steps.sum():
        raise ValueError("no step of the runs has a draft; there is nothing to measure")
    prompts = list(zip(rows.task, rows.prompt, strict=True))
    distance, accepted, exactly = (
        pooled_rate(Counts(rows[column].tolist(), rows.steps.tolist()), prompts)
        for column in ("distance", "accepted", "accepted_exactly")
    )
    return Bias(int(rows.steps.sum()), distance, float(rows.largest.max()), accepted, exactly)
