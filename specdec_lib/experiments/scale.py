"""How the cost of a datastore grows with its size: measured here, and computed for sizes that do not fit here."""

from __future__ import annotations

import hashlib
import math
import os
import resource
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec_lib import datastores, generate, load_model, paths
from specdec_lib.cluster import Here, Processes
from specdec_lib.datastores.sharded_build import build_sharded
from specdec_lib.drafters import Rest
from specdec_lib.experiments import corpus
from specdec_lib.experiments.retrieval import draft_microseconds, search_microseconds
from specdec_lib.models.embedding import embed_store

#: Files of installed packages that are text.
SUFFIXES = (".py", ".pyi", ".h", ".hpp", ".cuh", ".c", ".cpp", ".cu", ".txt", ".md", ".rst", ".js", ".css")
_LARGEST = 4 * 2**20
_SMALLEST = 200
CONTEXTS, CONTEXT_TOKENS, SHARDS = 200, 32, 4


@dataclass(frozen=True)
class Files:
    """Texts of files; what is no text in UTF-8 is left out."""

    paths: tuple[Path, ...]

    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            try:
                yield path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue

    def split(self, count: int) -> list[Files]:
        """The files in ``count`` parts of equally many."""
        return [
            Files(self.paths[len(self.paths) * i // count : len(self.paths) * (i + 1) // count]) for i in range(count)
        ]

    def first(self, size: int) -> Files:
        """The first files that have ``size`` bytes together.

        Raises
        ------
        ValueError
            If all have fewer.
        """
        ends = np.cumsum([path.stat().st_size for path in self.paths])
        if not len(ends) or ends[-1] < size:
            raise ValueError(
                f"the installed packages have {ends[-1] if len(ends) else 0:,} bytes of text, {size:,} are needed: ask for "
                "fewer tokens, or install more packages"
            )
        return Files(self.paths[: int(np.searchsorted(ends, size)) + 1])


def installed_files() -> Files:
    """The text of every package of this Python, in an order by the hash of the name: each first part is a sample.

    Modules of the standard library that are held out of all datastores are left out; contexts are taken from them.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for root in dict.fromkeys((library, Path(sys.prefix) / "lib", Path(sysconfig.get_paths()["purelib"]))):
        for path in root.rglob("*"):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            if path.is_relative_to(library) and "site-packages" not in path.parts:
                if corpus.side(corpus.split_key(path.relative_to(library))) == "heldout":
                    continue
            if _SMALLEST <= path.stat().st_size <= _LARGEST:
                found.append((hashlib.sha256(path.relative_to(root).as_posix().encode()).digest(), path))
    return Files(tuple(dict.fromkeys(path for _, path in sorted(found))))


class BuildJob(NamedTuple):
    """One store that is built and timed in a process of its own."""

    folder: Path
    documents: Files
    tokens: int


def timed_build(job: BuildJob) -> dict[str, float]:
    """Build one store; seconds of its two parts, bytes on disk, and the most memory that the process had."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(paths.POCKET / "target")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    store = datastores.build_from_texts(
        job.folder,
        job.documents,
        tokenizer,
        max_tokens=job.tokens,
        short_documents="skip",
        suffix_array=False,
        progress=False,
    )
    middle = time.perf_counter()
    datastores.build_suffix_array(store, progress=False)
    end = time.perf_counter()
    # Kibibytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "tokens": store.count,
        "tokenize_seconds": middle - begin,
        "sort_seconds": end - middle,
        "bytes": sum(path.stat().st_size for path in job.folder.iterdir()),
        "memory_before": before * unit,
        "memory_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }


def held_out_contexts(tokenizer: Any, count: int = CONTEXTS) -> list[list[int]]:
    """Random places in modules that no datastore holds, the last tokens before each."""
    rng = np.random.default_rng(0)
    texts = [module.text for module in corpus.stdlib_modules("heldout")]
    contexts = []
    while len(contexts) < count:
        tokens = tokenizer(texts[rng.integers(len(texts))][:20_000], add_special_tokens=False, verbose=False)[
            "input_ids"
        ]
        if len(tokens) > CONTEXT_TOKENS:
            end = int(rng.integers(CONTEXT_TOKENS, len(tokens)))
            contexts.append(tokens[end - CONTEXT_TOKENS : end])
    return contexts


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"median": float(np.median(values)), "p95": float(np.percentile(values, 95))}


def measure(
    folder: Path, sizes: Sequence[int], worker_tokens: int, counts: Sequence[int], tell: Callable[[str], None] = print
) -> dict[str, Any]:
    """Everything that the page "Beyond one machine" shows.

    Parameters
    ----------
    folder : path
        Where stores are built; they are removed as soon as they are measured.
    sizes : sequence of int
        Tokens of the single stores.
    worker_tokens : int
        Tokens of the store of four shards that workers build and actors search.
    counts : sequence of int
        Numbers of actors; none measures nothing that needs Ray.
    tell : callable
        Says what begins.

    Raises
    ------
    ValueError
        If the installed packages have too little text.
    """
    model, tokenizer = load_model("pocket", "cpu")
    contexts = held_out_contexts(tokenizer)
    everything = installed_files()
    # A token of these tokenizers is three to four bytes of such text; the build stops at the number of tokens.
    largest = everything.first(5 * max(*sizes, worker_tokens))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    builds, searches = [], []
    for size in sizes:
        tell(f"a store of {size:,} tokens")
        path = folder / "store"
        ((_, built),) = Processes(1).tasks(timed_build, [BuildJob(path, largest, size)])
        builds.append(built)
        index = datastores.SuffixIndex.open(path)
        searches.append(
            {
                "tokens": built["tokens"],
                "search": _spread(search_microseconds(index, contexts)),
                "draft": _spread(draft_microseconds(Rest(index), contexts, index.store.vocabulary)),
            }
        )
        if size == min(sizes):
            tell("hidden states")
            dense = _measure_states(model, index, folder)
        shutil.rmtree(path)
    tell("shards by one and two workers")
    workers, part = [], everything.first(5 * worker_tokens)
    for name, place in (("this process", Here()), ("1 process", Processes(1)), ("2 processes", Processes(2))):
        path = folder / "shards"
        shutil.rmtree(path, ignore_errors=True)
        begin = time.perf_counter()
        build_sharded(path, part.split(SHARDS), tokenizer, max_tokens=worker_tokens, place=place, progress=False)
        seconds = time.perf_counter() - begin
        count = datastores.open_suffix_index(path).store.count
        workers.append({"workers": name, "tokens": count, "seconds": seconds, "tokens_per_second": count / seconds})
    tell("shards searched here and by actors")
    actors = _measure_actors(path, contexts, counts)
    prompt = contexts[0]
    begin = time.perf_counter()
    passes = len(generate(model, prompt, None, max_new_tokens=64).tokens)
    pass_seconds = (time.perf_counter() - begin) / passes
    shutil.rmtree(folder)
    return {
        "builds": builds,
        "searches": searches,
        "workers": workers,
        "actors": actors,
        "dense": dense,
        "pass_seconds": pass_seconds,
    }


def _measure_states(model: Any, index: datastores.SuffixIndex, folder: Path) -> dict[str, float]:
    count = min(20_000, index.store.count)
    begin = time.perf_counter()
    states = embed_store(model, index.store, folder / "states", window=512, max_states=count, progress=False)
    seconds = time.perf_counter() - begin
    built = datastores.build_dense_index(index.store.path / "dense", states, index.store, progress=False)
    return {"states": len(states), "seconds": seconds, "bytes_per_state": built.bytes_per_state}


def _measure_actors(path: Path, contexts: list[list[int]], counts: Sequence[int]) -> list[dict[str, Any]]:
    here = datastores.ShardedSuffixIndex.open(path)
    vocabulary = here.store.vocabulary
    rows = [{"actors": 0, "tokens": here.store.count, **_spread(draft_microseconds(Rest(here), contexts, vocabulary))}]
    if not counts:
        return rows
    from specdec_lib.datastores.remote import RemoteSuffixIndex

    for count in counts:
        index = RemoteSuffixIndex.start(path, count, deadline=None)
        ray, handles = index.actors.ray, index.actors.handles
        trips = []
        for _ in range(CONTEXTS):
            begin = time.perf_counter()
            ray.get([handle.ready.remote() for handle in handles])
            trips.append(1e6 * (time.perf_counter() - begin))
        spread = _spread(draft_microseconds(Rest(index), contexts, vocabulary))
        # With a deadline, how many answers come too late on this machine.
        index.actors.deadline = 0.005
        index.actors.asked = 0
        draft_microseconds(Rest(index), contexts, vocabulary)
        late = index.actors.late / index.actors.asked
        rows.append(
            {
                "actors": count,
                "tokens": here.store.count,
                **spread,
                "round_trip": _spread(np.array(trips)),
                "late": late,
            }
        )
        for handle in handles:
            ray.kill(handle)
    ray.shutdown()
    return rows


class Projection(NamedTuple):
    """What a datastore of so many tokens costs, computed.

    Attributes
    ----------
    tokens, shards, hosts : int
    bytes : float
        Of tokens and suffix arrays.
    core_hours : float
        To tokenize and sort.
    dense_bytes, dense_hours : float
        Of a dense index of every position, and of the passes of the measured model on the measured machine.
    local_seconds : float or None
        One draft where one host holds all shards; None where they do not fit.
    remote_seconds : float
        One draft where hosts hold the shards and are asked in parallel.
    least_pass_seconds : float
        A remote lookup pays where a pass of the target takes longer than this.
    """

    tokens: int
    shards: int
    hosts: int
    bytes: float
    core_hours: float
    dense_bytes: float
    dense_hours: float
    local_seconds: float | None
    remote_seconds: float
    least_pass_seconds: float


def search_law(searches: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Microseconds of a draft as ``a + b log2(tokens)``, by least squares over the measured medians; b is at least 0."""
    sizes = np.log2([row["tokens"] for row in searches])
    times = np.array([row["draft"]["median"] for row in searches])
    if len(sizes) < 2:
        return float(times[0]), 0.0
    slope = max(0.0, float(np.polyfit(sizes, times, 1)[0]))
    return float(times.mean() - slope * sizes.mean()), slope


def project(
    measured: Mapping[str, Any],
    tokens: int,
    *,
    shard_tokens: int = 10**9,
    host_bytes: float = 256e9,
    network_seconds: float = 0.0005,
    tokens_per_pass: float = 1.5,
) -> Projection:
    """What a datastore of ``tokens`` tokens costs, from what was measured.

    Bytes and core-hours grow in proportion to tokens. A search takes ``a + b log2(tokens)`` in each shard
    (:func:`search_law`). One host searches its shards one after another; hosts search at the same time, and asking them
    takes as much longer as the fastest draft from actors took than one here, and one round trip of the network.
    A lookup that takes t makes a round of decoding take pass + t and yield ``tokens_per_pass`` tokens instead of one: it
    pays where ``tokens_per_pass`` times a pass is more than pass + t.

    Parameters
    ----------
    measured : mapping
        What :func:`measure` returned.
    tokens : int
    shard_tokens : int
        Tokens of one shard, below 2**31.
    host_bytes : float
        Memory of one host for shards.
    network_seconds : float
        Round trip between hosts; the measured actors are on one host.
    tokens_per_pass : float
        Tokens emitted a pass with the drafts of the datastore.

    Raises
    ------
    ValueError
        If a number is out of range, or no actor was measured.
    """
    if not 1 <= shard_tokens < 2**31:
        raise ValueError(f"shard_tokens is {shard_tokens!r}; expected 1 to 2**31 - 1, which positions of 32 bits hold")
    if tokens < 1 or not tokens_per_pass > 1:
        raise ValueError(
            f"tokens is {tokens!r} and tokens_per_pass {tokens_per_pass!r}; expected 1 or more, and more than 1"
        )
    remote = [row for row in measured["actors"] if row["actors"]]
    if not remote:
        raise ValueError("no actor was measured; measure with Ray installed")
    largest = max(measured["builds"], key=lambda row: row["tokens"])
    size = largest["bytes"] / largest["tokens"] * tokens
    seconds = (largest["tokenize_seconds"] + largest["sort_seconds"]) / largest["tokens"] * tokens
    shards = math.ceil(tokens / shard_tokens)
    a, b = search_law(measured["searches"])
    one = 1e-6 * (a + b * math.log2(min(tokens, shard_tokens)))
    fits = size <= host_bytes
    hosts = math.ceil(size / host_bytes)
    here = next(row for row in measured["actors"] if not row["actors"])
    call = 1e-6 * max(0.0, min(row["median"] for row in remote) - here["median"])
    lookup = call + network_seconds + one * math.ceil(shards / hosts)
    dense = measured["dense"]
    return Projection(
        tokens,
        shards,
        hosts,
        size,
        seconds / 3600,
        dense["bytes_per_state"] * tokens,
        dense["seconds"] / dense["states"] * tokens / 3600,
        one * shards if fits else None,
        lookup,
        lookup / (tokens_per_pass - 1),
    )


def load_average() -> list[float]:
    """Programs that waited for a core in the last minute, five and fifteen."""
    return [round(value, 1) for value in os.getloadavg()]
