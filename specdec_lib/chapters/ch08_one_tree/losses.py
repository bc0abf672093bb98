"""Where one tree pays more than hindsight would have: each step's loss, split by what went wrong there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from specdec_lib import methods, paths
from specdec_lib.chapters.ch08_one_tree import marks, study
from specdec_lib.chapters.ch08_one_tree.hindsight import costs_to_go
from specdec_lib.chapters.ch08_one_tree.study import REFITTED, SINGLES, TREE, Ladder
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.experiments.diagnosis import copied_tokens
from specdec_lib.experiments.statistics import Counts, Interval, pooled_rate, ratio_of_rates

# What rows() found for the pocket pair; without a colon, because the page of the library would show the folder.
RESULTS = paths.DATA / "results" / "cpu" / "one_tree_losses.csv"
#: Steps of an answer that count as its beginning: a source has not been judged often by then.
FIRST_STEPS = 3
SHORT_EARLY, SHORT = f"stopped short, in the first {FIRST_STEPS} steps", "stopped short, later"
WRONG = "went another way than a source that was right"
LONG_AFTER, LONG = "too long, after a draft that was right to its end", "too long, otherwise"
#: What may go wrong in a step. The parts of a run sum to what it paid above the hindsight bound.
PARTS = (SHORT_EARLY, SHORT, WRONG, LONG_AFTER, LONG)
#: What else is measured of a drafter, and of all answers.
SHARE, KEPT_WEIGHTS, COPIED, BOUND = "share of the bound", "weights kept over fresh", "copied tokens", "the bound"


def _right_to_its_end(tree: DraftTree, path: Sequence[int]) -> bool:
    """Whether tokens were accepted and none was sent after the last of them."""
    return bool(path) and path[-1] not in tree.parents


def split(run: Generation, longest: np.ndarray, prices: PassPrices) -> dict[str, float]:
    """Split the price that a run paid above the hindsight bound, by :data:`PARTS`.

    A step that goes from token i to token j with a pass over w tokens loses c(w) + V(j) - V(i), with V what hindsight pays
    from there on. These sum to the run's price less the bound. A step that accepted fewer tokens than hindsight would have,
    with nothing sent after the last of them, *stopped short*: what that cost is c(k + 1) + V(j) - V(i), k being the accepted
    tokens. If other tokens were sent there, it *went another way*, and all it lost counts there. What is left is *too long*:
    the price of refused tokens, and of accepted ones that were cheaper in two passes.

    Parameters
    ----------
    run : Generation
    longest : int array
        What was acceptable after each token (:func:`specdec_lib.chapters.ch08_one_tree.hindsight.acceptable`).
    prices : PassPrices
    """
    parts = dict.fromkeys(PARTS, 0.0)
    ahead = costs_to_go(longest, prices)
    widest = max((step.width for step in run.steps), default=1)
    curve = prices.curve(max(widest, int(longest.max(initial=0)) + 1)) + prices.step
    place, whole = 0, False
    for number, step in enumerate(run.steps):
        after = place + len(step.tokens)
        most = min(int(longest[place]), len(longest) - 2 - place)
        best = int((curve[: most + 1] + ahead[place + 1 : place + 2 + most]).argmin())
        progress = curve[step.accepted] + ahead[after] - ahead[place]
        refused = curve[step.width - 1] - curve[step.accepted]
        last = step.path[-1] if step.path else -1
        if step.accepted < best and last in step.tree.parents:
            parts[WRONG] += progress + refused
        elif step.accepted < best:
            parts[SHORT_EARLY if number < FIRST_STEPS else SHORT] += progress
            parts[LONG_AFTER if whole else LONG] += refused
        else:
            parts[LONG_AFTER if whole else LONG] += progress + refused
        place, whole = after, _right_to_its_end(step.tree, step.path)
    return parts


def rows(
    ladders: Mapping[str, Ladder], pair: methods.Workbench, prices: Sequence[PassPrices], jobs: int | None = None
) -> list[dict[str, Any]]:
    """What one tree loses on all answers of each kind, and how much of it other weights would win back.

    Parameters
    ----------
    ladders : mapping
        By kind of answers.
    pair : Workbench
        With the shipped weights of one tree, which the ladders' have.
    prices : sequence of PassPrices
    jobs : int, optional
        As for :func:`specdec_lib.experiments.all_cores.on_all_cores`.

    Returns
    -------
    list of dict
        ``answers``, ``prices``, ``drafter``, ``measure`` and the ``ratio``. A part is a share of the drafter's own price. The
        drafters are one tree, one tree with weights that were fitted on these very answers, and the bound.
    """
    found = []

    def add(answers: str, each: str, drafter: str, measure: str, ratio: Interval) -> None:
        found.append({"answers": answers, "prices": each, "drafter": drafter, "measure": measure, "ratio": ratio})

    for answers, own in ladders.items():
        refitted = study.refitted(own.recordings, pair, prices, jobs)
        ladder = Ladder(own.recordings, {**own.measured, **refitted}, own.longest)
        warm = study.carried_over(ladder, pair, prices, pair.tree_probabilities)
        for each in prices:
            least = ladder.least(each)
            for rung in (TREE, REFITTED):
                measured = ladder.measured[rung, each.name]
                price = measured.counts(each).below
                lost = [split(run, longest, each) for run, longest in zip(measured.runs, ladder.longest, strict=True)]
                for part in PARTS:
                    add(answers, each.name, rung, part, pooled_rate(Counts([one[part] for one in lost], price)))
                add(answers, each.name, rung, SHARE, ladder.share(rung, each))
                for single in SINGLES:
                    add(answers, each.name, rung, f"over {single}", ladder.ratio(rung, single, each))
            for single in SINGLES:
                theirs = ladder.best(single, each)
                add(answers, each.name, BOUND, f"over {single}", ratio_of_rates(Counts(theirs.above, least), theirs))
                add(answers, each.name, single, SHARE, ladder.share(single, each))
            add(answers, each.name, TREE, KEPT_WEIGHTS, warm[each.name])
        traces = [recording.trace for recording in ladder.recordings]
        copied = Counts(
            [copied_tokens(trace.prompt, trace.tokens) for trace in traces], [len(trace.tokens) for trace in traces]
        )
        share = pooled_rate(copied)  # of the text: the same at all prices
        for each in prices:
            add(answers, each.name, BOUND, COPIED, share)
    return found


def kept(target: PreTrainedModel, path: Path | None = None) -> marks.Kept | None:
    """Rows of a file that were measured with these weights (:func:`specdec_lib.chapters.ch08_one_tree.marks.kept`)."""
    return marks.kept(target, path or RESULTS)


class Losses:
    """Rows by what they measure, in the words of the page.

    Parameters
    ----------
    found : sequence of dict
        Of :func:`rows`.
    """

    def __init__(self, found: Sequence[Mapping[str, Any]]):
        self._by = {
            tuple(row[name] for name in ("answers", "prices", "drafter", "measure")): row["ratio"] for row in found
        }

    def get(self, answers: str, prices: str, measure: str, drafter: str = TREE) -> Interval:
        """One ratio."""
        return self._by[answers, prices, drafter, measure]

    def parts(self, answers: str, prices: str, drafter: str = TREE) -> dict[str, Interval]:
        """What each of :data:`PARTS` cost, as shares of the drafter's price."""
        return {part: self.get(answers, prices, part, drafter) for part in PARTS}

    def runs(self) -> list[tuple[str, str]]:
        """Kinds of answers and prices."""
        return list(dict.fromkeys((answers, prices) for answers, prices, _, _ in self._by))

    def best_single(self, answers: str, prices: str) -> str:
        """The single source with the largest share of the bound."""
        return max(SINGLES, key=lambda name: self.get(answers, prices, SHARE, name).value)


#: What stands for a part in the name of a recorded value.
KEYS = dict(zip(PARTS, ("short_early", "short", "wrong", "long_after", "long"), strict=True))
#: The marks that the page explains one by one: kind of answers, prices, mark, and the measure that it asks about.
_EXPLAINED = {
    "bound": ("greedy", "cpu", marks.REACHED, SHARE),
    "ahead": ("greedy", "server", marks.AHEAD, "over PLD+ (h)"),
    "drawn": ("sampled", "cpu", marks.AHEAD, "over PLD+ (h)"),
}


def page_values(lost: Losses) -> dict[str, Any]:
    """Numbers that the page names for the marks that it explains one by one."""
    values: dict[str, Any] = {}
    for name, (answers, prices, mark, measure) in _EXPLAINED.items():
        aim, parts = marks.MARKS[mark], lost.parts(answers, prices)
        reached, fitted = (lost.get(answers, prices, measure, drafter) for drafter in (TREE, REFITTED))
        spec = ".0%" if measure == SHARE else ".2f"
        values |= {
            f"{name}_reached": f"{reached:{spec}}",
            f"{name}_fitted": f"{fitted:{spec}}",
            f"{name}_share": lost.get(answers, prices, SHARE).value,
            f"{name}_lost": 1.0 - lost.get(answers, prices, SHARE).value,
        }
        values |= {f"{name}_{KEYS[part]}": f"{value:.1%}" for part, value in parts.items()}
        if measure != SHARE:
            room = lost.get(answers, prices, measure, BOUND)
            values |= {f"{name}_room": f"{room:.2f}", f"{name}_needed": aim / room.value}
    single = lost.best_single("greedy", "cpu")
    values |= {
        "single_cpu_share": lost.get("greedy", "cpu", SHARE, single).value,
        "copied_share": lost.get("greedy", "cpu", COPIED, BOUND).value,
    }
    for each in dict.fromkeys(prices for _, prices in lost.runs()):
        values[f"carried_{each}_text"] = f"{lost.get('greedy', each, KEPT_WEIGHTS):.2f}"
    return values
