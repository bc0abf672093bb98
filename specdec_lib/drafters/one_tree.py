"""One tree: the drafts of several sources merged, each node with a probability, as many nodes as a pass's cost asks for.

:meth:`specdec_lib.drafters.merged_tree.MergedTree.best` chooses them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from operator import or_

import numpy as np

from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.loop import Trace, replay
from specdec_lib.decoding.outputs import Outputs
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters.draft_model import AdaptiveDraftModel
from specdec_lib.drafters.merged_tree import MergedTree, judge_sources, learn, visit_emitted
from specdec_lib.drafters.pass_costs import MERGING, PassCosts
from specdec_lib.drafters.stopping import Round, StoppingRule
from specdec_lib.drafters.tree_probabilities import NodeOutcomes, TreeProbabilities
from specdec_lib.lazy import former_attribute, former_keywords, former_names

__getattr__ = former_names(__name__, WorthItsPrice="WorthItsCost")

#: Steps between two at which a draft model is asked for a token whatever it is expected to be worth, so that what is known
#: of it does not go stale.
_PROBE_EVERY = 64
#: One-token passes that drafts may cost more than they saved before sources are left alone, and for how many steps they are.
_LOSS, _REST = 3.0, 16


def view_of(context: Context, capture: Capture, source: Drafter) -> Context:
    """The context as one of several sources expects it: with its own captures, and greedy, so that it draws nothing.

    Parameters
    ----------
    context : Context
    capture : Capture
        What was captured for all sources.
    source : Drafter

    Returns
    -------
    Context

    Examples
    --------
    >>> from specdec_lib import Capture, Context, Sampling
    >>> from specdec_lib.drafters import PromptLookup
    >>> from specdec_lib.drafters.one_tree import view_of
    >>> context = Context([5, 6], 2, 10, Sampling(temperature=0.7))
    >>> view_of(context, Capture(), PromptLookup()).sampling.greedy
    True
    """
    places = [capture.heads.index(head) for head in source.capture.heads]
    attention = (lambda: context.attention()[places]) if places else None
    return replace(context, sampling=Sampling(), attention=attention)


class SeveralSources(Drafter):
    """A drafter that drafts from others, ``sources`` by name; a subclass says how, from their ``views`` of the context.

    Every source is shown each prompt and each pass, whichever of them drafted.

    Parameters
    ----------
    sources : dict of str to Drafter

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import PromptLookup, SuffixDecoding
    >>> from specdec_lib.drafters.one_tree import SeveralSources
    >>> class FirstNonEmpty(SeveralSources):
    ...     def propose(self, context, limit):
    ...         drafts = [source.propose(self.views[name], limit) for name, source in self.sources.items()]
    ...         return next(filter(len, drafts), drafts[0])
    >>> drafter = FirstNonEmpty({"PLD": PromptLookup(), "SuffixDecoding": SuffixDecoding()})
    >>> generate(model, prompt, drafter, max_new_tokens=8).tokens == generate(model, prompt, max_new_tokens=8).tokens
    True
    """

    def __init__(self, sources: Mapping[str, Drafter]):
        self.sources, self.views = dict(sources), {}
        self.capture = reduce(or_, (source.capture for source in self.sources.values()), Capture())
        self.replays = "never" if any(source.replays == "never" for source in self.sources.values()) else "any"

    def inner(self) -> tuple[Drafter, ...]:
        return tuple(self.sources.values())

    def reset(self) -> None:
        for source in self.sources.values():
            source.reset()

    def start(self, context: Context) -> None:
        self.views = {name: view_of(context, self.capture, source) for name, source in self.sources.items()}
        for name, source in self.sources.items():
            source.start(self.views[name])

    def verified(self, tree: DraftTree, path: tuple[int, ...], outputs: Outputs | None) -> None:
        for source in self.sources.values():
            topk = source.capture.topk
            source.verified(tree, path, outputs.top(topk) if topk else None)

    def finish(self) -> None:
        self.views = {}
        for source in self.sources.values():
            source.finish()


class WorthItsCost(StoppingRule):
    """Stop once another drafted token is expected to cost more time than it gains.

    With rho (``rate``) the best expected tokens per unit of cost so far, a token that is right with probability P and costs t
    (``cost``: the draft model's pass and the wider pass of the target) raises the ratio iff P > rho t (the mediant lies
    between). P is the product of the probabilities so far and of what the source's tokens were right lately. SpecDec++'s
    threshold has the same form with a tuned constant for rho t.

    Examples
    --------
    >>> from specdec_lib.drafters.one_tree import WorthItsCost
    >>> from specdec_lib.drafters.stopping import Round
    >>> rule = WorthItsCost()
    >>> rule.rate, rule.cost = 1.2, 0.2
    >>> [rule.stop(Round(12, count, confidence=[0.9] * count)) for count in range(3)]
    [False, False, True]
    """

    needs = ("confidence",)

    def __init__(self) -> None:
        self.rate, self.cost, self.probe = 0.0, 0.0, False
        self.reset()

    def reset(self) -> None:
        # Right and wrong tokens by tenths of the draft model's own probability, one of each to begin with.
        self._right, self._judged = np.ones(10), np.full(10, 2.0)

    def calibrated(self, confidence: float) -> float:
        """How often tokens of about this confidence were right."""
        tenth = min(9, int(confidence * 10))
        return float(self._right[tenth] / self._judged[tenth])

    def stop(self, drafted: Round) -> bool:
        if self.probe and not drafted.count:
            return False
        coming = float(self._right.sum() / self._judged.sum())
        chance = math.prod(map(self.calibrated, drafted.confidence)) * coming
        return chance <= self.rate * self.cost

    def verified(self, drafted: Round, accepted: int) -> None:
        for place, confidence in enumerate(drafted.confidence[: accepted + 1]):
            tenth = min(9, int(confidence * 10))
            self._judged[tenth] += 1.0
            self._right[tenth] += place < accepted


def _paying(source: AdaptiveDraftModel) -> AdaptiveDraftModel:
    """A draft model that stops where another token does not pay; the given one where it does so already."""
    if isinstance(source.rule, WorthItsCost):
        return source
    return AdaptiveDraftModel(
        source.model, WorthItsCost(), 0, source.max_tokens, runtime=source.runtime, vocabulary=source.vocabulary
    )


@former_keywords(prices="costs")
class OneTree(SeveralSources):
    """Merge the drafts of several sources, estimate each node's probability, verify as many as pay.

    Of all parent-closed subtrees T of the merged draft the one is sent that maximises::

        (1 + sum of P(v) over T) / (c(|T| + 1) + t + sum of the sources' costs),

    the expected tokens of the step per unit of cost: P(v) is the probability that the target's output goes through v, c the
    cost of a pass by its width, t what the step costs besides it, and a source's cost what it takes to ask it for a draft
    (:class:`~specdec_lib.drafters.pass_costs.PassCosts`). There is no draft length and no number of nodes to choose. A draft
    model is asked last, and for one more token only as long as that is expected to pay (:class:`WorthItsCost`). If ``costs``
    include drafting, no source is asked for some steps once drafts have cost more time than they saved.

    Every candidate is verified by the one draw that the target makes at its parent, so the output is that of plain decoding
    token for token. A draft model drafts greedily for that reason, whatever the target does.

    Parameters
    ----------
    sources : mapping of str to Drafter
        By name; weights and costs are found by it. Asked in order, draft models last. A draft model may have any stopping
        rule: here it stops by :class:`WorthItsCost`, at its own ``max_tokens`` at the latest.
    costs : PassCosts
        Costs of the target's passes, of the draft model's and of asking each source.
    probabilities : TreeProbabilities, optional
        Weights for at least these sources; by default rough ones (:meth:`TreeProbabilities.unfitted`).
    room : int
        Nodes of the merged draft at most.
    rate : float
        Step size of the online fit; 0 keeps the weights as they are.
    observe : bool
        Keep the verified nodes in ``observed``, to fit the weights on them.

    Raises
    ------
    ValueError
        If one drafter is two sources, ``probabilities`` lack a source, or a source drafts auxiliary tokens.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import PromptLookup, SuffixDecoding
    >>> from specdec_lib.drafters.one_tree import OneTree
    >>> from specdec_lib.drafters.pass_costs import CURVES
    >>> sources = {"PLD": PromptLookup(variant="transformers"), "SuffixDecoding": SuffixDecoding()}
    >>> run = generate(model, prompt, OneTree(sources, CURVES["cpu"]), max_new_tokens=24)
    >>> sorted({name for step in run.steps for name in step.tree.sources or ()})
    ['PLD', 'PLD, SuffixDecoding']
    >>> round(run.stats["tokens_per_forward"], 2)
    3.83
    """

    prices = former_attribute("costs")

    def __init__(
        self,
        sources: Mapping[str, Drafter],
        costs: PassCosts,
        probabilities: TreeProbabilities | None = None,
        room: int = 256,
        rate: float = 0.05,
        observe: bool = False,
    ):
        if not sources:
            raise ValueError("sources is empty; expected drafters by name")
        for name, source in sources.items():
            if not isinstance(source, Drafter):
                raise TypeError(f"the source {name!r} is {source!r}; expected a specdec_lib.Drafter")
        names = {id(source): name for name, source in sources.items()}
        for name, source in sources.items():
            if names[id(source)] != name:
                raise ValueError(f"the sources {name!r} and {names[id(source)]!r} are one drafter; make one for each")
        room = whole_number("room", room, 1)
        if not 0.0 <= rate < math.inf:
            raise ValueError(f"rate is {rate!r}; expected a finite number, 0 or more")
        drawing = {name: _paying(source) for name, source in sources.items() if isinstance(source, AdaptiveDraftModel)}
        super().__init__({name: source for name, source in sources.items() if name not in drawing} | drawing)
        order = list(self.sources)
        self.step_cost = costs.step_of(MERGING, *(name for name in order if name not in drawing))
        self.costs, self.room, self.rate, self.observe = costs, room, rate, observe
        self.probabilities = (probabilities or TreeProbabilities.unfitted(order)).of(order)
        # One wider than the largest draft: the draft model is asked what a token beyond it would cost.
        self._curve = costs.curve(room + 2)
        self._tree = MergedTree(len(order), room)
        # By a set of sources as bits: their names in one string, made when it is first needed.
        self._labels = cache(lambda bits: ", ".join(name for place, name in enumerate(order) if bits >> place & 1))
        self._visited = np.zeros((2, room + 1), np.int64)
        self.observed = NodeOutcomes()
        self._forget()

    def __repr__(self) -> str:
        return f"OneTree({', '.join(self.sources)}; costs {self.costs.name!r})"

    def _forget(self) -> None:
        self.weights = self.probabilities.weights.copy()
        # As much as a hundred judged nodes say by themselves: the fit is not unlearned at the first surprise.
        self._scale = np.full(len(self.weights), 10.0)
        #: Tokens that the last step was expected to emit; tokens that the draft model drafted in this generation.
        self.expected, self.drafted = 1.0, 0
        self._steps = 0
        # By how many one-token passes drafts were slower than plain decoding lately; steps without drafts that are left; the
        # cost of the step under way, None where it had no draft.
        self._lost, self._resting, self._spent = 0.0, 0, None

    def reset(self) -> None:
        self._forget()
        super().reset()

    def start(self, context: Context) -> None:
        self._context, self._proposed_at = context, len(context.tokens)
        self._lately, self._streak = np.full(len(self.sources), 0.5), np.zeros(len(self.sources), np.int64)
        self._tree.clear()
        self._judged, self.drafted = False, 0
        super().start(context)

    def propose(self, context: Context, limit: int) -> DraftTree:
        tree = self._tree
        tree.clear()
        self._proposed_at, self._steps, self._judged = len(context.tokens), self._steps + 1, False
        self._spent, self.expected = None, 1.0
        if self._resting:
            self._resting -= 1
            return EMPTY
        sunk = self.step_cost
        for number, (name, source) in enumerate(self.sources.items()):
            drawing = isinstance(source, AdaptiveDraftModel)
            if drawing:
                tree.score(self.weights)
                _, _, nodes, rate = tree.best(self._curve, sunk)
                wider = len(nodes) + 1
                source.rule.rate, source.rule.probe = rate, self._steps % _PROBE_EVERY == 0
                source.rule.cost = self.costs.drafted_token + self._curve[wider] - self._curve[wider - 1]
            draft = source.propose(self.views[name], limit)
            if draft.auxiliary is not None:
                raise ValueError(
                    f"the draft of the source {name!r} has auxiliary tokens, which a merged draft cannot hold"
                )
            shares = [1.0] * len(draft) if draft.scores is None else draft.scores
            if drawing:
                shares = np.cumprod(source.confidence)
                sunk += self.costs.drafted_token * len(draft)
                self.drafted += len(draft)
            if not len(draft):
                continue
            known, lately = source.evidence(self.views[name]), self._lately[number]
            tree.add(number, draft, shares, known, math.log(lately / (1 - lately)), self._streak[number], limit)
        tree.score(self.weights)
        tokens, parents, nodes, _ = tree.best(self._curve, sunk)
        self._spent = self._curve[len(nodes)] + sunk
        scores = tree.probability[nodes]
        self.expected = 1.0 + float(scores.sum())
        chosen = DraftTree.unchecked(tokens, parents)
        chosen.scores = scores.tolist()
        chosen.sources = list(map(self._labels, tree.whose(nodes).tolist()))
        return chosen

    def verified(self, tree: DraftTree, path: tuple[int, ...], outputs: Outputs | None) -> None:
        """Judge every source by what was emitted, whether its nodes were verified or not, and learn from it."""
        super().verified(tree, path, outputs)
        if self.costs.drafting and self._spent is not None:
            plain = self._spent / (1.0 + self.costs.step)  # what plain decoding emits meanwhile
            self._lost = max(0.0, self._lost + plain - 1 - len(path))
            if self._lost > _LOSS:
                self._lost, self._resting = _LOSS / 2, _REST
        self._spent = None
        merged = self._tree
        # Where nothing was proposed for the pass, the merged draft is that of an earlier one, which was judged then.
        if not merged.count or self._judged:
            return
        self._judged = True
        emitted = np.array(self._context.tokens[self._proposed_at :], np.int64)[: self.room + 1]
        count = visit_emitted(emitted, merged.nodes, self._visited)
        judge_sources(self._visited, count, merged.nodes, merged.proposed, self._lately, self._streak)
        for place in range(count if self.observe else 0):
            nodes, hit = self._children(self._visited[0, place]), int(self._visited[1, place])
            self.observed.features.append(merged.features[nodes].copy())
            self.observed.outcomes.append(nodes.index(hit) if hit >= 0 else -1)
        if self.rate:
            estimated = merged.nodes, merged.features, merged.conditional
            learn(self._visited, count, *estimated, self.weights, self._scale, self.rate)

    def _children(self, parent: int) -> list[int]:
        nodes, node = [], self._tree.first_child[parent + 1]
        while node >= 0:
            nodes.append(int(node))
            node = self._tree.next_sibling[node]
        return nodes

    def finish(self) -> None:
        self._tree.clear()
        self._context = None
        super().finish()


#: With passes of any width at one cost the whole merged draft is verified, so that steps go where all sources lead.
_FLAT = PassCosts({1: 1.0}, name="flat")


def node_outcomes(traces: Sequence[Trace], sources: Mapping[str, Drafter]) -> NodeOutcomes:
    """What the target emitted after the nodes that the sources proposed, each graded wherever it proposed something."""
    drafter = OneTree(sources, _FLAT, rate=0.0, observe=True)
    for trace in traces:
        replay(trace, drafter)
    return drafter.observed


def fit(traces: Sequence[Trace], sources: Mapping[str, Drafter], fitted_on: str) -> TreeProbabilities:
    """Weights for the sources, fitted to recorded answers; ValueError if there are none, or no source proposed anything."""
    return TreeProbabilities.unfitted(list(sources)).fitted(node_outcomes(traces, sources), fitted_on)
