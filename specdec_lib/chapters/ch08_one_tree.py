"""Chapter 8: one tree compared with single sources, selection rules, unions of a fixed size and the best in hindsight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import methods
from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.loop import Trace
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters.merged_tree import FEATURES
from specdec_lib.drafters.one_tree import OneTree, SeveralSources, node_outcomes
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.drafters.prompt_lookup import PromptLookup
from specdec_lib.drafters.prompt_lookup_plus import PromptLookupHidden
from specdec_lib.drafters.rest import Rest
from specdec_lib.drafters.suffix_decoding import SuffixDecoding
from specdec_lib.drafters.tree_probabilities import NodeOutcomes, TreeProbabilities
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_sets.files import MissingData
from specdec_lib.experiments.data.published_sets.replies import (
    Reply,
    alpaca_eval_replies,
    codegen_replies,
    mt_bench_replies,
)
from specdec_lib.experiments.runs import results
from specdec_lib.experiments.runs.all_cores import on_all_cores
from specdec_lib.experiments.runs.recorded_runs import Recording, Runs, replay_all, replay_each
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.runs.retrieval import record_replies
from specdec_lib.experiments.statistics.intervals import Interval

# Probabilities: fitted, and compared with what happened ------------------------------------------------------------

#: Of equal width, in which predicted probabilities are counted.
BINS = 10


def predictions(judged: NodeOutcomes, probabilities: TreeProbabilities) -> tuple[np.ndarray, np.ndarray]:
    """Return for every judged node its probability given its parent, and whether it was emitted."""
    chances, hits = [], []
    for features, outcome in zip(judged.features, judged.outcomes, strict=True):
        scores = np.exp(np.clip(features @ probabilities.weights, -12.0, 12.0))
        chances.append(scores / (1.0 + scores.sum()))
        hits.append(np.arange(len(scores)) == outcome)
    return np.concatenate(chances), np.concatenate(hits)


def by_source(judged: NodeOutcomes, probabilities: TreeProbabilities) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """:func:`predictions` of the nodes that each source proposed, by its name."""
    if not judged.features:
        return {}
    chance, hit = predictions(judged, probabilities)
    features, per = np.concatenate(judged.features), len(FEATURES)
    # Of the features of a source one bucket of match lengths is 1 where it proposed the node.
    own = {name: features[:, i * per : (i + 1) * per].any(1) for i, name in enumerate(probabilities.sources)}
    return {name: (chance[rows], hit[rows]) for name, rows in own.items()}


def node_outcome_rows(
    recordings: Sequence[Recording], sources: Mapping[str, Drafter], weights: TreeProbabilities
) -> pd.DataFrame:
    """Rows of the judged nodes of each output by source and bin of the predicted probability, ``"PLD, 3"`` as method: how many
    ``nodes`` there are, how many of them were ``emitted``, and the sum of their ``predicted`` probabilities."""
    judged = on_all_cores([partial(node_outcomes, [one.trace], sources) for one in recordings])
    rows = []
    for one, own in zip(recordings, judged, strict=True):
        about = {"task": one.task, "prompt": one.prompt.id, "turn": one.turn}
        about |= {"seed": one.trace.sampling.seed, "temperature": one.trace.sampling.temperature}
        for source, (predicted, hit) in by_source(own, weights).items():
            place = np.minimum((predicted * BINS).astype(int), BINS - 1)
            nodes, emitted, sums = (
                np.bincount(place, values, BINS) for values in (np.ones(len(place)), hit, predicted)
            )
            rows += [
                about
                | {"method": f"{source}, {i}", "source": source, "bin": i}
                | {"nodes": int(nodes[i]), "emitted": int(emitted[i]), "predicted": float(sums[i])}
                for i in range(BINS)
            ]
    return pd.DataFrame(rows)


def calibration(rows: pd.DataFrame) -> pd.DataFrame:
    """The expected calibration error by ``set`` of judged nodes and source: the difference of predicted and emitted nodes in each
    bin, over all nodes."""
    sums = rows.groupby(["set", "source", "bin"], sort=False)[["nodes", "emitted", "predicted"]].sum()
    gaps = sums.assign(gap=(sums.predicted - sums.emitted).abs()).groupby(["set", "source"], sort=False)
    return (gaps.gap.sum() / gaps.nodes.sum()).rename("error").reset_index()


def reliability_curves(rows: pd.DataFrame) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """By set of judged nodes and source: mean predicted probability and share emitted of each bin that has nodes."""
    curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {name: {} for name in dict.fromkeys(rows["set"])}
    for (name, source), own in rows.groupby(["set", "source"], sort=False):
        sums = own.groupby("bin")[["nodes", "emitted", "predicted"]].sum()
        sums = sums[sums.nodes > 0]
        if len(sums):
            curves[name][source] = (sums.predicted / sums.nodes).to_numpy(), (sums.emitted / sums.nodes).to_numpy()
    return curves


# Hindsight ---------------------------------------------------------------------------------------------------------


def acceptable(trace: Trace, sources: Sequence[Drafter]) -> np.ndarray:
    """At each new token: how many of the tokens after it the longest draft of any source has right, int64 array.

    The sources are asked at every position, each with what it would know there of this text alone; a source that learns from
    passes is asked as it stands after none.
    """
    longest = np.zeros(len(trace.tokens), np.int64)
    for source in sources:
        source.reset()
        context = Context(
            [*trace.prompt, trace.tokens[0]],
            len(trace.prompt),
            trace.vocabulary,
            trace.sampling.for_prompt(trace.prompt),
        )
        context.hidden = lambda layer, context=context: trace.hidden[layer][: len(context.tokens) - 1]
        places = [trace.heads.index(head) for head in source.capture.heads]
        context.attention = lambda context=context, places=places: trace.attention[
            len(context.tokens) - 1 - len(trace.prompt)
        ][places]
        source.start(context)
        for place in range(len(trace.tokens) - 1):
            coming = trace.tokens[place + 1 :]
            draft = source.propose(context, len(coming))
            node, right = -1, 0
            for token in coming:
                node = draft.child(node, token)
                if node is None:
                    break
                right += 1
            longest[place] = max(longest[place], right)
            context.tokens.append(trace.tokens[place + 1])
        source.finish()
    return longest


def least_cost(longest: np.ndarray, costs: PassCosts) -> float:
    """The least cost of emitting all tokens after the first, given what is acceptable after each.

    With V(i) the cost of all that comes after token i, V(i) = min over n <= a_i of c(n + 1) + V(i + 1 + n): a pass over the
    root and the n right tokens emits n + 1. The time of a step outside its pass is added.
    """
    count = len(longest)
    curve = costs.curve(int(longest.max(initial=0)) + 1) + costs.step
    cost = np.zeros(count)
    for place in range(count - 2, -1, -1):
        most = min(int(longest[place]), count - 2 - place)
        cost[place] = (curve[: most + 1] + cost[place + 1 : place + 2 + most]).min()
    return float(cost[0])


# Variants: what one tree is compared with -----------------------------------------------------------------------------

#: Of SAM-Decoding's release: the shortest match whose continuation is drafted.
SAM_MATCH = 5
#: Of Arctic Inference's: the least expected acceptance of the suffix source for which the other one is not asked.
ARCTIC_SCORE = 3.0


def longest_match(matches: Mapping[str, int], drafts: Mapping[str, DraftTree]) -> str:
    """SAM-Decoding's rule: the source of the longest match where it has :data:`SAM_MATCH` tokens, else the last source."""
    names = list(drafts)
    best = max(names[:-1], key=lambda name: (matches[name], -names.index(name)))
    return best if matches[best] >= SAM_MATCH and len(drafts[best]) else names[-1]


def highest_score(matches: Mapping[str, int], drafts: Mapping[str, DraftTree]) -> str:
    """Arctic's rule: a source scores as many tokens as it expects to be accepted, by the shares of its own matches; the best
    one from :data:`ARCTIC_SCORE` on, else the last source."""
    names = list(drafts)
    scores = {name: sum(draft.scores or [1.0] * len(draft)) for name, draft in drafts.items()}
    best = max(names[:-1], key=lambda name: (scores[name], matches[name]))
    return best if scores[best] >= ARCTIC_SCORE else names[-1]


class Selection(SeveralSources):
    """Send the draft of one source at each step: ``rule`` chooses from the matches and the drafts by name.

    The last source is what is left where the others have nothing good enough.
    """

    def __init__(self, sources: Mapping[str, Drafter], rule: Callable[[Mapping, Mapping], str]):
        super().__init__(sources)
        self.rule = rule

    def propose(self, context: Context, limit: int) -> DraftTree:
        drafts = {name: source.propose(self.views[name], limit) for name, source in self.sources.items()}
        matches = {name: source.evidence(self.views[name]).match for name, source in self.sources.items()}
        return drafts[self.rule(matches, drafts)] if any(map(len, drafts.values())) else EMPTY


#: The single sources, and the variants above them.
SINGLES = ("PLD", "PLD+ (h)", "REST")
SAM, ARCTIC = "SAM-Decoding's rule", "Arctic's rule"
UNION, FIXED, TREE, NEURAL = "union, not calibrated", "calibrated, fixed size", "One tree", "One tree, draft model"
#: Of the rows that say what the sources could have done.
BOUND = "bound"
VARIANTS = (*SINGLES, SAM, ARCTIC, UNION, FIXED, TREE, NEURAL)
#: Above any cost that a pass has.
_TOO_DEAR = 1e6

#: A draft's size in tokens, or the name of the costs that it is sized by.
Size = int | str
#: What makes the sources of a selection rule or a tree with drafts of a size, or of their usual one.
Sources = Callable[..., dict[str, Drafter]]


def retrieval(pair: methods.Workbench, size: int | None = None) -> dict[str, Drafter]:
    """The sources that look something up, each with drafts of ``size`` tokens, or as one tree asks them."""
    if size is None:
        return {name: source for name, source in methods.tree_sources(pair).items() if name in SINGLES}
    return {
        "PLD": PromptLookup(3, size, variant="transformers"),
        "REST": Rest(pair.sparse, choices=size, min_ngram=1),
        "PLD+ (h)": PromptLookupHidden(pair.layer, size),
    }


def tokens_alone(store: SuffixIndex, size: int = 64) -> dict[str, Drafter]:
    """The sources that tokens alone tell what to draft, each with drafts of ``size`` tokens; the last is what a selection
    rule falls back on."""
    return {
        "SuffixDecoding": SuffixDecoding(most=size),
        "REST": Rest(store, choices=size, min_ngram=1),
        "PLD": PromptLookup(3, size, variant="transformers"),
    }


def costs_for_size(size: int) -> PassCosts:
    """Costs at which the best tree has ``size`` nodes, as far as there are so many."""
    return PassCosts({1: 1.0, size + 1: 1.0, size + 2: _TOO_DEAR}, name=f"{size} nodes")


def variants(
    sources: Sources,
    costs: Sequence[PassCosts],
    sizes: Sequence[int],
    weights: TreeProbabilities,
    unions: bool = True,
) -> dict[tuple[str, Size], Drafter]:
    """The drafters of every variant but the draft model's, by variant and size; without ``unions`` also but those of a
    fixed size."""
    made: dict[tuple[str, Size], Drafter] = {}
    for size in sizes:
        made |= {(name, size): source for name, source in sources(size).items()}
        made[SAM, size] = Selection(sources(size), longest_match)
        made[ARCTIC, size] = Selection(sources(size), highest_score)
        if unions:
            made[UNION, size] = OneTree(sources(), costs_for_size(size), TreeProbabilities.unfitted(SINGLES), rate=0.0)
            made[FIXED, size] = OneTree(sources(), costs_for_size(size), weights)
    return made | {(TREE, each.name): OneTree(sources(), each, weights) for each in costs}


def methods_with_store(drafters: Iterable[tuple[str, Size]], costs: Sequence[PassCosts]) -> list[str]:
    """The methods of :func:`variant_rows_of_prompts` whose rows depend on the datastore: all but PLD and PLD+ (h)."""
    everything = [*drafters, (BOUND, "hindsight"), *((NEURAL, each.name) for each in costs)]
    return [f"{variant}, {size}" for variant, size in everything if variant not in ("PLD", "PLD+ (h)")]


# Comparisons: every variant on the same answers ---------------------------------------------------------------------------


@dataclass
class Comparison:
    """Every variant on the same recordings, from rows of :func:`variant_rows`.

    ``longest`` has for each output the tokens that some source could have had accepted after each token.
    """

    rows: pd.DataFrame = field(repr=False)
    longest: Mapping[tuple, np.ndarray] = field(init=False, repr=False)
    _costed: dict[str, pd.DataFrame] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        bound = self.rows[self.rows.variant == BOUND]
        # Rows that were read end where the last source had something accepted.
        lengths = [
            np.pad(own, (0, tokens + 1 - len(own))) for own, tokens in zip(bound.longest, bound.tokens, strict=True)
        ]
        self.longest = dict(zip(_outputs(bound), lengths, strict=True))
        rows = self.rows[self.rows.variant != BOUND]
        sizes = [int(size) if str(size).isdigit() else size for size in rows["size"]]
        self.rows = rows.assign(size=pd.Series(sizes, rows.index, object))

    def _at(self, costs: PassCosts) -> pd.DataFrame:
        """The rows of the sizes that these costs chose or hindsight may, with their cost; ``least`` is the cost of the bound."""
        if costs.name not in self._costed:
            rows = self.rows[[isinstance(size, int) or size == costs.name for size in self.rows["size"]]]
            per_unit = {"passes": costs.step, "asked": costs.drafted_token}
            rows = results.with_cost(rows, costs.widths, lambda _: per_unit)
            least = {output: least_cost(longest, costs) for output, longest in self.longest.items()}
            self._costed[costs.name] = rows.assign(least=[least[output] for output in _outputs(rows)])
        return self._costed[costs.name]

    def best(self, costs: PassCosts, task: str | None = None) -> pd.DataFrame:
        """The rows of a task, or of all, with each variant, now the method, at its :meth:`best_size`."""
        rows = self._at(costs)
        rows = rows if task is None else rows[rows.task == task]
        sums = rows.groupby(["variant", "size"], sort=False)[["tokens", "cost"]].sum()
        taken = set((sums.tokens / sums.cost).groupby("variant").idxmax())
        return rows[[pair in taken for pair in zip(rows.variant, rows["size"], strict=True)]].assign(
            method=rows.variant
        )

    def best_size(self, variant: str, costs: PassCosts, task: str | None = None) -> Size:
        """The size with most tokens per cost: chosen in hindsight, unless the costs choose it."""
        rows = self.best(costs, task)
        return rows["size"][rows.method == variant].iloc[0]

    def rate(self, variant: str, costs: PassCosts, task: str | None = None) -> Interval:
        """Tokens per cost of a pass over one token: the speed-up over plain decoding."""
        rows = self.best(costs, task)
        return results.rate(rows[rows.method == variant], results.SPEED)

    def best_single(self, costs: PassCosts, task: str | None = None) -> str:
        """The single source with most tokens per cost, at the size that is best for it."""
        return max(SINGLES, key=lambda name: self.rate(name, costs, task).value)

    def ratio(self, ours: str, theirs: str, costs: PassCosts, task: str | None = None) -> Interval:
        """Speed of one variant over that of another, on the same answers."""
        return results.ratio(self.best(costs, task), ours, theirs, results.SPEED)

    def share(self, variant: str, costs: PassCosts, task: str | None = None) -> Interval:
        """Share of the hindsight bound that a variant reached: the least cost over its own."""
        rows = self.best(costs, task)
        return results.rate(rows[rows.method == variant], ("least", "cost"))

    def gains(self, costs: PassCosts, tasks: Sequence[str]) -> list[dict]:
        """By task, and for all mixed: one tree over the best single source, and their shares of the bound."""
        rows = []
        for task in (*tasks, None):
            single = self.best_single(costs, task)
            rows.append(
                {
                    "task": task or "all mixed",
                    "costs": costs.name,
                    "single": single,
                    "size": self.best_size(single, costs, task),
                    "ratio": self.ratio(TREE, single, costs, task),
                    "share_single": self.share(single, costs, task),
                    "share": self.share(TREE, costs, task),
                }
            )
        return rows


def _outputs(rows: pd.DataFrame) -> list[tuple]:
    """What tells the output of each row from others."""
    return list(rows[results.OUTPUT].itertuples(index=False, name=None))


def _rows(
    recordings: Sequence[Recording],
    runs: Mapping[tuple[str, Size], Runs],
    asked: Sequence[int] | int,
    longest: Sequence[np.ndarray] | None = None,
) -> pd.DataFrame:
    rows = results.table(recordings, runs)
    variants, sizes = zip(*rows.method, strict=True)
    none = [np.zeros(0, np.int64)] * len(rows)
    return rows.assign(
        method=[f"{variant}, {size}" for variant, size in rows.method],
        variant=variants,
        size=pd.Series(sizes, dtype=object),
        asked=asked,
        longest=longest or none,
    )


def variant_rows(
    recordings: Sequence[Recording], drafters: Mapping[tuple[str, Size], Drafter], sources: Mapping[str, Drafter]
) -> pd.DataFrame:
    """Rows of every variant that no draft model takes part in, and of the bound of what the sources could have done.

    The columns are those of a results table, and ``variant``, ``size``, the tokens ``asked`` of a draft model, and of the variant
    :data:`BOUND` ``longest`` (:func:`acceptable`).
    """
    longest = [acceptable(recording.trace, list(sources.values())) for recording in recordings]
    bound = _rows(recordings, replay_each(recordings, {(BOUND, "hindsight"): None}), 0, longest)
    return pd.concat([bound, _rows(recordings, replay_each(recordings, drafters), 0)], ignore_index=True)


def with_draft_model(
    recordings: Sequence[Recording],
    pair: methods.Workbench,
    costs: Sequence[PassCosts],
    weights: TreeProbabilities,
) -> pd.DataFrame:
    """Rows of one variant more, whose sources have a draft model; its cost per drafted token is of each of the costs."""
    rows = []
    for each in costs:
        drafter = OneTree(methods.tree_sources(pair), each, weights)
        runs, drafted = [], []
        for recording in recordings:
            runs += replay_all([recording], drafter)
            drafted.append(drafter.drafted)
        rows.append(_rows(recordings, {(NEURAL, each.name): runs}, drafted))
    return pd.concat(rows, ignore_index=True)


def variant_rows_of_prompts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    drafters: Mapping[tuple[str, Size], Drafter],
    pair: methods.Workbench,
    costs: Sequence[PassCosts],
    longest: int,
    sampling: Sampling | None = None,
) -> pd.DataFrame:
    """:func:`variant_rows` on what a model writes to prompts, of greedy answers also :func:`with_draft_model`."""
    recordings = record_once(model, tokenizer, prompts, sampling, longest, Capture((pair.layer,)))
    rows = [variant_rows(recordings, drafters, retrieval(pair))]
    if sampling is None:
        rows.append(with_draft_model(recordings, pair, costs, pair.tree_probabilities))
    return pd.concat(rows, ignore_index=True)


#: Targets that were set before measuring: lower ends that the intervals of each are to lie above.
TARGETS = {
    "no worse than the best single source": 0.98,
    "at least 10 % ahead of every single source, all mixed": 1.10,
    "ahead of the selection rules, all mixed": 1.0,
    "at least 75 % of the hindsight bound, all mixed": 0.75,
}
NO_WORSE, AHEAD, RULES, REACHED = TARGETS


def target_verdicts(
    comparisons: Mapping[str, Comparison], costs: Sequence[PassCosts], tasks: Sequence[str]
) -> list[dict]:
    """One row per kind of answers, costs and target: the ratio that decides and the verdict.

    A target is met if every interval lies above it, missed if one lies below it, and not resolved otherwise.
    """
    rows = []
    for (answers, comparison), each in product(comparisons.items(), costs):
        asked = {
            NO_WORSE: [comparison.ratio(TREE, comparison.best_single(each, task), each, task) for task in tasks],
            AHEAD: [comparison.ratio(TREE, name, each) for name in SINGLES],
            RULES: [comparison.ratio(TREE, name, each) for name in (SAM, ARCTIC)],
            REACHED: [comparison.share(TREE, each)],
        }
        for target, ratios in asked.items():
            missed = any(ratio.known and ratio.high < TARGETS[target] for ratio in ratios)
            met = all(ratio.known and ratio.low > TARGETS[target] for ratio in ratios)
            known = [ratio for ratio in ratios if ratio.known] or ratios
            decides = min(known, key=lambda ratio: ratio.high if missed else ratio.low)
            verdict = "missed" if missed else "met" if met else "not resolved"
            rows.append(
                {"answers": answers, "costs": each.name, "target": target, "ratio": decides, "verdict": verdict}
            )
    return rows


# Answers of large models -------------------------------------------------------------------------------------------

#: By name of the table: what gives the answers.
SETS: dict[str, Callable[[], list[Reply]]] = {
    "Vicuna-7B, MT-Bench": lambda: mt_bench_replies(run="plain"),
    "Vicuna-13B, AlpacaEval": lambda: alpaca_eval_replies("vicuna-13b-v1.3"),
    "CodeGen-16B, HumanEval": codegen_replies,
}
#: The rows of the table; all but the last have their size chosen in hindsight.
ROWS = ("PLD", "REST", "SuffixDecoding", SAM, ARCTIC, TREE)


def spread(replies: Sequence[Reply], count: int) -> list[Reply]:
    """At most ``count`` answers that have a text, evenly spread over a set."""
    written = [reply for reply in replies if reply.text]
    return written[:: max(1, len(written) // count)][:count]


def large_prompts(count: int) -> list[Prompt]:
    """``count`` answers of each of :data:`SETS` that is on this machine, as prompts whose reference is the answer."""
    found = []
    for name, load in SETS.items():
        try:
            replies = spread(load(), count)
        except MissingData:
            continue
        found += [Prompt(one.id, name, (one.prompt,), chat=False, reference=one.text) for one in replies]
    return found


def large_model_rows(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    drafters: Mapping[tuple[str, Size], Drafter],
    sources: Mapping[str, Drafter],
) -> pd.DataFrame:
    """Rows of replays on :func:`large_prompts` (:func:`variant_rows`); an empty frame for none, where the data sets are missing."""
    if not prompts:
        return pd.DataFrame({"task": []})
    replies = [Reply(one.id, one.task, one.text, one.reference or "") for one in prompts]
    return variant_rows(record_replies(replies, tokenizer), drafters, sources)
