"""Build a store of shards, in this process or on a cluster (:mod:`specdec_lib.datastores.ray_data`), with the same bytes.

Which documents a shard holds is fixed before anything is built. What is finished stays: the same call continues with the
shards that are missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from specdec_lib import files
from specdec_lib.datastores import dense, store_files, suffix_array
from specdec_lib.datastores.build import build_tokens, encoder
from specdec_lib.datastores.reduction import Moments, Reduction, fit
from specdec_lib.datastores.sharded import MANIFEST, SHARD, ShardedStore, write_shards
from specdec_lib.datastores.states import States
from specdec_lib.datastores.store_files import StoreError
from specdec_lib.datastores.tokens import TokenStore, tokenizer_fingerprint, tokenizer_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: What was asked for, in a folder that is not finished.
BUILD = "build.json"


@dataclass(frozen=True)
class ShardJob:
    """One shard that is to be built; it travels to where it is built."""

    folder: Path
    documents: Iterable[str]
    tokenizer: PreTrainedTokenizerBase
    options: dict[str, Any]

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
    """Build a store of as many shards as there are ``parts``, each an iterable of texts.

    The same call after an interruption goes on where it was, and returns at once where the store is finished.

    ``build`` builds shards and gives the folder of each: :func:`build_here`, or
    :func:`~specdec_lib.datastores.ray_data.build_shards`, for which parts must be picklable and all nodes must see ``path``. Of
    ``max_tokens`` each shard takes no more than an equal share. The rest is as for
    :func:`~specdec_lib.datastores.build.build_tokens`.
    """
    if not parts:
        raise ValueError("there are no parts; expected the documents of one shard or more")
    path = store_files.located(path)
    key = {"tokenizer": tokenizer_fingerprint(tokenizer), "shards": len(parts), "max_tokens": max_tokens}
    key |= {"sources": list(sources), "short_documents": "skip"}
    most = None if max_tokens is None else max(1, max_tokens // len(parts))
    options = {"sources": list(sources), "max_tokens": most}
    store_files.check_target(path, MANIFEST, "store of shards")
    with store_files.build_lock(path):
        files.recover(path)
        if (path / MANIFEST).is_file():
            if ShardedStore.open(path).manifest["build"] != key:
                raise StoreError(f"{path} holds another store of shards: remove it, or name another folder")
            return
        unfinished = files.beside(path, files.UNFINISHED)
        if store_files.read_json(unfinished / BUILD) != key:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            store_files.write_json(unfinished / BUILD, key)
        jobs = [
            ShardJob(unfinished / SHARD.format(number), documents, tokenizer, options)
            for number, documents in enumerate(parts)
        ]
        missing = [job for job in jobs if not (job.folder / suffix_array.MANIFEST).is_file()]
        done = len(jobs) - len(missing)
        with tqdm(desc="shards", total=len(jobs), initial=done, unit=" shards", disable=not progress) as bar:
            for _ in build(missing):
                bar.update()
        write_shards(unfinished, len(jobs), build=key)
        (unfinished / BUILD).unlink()
        files.flush_folder(unfinished)
        files.swap_in(unfinished, path)


@dataclass(frozen=True)
class DenseJob:
    """One shard whose states are embedded, or indexed by a reduction that is known."""

    shard: Path
    embed: Callable[[TokenStore, Path], States]
    sample: int
    reduction: Reduction | None = None
    options: dict[str, Any] | None = None

    @property
    def states(self) -> Path:
        return files.beside(self.shard, ".states")


def embed_shard(job: DenseJob) -> Moments:
    """Embed a shard; the moments of a sample of its states."""
    return dense.sample_moments(job.embed(TokenStore.open(job.shard), job.states), job.sample)


def index_shard(job: DenseJob) -> int:
    """Index the states of a shard; their number."""
    states = States.open(job.states, TokenStore.open(job.shard))
    target = job.shard / dense.FOLDER
    return len(dense.build_dense_index(target, states, reduction=job.reduction, progress=False, **job.options))


def build_sharded_dense(
    path: str | Path,
    embed: Callable[[TokenStore, Path], States],
    *,
    dims: int = 64,
    sample: int = 1_000_000,
    keep_states: bool = False,
    each: Callable[[Callable, Sequence[DenseJob]], Iterable] = map,
    progress: bool = True,
    **options: Any,
) -> None:
    """Give every shard a dense index, all with one reduction.

    The shards are embedded into ``<shard>.states`` by ``embed``; the reduction is fitted to the moments of ``sample`` states of
    all; then each shard is indexed. States are removed when all is done, so that an interrupted call continues with them.
    ``each`` does the work of each job, in order: ``map``, or :func:`~specdec_lib.datastores.ray_data.map_on_ray`. The rest is
    as for :func:`~specdec_lib.datastores.dense.build_dense_index`.
    """
    store = ShardedStore.open(path)
    shards = [store.path / about["name"] for about in store.manifest["shards"]]
    jobs = [DenseJob(shard, embed, max(1, sample // len(shards))) for shard in shards]
    everything = Moments()
    with tqdm(desc="embedded shards", total=len(jobs), unit=" shards", disable=not progress) as bar:
        for moments in each(embed_shard, jobs):
            everything.merge(moments)
            bar.update()
    reduction = fit(everything, dims)
    jobs = [replace(job, reduction=reduction, options=options) for job in jobs]
    with tqdm(desc="indexed shards", total=len(jobs), unit=" shards", disable=not progress) as bar:
        for _ in each(index_shard, jobs):
            bar.update()
    if not keep_states:
        for job in jobs:
            shutil.rmtree(job.states)
