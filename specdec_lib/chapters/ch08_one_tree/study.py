"""One tree against single sources, selection rules and unions of a fixed size, on recorded answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from specdec_lib import methods
from specdec_lib.chapters.ch08_one_tree.fitting import by_source, judged_on
from specdec_lib.chapters.ch08_one_tree.hindsight import acceptable, least_cost
from specdec_lib.chapters.ch08_one_tree.ladder import Selection, highest_score, longest_match
from specdec_lib.decoding.contract import Drafter
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.drafters.prompt_lookup import PromptLookup
from specdec_lib.drafters.prompt_lookup_plus import PromptLookupHidden
from specdec_lib.drafters.rest import Rest
from specdec_lib.drafters.tree_probabilities import Judged, TreeProbabilities
from specdec_lib.experiments.all_cores import on_all_cores
from specdec_lib.experiments.calibration import expected_calibration_error, reliability
from specdec_lib.experiments.pass_widths import counted
from specdec_lib.experiments.recorded_runs import Recording, Runs, replay_all, replay_each
from specdec_lib.experiments.statistics import Counts, Interval, pooled_rate, ratio_of_rates

#: The single sources, and the rungs above them.
SINGLES = ("PLD", "PLD+ (h)", "REST")
SAM, ARCTIC = "SAM-Decoding's rule", "Arctic's rule"
UNION, FIXED, TREE, NEURAL = "union, not calibrated", "calibrated, fixed size", "One tree", "One tree, draft model"
RUNGS = (*SINGLES, SAM, ARCTIC, UNION, FIXED, TREE, NEURAL)
#: Marks that were set before measuring: lower ends that the intervals of each are to lie above.
MARKS = {
    "no worse than the best single source": 0.98,
    "ahead of every single source, all mixed": 1.10,
    "ahead of the selection rules, all mixed": 1.0,
    "75 % of the hindsight bound, all mixed": 0.75,
}
NO_WORSE, AHEAD, RULES, REACHED = MARKS
#: Above any price that a pass has.
_TOO_DEAR = 1e6

#: A draft's size in tokens, or the name of the prices that it is sized by.
Size = int | str


def retrieval(pair: methods.Workbench, size: int) -> dict[str, Drafter]:
    """The sources that look something up, each with drafts of ``size`` tokens."""
    return {
        "PLD": PromptLookup(3, size, variant="transformers"),
        "REST": Rest(pair.sparse, choices=size, min_ngram=1),
        "PLD+ (h)": PromptLookupHidden(pair.layer, size),
    }


def without_draft_model(pair: methods.Workbench) -> dict[str, Drafter]:
    """The sources of one tree that look something up."""
    return {name: source for name, source in methods.tree_sources(pair).items() if name in SINGLES}


def whole(size: int) -> PassPrices:
    """Prices at which the best tree has ``size`` nodes, as far as there are so many."""
    return PassPrices({1: 1.0, size + 1: 1.0, size + 2: _TOO_DEAR}, name=f"{size} nodes")


def rungs(
    pair: methods.Workbench, prices: Sequence[PassPrices], sizes: Sequence[int], weights: TreeProbabilities
) -> dict[tuple[str, Size], Drafter]:
    """The drafters of every rung but the draft model's, by rung and size."""
    made: dict[tuple[str, Size], Drafter] = {}
    rough = TreeProbabilities.unfitted(SINGLES)
    for size in sizes:
        for name, source in retrieval(pair, size).items():
            made[name, size] = source
        made[SAM, size] = Selection(retrieval(pair, size), longest_match)
        made[ARCTIC, size] = Selection(retrieval(pair, size), highest_score)
        made[UNION, size] = OneTree(without_draft_model(pair), whole(size), rough, rate=0.0)
        made[FIXED, size] = OneTree(without_draft_model(pair), whole(size), weights)
    for each in prices:
        made[TREE, each.name] = OneTree(without_draft_model(pair), each, weights)
    return made


class Measured(NamedTuple):
    """Runs of one drafter, and how many tokens its draft model was asked for in each."""

    runs: Runs
    drafted: Sequence[int]

    def counts(self, prices: PassPrices) -> Counts:
        """Tokens after the first and price, run by run."""
        tokens, price = counted(self.runs, prices)
        return Counts(tokens, [a + prices.drafted_token * b for a, b in zip(price, self.drafted, strict=True)])


@dataclass
class Ladder:
    """Every rung on the same recordings: ``measured`` by rung and size.

    ``longest`` has for each recording the tokens that some source could have had accepted after each token.
    """

    recordings: Sequence[Recording]
    measured: Mapping[tuple[str, Size], Measured]
    longest: Sequence[np.ndarray] = field(repr=False, default=())
    _least: dict[tuple, list[float]] = field(init=False, repr=False, default_factory=dict)

    def places(self, task: str | None = None) -> list[int]:
        """Recordings of a task; of all tasks mixed without one."""
        return [i for i, recording in enumerate(self.recordings) if task in (None, recording.task)]

    def _counts(self, key: tuple[str, Size], prices: PassPrices, task: str | None) -> Counts:
        tokens, price = self.measured[key].counts(prices)
        places = self.places(task)
        return Counts([tokens[i] for i in places], [price[i] for i in places])

    def best_size(self, rung: str, prices: PassPrices, task: str | None = None) -> Size:
        """The size with most tokens per price: chosen in hindsight, unless the prices choose it."""
        sizes = [
            size for name, size in self.measured if name == rung and (isinstance(size, int) or size == prices.name)
        ]
        return max(sizes, key=lambda size: pooled_rate(self._counts((rung, size), prices, task)).value)

    def best(self, rung: str, prices: PassPrices, task: str | None = None) -> Counts:
        """Tokens and price of a rung at its :meth:`best_size`."""
        return self._counts((rung, self.best_size(rung, prices, task)), prices, task)

    def rate(self, rung: str, prices: PassPrices, task: str | None = None) -> Interval:
        """Tokens per price of a pass over one token: the speed-up over plain decoding."""
        return pooled_rate(self.best(rung, prices, task))

    def best_single(self, prices: PassPrices, task: str | None = None) -> str:
        """The single source with most tokens per price, at the size that is best for it."""
        return max(SINGLES, key=lambda name: self.rate(name, prices, task).value)

    def ratio(self, ours: str, theirs: str, prices: PassPrices, task: str | None = None) -> Interval:
        """Speed of one rung over that of another, on the same answers."""
        return ratio_of_rates(self.best(ours, prices, task), self.best(theirs, prices, task))

    def least(self, prices: PassPrices) -> list[float]:
        """The hindsight bound of each recording."""
        key = (tuple(sorted(prices.widths.items())), prices.step)
        if key not in self._least:
            self._least[key] = [least_cost(longest, prices) for longest in self.longest]
        return self._least[key]

    def share(self, rung: str, prices: PassPrices, task: str | None = None) -> Interval:
        """Share of the hindsight bound that a rung reached: the least price over its own."""
        least, own = self.least(prices), self.best(rung, prices, task)
        return pooled_rate(Counts([least[i] for i in self.places(task)], own.below))

    def gains(self, prices: PassPrices, tasks: Sequence[str]) -> list[dict]:
        """By task, and for all mixed: one tree over the best single source, and their shares of the bound."""
        rows = []
        for task in (*tasks, None):
            single = self.best_single(prices, task)
            rows.append(
                {
                    "task": task or "all mixed",
                    "prices": prices.name,
                    "single": single,
                    "size": self.best_size(single, prices, task),
                    "ratio": self.ratio(TREE, single, prices, task),
                    "share_single": self.share(single, prices, task),
                    "share": self.share(TREE, prices, task),
                }
            )
        return rows


def marks(ladders: Mapping[str, Ladder], prices: Sequence[PassPrices], tasks: Sequence[str]) -> list[dict]:
    """One row a kind of answers, prices and mark: the ratio that decides and the verdict.

    A mark is met if every interval lies above it, missed if one lies below it, and not resolved otherwise.
    """
    rows = []
    for (answers, ladder), each in product(ladders.items(), prices):
        asked = {
            NO_WORSE: [ladder.ratio(TREE, ladder.best_single(each, task), each, task) for task in tasks],
            AHEAD: [ladder.ratio(TREE, name, each) for name in SINGLES],
            RULES: [ladder.ratio(TREE, name, each) for name in (SAM, ARCTIC)],
            REACHED: [ladder.share(TREE, each)],
        }
        for mark, ratios in asked.items():
            missed = any(ratio.known and ratio.high < MARKS[mark] for ratio in ratios)
            met = all(ratio.known and ratio.low > MARKS[mark] for ratio in ratios)
            known = [ratio for ratio in ratios if ratio.known] or ratios
            decides = min(known, key=lambda ratio: ratio.high if missed else ratio.low)
            verdict = "missed" if missed else "met" if met else "not resolved"
            rows.append({"answers": answers, "prices": each.name, "mark": mark, "ratio": decides, "verdict": verdict})
    return rows


def measure(
    recordings: Sequence[Recording],
    drafters: Mapping[tuple[str, Size], Drafter],
    sources: Sequence[Drafter],
    jobs: int | None = None,
) -> Ladder:
    """Replay every rung, and bound what the sources could have done."""
    longest = [acceptable(recording.trace, sources) for recording in recordings]
    return Ladder(recordings, replayed(recordings, drafters, jobs), longest)


def replayed(
    recordings: Sequence[Recording], drafters: Mapping[tuple[str, Size], Drafter], jobs: int | None = None
) -> dict[tuple[str, Size], Measured]:
    """Runs of drafters that no draft model takes part in."""
    return {key: Measured(own, [0] * len(own)) for key, own in replay_each(recordings, drafters, jobs).items()}


def with_draft_model(
    recordings: Sequence[Recording], pair: methods.Workbench, prices: Sequence[PassPrices], weights: TreeProbabilities
) -> dict[tuple[str, Size], Measured]:
    """The rung whose sources have a draft model, at each of the prices; its price per drafted token is theirs."""
    out: dict[tuple[str, Size], Measured] = {}
    for each in prices:
        drafter = OneTree(methods.tree_sources(pair), each, weights)
        runs, drafted = [], []
        for recording in recordings:
            runs += replay_all([recording], drafter)
            drafted.append(drafter.drafted)
        out[NEURAL, each.name] = Measured(runs, drafted)
    return out


def judged_on_each(
    sets: Mapping[str, Sequence[Recording]], sources: Mapping[str, Drafter], jobs: int | None = None
) -> dict[str, Judged]:
    """Nodes of the sources on sets of recordings, judged (:func:`specdec_lib.chapters.ch08_one_tree.fitting.judged_on`)."""
    pieces = [(name, one) for name, own in sets.items() for one in own]
    parts = on_all_cores([partial(judged_on, [one.trace], sources) for _, one in pieces], jobs)
    judged = {name: Judged() for name in sets}
    for (name, _), part in zip(pieces, parts, strict=True):
        judged[name].features.extend(part.features)
        judged[name].outcomes.extend(part.outcomes)
    return judged


def calibration(judged_by_set: Mapping[str, Judged], weights: Mapping[str, TreeProbabilities]) -> list[dict]:
    """By set of judged nodes and source, for each of the weights, by their name, the expected calibration error."""
    rows = []
    for name, judged in judged_by_set.items():
        of_each = {label: by_source(judged, own) for label, own in weights.items()}
        for source in next(iter(of_each.values())):
            row = {"set": name, "source": source}
            for label, found in of_each.items():
                predicted, hit = found[source]
                row[label] = expected_calibration_error(predicted, hit) if len(hit) else float("nan")
            rows.append(row)
    return rows


def reliability_curves(
    judged_by_set: Mapping[str, Judged], weights: TreeProbabilities, bins: int = 8
) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """By set of judged nodes and source: mean predicted probability and share emitted of each bin; sources without a node are
    left out."""
    curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {name: {} for name in judged_by_set}
    for name, judged in judged_by_set.items():
        for source, (predicted, hit) in by_source(judged, weights).items():
            if len(predicted):
                found = reliability(predicted, hit, bins)
                curves[name][source] = found["predicted"], found["outcome"]
    return curves
