"""How the cost of a datastore grows with its size: measured here, and computed for sizes that do not fit here."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec_lib import datastores, generate, load_model, paths
from specdec_lib.cluster import Here, Place, Processes
from specdec_lib.datastores import ShardedSuffixIndex, store_files
from specdec_lib.datastores.sharded import ShardedStore, is_sharded, read_shards, shard_name
from specdec_lib.datastores.sharded_build import build_sharded
from specdec_lib.decoding.contract import Context
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters import Rest
from specdec_lib.experiments import corpus, stores
from specdec_lib.experiments.package_files import PackageFiles
from specdec_lib.models.embedding import embed_store

CONTEXTS, CONTEXT_TOKENS, SHARDS = 200, 32, 4
#: Programs that wait for a core, for each core: no more of them is quiet.
QUIET = 0.5


class Spent(NamedTuple):
    """Seconds of the processor and of the clock that a piece of work took, and the load when it ended."""

    processor_seconds: float
    seconds: float
    load: float


def _timed(function: Callable, job: Any) -> tuple[Any, Spent]:
    # A tokenizer that works on several threads would hide how much work there is.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    processor, clock = time.process_time(), time.perf_counter()
    result = function(job)
    return result, Spent(time.process_time() - processor, time.perf_counter() - clock, load_average()[0])


@dataclass(frozen=True)
class Timed:
    """A place that tells what each of its tasks took; each task has a process of its own or shares one with others.

    Parameters
    ----------
    place : Place
    note : callable
        Called with a task's result and :class:`Spent`.
    """

    place: Place
    note: Callable[[Any, Spent], None]

    def tasks(
        self, function: Callable, jobs: Sequence[Any], memory: int = 0, gpu: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """The number and result of each job as it ends."""
        for number, (result, spent) in self.place.tasks(partial(_timed, function), jobs, memory, gpu):
            self.note(result, spent)
            yield number, result

    def actors(self, maker: Callable[[], Callable], jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The same by workers, not timed."""
        return self.place.actors(maker, jobs)


@dataclass(frozen=True)
class Documents:
    """The documents of shards, one shard after another, as token ids."""

    path: Path

    def __iter__(self) -> Iterator[np.ndarray]:
        store = ShardedStore(self.path, read_shards(self.path))
        for name in store.names:
            shard = store.open_shard(name)
            for i in range(len(shard)):
                yield shard.document(i)


class SortJob(NamedTuple):
    """One store of the first documents of shards, whose suffixes are sorted in a process of its own."""

    folder: Path
    documents: Documents
    tokens: int
    vocabulary: int
    fingerprint: str


def timed_sort(job: SortJob) -> dict[str, float]:
    """Copy the documents and sort their suffixes; seconds of sorting, bytes on disk, and the most memory that the process
    had."""
    store = datastores.build_tokens(
        job.folder,
        job.documents,
        job.vocabulary,
        fingerprint=job.fingerprint,
        max_tokens=job.tokens,
        progress=False,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, spent = _timed(partial(datastores.build_suffix_array, progress=False), store)
    # Kibibytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "tokens": store.count,
        "sort_seconds": spent.processor_seconds,
        "seconds": spent.seconds,
        "load": spent.load,
        "bytes": sum(path.stat().st_size for path in job.folder.iterdir()),
        "memory_before": before * unit,
        "memory_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }


class TokenizeJob(NamedTuple):
    """Texts that are turned into tokens, for the time that it takes."""

    folder: Path
    documents: Iterable[str]
    tokens: int


def timed_tokenizing(job: TokenizeJob) -> dict[str, float]:
    """Build the tokens of a store; seconds of the processor, which read, tokenize and write them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(paths.POCKET / "target")
    store, spent = _timed(
        lambda folder: datastores.build_from_texts(
            folder,
            job.documents,
            tokenizer,
            max_tokens=job.tokens,
            short_documents="skip",
            suffix_array=False,
            progress=False,
        ),
        job.folder,
    )
    return {
        "tokens": store.count,
        "processor_seconds": spent.processor_seconds,
        "seconds": spent.seconds,
        "load": spent.load,
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


def search_microseconds(index: Any, contexts: Sequence[Sequence[int]]) -> np.ndarray:
    """Time of one search for the longest suffix, for each context; the first round is not counted."""
    return _each(lambda context: index.longest(context, 16), contexts)


def draft_microseconds(drafter: Rest, contexts: Sequence[Sequence[int]], vocabulary: int) -> np.ndarray:
    """Time of one draft from search to tree, for each context; the first round is not counted."""
    shown = [Context(list(context), 0, vocabulary, Sampling()) for context in contexts]
    return _each(lambda context: drafter.propose(context, 1000), shown)


def _each(work: Callable[[Any], Any], items: Sequence[Any]) -> np.ndarray:
    spent = []
    for item in [*items, *items]:
        began = time.perf_counter_ns()
        work(item)
        spent.append((time.perf_counter_ns() - began) / 1e3)
    return np.array(spent[len(items) :])


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"median": float(np.median(values)), "p95": float(np.percentile(values, 95))}


class Quiet:
    """Waits until the machine is quiet before a time is taken, no longer than so many seconds in all.

    Parameters
    ----------
    seconds : float
        0 waits for nothing.
    tell : callable
        Says that it waits.
    """

    def __init__(self, seconds: float, tell: Callable[[str], None]):
        self.left, self.tell = seconds, tell

    def wait(self) -> float:
        """Wait, and return the load."""
        cores = os.cpu_count() or 1
        while (load := load_average()[0]) > QUIET * cores and self.left > 0:
            self.tell(f"waiting for a quiet machine: load {load}, {self.left:.0f} s left")
            step = min(10.0, self.left)
            time.sleep(step)
            self.left -= step
        return load


class Notes:
    """Results of finished steps in a file, so that the same measurement goes on where it was interrupted.

    Parameters
    ----------
    path : path
    key : dict
        What is measured; notes of another measurement are dropped.
    """

    def __init__(self, path: Path, key: dict[str, Any]):
        self.path = path
        self._known: dict[str, Any] = {}
        known = store_files.read_json(path)
        if known is not None and known.get("key") == key:
            self._known = known["steps"]
        self._key = key

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __getitem__(self, name: str) -> Any:
        return self._known[name]

    def get(self, name: str, otherwise: Any) -> Any:
        """The result of a step, or what is given where it has none."""
        return self._known.get(name, otherwise)

    def put(self, name: str, result: Any) -> None:
        """Keep the result of a step."""
        self._known[name] = result
        store_files.write_json(self.path, {"key": self._key, "steps": self._known})

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """The result of a step, which is done unless it was."""
        if name not in self:
            self.put(name, work())
        return self[name]


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes
    ----------
    sizes : tuple of int
        Tokens of the single stores.
    shard_tokens : int
        Tokens of a shard of the store of shards, which is as large as the largest single store.
    worker_tokens : int
        Tokens of the store of four shards that workers build and actors search.
    actors : tuple of int
        Numbers of actors; none measures nothing that needs Ray.
    address : str, optional
        Of the cluster whose actors are asked, as for :class:`~specdec_lib.cluster.OnRay`.
    """

    sizes: tuple[int, ...]
    shard_tokens: int = stores.SHARD_TOKENS
    worker_tokens: int = 8_000_000
    actors: tuple[int, ...] = (1, 2, 4)
    address: str | None = None


def measure(
    folder: Path,
    texts: PackageFiles,
    plan: Plan,
    *,
    jobs: int = 1,
    wait: float = 0.0,
    tell: Callable[[str], None] = print,
) -> Iterator[dict[str, Any]]:
    """Everything that the page "Beyond one machine" shows: once as soon as the smallest store is measured, and again after
    each larger one.

    Parameters
    ----------
    folder : path
        Where stores are built that are removed as soon as they are measured, and where notes are kept. The same call goes
        on where it was interrupted. The large store of shards stays in the cache.
    texts : PackageFiles
    plan : Plan
    jobs : int
        Processes that build the large store's shards.
    wait : float
        Seconds that are waited at most, in all, for a quiet machine before search times are taken.
    tell : callable
        Says what begins.
    """
    model, tokenizer = load_model("pocket", "cpu")
    contexts, quiet = held_out_contexts(tokenizer), Quiet(wait, tell)
    folder.mkdir(parents=True, exist_ok=True)
    # A cluster may have another address when the measurement goes on.
    asked = {name: value for name, value in asdict(plan).items() if name != "address"}
    notes = Notes(folder / "notes.json", {"texts": texts.key, "plan": json.loads(json.dumps(asked))})
    about = {"files": len(texts.files), "bytes": texts.bytes, "archives": texts.archives}
    tell(f"{max(plan.sizes):,} tokens in shards of {plan.shard_tokens:,}")
    built = notes.get("shards", [])

    def note(shard: dict[str, Any], spent: Spent) -> None:
        built.append({"name": shard["name"], "tokens": shard["tokens"], **spent._asdict()})
        notes.put("shards", built)

    large = stores.text_shards(
        "packages",
        tokenizer,
        max(plan.sizes),
        texts,
        plan.shard_tokens,
        Timed(Processes(jobs), note),
        progress=True,
    )
    small = _Small(folder / "small", texts, plan, tokenizer)
    tell("tokens by one process")
    tokenizing = notes.step("tokenizing", small.tokenizing)
    tell("shards by one and two workers")
    workers = notes.step("workers", lambda: small.workers(quiet))
    tell("hidden states")
    dense = notes.step("dense", lambda: small.states(model))
    tell("shards searched here and by actors")
    actors = notes.step("actors", lambda: _measure_actors(small.shards(), contexts, plan, quiet))
    pass_seconds = notes.step("pass_seconds", lambda: _pass_seconds(model, contexts[0], quiet))
    small.remove()
    sharded = notes.step("sharded", lambda: _measure_shards(large, contexts, quiet))
    builds, searches = [], []
    for size in sorted(plan.sizes):
        tell(f"a single store of {size:,} tokens")
        build, search = notes.step(
            f"single {size}", lambda size=size: _measure_single(folder / "single", large.store, size, contexts, quiet)
        )
        builds.append(build)
        searches.append(search)
        yield {
            "text": about,
            "tokenizing": tokenizing,
            "builds": builds,
            "searches": searches,
            "shards": {"processes": jobs, "built": sorted(built, key=lambda row: row["name"])},
            "sharded": sharded,
            "workers": workers,
            "actors": actors,
            "dense": dense,
            "pass_seconds": pass_seconds["seconds"],
            "pass_load": pass_seconds["load"],
        }
    shutil.rmtree(folder)


def _measure_single(
    path: Path, large: ShardedStore, size: int, contexts: list[list[int]], quiet: Quiet
) -> tuple[dict[str, Any], dict[str, Any]]:
    shutil.rmtree(path, ignore_errors=True)
    job = SortJob(path, Documents(large.path), size, large.vocabulary, large.manifest["tokenizer"])
    ((_, build),) = Processes(1).tasks(timed_sort, [job])
    index = datastores.SuffixIndex.open(path)
    load = quiet.wait()
    search = {
        "tokens": build["tokens"],
        "search": _spread(search_microseconds(index, contexts)),
        "draft": _spread(draft_microseconds(Rest(index), contexts, index.store.vocabulary)),
        "load": load,
    }
    shutil.rmtree(path)
    return build, search


def _measure_shards(large: ShardedSuffixIndex, contexts: list[list[int]], quiet: Quiet) -> list[dict[str, Any]]:
    """Drafts from the first shards of a store, searched one after another: 1, 2, 4 and so on, and all."""
    count, rows = len(large.shards), []
    for first in sorted({*(2**i for i in range(count.bit_length())), count}):
        index, load = large.first(first), quiet.wait()
        spread = _spread(draft_microseconds(Rest(index), contexts, large.store.vocabulary))
        rows.append({"shards": first, "tokens": index.store.count, **spread, "load": load})
    return rows


def _pass_seconds(model: Any, prompt: list[int], quiet: Quiet) -> dict[str, float]:
    load = quiet.wait()
    generate(model, prompt, None, max_new_tokens=4)
    begin = time.perf_counter()
    passes = len(generate(model, prompt, None, max_new_tokens=64).tokens)
    return {"seconds": (time.perf_counter() - begin) / passes, "load": load}


@dataclass(frozen=True)
class _Small:
    """The store of four shards that workers build, actors search and a model embeds."""

    folder: Path
    texts: PackageFiles
    plan: Plan
    tokenizer: Any

    def _parts(self) -> list[PackageFiles]:
        # A token of these tokenizers is three to four bytes of such text; a shard stops at its number of tokens.
        share = min(1.0, 5 * self.plan.worker_tokens / max(1, self.texts.bytes))
        return self.texts.split(max(1, int(1 / share)))[0].split(SHARDS)

    def tokenizing(self) -> dict[str, float]:
        """Tokenize one shard's share in a process of its own."""
        shutil.rmtree(self.folder, ignore_errors=True)
        job = TokenizeJob(self.folder / "tokens", self._parts()[0], self.plan.worker_tokens // SHARDS)
        ((_, found),) = Processes(1).tasks(timed_tokenizing, [job])
        return found

    def _build(self, path: Path, place: Place) -> None:
        shutil.rmtree(path, ignore_errors=True)
        build_sharded(
            path, self._parts(), self.tokenizer, max_tokens=self.plan.worker_tokens, place=place, progress=False
        )

    def shards(self) -> Path:
        """The store of shards; built unless it is there."""
        path = self.folder / "shards"
        if not is_sharded(path):
            self._build(path, Here())
        return path

    def workers(self, quiet: Quiet) -> list[dict[str, Any]]:
        """Build it in this process, by one process and by two."""
        rows = []
        for name, place in (("this process", Here()), ("1 process", Processes(1)), ("2 processes", Processes(2))):
            load, spent = quiet.wait(), []
            begin = time.perf_counter()
            self._build(self.folder / "shards", Timed(place, lambda _, one, spent=spent: spent.append(one)))
            seconds = time.perf_counter() - begin
            count = datastores.open_suffix_index(self.folder / "shards").store.count
            rows.append(
                {
                    "workers": name,
                    "tokens": count,
                    "seconds": seconds,
                    "tokens_per_second": count / seconds,
                    "processor_seconds": sum(one.processor_seconds for one in spent),
                    "load": load,
                }
            )
        return rows

    def states(self, model: Any) -> dict[str, float]:
        """Embed and index the first states of the first shard."""
        shard = self.shards() / shard_name(0)
        index = datastores.SuffixIndex.open(shard)
        count = min(20_000, index.store.count)
        shutil.rmtree(self.folder / "states", ignore_errors=True)
        processor, begin = time.process_time(), time.perf_counter()
        states = embed_store(model, index.store, self.folder / "states", window=512, max_states=count, progress=False)
        processor, seconds = time.process_time() - processor, time.perf_counter() - begin
        built = datastores.build_dense_index(self.folder / "dense", states, index.store, progress=False)
        return {
            "states": len(states),
            "seconds": seconds,
            "processor_seconds": processor,
            "bytes_per_state": built.bytes_per_state,
        }

    def remove(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _measure_actors(path: Path, contexts: list[list[int]], plan: Plan, quiet: Quiet) -> list[dict[str, Any]]:
    here = datastores.ShardedSuffixIndex.open(path)
    vocabulary, load = here.store.vocabulary, quiet.wait()
    spread = _spread(draft_microseconds(Rest(here), contexts, vocabulary))
    rows = [{"actors": 0, "tokens": here.store.count, **spread, "load": load}]
    if not plan.actors:
        return rows
    from specdec_lib.datastores.remote import RemoteSuffixIndex

    for count in plan.actors:
        index = RemoteSuffixIndex.start(path, count, deadline=None, address=plan.address)
        ray, handles, load = index.actors.ray, index.actors.handles, quiet.wait()
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
                "load": load,
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

    Bytes and core-hours grow in proportion to tokens, core-hours at the rate of the build of shards where it was timed. A
    search takes ``a + b log2(tokens)`` in each shard (:func:`search_law`). One host searches its shards one after another;
    hosts search at the same time, and asking them takes as much longer as the fastest draft from actors took than one here,
    and one round trip of the network. A lookup that takes t makes a round of decoding take pass + t and yield
    ``tokens_per_pass`` tokens instead of one: it pays where ``tokens_per_pass`` times a pass is more than pass + t.

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
    built = measured["shards"]["built"]
    if built:
        one_token = sum(row["processor_seconds"] for row in built) / sum(row["tokens"] for row in built)
    else:
        tokenizing = measured["tokenizing"]
        one_token = tokenizing["processor_seconds"] / tokenizing["tokens"] + largest["sort_seconds"] / largest["tokens"]
    seconds = one_token * tokens
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
        dense["processor_seconds"] / dense["states"] * tokens / 3600,
        one * shards if fits else None,
        lookup,
        lookup / (tokens_per_pass - 1),
    )


def load_average() -> list[float]:
    """Programs that waited for a core in the last minute, five and fifteen."""
    return [round(value, 1) for value in os.getloadavg()]
