"""Build a store of shards, in this process or on a cluster (:mod:`specdec_lib.datastores.ray_data`), with the same bytes.

Which documents a shard holds is fixed before anything is built. What is finished stays: the same call continues with the
shards that are missing. The texts' ``key`` says whether it is the same, where they have one; else they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from specdec_lib import files
from specdec_lib.datastores import dense, suffix_array
from specdec_lib.datastores import states as hidden_states
from specdec_lib.datastores.build import NAMES, build_tokens, encoder, holds
from specdec_lib.datastores.reduction import Moments, Reduction, fit
from specdec_lib.datastores.sharded import (
    FORMAT,
    MANIFEST,
    SHARD,
    SLOTS,
    ShardedStore,
    dense_slots,
    take_slot,
    write_shards,
)
from specdec_lib.datastores.states import States
from specdec_lib.datastores.tokens import TokenStore, tokenizer_fingerprint, tokenizer_vocabulary
from specdec_lib.files import StoreError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Files and folders of a shard.
PARTS = (*NAMES, *SLOTS)


@dataclass(frozen=True)
class ShardJob:
    """The task of building one shard, as it is sent to the process that does it."""

    folder: Path
    documents: Iterable[str]
    tokenizer: PreTrainedTokenizerBase
    options: dict[str, Any]

    @property
    def key(self) -> str | None:
        """What the texts are known by, if by anything but themselves."""
        return getattr(self.documents, "key", None)

    def write(self, documents: Iterable[Any], **options: Any) -> TokenStore:
        """Write the shard from texts or token ids as :func:`~specdec_lib.datastores.build.build_tokens` does."""
        try:
            return build_tokens(
                self.folder,
                documents,
                tokenizer_vocabulary(self.tokenizer),
                fingerprint=tokenizer_fingerprint(self.tokenizer),
                progress=False,
                **self.options,
                **options,
            )
        except StoreError:
            raise
        except ValueError as error:
            raise ValueError(f"{self.folder.name}: {error}; where it has no documents, ask for fewer shards") from None


def build_here(jobs: Sequence[ShardJob]) -> Iterator[Path]:
    """Build one shard after another in this process; their folders."""
    for job in jobs:
        finish = partial(suffix_array.build_suffix_array, progress=False)
        yield job.write(job.documents, encode=encoder(job.tokenizer), finish=finish).path


def build_sharded(
    path: str | Path,
    parts: Sequence[Iterable[str]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    sources: Sequence[dict] = (),
    max_tokens: int | None = None,
    build: Callable[[Sequence[ShardJob]], Iterator[Path]] = build_here,
    progress: bool = True,
) -> None:
    r"""Build a store of shards.

    The same call after an interruption goes on where it was, and leaves a store as it is that is finished. Parts that have a
    ``key`` are known by that, all others are read and compared with what is there; an iterator, which can be read only once,
    cannot be compared.

    Parameters
    ----------
    path : path
    parts : sequence of iterables of str
        The texts of each shard.
    tokenizer : PreTrainedTokenizerBase
    sources : sequence of dict
        As for :func:`~specdec_lib.datastores.build.build_tokens`.
    max_tokens : int, optional
        Of all shards; each takes no more than an equal share.
    build : callable
        Builds shards and gives the folder of each: :func:`build_here`, or
        :func:`~specdec_lib.datastores.ray_data.build_shards`, for which parts must be picklable and all nodes must see ``path``.
    progress : bool
        Show a bar.

    Raises
    ------
    StoreError
        If another store is at ``path``.

    Examples
    --------
    >>> from specdec_lib.datastores import open_suffix_index
    >>> from specdec_lib.datastores.sharded_build import build_sharded
    >>> build_sharded(folder / "store", [["x = 1\n"], ["y = 2\n"]], tokenizer, progress=False)
    >>> len(open_suffix_index(folder / "store").shards)
    2
    """
    if not parts:
        raise ValueError("there are no parts; expected the documents of one shard or more")
    path = files.located(path)
    key = {"tokenizer": tokenizer_fingerprint(tokenizer), "shards": len(parts), "max_tokens": max_tokens}
    key |= {
        "sources": list(sources),
        "short_documents": "skip",
        "texts": [getattr(part, "key", None) for part in parts],
    }
    most = None if max_tokens is None else max(1, max_tokens // len(parts))
    options = {"sources": list(sources), "max_tokens": most}
    check_target(path)
    with files.locked(path):
        files.recover(path, PARTS)
        jobs = [ShardJob(path / SHARD.format(number), part, tokenizer, options) for number, part in enumerate(parts)]
        if (path / MANIFEST).is_file():
            known = ShardedStore.open(path).manifest.get("build")
            known = known if isinstance(known, dict) else {}
            if known | {"texts": key["texts"]} != key or not all(map(_done, jobs, _keys(known), key["texts"])):
                raise StoreError(f"{path} holds another store of shards: remove it, or name another folder")
            return
        unfinished = files.unfinished_folder(path, (*PARTS, *(job.folder.name for job in jobs)), key)
        jobs = [replace(job, folder=unfinished / job.folder.name) for job in jobs]
        missing = [job for job in jobs if not _done(job, job.key, job.key)]
        done = len(jobs) - len(missing)
        with tqdm(desc="shards", total=len(jobs), initial=done, unit=" shards", disable=not progress) as bar:
            for _ in build(missing):
                bar.update()
        write_shards(unfinished, len(jobs), build=key)
        files.swap_in(unfinished, path, PARTS)


def check_target(path: Path) -> None:
    """Reject a path at which no store of shards can be written, before any work is done."""
    files.check_target(path, MANIFEST, FORMAT, "store of shards", PARTS)


def _done(job: ShardJob, known: str | None, key: str | None) -> bool:
    """Whether a shard is there with its index, and holds the texts of the job: those with the same key, or the same tokens."""
    if not (job.folder / suffix_array.MANIFEST).is_file():
        return False
    if known is not None and key is not None:
        return known == key
    if iter(job.documents) is job.documents:
        return False
    return holds(TokenStore.open(job.folder), job.documents, encoder(job.tokenizer), job.options["max_tokens"])


def _keys(build: dict) -> list[str | None]:
    """Keys of the texts that a finished store was built from; unknown in a store of version 1.0."""
    texts = build.get("texts")
    return texts if isinstance(texts, list) else [None] * build.get("shards", 0)


@dataclass(frozen=True)
class DenseJob:
    """The task of embedding the states of one shard or, once the reduction is known, of indexing them."""

    shard: Path
    embed: hidden_states.Embed
    sample: int
    keep: bool
    folder: str = dense.FOLDER
    states: Path | None = None
    reduction: Reduction | None = None
    options: dict[str, Any] | None = None


def embed_shard(job: DenseJob) -> tuple[Moments, Path]:
    """Embed a shard; the moments of a sample of its states, and where these are."""
    states = hidden_states.states_of_store(TokenStore.open(job.shard), job.embed, job.keep)
    return dense.sample_moments(states, job.sample), states.path


def index_shard(job: DenseJob) -> int:
    """Index the states of a shard; their number."""
    store = TokenStore.open(job.shard)
    states, target = States.open(job.states, store), job.shard / job.folder
    return len(dense.build_dense_index(target, states, store, reduction=job.reduction, progress=False, **job.options))


def build_sharded_dense(
    path: str | Path,
    embed: hidden_states.Embed,
    *,
    dims: int = 64,
    sample: int = 1_000_000,
    keep_states: bool = False,
    each: Callable[[Callable, Sequence[DenseJob]], Iterable] = map,
    progress: bool = True,
    **options: Any,
) -> None:
    r"""Give every shard a dense index, all with one reduction.

    The shards are embedded; the reduction is fitted to the moments of ``sample`` states of all; then each shard is
    indexed, beside the index that it has, and at the end all the new ones count at once. States are removed when all is done,
    so that an interrupted call continues with them, unless they are kept or were kept earlier
    (:func:`~specdec_lib.datastores.states.states_of_store`).

    Parameters
    ----------
    path : path
    embed : callable
        ``embed(store, path, replace)`` computes the states of a shard's ``TokenStore``, as
        :func:`~specdec_lib.datastores.states.write_states` does.
    dims, sample, **options
        As for :func:`~specdec_lib.datastores.dense.build_dense_index`.
    keep_states : bool
        Whether the states stay.
    each : callable
        Does the work of each job, in order: ``map``, or :func:`~specdec_lib.datastores.ray_data.map_on_ray`.
    progress : bool
        Show bars.

    Examples
    --------
    >>> from specdec_lib.datastores import open_dense_index
    >>> from specdec_lib.datastores.sharded_build import build_sharded, build_sharded_dense
    >>> from specdec_lib.models.embedding import embed_store
    >>> build_sharded(folder / "store", [["x = 1\n"], ["y = 2\n"]], tokenizer, progress=False)
    >>> embed = lambda store, path, replace: embed_store(model, store, path, replace=replace, progress=False)
    >>> build_sharded_dense(folder / "store", embed, dims=4, progress=False)
    >>> len(open_dense_index(folder / "store").shards)
    2
    """
    store = ShardedStore.open(path)
    shards = [store.path / about["name"] for about in store.manifest["shards"]]
    with files.locked(store.path):
        current, other = dense_slots(store.path)
        folder = other if all((shard / current).is_dir() for shard in shards) else current
        jobs = [DenseJob(shard, embed, max(1, sample // len(shards)), keep_states, folder) for shard in shards]
        everything, places = Moments(), []
        with tqdm(desc="embedded shards", total=len(jobs), unit=" shards", disable=not progress) as bar:
            for moments, place in each(embed_shard, jobs):
                everything.merge(moments)
                places.append(place)
                bar.update()
        reduction = fit(everything, dims)
        jobs = [
            replace(job, states=place, reduction=reduction, options=options)
            for job, place in zip(jobs, places, strict=True)
        ]
        with tqdm(desc="indexed shards", total=len(jobs), unit=" shards", disable=not progress) as bar:
            for _ in each(index_shard, jobs):
                bar.update()
        take_slot(store.path, folder)
        for shard in shards:
            files.remove(shard / (other if folder == current else current), dense.FILES)
            hidden_states.remove_unkept(shard)
