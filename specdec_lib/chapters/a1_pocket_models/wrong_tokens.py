"""Where answers go wrong: which token of an answer is the first wrong one, and of which kind the right one is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.chapters.a1_pocket_models import training
from specdec_lib.experiments.diagnosis import COPIED_RUN
from specdec_lib.experiments.judged_answers import JudgedAnswer
from specdec_lib.experiments.statistics import LEVEL, Counts, Interval, mean, pooled_rate

#: Kinds of a right token: it goes on with what the prompt has, is the first of such a stretch, does not stand there, or is
#: the end of the answer.
COPIED, EDGE, NEW, END = KINDS = ("copied", "edge", "new", "end")
#: Kinds at a place that the task edits: what is new, and where copying begins again.
EDITED = (EDGE, NEW)


def kinds(prompt: Sequence[int], answer: Sequence[int], run: int = COPIED_RUN) -> list[str]:
    """Kind of each token of a right answer without its end; copied is what lies in ``run`` tokens in a row of the prompt."""
    known = {tuple(prompt[i : i + run]) for i in range(len(prompt) - run + 1)}
    copied = [False] * len(answer)
    for i in range(len(answer) - run + 1):
        if tuple(answer[i : i + run]) in known:
            copied[i : i + run] = [True] * run
    return [NEW if not one else COPIED if i and copied[i - 1] else EDGE for i, one in enumerate(copied)]


class FirstWrong(NamedTuple):
    """The first wrong token of an answer: its place from 1 on, the tokens of the right answer, and the kind of the right
    token there."""

    task: str
    place: int
    tokens: int
    kind: str


def first_wrong(answer: JudgedAnswer, tokenizer: PreTrainedTokenizerBase) -> FirstWrong | None:
    """Compare a written answer with the right one; None if it is right."""
    if answer.right:
        return None
    asked, right, written = (
        tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in ("\n".join(answer.prompt.turns), answer.prompt.reference, answer.text)
    )
    same = (i for i, (a, b) in enumerate(zip(right, written, strict=False)) if a != b)
    place = next(same, min(len(right), len(written)))
    return FirstWrong(answer.prompt.task, place + 1, len(right), [*kinds(asked, right), END][place])


class Forced(NamedTuple):
    """Answers of one prompt under teacher forcing: of each token its kind, and whether it was the model's first choice."""

    task: str
    kinds: list[str]
    right: list[bool]


def forced(model: PreTrainedModel, probes: Iterable[tuple[str, list[int], list[int]]]) -> list[Forced]:
    """Let a model read right answers (:func:`specdec_lib.chapters.a1_pocket_models.training.make_probes`)."""
    found = []
    for task, ids, is_answer in probes:
        told: list[str] = []
        begin = 0
        for place, (inside, follows) in enumerate(zip(is_answer, [*is_answer[1:], 0], strict=True)):
            begin = begin if inside else place + 1
            if inside and not follows:
                told += [*kinds(ids[:begin], ids[begin:place]), END]
        found.append(Forced(task, told, training.answer_hits(model, ids, is_answer)))
    return found


def tokens_right(read: Sequence[Forced], tasks: Iterable[str], of: Sequence[str] = KINDS) -> Interval:
    """Share of the answers' tokens of some kinds that were the model's first choice, with its interval over prompts."""
    chosen = [one for one in read if one.task in set(tasks)]
    above = [sum(hit for kind, hit in zip(one.kinds, one.right, strict=True) if kind in of) for one in chosen]
    return pooled_rate(Counts(above, [sum(kind in of for kind in one.kinds) for one in chosen]))


def missing(read: Sequence[Forced], tasks: Iterable[str], of: Sequence[str]) -> Interval:
    """Which share of the tokens that were not the first choice is of some kinds, with its interval over prompts."""
    chosen = [one for one in read if one.task in set(tasks)]
    wrong = [[kind for kind, hit in zip(one.kinds, one.right, strict=True) if not hit] for one in chosen]
    return pooled_rate(Counts([sum(kind in of for kind in own) for own in wrong], [len(own) for own in wrong]))


def proportion(outcomes: Sequence[bool]) -> Interval:
    """Share of outcomes that are true, with its interval; where all are alike, the exact one of Clopper and Pearson, because
    a bootstrap of equal outcomes has no spread.
    """
    if outcomes and len(set(outcomes)) == 1:
        far = (1 - LEVEL) / 2
        reach = far ** (1 / len(outcomes))
        return Interval(1.0, reach, 1.0) if outcomes[0] else Interval(0.0, 0.0, 1 - reach)
    return mean([float(one) for one in outcomes])


def share(wrong: Sequence[FirstWrong], of: Sequence[str]) -> Interval:
    """Share of wrong answers whose first wrong token is of some kinds, with its interval over these answers."""
    return proportion([one.kind in of for one in wrong])


def by_source(answers: Sequence[JudgedAnswer]) -> dict[str, tuple[Interval, int]]:
    """By the package of the library that the prompt is from: share of outputs that end in a loop, and how many prompts there
    are; the most first."""
    own: dict[str, list[bool]] = {}
    for answer in answers:
        own.setdefault(answer.prompt.meta["module"].partition(".")[0], []).append(answer.looped)
    several = sorted(own.items(), key=lambda item: -len(item[1]))
    return {name: (proportion(values), len(values)) for name, values in several}


def gains(curve: Sequence[Mapping], tasks: Iterable[str], first: int, last: int) -> Interval:
    """Mean gain in accuracy of some tasks between two steps of a learning curve, with its interval over the tasks."""
    at = {row["step"]: row["accuracy"] for row in curve}
    return mean([at[last][task] - at[first][task] for task in tasks])
