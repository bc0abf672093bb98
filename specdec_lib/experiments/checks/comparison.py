"""Outputs compared with those of plain decoding, token for token."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_lib.decoding.results import Generation


def first_divergence(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first token that differs or is missing on one side; None if the two are equal."""
    for position, pair in enumerate(zip(expected, got, strict=False)):
        if pair[0] != pair[1]:
            return position
    return None if len(expected) == len(got) else min(len(expected), len(got))


def same_steps(a: Generation, b: Generation) -> bool:
    """Whether two runs proposed, accepted and emitted the same, step by step."""
    return a.tokens == b.tokens and [(s.tree, s.path, s.tokens) for s in a.steps] == [
        (s.tree, s.path, s.tokens) for s in b.steps
    ]


def replay_differences(real: Sequence[Generation], replayed: Sequence[Generation]) -> tuple[int, int, float]:
    """How far real runs are from their replays: runs of other tokens, runs of which some step drafted other nodes or accepted
    others, and the largest difference between the scores of one node in runs of the same steps.

    A replay shows a drafter states of one pass over the whole text, a real run those of passes over single drafts. They are
    equal up to rounding, and so are scores that are made of them.
    """
    texts, trees, scores = 0, 0, 0.0
    for run, replay in zip(real, replayed, strict=True):
        texts += run.tokens != replay.tokens
        steps = [[(step.tree.tokens, step.tree.parents, step.path) for step in each.steps] for each in (run, replay)]
        if steps[0] != steps[1]:
            trees += 1
            continue
        for one, other in zip(run.steps, replay.steps, strict=True):
            pairs = zip(one.tree.scores or (), other.tree.scores or (), strict=True)
            scores = max([scores, *(abs(x - y) for x, y in pairs)])
    return texts, trees, scores
