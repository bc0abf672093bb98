"""``make bench``: how fast the library itself is, compared with programs that do the same work in the same run.

Each measurement takes turns between the two, so that a drift of the machine meets both. The results are
``data/results/cpu/bench.json`` and the table of it in ``bench.md``, which the page ``book/speed.md`` shows.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from tqdm.auto import tqdm
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.candidate_generator import CandidateGenerator, PromptLookupCandidateGenerator

from specdec_lib import generate, paths
from specdec_lib.commands import options
from specdec_lib.datastores import ArrayStates, DenseIndex, build_dense_index, build_suffix_array, build_tokens
from specdec_lib.datastores.faiss_index import one_thread
from specdec_lib.decoding.compiled import compiled
from specdec_lib.decoding.contract import Context, Drafter
from specdec_lib.decoding.results import PARTS
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import PromptLookup
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_costs import CURVES
from specdec_lib.drafters.rest import Rest
from specdec_lib.files import write_atomic
from specdec_lib.report.display import provenance
from specdec_lib.vllm import drafter_of_settings, proposer

MAX_NGRAM, PLD_TOKENS = 3, 10
REST_NGRAM, REST_MIN_NGRAM = 16, 2
_DRAFT = [1, 2, 3, 4, 5]


def row(work: str, unit: str, ours: Sequence[float], peers: Any = None, peer: str = "", **more: Any) -> dict:
    """One row of the file: medians, our 99th percentile, and the paired ratios ours / peer with their 10th and 90th."""
    higher = unit in ("tokens/s", "share")
    about = {"work": work, "unit": unit, "higher_is_better": higher, "samples": len(ours), "peer": peer, **more}
    about |= {"value": float(np.median(ours)), "p99": float(np.percentile(ours, 1 if higher else 99))}
    if peers is not None:
        ratios = np.asarray(ours) / np.asarray(peers)
        about |= {"peer_value": float(np.median(peers)), "ratio": float(np.median(ratios))}
        about["ratio_spread"] = np.percentile(ratios, [10, 90]).tolist()
    return about


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    out = run()
    return time.perf_counter() - began, out


def _microseconds(run: Callable[[], Any]) -> float:
    return 1e6 * _seconds(run)[0]


# The loop ------------------------------------------------------------------------------------------------------


class _SameDraft(Drafter):
    """Proposes the same five tokens at each step: work for the loop, none for a drafter."""

    def propose(self, context: Context, limit: int) -> DraftTree:
        return DraftTree.chain(_DRAFT[:limit])


class _SameCandidates(CandidateGenerator):
    """The same for transformers' assisted decoding."""

    def get_candidates(self, input_ids, *args, **kwargs):
        return torch.cat([input_ids, torch.tensor([_DRAFT])], dim=1), None

    def update_candidate_strategy(self, *args, **kwargs):
        pass


class _TimedModel(LlamaForCausalLM):
    """Keeps the seconds of each of its calls, so that what a step takes beyond its own is known."""

    def __call__(self, *args, **kwargs):
        began = time.perf_counter()
        out = super().__call__(*args, **kwargs)
        self.calls.append(time.perf_counter() - began)
        return out


def loop(quick: bool) -> list[dict]:
    """Time of a verify step beyond the model's forward, on a model whose forward costs next to nothing."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 4096}
    config = LlamaConfig(**sizes, **heads, bos_token_id=None, eos_token_id=None, attn_implementation="sdpa")
    model = _TimedModel(config).eval()
    prompt, new = [1 + i % 250 for i in range(128)], 128
    tensor = torch.tensor([prompt])
    model._get_candidate_generator = lambda **kwargs: _SameCandidates()
    ours, peers = [], []
    for _ in tqdm(range(2 if quick else 20), desc="loop overhead", leave=False):
        model.calls = []
        run = generate(model, prompt, _SameDraft(), max_new_tokens=new, eos_token_id=[])
        passes = model.calls[-len(run.steps) :]
        beyond = [
            sum(getattr(step, part) for part in PARTS) - seconds
            for step, seconds in zip(run.steps, passes, strict=True)
        ]
        ours.append(1e3 * float(np.median(beyond)))
        # transformers has no clock per step: the difference of a long and a short run leaves out what comes once.
        times, steps = [], []
        for count in (new // 4, new):
            model.calls = []
            given = {"do_sample": False, "max_new_tokens": count, "prompt_lookup_num_tokens": len(_DRAFT)}
            seconds, _ = _seconds(lambda: model.generate(tensor, attention_mask=torch.ones_like(tensor), **given))
            times.append(seconds - sum(model.calls))
            steps.append(len(model.calls))
        peers.append(1e3 * (times[1] - times[0]) / (steps[1] - steps[0]))
    work = "A verify step beyond the forward pass"
    return [row(work, "ms", ours, peers, "transformers assisted decoding")]


# Drafting --------------------------------------------------------------------------------------------------------


def lookup(quick: bool) -> list[dict]:
    """Microseconds of one PLD proposal, half of them with a match, three new tokens since the last."""
    rows = []
    for length in (1_000, 4_000, 32_000):
        rng = random.Random(0)
        tokens = [rng.randrange(4096) for _ in range(length)]
        context = Context(tokens, length, 4096, Sampling())
        drafter = PromptLookup(MAX_NGRAM, PLD_TOKENS)
        drafter.start(context)
        drafter.propose(context, PLD_TOKENS)
        peer = PromptLookupCandidateGenerator(
            num_output_tokens=PLD_TOKENS, max_matching_ngram_size=MAX_NGRAM, max_length=10**9
        )
        ours, peers = [], []
        for i in range(50 if quick else 500):
            place = rng.randrange(length - 50)
            tokens += tokens[place : place + 3] if i % 2 else [rng.randrange(4096) for _ in range(3)]
            ours.append(_microseconds(lambda: drafter.propose(context, PLD_TOKENS)))
            tensor = torch.tensor([tokens])
            peers.append(_microseconds(lambda: peer.get_candidates(tensor)))
        work, whose = f"A PLD draft, context of {length:,d} tokens", "transformers PromptLookupCandidateGenerator"
        rows.append(row(work, "µs", ours, peers, whose))
    return rows


class _Given(Drafter):
    """Proposes what it is given: work for the tree that it is merged into, none for itself."""

    def propose(self, context: Context, limit: int) -> DraftTree:
        return self.draft


def _drawn_draft(rng: np.random.Generator, size: int, width: int) -> DraftTree:
    """A trie of ``size`` nodes, up to ``width`` at each branch, of few enough tokens that drafts share prefixes."""
    tokens, parents, taken = [], [], set()
    while len(tokens) < size:
        parent, token = int(rng.integers(max(-1, len(tokens) - 4 * width), len(tokens))), int(rng.integers(0, width))
        if (parent, token) not in taken:
            taken.add((parent, token))
            tokens, parents = [*tokens, token], [*parents, parent]
    return DraftTree(tokens, parents).annotated(scores=[1.0 / (1 + place) for place in range(size)])


def tree(quick: bool) -> list[dict]:
    """Microseconds of one tree's own work in a step, with three sources of 64 tokens each: a copy and two tries."""
    rng, size = np.random.default_rng(0), 64
    sources = {name: _Given() for name in ("copy", "store", "answers")}
    drafter = OneTree(sources, CURVES["gpu"])
    context = Context([1] * 100, 100, 4096, Sampling())
    chosen, learned, nodes = [], [], []
    drafter.start(context)
    for step in range(60 if quick else 2000):
        copy = DraftTree.chain(rng.integers(0, 2, size).tolist())
        for source, draft in zip(
            sources.values(), (copy, _drawn_draft(rng, size, 2), _drawn_draft(rng, size, 3)), strict=True
        ):
            source.draft = draft
        seconds, proposed = _seconds(lambda: drafter.propose(context, 1000))
        context.tokens += copy.tokens[:3]  # the outcome of a pass that accepts two tokens
        verifying = _microseconds(lambda: drafter.verified(proposed, (), None))
        if step >= 10:  # the first ones compile
            chosen.append(1e6 * seconds)
            learned.append(verifying)
            nodes.append(drafter._tree.count)
    about = {"merged_nodes": float(np.median(nodes))}
    work = "One tree, three sources of 64 tokens: "
    return [
        row(f"{work}merge, score, choose", "µs", chosen, **about),
        row(f"{work}judge and learn", "µs", learned, **about),
    ]


class DrawnText:
    """Documents of 2000 tokens by a power law, half of it copied spans of which some are changed in one place."""

    vocabulary, document, tail = 32_000, 2_000, 20

    def __init__(self, count: int):
        rng = np.random.default_rng(0)
        weights = np.arange(1, self.vocabulary + 1) ** -1.07
        ids = rng.permutation(self.vocabulary).astype(np.uint16)
        drawn = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(count))
        self.tokens = ids[np.minimum(drawn, self.vocabulary - 1)]
        begin = 1000
        while begin < count:
            length = min(int(rng.geometric(1 / 60)), count - begin)
            if rng.random() < 0.5:
                source = int(rng.integers(0, begin - min(length, begin - 1)))
                self.tokens[begin : begin + length] = self.tokens[source : source + length]
                if rng.random() < 0.7:
                    self.tokens[begin + int(rng.integers(0, length))] = ids[int(rng.integers(0, 1000))]
            begin += length

    def __iter__(self) -> Iterator[np.ndarray]:
        for begin in range(0, len(self.tokens), self.document):
            yield self.tokens[begin : begin + self.document]

    def contexts(self, count: int) -> list[list[int]]:
        """Ends of text of the store, every second with one token replaced."""
        rng = np.random.default_rng(1)
        contexts = []
        for i in range(count):
            document = int(rng.integers(0, len(self.tokens) // self.document))
            end = document * self.document + int(rng.integers(self.tail, self.document))
            context = self.tokens[end - self.tail : end].tolist()
            if i % 2:
                context[int(rng.integers(self.tail - REST_NGRAM, self.tail))] = int(rng.integers(0, self.vocabulary))
            contexts.append(context)
        return contexts


@compiled
def _edge(tokens, suffixes, context, count, length, upper):
    """First entry that does not sort before the last ``length`` tokens; with ``upper``, that sorts after them."""
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
    """Algorithm 1 of REST in the same array: for each length, longest first, the entries that share it."""
    for length in range(min(max_ngram, count), min_ngram - 1, -1):
        start = _edge(tokens, suffixes, context, count, length, False)
        i = 0
        while start < len(suffixes) and i < length and np.int64(tokens[suffixes[start] - i]) == context[count - 1 - i]:
            i += 1
        if i == length:
            return length, start, _edge(tokens, suffixes, context, count, length, True)
    return 0, 0, 0


def sparse(quick: bool) -> list[dict]:
    """Search, whole draft and memory of the sparse datastore, on drawn text of 1 M and 20 M tokens."""
    sizes = (1_000_000,) if quick else (1_000_000, 20_000_000)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            text = DrawnText(size)
            store = build_tokens(Path(folder) / str(size), text, text.vocabulary, progress=False)
            index = build_suffix_array(store, progress=False)
            contexts = text.contexts(200 if quick else 10_000)
            rest = Rest(index, REST_NGRAM, REST_MIN_NGRAM)

            def each_length(context, shortest=REST_MIN_NGRAM):
                return _one_search_each(
                    index.store.tokens,
                    index.suffixes,
                    np.array(context[-REST_NGRAM:]),
                    REST_NGRAM,
                    REST_NGRAM,
                    shortest,
                )

            def draft(context):
                return rest.propose(Context(context, 0, text.vocabulary, Sampling()), 1000)

            for context in contexts[:200]:  # compiles, brings the arrays into memory, and both find the same
                assert tuple(index.longest(context, REST_NGRAM)) == tuple(each_length(context, 1)), context
                draft(context)
            # In blocks: on the same context one after the other, the second would find in the processor's cache
            # what the first has read.
            ours, peers = [], []
            for begin in range(0, len(contexts), 1000):
                block = contexts[begin : begin + 1000]
                ours += [_microseconds(lambda: index.longest(context, REST_NGRAM)) for context in block]
                peers += [_microseconds(lambda: each_length(context)) for context in block]
            whole = [_microseconds(lambda: draft(context)) for context in contexts]
            tokens, peer = f"{size // 1_000_000} M tokens", "one search for each length, as REST's Algorithm 1"
            rows.append(row(f"Longest-suffix search, {tokens}", "µs", ours, peers, peer))
            rows.append(row(f"A REST draft (search, trie and tree), {tokens}", "µs", whole))
        rows.append(row(f"Resident memory of the sparse store, {tokens}", "bytes/token", [index.bytes_per_token]))
    return rows


# States and queries of the dense row: 4096 centres, around each a subspace of 10 of 64 dimensions, which is nearer to
# reduced hidden states than noise in all of them. Queries are drawn in the same way and not stored.
DIMS, CENTRES, SUBSPACE, NEIGHBOURS, NPROBE = 64, 4096, 10, 10, 8


def drawn_states(count: int, seed: int) -> np.ndarray:
    """States of unit length, float32 array of shape (count, 64); the same centres with every seed."""
    fixed = np.random.default_rng(0)
    centres = fixed.normal(size=(CENTRES, DIMS)).astype(np.float32)
    axes = fixed.normal(size=(CENTRES, SUBSPACE, DIMS)).astype(np.float32) / np.sqrt(DIMS)
    rng = np.random.default_rng(seed)
    out = np.empty((count, DIMS), np.float32)
    for begin in range(0, count, 1 << 15):
        part = out[begin : begin + (1 << 15)]
        centre = rng.integers(0, CENTRES, len(part))
        local = rng.normal(size=(len(part), 1, SUBSPACE)).astype(np.float32)
        # 2.5 axes wide: a query's neighbours lie in several lists, and few in many.
        part[:] = centres[centre] + (local @ axes[centre])[:, 0] * 2.5
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return out


def dense(quick: bool) -> list[dict]:
    """Search of 10 neighbours and its recall, one thread and one query at a time, in 1 M states of 64 dimensions."""
    count, factory, samples = (100_000, "IVF256,Flat", 100) if quick else (1_000_000, "IVF4096,Flat", 2000)
    with tempfile.TemporaryDirectory() as folder, one_thread() as faiss:
        store = build_tokens(Path(folder) / "store", [np.zeros(count + 1, np.int64)], 2, progress=False)
        states = ArrayStates(np.arange(2, count + 2), drawn_states(count, 1))
        index: DenseIndex = build_dense_index(
            store.path / "dense",
            states,
            store,
            dims=DIMS,
            factory=factory,
            zscore=False,
            nprobe=NPROBE,
            sample=200_000,
            progress=False,
        )
        queries = drawn_states(samples, 2)
        inner = faiss.downcast_index(index.index.index)
        keys, stored = (
            index.index.chain.at(1).apply(index.index.chain.at(0).apply(rows)) for rows in (queries, states.states)
        )
        few = queries[:500]
        exact = faiss.knn(keys[:500], stored, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)[1]
        found = index.search(few, NEIGHBOURS)[1]
        share = np.mean([np.isin(row, own).mean() for row, own in zip(index.positions[exact], found, strict=True)])
        ours, peers = [], []
        for begin in range(0, samples, 200):  # in blocks, as in the sparse rows
            block = slice(begin, begin + 200)
            ours += [_microseconds(lambda: index.search(query[None], NEIGHBOURS)) for query in queries[block]]
            peers += [_microseconds(lambda: inner.search(key[None], NEIGHBOURS)) for key in keys[block]]
    about = {"factory": factory, "nprobe": NPROBE, "states": count}
    peer = "FAISS on keys that are reduced already"
    return [
        row(f"Dense search, {count:,d} states", "µs", ours, peers, peer, **about),
        row("Share of the 10 nearest states that it finds", "share", [share], **about),
    ]


# Drafting for the requests of a server ----------------------------------------------------------------------------


def serving(quick: bool) -> list[dict]:
    """Time per request in which the proposer inside vLLM drafts for a batch, prompts of 4,000 tokens read before."""
    requests, length, most = 16, 4_000, 8
    steps = 20 if quick else 300
    named = SimpleNamespace
    asked = named(
        speculative_config=named(num_speculative_tokens=most),
        model_config=named(max_model_len=2 * length, get_vocab_size=lambda: 49_152),
        scheduler_config=named(max_num_seqs=requests),
    )
    rng = np.random.default_rng(0)
    texts = np.zeros((requests, 2 * length), np.int32)
    for text in texts:  # half of it new, half of it copied from what was said before
        at = 500
        text[:at] = rng.integers(49_152, size=at)
        while at < len(text):
            count = int(rng.integers(5, 30))
            source = int(rng.integers(at - 100))
            copied = text[source : source + count] if rng.random() < 0.5 else rng.integers(49_152, size=count)
            text[at : at + count] = copied[: len(text) - at]
            at += count
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        build_suffix_array(build_tokens(folder, [texts[0]], 49_152, progress=False), progress=False)
        for name, settings in {
            "PLD": {},
            "SuffixDecoding": {},
            "REST": {"store": folder},
            "One tree": {"store": folder},
        }.items():
            made = proposer(partial(drafter_of_settings, {"drafter": name} | settings, most))(asked)
            spent = []
            for step in range(steps + 1):
                counts = np.full(requests, length + 1 + step, np.int32)
                fresh = [[int(text[length + step])] for text in texts]
                seconds, _ = _seconds(lambda: made.propose(fresh, counts, texts))
                if step:  # the first one reads the prompts
                    spent.append(1e3 * seconds / requests)
            rows.append(row(f"A draft of {name} for each of {requests} requests of a server", "ms", spent))
    return rows


SECTIONS: dict[str, Callable[[bool], list[dict]]] = {
    "loop": loop,
    "lookup": lookup,
    "tree": tree,
    "sparse": sparse,
    "dense": dense,
    "serving": serving,
}


def measure(names: Sequence[str], quick: bool, command: str) -> dict[str, Any]:
    """Rows by section, each section with where it comes from; the load is that of the minute before the section began."""
    sections = {}
    for name in names:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        seconds, rows = _seconds(lambda: SECTIONS[name](quick))
        facts = provenance.collect()
        about = {key: facts[key] for key in ("commit", "date", "machine", "versions")}
        about |= {"command": command, "seconds": round(seconds, 1), "load": load and round(load, 1)}
        sections[name] = {"rows": rows, "provenance": about}
    return sections


def _amount(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"


def table(sections: dict[str, Any]) -> str:
    """The table of the page, and below it where each section comes from."""
    lines = [
        "| Work | Here | 99th percentile | Peer in the same run | Times as fast (10th to 90th percentile) |",
        "|:--|--:|--:|:--|--:|",
    ]
    for one in (one for section in sections.values() for one in section["rows"]):
        peer = ratio = "–"
        if one["peer"]:
            peer = f"{_amount(one['peer_value'], one['unit'])}: {one['peer']}"
            ratios = [one["ratio"], *one["ratio_spread"]]
            if not one["higher_is_better"]:
                median, low, high = (1 / value for value in ratios)
                ratios = [median, high, low]
            ratio = "{:.2g} ({:.2g}–{:.2g})".format(*ratios)
        # A percentile of one number would repeat it.
        extreme = _amount(one["p99"], one["unit"]) if one["samples"] > 1 else "–"
        lines.append(f"| {one['work']} | {_amount(one['value'], one['unit'])} | {extreme} | {peer} | {ratio} |")
    lines += ["", ":::{dropdown} How this table was made", ""]
    for name, section in sections.items():
        about = section["provenance"]
        machine, versions = about["machine"], about["versions"]
        lines.append(
            f"- {name}: {about['date']}, commit {about['commit'][:12]}, load {about['load']}, {machine['processor']} with "
            f"{machine['cores']} cores, torch {versions['torch']}, transformers {versions['transformers']}"
        )
    return "\n".join(
        [*lines, "", "Where the load is not far below the number of cores, other programs took time.", ":::", ""]
    )


def main(
    out: Annotated[Path | None, options.OutputFile] = None,
    only: Annotated[list[str] | None, options.choice(SECTIONS, "may be repeated")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="few samples, to see that it runs; needs --out")] = False,
) -> None:
    """Measure the library, by default all sections, and write data/results/cpu/bench.json or --out, whose others stay."""
    if quick and out is None:
        raise typer.BadParameter("--quick measures nothing worth keeping: name another file with --out")
    out = out or paths.root() / "data" / "results" / "cpu" / "bench.json"
    earlier = json.loads(out.read_text(encoding="utf-8"))["sections"] if only and out.is_file() else {}
    transformers.logging.set_verbosity_error()
    # Passes this small gain little from a second thread and lose much when another program takes its core.
    torch.set_num_threads(1)
    command = " ".join(["python benchmarks/library.py", *sys.argv[1:]])
    measured = earlier | measure(only or list(SECTIONS), quick, command)
    sections = {name: measured[name] for name in SECTIONS if name in measured}
    write_atomic(out, json.dumps({"sections": sections}, indent=1, ensure_ascii=False) + "\n")
    write_atomic(out.with_suffix(".md"), table(sections))
    print(table(sections))


if __name__ == "__main__":
    typer.run(main)
