"""Build a store of shards: here or on a cluster, with the same bytes as a result.

Which documents a shard holds is fixed before anything is built, so a shard depends on nothing but its documents, and a
lost worker costs its shard alone. What is finished stays: the same call continues with the shards that are missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from specdec_lib import datastores, files
from specdec_lib.cluster import Here, OnRay, Place
from specdec_lib.datastores import dense
from specdec_lib.datastores.ray_data import build_shards
from specdec_lib.datastores.reduction import EPSILON, Moments, Reduction, fit
from specdec_lib.datastores.sharded import (
    MANIFEST,
    ShardedStore,
    describe_shard,
    read_shards,
    shard_name,
    shards_manifest,
)
from specdec_lib.datastores.states import States
from specdec_lib.datastores.storage import Storage
from specdec_lib.datastores.store_files import StoreError
from specdec_lib.datastores.suffix_array import build_suffix_array
from specdec_lib.datastores.tokens import tokenizer_fingerprint, tokenizer_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: What was asked for, beside the shards.
BUILD = "build.json"
#: Bytes of memory for each byte of a shard's text: 15 a token while its suffixes are sorted, a token of three bytes.
MEMORY_PER_BYTE = 6


@dataclass(frozen=True)
class ShardJob:
    """One shard that is to be built; it travels to where it is built."""

    url: str
    name: str
    documents: Iterable[str]
    tokenizer: PreTrainedTokenizerBase
    sources: Sequence[dict]
    max_tokens: int | None
    short_documents: str


def build_shard(job: ShardJob) -> dict[str, Any]:
    """Build one shard, bring it where it belongs, and return what the manifest says of it.

    Raises
    ------
    ValueError
        If it has no documents.
    """
    storage = Storage(job.url)
    folder = storage.scratch(job.name) if storage.local is None else storage.local / job.name
    try:
        store = datastores.build_from_texts(
            folder,
            job.documents,
            job.tokenizer,
            sources=job.sources,
            max_tokens=job.max_tokens,
            short_documents=job.short_documents,
            suffix_array=False,
            progress=False,
        )
    except ValueError as error:
        raise ValueError(f"{job.name} of {job.url}: {error}; where it has no documents, ask for fewer shards") from None
    build_suffix_array(store, progress=False)
    about = describe_shard(job.name, store.manifest)
    if storage.local is None:
        storage.put(folder, job.name)
        shutil.rmtree(folder)
    return about


def build_sharded(
    url: str | Path,
    parts: Sequence[Iterable[str]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    sources: Sequence[dict] = (),
    max_tokens: int | None = None,
    short_documents: str = "skip",
    text_bytes: int = 0,
    place: Place | None = None,
    progress: bool = True,
) -> None:
    """Build a store of as many shards as there are parts.

    Parameters
    ----------
    url : str or path
        Where it is put, in fsspec's words: a folder, ``s3://bucket/name``, ``gs://bucket/name``. A folder must be the
        same one on all nodes. Elsewhere each shard is built in the cache of the node and then brought there.
    parts : sequence of iterables of str
        The documents of each shard; each starts again with each ``iter()`` and can be pickled.
    tokenizer : PreTrainedTokenizerBase
    sources, short_documents
        As for :func:`~specdec_lib.datastores.build.build_tokens`.
    max_tokens : int, optional
        Of all shards; each takes no more than an equal share.
    text_bytes : int
        Bytes of all texts, from which the memory that a shard needs is estimated; 0 where it is not known.
    place : Place, optional
        :class:`~specdec_lib.cluster.Here` by default. On :class:`~specdec_lib.cluster.OnRay`, Ray Data reads and tokenizes
        (:mod:`~specdec_lib.datastores.ray_data`); the store has the same bytes.
    progress : bool
        Show a bar.

    Raises
    ------
    StoreError
        If another build lies there.
    ValueError
        If there are no parts, or one of them has no documents.
    """
    if not parts:
        raise ValueError("there are no parts; expected the documents of one shard or more")
    storage = Storage(url)
    key = {
        "vocabulary": tokenizer_vocabulary(tokenizer),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "sources": list(sources),
        "shards": len(parts),
        "max_tokens": max_tokens,
        "short_documents": short_documents,
    }
    known = storage.read_json(BUILD)
    if known != key and storage.names():
        raise StoreError(
            f"{url} holds something else than this build began"
            f"{'' if known is None else f' ({known}, asked for are {key})'}: remove it, or name another folder"
        )
    if storage.read_json(MANIFEST) is not None:
        return
    if storage.local is not None:
        storage.local.mkdir(parents=True, exist_ok=True)
    else:
        storage.fs.makedirs(storage.root, exist_ok=True)
    storage.write_json(BUILD, key)
    share = None if max_tokens is None else max(1, max_tokens // len(parts))
    finished = {number: _finished(storage, shard_name(number)) for number in range(len(parts))}
    abouts = {number: about for number, about in finished.items() if about is not None}
    missing = [number for number in range(len(parts)) if number not in abouts]
    jobs = [
        ShardJob(storage.url, shard_name(number), parts[number], tokenizer, sources, share, short_documents)
        for number in missing
    ]
    memory = MEMORY_PER_BYTE * text_bytes // len(parts)
    with tqdm(desc="shards", total=len(parts), initial=len(abouts), unit=" shards", disable=not progress) as bar:
        if isinstance(place, OnRay):
            built = build_shards(place, jobs, memory)
        else:
            built = (place or Here()).tasks(build_shard, jobs, memory)
        for number, about in built:
            abouts[missing[number]] = about
            bar.update()
            bar.set_postfix(tokens=f"{sum(one['tokens'] for one in abouts.values()):,}")
    shards = [abouts[number] for number in range(len(parts))]
    storage.write_json(MANIFEST, shards_manifest(key["vocabulary"], key["tokenizer"], shards))


def _finished(storage: Storage, name: str) -> dict[str, Any] | None:
    """What the manifest says of a shard that is whole; None of one that is not."""
    tokens, index = storage.read_json(f"{name}/manifest.json"), storage.read_json(f"{name}/suffix_array.json")
    return describe_shard(name, tokens) if tokens and index else None


@dataclass(frozen=True)
class DenseOptions:
    """How the states of all shards are embedded and indexed; as for :func:`~specdec_lib.models.embedding.embed_store`
    and :func:`~specdec_lib.datastores.dense.build_dense_index`. ``max_states`` and ``sample`` are of all shards."""

    window: int = 1024
    overlap: int = 256
    cover: str = "truncate"
    max_states: int | None = None
    dims: int = 64
    factory: str = "Flat"
    nprobe: int | None = None
    ef_search: int | None = None
    sample: int = 1_000_000


@dataclass(frozen=True)
class DenseJob:
    """One shard whose states are embedded, or indexed by a reduction that is known."""

    shard: Path
    options: DenseOptions
    shards: int
    reduction: Reduction | None = None

    @property
    def states(self) -> Path:
        return files.beside(self.shard, ".states")


def index_shard(job: DenseJob) -> int:
    """Index the states of one shard; returns their number."""
    index = dense.build_dense_index(
        job.shard / dense.FOLDER,
        States.open(job.states),
        factory=job.options.factory,
        nprobe=job.options.nprobe,
        ef_search=job.options.ef_search,
        reduction=job.reduction,
        progress=False,
    )
    return len(index)


def build_sharded_dense(
    path: str | Path,
    maker: Callable[[], Callable[[DenseJob], Moments]],
    options: DenseOptions,
    *,
    place: Place | None = None,
    keep_states: bool = False,
    progress: bool = True,
) -> None:
    """Give every shard a dense index, all with one reduction.

    Workers embed the shards into ``<shard>.states`` and return the moments of a sample of each; the reduction is fitted
    to the moments of all, in order of the shards; then each shard is indexed. States are removed when all is done, so
    that an interrupted call continues with them.

    Parameters
    ----------
    path : path
        Folder of the store of shards, the same one on all nodes.
    maker : callable
        Makes a worker, with its model, that takes a job and returns :func:`~specdec_lib.datastores.dense.sample_moments`.
    options : DenseOptions
    place : Place, optional
        :class:`~specdec_lib.cluster.Here` by default, or :class:`~specdec_lib.cluster.OnRay`.
    keep_states : bool
        Leave the states where they are.
    progress : bool
        Show a bar.

    Raises
    ------
    StoreError
        If there is no store of shards, or it is not on a file system of this machine.
    ValueError
        If there are too few states for the factory string.
    """
    storage = Storage(path)
    if storage.local is None:
        raise StoreError(
            f"{path} is no folder: states are embedded in a folder that all nodes see; fetch the shards with "
            "'python -m specdec_lib datastore fetch', or build them in one"
        )
    store, place = ShardedStore(storage.local, read_shards(storage.local)), place or Here()
    jobs = [DenseJob(store.path / name, options, len(store.names)) for name in store.names]
    found: dict[int, Moments] = {}
    with tqdm(desc="embedded shards", total=len(jobs), unit=" shards", disable=not progress) as bar:
        for number, moments in place.actors(maker, jobs):
            found[number] = moments
            bar.update()
    everything = Moments()
    for number in range(len(jobs)):
        everything.merge(found[number])
    reduction = fit(everything, options.dims, eps=EPSILON)
    with tqdm(desc="indexed shards", total=len(jobs), unit=" shards", disable=not progress) as bar:
        for _ in place.tasks(index_shard, [replace(job, reduction=reduction) for job in jobs]):
            bar.update()
    if not keep_states:
        for job in jobs:
            shutil.rmtree(job.states)
