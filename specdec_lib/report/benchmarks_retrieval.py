"""Rows of ``make bench`` for the sparse datastore: search, trie and tree at 1 M and 20 M tokens, build rate,
size.

The text is drawn: token ids by a power law, half of it copied spans of which some are changed in one place.
Half of the contexts are taken from the store as they are, half with one token replaced. Both are the same in
every run.
"""
from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from specdec_lib.datastores import SuffixIndex, build_suffix_array, build_tokens
from specdec_lib.datastores.compiled import compiled
from specdec_lib.datastores.trie import best_nodes
from specdec_lib.decoding.contract import Context
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters.rest import Rest
from specdec_lib.report.display import provenance

SIZES = {"1m": 1_000_000, "20m": 20_000_000}
_VOCABULARY, _EXPONENT, _SPAN, _DOCUMENT, _TAIL = 32_000, 1.07, 60, 2_000, 20
MAX_NGRAM, MIN_NGRAM = 16, 2
_BLOCK = 1000


class DrawnText:
    """Documents of 2000 tokens, ``count`` tokens in all."""

    def __init__(self, count: int):
        rng = np.random.default_rng(0)
        weights = np.arange(1, _VOCABULARY + 1) ** -_EXPONENT
        ids = rng.permutation(_VOCABULARY).astype(np.uint16)
        drawn = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(count))
        self.tokens = ids[np.minimum(drawn, _VOCABULARY - 1)]
        begin = 1000
        while begin < count:
            length = min(int(rng.geometric(1 / _SPAN)), count - begin)
            if rng.random() < 0.5:
                source = int(rng.integers(0, begin - min(length, begin - 1)))
                self.tokens[begin: begin + length] = self.tokens[source: source + length]
                if rng.random() < 0.7:
                    self.tokens[begin + int(rng.integers(0, length))] = ids[int(rng.integers(0, 1000))]
            begin += length

    def __iter__(self) -> Iterator[np.ndarray]:
        for begin in range(0, len(self.tokens), _DOCUMENT):
            yield self.tokens[begin: begin + _DOCUMENT]

    def contexts(self, count: int) -> list[list[int]]:
        rng = np.random.default_rng(1)
        found = []
        for i in range(count):
            end = int(rng.integers(
                _TAIL, _DOCUMENT)) + _DOCUMENT * int(rng.integers(0,
                                                                  len(self.tokens) // _DOCUMENT))
            context = self.tokens[end - _TAIL: end].tolist()
            if i % 2:
                context[int(rng.integers(_TAIL - MAX_NGRAM, _TAIL))] = int(rng.integers(0, _VOCABULARY))
            found.append(context)
        return found


@compiled
def _edge(tokens, suffixes, context, count, length, upper):
    """First entry that does not sort before the last ``length`` tokens; with ``upper``, that sorts after
    them."""
    low, high = 0, len(suffixes)
    while low < high:
        middle = (low + high) // 2
        i = 0
        while i < length and np.int64(tokens[suffixes[middle] - i]) == context[count - 1 - i]:
            i += 1
        if upper if i == length else np.int64(tokens[suffixes[middle] - i]) < context[count - 1 - i]:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _one_search_each(tokens, suffixes, context, count, max_ngram, min_ngram):
    """Algorithm 1 of REST in the same array: for each length, longest first, the range of entries that share
    it."""
    for length in range(min(max_ngram, count), min_ngram - 1, -1):
        start = _edge(tokens, suffixes, context, count, length, False)
        i = 0
        while start < len(suffixes) and i < length and np.int64(
                tokens[suffixes[start] - i]) == context[count - 1 - i]:
            i += 1
        if i == length:
            return length, start, _edge(tokens, suffixes, context, count, length, True)
    return 0, 0, 0


def measured_row(name: str, unit: str, ours: list[float], peers: list[float] | None = None,
                 peer: str | None = None, higher_is_better: bool = False) -> dict:
    """A row as :func:`specdec_lib.report.benchmarks.row` makes them; peer and ratio are None where there is no
    peer."""
    ratios = None if peers is None else np.asarray(ours) / np.asarray(peers)
    return {"name": name, "unit": unit, "value": float(np.median(ours)),
            "p99": float(np.percentile(ours, 1 if higher_is_better else 99)), "peer": peer,
            "peer_value": None if peers is None else float(np.median(peers)),
            "ratio": None if ratios is None else float(np.median(ratios)),
            "ratio_spread": None if ratios is None else [float(v) for v in np.percentile(ratios, [10, 90])],
            "samples": len(ours), "device": provenance.device_class()}


def microseconds(run: Callable[[], object]) -> float:
    """How long ``run`` takes by the clock."""
    began = time.perf_counter()
    run()
    return 1e6 * (time.perf_counter() - began)


def _search(label: str, index: SuffixIndex, contexts: list[list[int]]) -> dict:
    ours, peers = [], []
    # Not in turns on each context: the second would find in the processor's cache what the first has read.
    for begin in range(0, len(contexts), _BLOCK):
        block = contexts[begin: begin + _BLOCK]
        ours += [microseconds(lambda: index.longest(context, MAX_NGRAM)) for context in block]
        peers += [
            microseconds(
                lambda: _one_search_each(index.store.tokens, index.suffixes, np.array(context[-MAX_NGRAM:]),
                                         MAX_NGRAM, MAX_NGRAM, MIN_NGRAM)) for context in block
        ]
    return measured_row(f"suffix_search_us_{label}", "µs", ours, peers,
                        "one search for each length, as REST's Algorithm 1")


def _trie(drafter: Rest) -> None:
    """The drafter's selection alone, on the first of its last match's entries."""
    start = drafter.last.start
    count = min(drafter.last.stop - start, drafter.max_matches)
    drafter._entries[:count] = drafter.index.suffixes[start: start + count]
    best_nodes(drafter.index.store.tokens, drafter._entries, count, drafter.length, drafter.choices,
               drafter._counts, drafter._scratch, drafter._candidates, drafter._heap, drafter._nodes)


def _draft(label: str, index: SuffixIndex, contexts: list[list[int]]) -> list[dict]:
    rows = []
    for subsample, suffix in (("lexicographic", ""), ("uniform", "_uniform")):
        drafter = Rest(index, MAX_NGRAM, MIN_NGRAM, subsample=subsample)
        together, tries, trees, matches, nodes = [], [], [], [], []
        for number, tokens in enumerate([*contexts[:50], *contexts]):
            context = Context(tokens, 0, _VOCABULARY, Sampling())
            tree: list[DraftTree] = []
            spent = microseconds(lambda: tree.append(drafter.propose(context, 1000)))
            if number < 50:  # these compile
                _trie(drafter)
                continue
            together.append(spent)
            nodes.append(len(tree[0]))
            if nodes[-1]:
                lists = tree[0].tokens, tree[0].parents
                tries.append(microseconds(lambda: _trie(drafter)))
                trees.append(microseconds(lambda: DraftTree.unchecked(*lists)))
                matches.append(drafter.last.stop - drafter.last.start)
        parts = {
            name: np.percentile(spent, [50, 99]).tolist()
            for name, spent in (("trie_us", tries), ("tree_us", trees))
        }
        rows.append(
            measured_row(f"rest_draft_us_{label}{suffix}", "µs", together) | parts
            | {"matches": np.percentile(matches, [50, 99]).tolist(), "nodes_mean": float(np.mean(nodes))})
    return rows


def _check(index: SuffixIndex, contexts: list[list[int]]) -> None:
    """What is timed against each other finds the same."""
    for context in contexts[:200]:
        theirs = _one_search_each(index.store.tokens, index.suffixes, np.array(context[-MAX_NGRAM:]),
                                  MAX_NGRAM, MAX_NGRAM, 1)
        assert tuple(index.longest(context, MAX_NGRAM)) == tuple(theirs), context


def _peak_bytes() -> int | None:
    """Most memory this process has held since :func:`_forget_peak`, in bytes; None where the system does not
    tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def rows(quick: bool = False) -> list[dict]:
    """Measure search, draft, build and size; ``quick`` leaves the 20 M tokens out and takes few samples.

    The draft rows (search, trie and tree together) hold the trie and the tree alone besides, as [p50, p99] in
    ``trie_us`` and ``tree_us``, where something was drafted. The build row holds for each size the rate by
    the clock and by the processor's time, and the most memory beyond what was held before, in bytes a token.
    """
    sizes = {"1m": SIZES["1m"]} if quick else SIZES
    samples = 200 if quick else 10_000
    done, rates, bytes_per_token = [], {}, 0.0
    with tempfile.TemporaryDirectory() as folder:
        build_suffix_array(build_tokens(Path(folder) / "warm", [[1, 2, 3]], _VOCABULARY, progress=False),
                           progress=False)
        for label, size in tqdm(sizes.items(), desc="datastore sizes", leave=False):
            text = DrawnText(size)
            store = build_tokens(Path(folder) / label, text, _VOCABULARY, progress=False)
            _forget_peak()
            before = _peak_bytes()
            began, own = time.perf_counter(), time.process_time()
            index = build_suffix_array(store, progress=False)
            seconds, own = time.perf_counter() - began, time.process_time() - own
            peak = _peak_bytes()
            rates[label] = {"mtok_per_s": size / 1e6 / seconds, "mtok_per_cpu_s": size / 1e6 / own,
                            "peak_bytes_per_token": (peak - before) / size if peak and before else None}
            bytes_per_token = index.bytes_per_token
            contexts = text.contexts(samples)
            _check(index, contexts)
            _search(label, index, contexts[:100])  # brings the arrays into memory and compiles
            done.append(_search(label, index, contexts))
            done += _draft(label, index, contexts)
    last = rates[list(sizes)[-1]]
    done.append(
        measured_row("suffix_build_mtok_per_s", "Mtok/s", [last["mtok_per_s"]], higher_is_better=True)
        | {"sizes": rates})
    done.append(measured_row("suffix_bytes_per_token", "B/token", [bytes_per_token]))
    return done
